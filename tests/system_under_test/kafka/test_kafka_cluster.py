"""Apache Kafka: which archives it runs from, how its processes are configured, and small runs for real.

Controllers of Kafka and bundled ones: logs of a real quorum of both, and what Kafka's own tool reads in them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import NO_SPARK

from checkers.base.history import Type
from harness.backends import namespaces_backend as backend
from harness.registry import check_names, load_subject, load_workload
from harness.spec import Spec, WrongSpec
from system_under_test.client import Outcome, Request
from system_under_test.kafka.bundled import DUMPED, KafkaBrokers, KafkaMixed
from system_under_test.kafka.process import HOME, KafkaProcess, jars_of, java
from system_under_test.kafka.system import Kafka
from system_under_test.kraft.collected.two_implementations import same_bytes
from system_under_test.own.subject import Subject
from system_under_test.subject import Collected
from workloads.kafka import AssignedConsumer

ROOT = Path(__file__).parents[3]


def test_a_version_comes_from_maven_and_a_home_from_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HOME, raising=False)
    assert "<artifactId>kafka_2.13</artifactId><version>4.4.0<" in jars_of("", "").made.files["pom.xml"]
    assert "<artifactId>kafka_2.13</artifactId><version>4.3.0<" in jars_of("4.3.0", "").made.files["pom.xml"]
    built = [
        tmp_path / "core/build/libs",
        tmp_path / "clients/build/libs",
        tmp_path / "core/build/dependant-libs-2.13.18",
    ]
    for folder, name in zip(built, ("kafka_2.13-4.5.0-SNAPSHOT", "kafka-clients-4.5.0", "slf4j-api"), strict=True):
        folder.mkdir(parents=True)
        (folder / f"{name}.jar").write_bytes(b"")
    assert {*jars_of("", str(tmp_path)).folders} == {*map(str, built)}
    monkeypatch.setenv(HOME, str(tmp_path))
    assert jars_of("", "").folders and not jars_of("4.3.0", "").folders
    with pytest.raises(ValueError, match=r"no kafka_\*\.jar"):
        jars_of("", str(built[1]))


def test_releases_to_upgrade_through_come_into_a_folder_each() -> None:
    subject = load_subject(Spec(subject="kafka-mixed", set="versions=4.3.1 4.4.0"))
    assert subject.versions is not None and [*subject.versions.names] == ["4.3.1", "4.4.0"]
    made = subject.needs.jars.made
    assert made is not None and [*made.files] == ["4.3.1.xml", "4.4.0.xml"]
    assert [command[-1] for command in made.commands] == [f"-DoutputDirectory=jars/{v}" for v in ("4.3.1", "4.4.0")]
    assert '-cp "$KRUCIBLE_JARS/4.4.0/*" kafka.Kafka' in java("kafka.Kafka", "4.4.0")
    for wrong, words in (
        ("versions=4.3.1 4.4.0,version=4.4.0", "set neither version nor home"),
        ("versions=4.3 4.4.0", "not '4.3'"),
    ):
        with pytest.raises(WrongSpec, match=words):
            load_subject(Spec(subject="kafka", set=wrong))


def test_a_folder_without_kafka_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WrongSpec, match="name an unpacked release"):
        check_names(Spec(subject="kafka", workload="kafka-queue", set=f"home={tmp_path}"))


def test_controllers_apart_are_processes_of_their_own() -> None:
    assert dict(load_subject(Spec(subject="kafka")).processes) == {}
    assert [*load_subject(Spec(subject="kafka", set="controllers=apart")).processes] == ["controller", "broker"]
    with pytest.raises(WrongSpec, match="controllers"):
        load_subject(Spec(subject="kafka", set="controllers=aprat"))


@pytest.mark.parametrize("spec", [("kafka", "controllers=apart"), ("kafka-brokers", ""), ("kafka-mixed", "bundled=1")])
async def test_a_controller_has_the_number_of_its_node(spec: tuple[str, str]) -> None:
    """A copied data directory names its node by this number, and so does a quorum-state."""
    written = await written_by(*spec)
    assert "node.id=102" in written["kafka.properties"].splitlines()
    assert "node.id=2" in written.get("controller.properties", "") or '"node_id": 2' in written["controller.json"]
    assert "controller.quorum.voters=1@198.18.0.10:9093,2@198.18.0.11:9093,3@" in written["kafka.properties"]


async def test_bundled_controllers_get_levels_and_snapshots() -> None:
    for settings, elr, cut in (
        ("", None, False),
        ("features=eligible.leader.replicas.version:1,snapshots=often", 1, True),
    ):
        config = json.loads((await written_by("kafka-brokers", settings))["controller.json"])
        levels = config["brokers"]["features"]
        assert (levels["metadata.version"], levels.get("eligible.leader.replicas.version")) == (25, elr)
        assert ("metadata.max.retention.bytes" in config) is cut
    with pytest.raises(WrongSpec, match="numbers as levels"):
        load_subject(Spec(subject="kafka-brokers", set="features=group.version:one"))


async def written_by(name: str, settings: str) -> dict[str, str]:
    """Return the configuration files of the second of three nodes."""
    written: dict[str, str] = {}

    async def write(name: str, text: str) -> None:
        written[name] = text

    nodes = [SimpleNamespace(index=index, name=f"n{index + 1}", address=f"198.18.0.1{index}") for index in range(3)]
    for node in nodes:
        node.data_dir, node.trace_dir, node.path, node.python = "/disk", "/trace", "/disk/{}".format, ["python3"]
        node.write, node.version = write, ""
    subject = load_subject(Spec(subject=name, set=settings))
    assert isinstance(subject, Subject)
    commands = await subject.system.start(nodes[1], nodes)  # type: ignore[arg-type]
    assert [*commands] == [*subject.processes] == ["controller", "broker"]
    return written


def test_a_printed_command_keeps_what_has_another_default_for_kafka() -> None:
    """Five nodes are usual, but not for Kafka: without the option, the command would run three."""
    assert load_subject("kafka").usual.keys() <= {"nodes", "rate_hz", "keys"}
    words = Spec(subject="kafka", workload="kafka-queue").words()
    assert {"--nodes", "--rate", "--keys", "--time-limit", "--recovery-limit"} <= {*words}


def test_a_process_gets_its_roles_and_its_own_properties() -> None:
    controllers = {101: "198.18.0.11:9093", 102: "198.18.0.12:9093"}
    text = KafkaProcess(2, ("broker",), controllers, settings={"num.io.threads": 4}).properties("198.18.0.12", "/disk")
    values = dict(line.split("=", 1) for line in text.splitlines())
    assert len(values) == len(text.splitlines())
    assert (values["process.roles"], values["listeners"]) == ("broker", "PLAINTEXT://198.18.0.12:9092")
    assert values["controller.quorum.voters"] == "101@198.18.0.11:9093,102@198.18.0.12:9093"
    assert (values["num.io.threads"], values["log.dirs"]) == ("4", "/disk/kafka")
    of_controller = KafkaProcess(101, ("controller",), controllers, "controller").properties("198.18.0.11", "/disk")
    assert "advertised.listeners" not in of_controller


def test_a_consumer_goes_on_behind_what_an_answer_showed() -> None:
    def heard(consumer: AssignedConsumer, f: str, type_: Type, payload: str = "") -> AssignedConsumer:
        found = consumer.heard(Request(f, "k0"), Outcome(type_, payload=payload))
        assert isinstance(found, AssignedConsumer)
        return found

    assigned = heard(AssignedConsumer("k0"), "assign", Type.OK, '["k0"]')
    polled = heard(assigned, "poll", Type.OK, '[["poll", {"k0": [[0, 7], [2, 8]]}]]')
    assert (assigned.offset, polled.offset) == (0, 3)
    assert heard(polled, "poll", Type.OK, '[["poll", {"k0": []}]]').offset == 3
    assert heard(polled, "poll", Type.FAIL).offset == 3, "a lost answer is asked for again"
    assert heard(polled, "poll", Type.INFO).offset == -1, "another process assigns anew"
    assert load_workload(Spec(subject="kafka", workload="kafka-queue")).wrong_request(Request("poll", "k0", 3)) == ""


def run_small(*words: str) -> str:
    """Return what a valid run prints."""
    return of_module("harness", "run", *words, "--all", *NO_SPARK)


def of_module(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900
    )
    if "cannot be made: mvn" in done.stderr + done.stdout:
        pytest.skip("no registry answers")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _missing() -> str:
    if not os.environ.get(HOME) and shutil.which("mvn") is None:
        return f"neither {HOME} nor Maven is there"
    if shutil.which("java") is None:
        return "no Java"
    return backend.why_unavailable() or ""


@pytest.mark.nightly
@pytest.mark.namespaces
@pytest.mark.skipif(bool(_missing()), reason=_missing())
def test_a_node_goes_on_in_the_next_release_and_the_levels_rise(tmp_path: Path) -> None:
    words = ["--subject", "kafka", "--workload", "kafka-queue", "--set", "versions=4.3.1 4.4.0", "--nodes", "1"]
    words += ["--nemesis", "upgrade", "--backend", "namespaces", "--seed", "3", "--rate", "4", "--keys", "2"]
    words += ["--time-limit", "26", "--concurrency", "8", "--op-timeout", "10", "--holds", "1"]
    printed = run_small(*words, "--waive", "rate,operations,concurrency,elections", "--results", str(tmp_path))
    assert "valid  kafka-read-to-end" in printed and "valid  vacuity" in printed
    (log,) = tmp_path.glob("*/*/nodes/n1/server.log")
    assert re.findall(r"Kafka version: (\S+)", log.read_text()) == ["4.3.1", "4.4.0"]
    copies = sorted(tmp_path.glob("*/*/nodes/n1/copies/*/kafka/__cluster_metadata-0"))
    shown = of_module("system_under_test.kraft", "dump", str(copies[-1]))
    assert {*re.findall(r"name='metadata.version', level=(\d+)", shown)} == {"30", "33"}


@pytest.mark.namespaces
@pytest.mark.skipif(bool(_missing()), reason=_missing())
@pytest.mark.parametrize(
    ("subject", "nodes", "workload"),
    [
        pytest.param("kafka", "1", "kafka-moves", marks=pytest.mark.nightly),
        ("kafka", "1", "kafka-admin"),
        ("kafka", "1", "kafka-processing"),
        ("kafka-brokers", "1", "kafka-moves"),
        ("kafka-mixed", "2", "kafka-queue"),
    ],
)
def test_a_workload_runs(tmp_path: Path, subject: str, nodes: str, workload: str) -> None:
    """As few brokers as can be, so that they start in seconds: a run with faults needs three."""
    words = ["--subject", subject, "--workload", workload, "--backend", "namespaces", "--nemesis", "none"]
    words += ["--nodes", nodes, "--seed", "3"]
    words += ["--rate", "4", "--time-limit", "8", "--keys", "2", "--concurrency", "8", "--results", str(tmp_path)]
    printed = run_small(*words, "--op-timeout", "10", "--waive", "rate,operations,concurrency")
    for checker in load_workload(Spec(subject=subject, workload=workload)).checkers:
        assert f"valid  {checker}" in printed
    shown = "two-implementations" if subject == "kafka-mixed" else "partition-chain"
    assert f"valid  {shown}" in printed


FILES = Path(__file__).parent / "mixed-quorum.tar.xz"
"""A log of Kafka 4.4.0, files of a bundled node beside it, and the output of DumpLogSegments about these."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder: n1 is a controller of Kafka, n2 a bundled one."""
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path / "files", filter="data")
    files, folder = tmp_path / "files", tmp_path / "nodes" / "n2" / DUMPED
    shutil.copytree(files / "bundled", folder)
    shutil.copy(files / "dump.txt", folder)
    for node, which in (("n1", "java"), ("n2", "bundled")):
        to = tmp_path / "nodes" / node / "copies" / "0" / "controller" / "__cluster_metadata-0"
        shutil.copytree(files / which, to, ignore=shutil.ignore_patterns("*.checkpoint"))
    return tmp_path


def compared(run: Path) -> list[tuple[str, str, int, str | None, str | None]]:
    subject = load_subject(Spec(subject="kafka-mixed"))
    assert isinstance(subject, Subject) and isinstance(subject.system, KafkaMixed)
    copies = [Collected(0, "final", n, "stopped", run / "nodes" / n / "copies" / "0") for n in ("n1", "n2")]
    return [tuple(row.values()) for row in subject.system.comparisons(run, copies)]  # type: ignore[misc]


def test_both_implementations_agree(run: Path) -> None:
    read, equal = "records that DumpLogSegments reads as we do", "batches of equal bytes"
    rows = compared(run)
    assert [row[:2] for row in rows] == [("n2", read)] * 3 + [("n1, n2", equal)]
    assert [row[2] for row in rows[:3]] == [332, 351, 571]
    assert rows[3][2] > 100
    assert all(row[3:] == (None, None) for row in rows)


def test_a_difference_is_named(run: Path) -> None:
    dump = run / "nodes" / "n2" / DUMPED / "dump.txt"
    text = dump.read_text()
    for wrong, words in (
        (text.replace("CLIENT_QUOTA", "TOPIC", 1), "DumpLogSegments reads record"),
        (text.replace("isvalid: true", "isvalid: false", 1), "DumpLogSegments reads unreadable"),
        (re.sub(r"\n\|[^\n]*", "", text, count=1), "00000000000000000000.log: we read"),
    ):
        dump.write_text(wrong)
        assert any(words in row[3] for row in compared(run) if row[3] is not None), words
    dump.unlink()
    assert [row[4] for row in compared(run)] == [*[None] * 3, "it did not run", None]


def test_logs_that_hold_other_bytes_are_named_and_a_tail_of_another_epoch_is_not(run: Path, tmp_path: Path) -> None:
    java, ours = (run / "nodes" / n / "copies/0/controller/__cluster_metadata-0" for n in ("n1", "n2"))
    count, differs = same_bytes(java, ours)
    assert count > 100 and differs is None
    path = ours / "00000000000000000332.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    fewer, differs = same_bytes(java, ours)
    assert fewer < count and differs is None, "only as far as both reach"
    path.unlink()
    (ours / "00000000000000000000.log").rename(ours / "00000000000000000001.log")
    assert same_bytes(java, ours)[0] == 0


@pytest.mark.parametrize(
    ("line", "complains"),
    [
        ("Encountered fatal fault: Error loading metadata log record from offset 7", True),
        ("Encountered metadata loading fault: Unable to apply PARTITION_RECORD record at offset 5", True),
        ("Encountered fatal fault: Unexpected error in raft IO thread", False),  # a disk may have failed
        ("Execution of HighWatermarkUpdate failed due to x", True),
        ("Replaying record CoordinatorRecord(key=ConsumerGroupMetadataKey(groupId='g'), value=null) failed", True),
    ],
)
def test_a_process_that_cannot_replay_a_record_complains(line: str, complains: bool) -> None:
    for system in (Kafka, KafkaBrokers, KafkaMixed):
        assert bool(re.search(system.complaints, f"[2026] ERROR {line}", re.MULTILINE)) is complains
