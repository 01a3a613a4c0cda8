"""Measure what Kafka's own clients and their own tests find of the bundled KRaft: makes
docs/notebook/kafka-compatibility.md and docs/notebook/kafka-brokers-compatibility.md.

    python -m bench.kafka_compatibility            run all, write the page
    python -m bench.kafka_compatibility --only kafka-python,aiokafka
    python -m bench.kafka_compatibility --brokers  the same tests against Kafka, and Kafka's brokers on our controllers

Three nodes, each broker and controller, run on loopback.  Against them run:

    librdkafka      its own tests, in C, from the crate rdkafka-sys (built once, some minutes of CPU); against brokers
                    of Kafka all that need no other settings and tools
    kafka-python    its own integration tests of administration, from its source distribution on PyPI
    aiokafka, confluent-kafka, kcat
                    the admin work of their documents

The tests of kafka-python are written for one node, broker 0, and have it.  The sources are fetched with cargo and pip
and kept under the cache folder, as are the last results of each suite, from which the page of --brokers is made.
Bundled nodes keep no data of topics.  So tests that produce or consume fail, and the page says which.  Exit status: 0
if no test of administration fails; with --brokers, if both clusters pass the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from checkers.base.cache_folder import cache_folder
from harness.backends.builds import fetch_jars
from system_under_test.kafka.bundled import FEATURES, RELEASE
from system_under_test.kafka.jars import VERSION, jars_of
from system_under_test.kafka.process import BROKER_PORT, CLUSTER_ID, CONTROLLER_PORT, KafkaProcess
from system_under_test.kafka.wire import BROKERS_APART
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import codec
from system_under_test.kraft.wire.versions import DESCRIBE_CLUSTER
from system_under_test.system import OwnNode

ROOT = Path(__file__).parents[1]
OUTCOMES = ("passed", "failed", "skipped")
PAGE = ROOT / "docs" / "notebook" / "kafka-compatibility.md"
BESIDE = PAGE.with_name("kafka-brokers-compatibility.md")
KRAFT, KAFKA, BROKERS = "kraft", "kafka", "kafka-brokers"
"""Clusters: bundled nodes, nodes of Kafka, and brokers of Kafka on bundled controllers."""
CRATE = "4.10.0+2.12.1"
KAFKA_PYTHON, AIOKAFKA, CONFLUENT = "3.0.12", "0.14.0", "2.16.1"
KAFKA_VERSION = "4.1.0"
"""Version of Kafka as which the nodes are presented to the tests."""

LIBRDKAFKA, KAFKA_PYTHON_SUITE, CONFLUENT_SUITE = "librdkafka", "kafka-python", "confluent-kafka"

KNOWN_VERSION = "4.3.0"
"""The newest version of Kafka that this kafka-python can tell from older ones."""
WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}

TEST_LIMIT_S = 180
SUITE_LIMIT_S = 600

ADMIN = (
    "0063",
    *(
        f"0081 {subtest}"
        for subtest in (
            "do_test_unclean_destroy",
            "do_test_CreateTopics",
            "do_test_DeleteTopics",
            "do_test_CreatePartitions",
            "do_test_CreateAcls",
            "do_test_DescribeAcls",
            "do_test_DeleteAcls",
            "do_test_AlterConfigs",
            "do_test_IncrementalAlterConfigs",
            "do_test_DescribeConfigs",
            "do_test_DescribeTopics",
            "do_test_DescribeCluster",
            "do_test_UserScramCredentials",
        )
    ),
)
"""Tests of librdkafka, and their parts, that ask for metadata alone."""

OTHERS = ("0001", "0004", "0009", "0080", "0095", "0110")
"""Some that produce or consume, or that need no cluster."""

WITH_TOPICS = (
    *("0001", "0002", "0003", "0005", "0007", "0008", "0011", "0012", "0013", "0014", "0015", "0017", "0018", "0019"),
    *("0020", "0021", "0022", "0026", "0029", "0030", "0031", "0033", "0034", "0035", "0036", "0038", "0039", "0040"),
    *("0041", "0042", "0044", "0048", "0049", "0050", "0051", "0053", "0054", "0055", "0056", "0057", "0059", "0060"),
    *("0061", "0063", "0064", "0065", "0067", "0068", "0069", "0070", "0073", "0075", "0076", "0081", "0082", "0083"),
    *("0084", "0085", "0086", "0088", "0089", "0090", "0091", "0092", "0093", "0094", "0099", "0101", "0102", "0103"),
    *("0110", "0112", "0113", "0114", "0118", "0122", "0123", "0125", "0127", "0129", "0130", "0132", "0137", "0139"),
    *("0140", "0150", "0153"),
)
"""All that ask a cluster, but for those that need security, Kafka's scripts, its clients in Java, or other settings."""
PATIENCE = 4
"""Factor of the time limits in tests against brokers of Kafka, whose virtual machines share this one."""


@dataclass(frozen=True, slots=True)
class Result:
    """outcome: passed, failed or skipped.  why: one line for people."""

    suite: str
    test: str
    outcome: str
    why: str = ""


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--only", default=",".join(SUITES), help="comma-separated: " + ", ".join(SUITES))
    parser.add_argument("--brokers", action="store_true", help=f"run {KAFKA} and {BROKERS} instead of {KRAFT}")
    arguments = parser.parse_args(argv)
    chosen = arguments.only.split(",")
    if unknown := [name for name in chosen if name not in SUITES]:
        print(f"there is no suite {unknown[0]!r}; there are: {', '.join(SUITES)}", file=sys.stderr)
        return 3
    found = {on: results_on(on, chosen) for on in ((KAFKA, BROKERS) if arguments.brokers else (KRAFT,))}
    if arguments.brokers:
        kept = {on: [each for name in SUITES for each in newest_results(on, name)] for on in found}
        BESIDE.write_text(page_of_brokers(kept, [name for name in SUITES if newest_results(BROKERS, name)]))
        return 1 if differing(found) else 0
    if set(chosen) == set(SUITES):
        PAGE.write_text(page(found[KRAFT]))
    return 1 if any(each.outcome == "failed" and each.test not in OTHERS for each in found[KRAFT]) else 0


def results_on(on: str, suites: Sequence[str]) -> Sequence[Result]:
    """Run these suites, each against a fresh cluster of a kind."""
    folder = _folder()
    results: list[Result] = []
    for name in suites:
        print(f"{name} on {on} …", flush=True)
        with cluster((0,) if name == KAFKA_PYTHON_SUITE else (1, 2, 3), on) as bootstrap:
            found = list(SUITES[name](folder, bootstrap, on != KRAFT))
        results += found
        _kept(on, name).write_text(json.dumps([asdict(each) for each in found]))
        print(f"{name}: {sum(each.outcome == 'passed' for each in found)} of {len(found)} passed", flush=True)
    for each in results:
        if each.outcome == "failed":
            print(f"failed: {each.suite} {each.test} {each.why}")
    return results


def newest_results(on: str, suite: str) -> Sequence[Result]:
    """Return what the last run of a suite found on this machine, nothing if there was none."""
    kept = _kept(on, suite)
    return [Result(**each) for each in json.loads(kept.read_text())] if kept.exists() else []


def _kept(on: str, suite: str) -> Path:
    return _folder() / f"{suite}-on-{on}.json"


def _folder() -> Path:
    folder = cache_folder() / "outside"
    folder.mkdir(exist_ok=True)
    return folder


# -- The cluster


@contextmanager
def cluster(ids: Sequence[int], on: str) -> Iterator[list[str]]:
    """Start nodes on loopback, yield the addresses of their brokers, and end them with the block."""
    folder = Path(tempfile.mkdtemp(prefix="kafka-compatibility-"))
    running: list[subprocess.Popen[bytes]] = []
    try:
        if on == KRAFT:
            ports = _free_ports(len(ids))
            addresses = [f"127.0.0.1:{port}" for port in ports]
            peers = {f"n{number}": [number, "127.0.0.1", port] for number, port in zip(ids, ports, strict=True)}
            running += [_bundled(folder / name, peers, name, "broker,controller") for name in peers]
        else:
            hosts = {number: f"127.0.{os.getpid() % 250}.{number + 1}" for number in ids}
            addresses = [f"{host}:{BROKER_PORT}" for host in hosts.values()]
            running += asyncio.run(_with_brokers_of_kafka(folder, hosts, on))
        asyncio.run(_registered(addresses))
        yield addresses
    finally:
        for process in running:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _bundled(home: Path, peers: Mapping[str, Sequence[object]], name: str, roles: str) -> subprocess.Popen[bytes]:
    """Start a bundled node.  peers: name -> its id, host and port."""
    number, host, port = peers[name]
    home.mkdir()
    config = {
        "node_id": number,
        "name": name,
        "cluster_id": CLUSTER_ID,
        "listen": f"{host}:{port}",
        "peers": peers,
        "data_dir": str(home / "data"),
        "trace_dir": str(home / "trace"),
        "seed": 1,
        "process.roles": roles,
        **({"brokers": {"features": FEATURES}} if roles == "controller" else {}),
    }
    (home / "node.json").write_text(json.dumps(config))
    argv = [sys.executable, "-m", "system_under_test.kraft", "--config", str(home / "node.json")]
    subprocess.run([*argv, "--format"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return _started(argv, home, ROOT)


def _started(argv: Sequence[str], home: Path, directory: Path) -> subprocess.Popen[bytes]:
    with (home / "output.log").open("wb") as output:
        return subprocess.Popen(argv, cwd=directory, stdout=output, stderr=output)


@dataclass(frozen=True, slots=True)
class _Home:
    """A folder of this machine, in which a process of Kafka runs as on a node."""

    address: str
    data_dir: str

    async def write(self, name: str, text: str) -> None:
        (Path(self.data_dir) / name).write_text(text)


async def _with_brokers_of_kafka(folder: Path, hosts: Mapping[int, str], on: str) -> list[subprocess.Popen[bytes]]:
    """Start a broker of Kafka on each host, and its controller: in the same process, or a bundled one."""
    jars = fetch_jars(jars_of("", ""), lambda _: None, threading.Event())
    apart = BROKERS_APART if on == BROKERS else 0
    controllers = {number + apart: f"{host}:{CONTROLLER_PORT}" for number, host in hosts.items()}
    peers = {f"n{number}": [number + apart, host, CONTROLLER_PORT] for number, host in hosts.items()}
    roles, release = (("broker",), ("--release-version", RELEASE)) if apart else (("broker", "controller"), ())
    running = [_bundled(folder / name, peers, name, "controller") for name in peers] if apart else []
    for number, host in hosts.items():
        home = folder / f"broker-{number}"
        home.mkdir()
        settings = {"auto.create.topics.enable": "true", "num.partitions": 4, **WITH_ACLS}
        process = KafkaProcess(
            number, roles, controllers, replicas=min(3, len(hosts)), settings=settings, format_options=release
        )
        line = await process.command(cast(OwnNode, _Home(host, str(home))))
        running.append(_started(["env", f"KRUCIBLE_JARS={jars}", "bash", "-c", line], home, home))
    return running


async def _registered(addresses: Sequence[str], limit_s: float = 120.0) -> None:
    """Wait until every node names all brokers as alive.  Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        for address in addresses:
            while await _brokers_known(address) < len(addresses):  # noqa: ASYNC110 - another process knows
                await asyncio.sleep(0.2)


async def _brokers_known(address: str) -> int:
    """Return how many brokers the node at `address` names as alive; 0 if it does not answer."""
    host, _, port = address.partition(":")
    connection = Connection(host, int(port), "compatibility")
    types = codec(DESCRIBE_CLUSTER, 0).requests
    try:
        answer = await connection.ask(types.DescribeClusterRequest(include_cluster_authorized_operations=False))
    except OSError:
        return 0
    finally:
        connection.close()
    return len(answer.brokers)


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


# -- librdkafka


def librdkafka(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    tests = _built(folder) / "tests"
    config, report = folder / "test.conf", folder / "test.json"
    patience = PATIENCE if with_data else 1
    config.write_text(f"bootstrap.servers={','.join(bootstrap)}\ntest.timeout.multiplier={patience}\n")
    for name in WITH_TOPICS if with_data else (*ADMIN, *OTHERS):
        number, _, part = name.partition(" ")
        environment = {
            **os.environ,
            "RDKAFKA_TEST_CONF": str(config),
            "LD_LIBRARY_PATH": "../src:../src-cpp",
            "TESTS": number,
            "TEST_KAFKA_VERSION": VERSION if with_data else KAFKA_VERSION,
            "TEST_REPORT": str(report),
        } | ({"SUBTESTS": part} if part else {})
        report.unlink(missing_ok=True)
        try:
            done = subprocess.run(
                ["./test-runner", "-p1"], cwd=tests, env=environment, capture_output=True, timeout=TEST_LIMIT_S
            )
            passed, said = done.returncode == 0, done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            passed, said = False, (late.stdout or b"") + b"\nno end within the limit"
        ran = report.exists() and b'"PASSED"' in b"".join(_STATES.findall(report.read_bytes()))
        outcome = "failed" if not passed else "passed" if ran else "skipped"
        yield Result(LIBRDKAFKA, name, outcome, "" if outcome == "passed" else _why(said))


_STATES = re.compile(rb'"name": "\d[^"]*", "state": ("\w+")')
_FAILED = re.compile(rb"###[^\n]*failed at[^\n]*###\S*\n([^\n]+)|SKIPPING TEST: ([^\n\x1b]+)")


def _why(output: bytes) -> str:
    """The first failure or reason to skip that the runner of the tests reports, without colours."""
    found = _FAILED.search(output)
    line = found[1] or found[2] if found else output.strip().rpartition(b"\n")[2]
    return re.sub(r"\x1b\[[0-9;]*m", "", line.decode(errors="replace")).strip()


def _built(folder: Path) -> Path:
    """The folder of librdkafka with its tests built."""
    source = folder / f"librdkafka-{CRATE.partition('+')[2]}"
    if (source / "tests" / "test-runner").exists():
        return source
    fetched = folder / "fetch"
    (fetched / "src").mkdir(parents=True, exist_ok=True)
    (fetched / "src" / "lib.rs").write_text("")
    (fetched / "Cargo.toml").write_text(
        f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\nrdkafka-sys = "={CRATE}"\n'
    )
    _run(["cargo", "vendor", "--versioned-dirs", "vendor"], fetched)
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(fetched / "vendor" / f"rdkafka-sys-{CRATE}" / "librdkafka", source)
    (source / "lds-gen.py").chmod(0o755)
    _run(["bash", "./configure", "--disable-ssl", "--disable-gssapi", "--disable-curl"], source)
    for part in (["-C", "src"], ["-C", "src-cpp"], ["-C", "tests", "build"]):
        _run(["nice", "-n", "10", "make", "-j2", *part], source)
    return source


# -- Clients in Python, in an environment of their own


def kafka_python(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    """Its integration tests; what its source distribution lacks is stubbed: the broker runs already."""
    python = _environment(folder)
    source = folder / f"kafka_python-{KAFKA_PYTHON}"
    if not source.exists():
        requirement = f"kafka-python=={KAFKA_PYTHON}"
        _run([python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", requirement], folder)
        shutil.unpack_archive(folder / f"kafka_python-{KAFKA_PYTHON}.tar.gz", folder)
    (source / "test" / "__init__.py").write_text("")
    (source / "test" / "service.py").write_text(_SERVICE)
    (source / "conftest.py").write_text(_CONFTEST)
    report = folder / "kafka-python.xml"
    report.unlink(missing_ok=True)
    version = KNOWN_VERSION if with_data else KAFKA_VERSION
    environment = {"KAFKA_URI": f"kafka://{bootstrap[0]}", "KAFKA_VERSION": version, "KAFKA_ROOT": "/tmp"}
    files = [f"test/integration/test_{part}_integration.py" for part in (WITH_DATA if with_data else ("admin",))]
    argv = [python, "-m", "pytest", "-q", *files, f"--junitxml={report}"]
    argv += ["--timeout=60", "--timeout-method=signal", "-p", "no:cacheprovider"]
    argv += [] if with_data else ["-k", WITHOUT_DATA]
    with (folder / "kafka-python.log").open("wb") as output:
        try:
            subprocess.run(
                argv, cwd=source, env=os.environ | environment, stdout=output, stderr=output, timeout=SUITE_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            yield Result(KAFKA_PYTHON_SUITE, "all", "failed", "no end within the limit")
            return
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if problem is None else "skipped" if problem.tag == "skipped" else "failed"
        why = "" if problem is None else (problem.get("message") or "").strip().partition("\n")[0]
        yield Result(KAFKA_PYTHON_SUITE, case.get("name", ""), outcome, why)


WITHOUT_DATA = "not delete_groups and not delete_records and not group_exists"
"""The tests that administer groups and records begin by producing some."""
WITH_DATA = ("admin", "consumer", "producer")
"""Files of its integration tests that need no other security than none."""

_SERVICE = '''"""A broker that runs already: what the source distribution lacks."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def start(self): ...
    def stop(self): ...
    def wait_for(self, *args, **kwargs): ...


class SpawnedService(ExternalService): ...
'''

_CONFTEST = """import py

from test.integration.fixtures import KafkaFixture, ZookeeperFixture


def _open(self):
    self.tmp_dir = py.path.local.mkdtemp()
    self.start()


KafkaFixture.open = _open
ZookeeperFixture.instance = classmethod(lambda cls, host=None, port=None, external=False: None)
"""


def aiokafka(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    """The admin client of its documents."""
    done = subprocess.run(
        [_environment(folder), "-c", _AIOKAFKA, bootstrap[0]], capture_output=True, text=True, timeout=TEST_LIMIT_S
    )
    yield from _of_lines("aiokafka", done)


_AIOKAFKA = """
import asyncio, sys
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

async def main():
    admin = AIOKafkaAdminClient(bootstrap_servers=sys.argv[1])
    await admin.start()
    topic = ConfigResource(ConfigResourceType.TOPIC, "of-aiokafka")
    works = {
        "create_topics": lambda: admin.create_topics([NewTopic("of-aiokafka", 2, 3)]),
        "list_topics": lambda: admin.list_topics(),
        "describe_topics": lambda: admin.describe_topics(["of-aiokafka"]),
        "describe_cluster": lambda: admin.describe_cluster(),
        "create_partitions": lambda: admin.create_partitions({"of-aiokafka": NewPartitions(4)}),
        "describe_configs": lambda: admin.describe_configs([topic]),
        "alter_configs": lambda: admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, "of-aiokafka", configs={"retention.ms": "5"})]
        ),
        "delete_topics": lambda: admin.delete_topics(["of-aiokafka"]),
    }
    for name, work in works.items():
        try:
            answer = await work()
            errors = [e for e in getattr(answer, "topic_errors", ()) if e[1]]
            print(name, f"{errors[0]}" if errors else "", sep="\\t")
        except Exception as problem:
            print(name, repr(problem), sep="\\t")
    await admin.close()

asyncio.run(main())
"""


def confluent(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    """The admin client of its documents; what it calls are futures of librdkafka."""
    done = subprocess.run(
        [_environment(folder), "-c", _CONFLUENT, bootstrap[0]], capture_output=True, text=True, timeout=TEST_LIMIT_S
    )
    yield from _of_lines(CONFLUENT_SUITE, done)


_CONFLUENT = """
import sys, time
from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, AlterConfigOpType, ConfigEntry,
    ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourcePatternType, ResourceType, ScramCredentialInfo,
    ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion,
)

admin = AdminClient({"bootstrap.servers": sys.argv[1], "socket.timeout.ms": 20_000})
NAME = "of-confluent"
topic, partition = ConfigResource(ResourceType.TOPIC, NAME), TopicPartition(NAME, 0)
acl = (ResourceType.TOPIC, NAME, ResourcePatternType.LITERAL, "User:u", "*", AclOperation.READ, AclPermissionType.ALLOW)
scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)

def altered():
    entry = ConfigEntry("retention.ms", "7", incremental_operation=AlterConfigOpType.SET)
    return admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, NAME, incremental_configs=[entry])])

works = {
    "create_topics": lambda: admin.create_topics([NewTopic(NAME, 2, 3)]),
    "list_topics": lambda: admin.list_topics(timeout=20),
    "describe_topics": lambda: admin.describe_topics(TopicCollection([NAME])),
    "describe_cluster": lambda: admin.describe_cluster(),
    "create_partitions": lambda: admin.create_partitions([NewPartitions(NAME, 4)]),
    "describe_configs of a topic": lambda: admin.describe_configs([topic]),
    "describe_configs of a broker": lambda: admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]),
    "incremental_alter_configs": altered,
    "alter_configs": lambda: admin.alter_configs([ConfigResource(ResourceType.TOPIC, NAME, {"segment.ms": "9"})]),
    "create_acls": lambda: admin.create_acls([AclBinding(*acl)]),
    "describe_acls": lambda: admin.describe_acls(AclBindingFilter(*acl)),
    "delete_acls": lambda: admin.delete_acls([AclBindingFilter(*acl)]),
    "alter_user_scram_credentials": lambda: admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("u", scram, b"password", b"salt")]
    ),
    "describe_user_scram_credentials": lambda: admin.describe_user_scram_credentials(["u"]),
    "alter_user_scram_credentials, deletion": lambda: admin.alter_user_scram_credentials(
        [UserScramCredentialDeletion("u", ScramMechanism.SCRAM_SHA_256)]
    ),
    "list_offsets": lambda: admin.list_offsets({partition: OffsetSpec.latest()}),
    "elect_leaders": lambda: admin.elect_leaders(ElectionType.PREFERRED, [partition]),
    "delete_topics": lambda: admin.delete_topics([NAME]),
}
def tried(work):
    answer = work()
    for future in answer.values() if isinstance(answer, dict) else [answer]:
        if hasattr(future, "result"):
            future.result(20)

LATER = KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.RESOURCE_NOT_FOUND  # a broker hears late of what was acknowledged
until = time.monotonic() + 40
for name, work in works.items():
    why = None
    while why is None:
        try:
            tried(work)
            why = ""
        except Exception as problem:
            late = isinstance(problem, KafkaException) and problem.args[0].code() in LATER
            why = None if late and time.monotonic() < until else repr(problem)
            time.sleep(0.1)
    print(name, why, sep="\\t")
"""


def _of_lines(suite: str, done: subprocess.CompletedProcess[str]) -> Iterator[Result]:
    """One result for each line, `test TAB why it failed`, and one more if the script did not reach its end."""
    for line in done.stdout.splitlines():
        name, _, why = line.partition("\t")
        yield Result(suite, name, "failed" if why else "passed", why)
    if done.returncode:
        yield Result(suite, "script", "failed", done.stderr.strip().rpartition("\n")[2])


def kcat(folder: Path, bootstrap: list[str], with_data: bool) -> Iterator[Result]:
    if shutil.which("kcat") is None:
        yield Result("kcat", "-L", "skipped", "kcat is not installed")
        return
    done = subprocess.run(["kcat", "-L", "-b", bootstrap[0]], capture_output=True, text=True, timeout=TEST_LIMIT_S)
    passed = done.returncode == 0 and f"{len(bootstrap)} brokers" in done.stdout
    yield Result("kcat", "-L", "passed" if passed else "failed", "" if passed else done.stderr.strip())


def _environment(folder: Path) -> str:
    """A Python with the clients."""
    home = folder / "clients"
    python = home / "bin" / "python"
    clients = [f"kafka-python=={KAFKA_PYTHON}", f"aiokafka=={AIOKAFKA}", f"confluent-kafka=={CONFLUENT}"]
    complete = home / "complete"
    if not complete.exists() or complete.read_text().split() != clients:
        _run([sys.executable, "-m", "venv", "--clear", str(home)], folder)
        wanted = ["pytest", "pytest-timeout", "pytest-mock", "py", *clients]
        _run([str(python), "-m", "pip", "install", "-q", *wanted], folder)
        complete.write_text("\n".join(clients))
    return str(python)


def _run(argv: Sequence[str], folder: Path) -> None:
    """Raises SystemExit with the last words of a command that fails."""
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


SUITES: Mapping[str, Callable[[Path, list[str], bool], Iterator[Result]]] = {
    LIBRDKAFKA: librdkafka,
    KAFKA_PYTHON_SUITE: kafka_python,
    "aiokafka": aiokafka,
    CONFLUENT_SUITE: confluent,
    "kcat": kcat,
}


# -- The page


def page(results: Sequence[Result]) -> str:
    lines = [
        "# What Kafka's own clients find",
        "",
        "`python -m bench.kafka_compatibility` made this page. Three nodes ran on loopback, each broker and controller",
        f"(`process.roles=broker,controller`), presented as Kafka {KAFKA_VERSION}; for kafka-python, whose tests name",
        "broker 0 alone, one node ran. Nodes keep no data of topics yet, so tests that produce or consume fail;",
        "those of kafka-python are not run.",
        "",
        "| suite | what it is | passed | failed | skipped |",
        "|---|---|---|---|---|",
    ]
    words = {
        LIBRDKAFKA: f"its own tests in C, crate rdkafka-sys {CRATE}",
        KAFKA_PYTHON_SUITE: f"its own integration tests of administration, {KAFKA_PYTHON}",
        "aiokafka": f"the admin client of its documents, {AIOKAFKA}",
        CONFLUENT_SUITE: f"the admin client of its documents, {CONFLUENT}",
        "kcat": "the listing of its documents, as Debian packages it",
    }
    for suite, what in words.items():
        counts = [sum(r.suite == suite and r.outcome == o for r in results) for o in OUTCOMES]
        lines.append(f"| {suite} | {what} | {counts[0]} | {counts[1]} | {counts[2]} |")
    for outcome, title in (("passed", "Passed"), ("failed", "Failed"), ("skipped", "Skipped")):
        chosen = [each for each in results if each.outcome == outcome]
        if chosen:
            lines += ["", f"## {title}", "", "| suite | test | why |", "|---|---|---|"]
            lines += [f"| {r.suite} | `{r.test}` | {_cell(r.why)} |" for r in chosen]
    return "\n".join(lines) + "\n"


def page_of_brokers(found: Mapping[str, Sequence[Result]], suites: Sequence[str]) -> str:
    lines = [
        "# The same tests against Kafka, and against its brokers on the bundled controllers",
        "",
        f"`python -m bench.kafka_compatibility --brokers` made this page. In `{KAFKA}`, Kafka {VERSION} is broker and",
        f"controller; in `{BROKERS}` its brokers register with bundled controllers. Three nodes of either kind ran on",
        "loopback, one for kafka-python: all of its integration tests of administration, consumers and producers ran.",
        f"librdkafka's own tests in C are of {CRATE.partition('+')[2]}, each for {TEST_LIMIT_S} s at most. On a busy",
        "machine `0055` and `0081` failed for want of time; `0129` makes segments of 20,000 bytes, which Kafka 4.0",
        "refuses. `0113` (l_unsubscribe) expects that two members come in the first rebalance of their group. By the",
        "source, Kafka's default of 3 s for `group.initial.rebalance.delay.ms` sees to that; here it is 0.",
        "",
        f"| suite | passed, failed, skipped on `{KAFKA}` | on `{BROKERS}` |",
        "|---|---|---|",
    ]
    for suite in suites:
        counts = [
            " ".join(str(sum((r.suite, r.outcome) == (suite, outcome) for r in results)) for outcome in OUTCOMES)
            for results in found.values()
        ]
        lines.append(f"| {suite} | {' | '.join(counts)} |")
    for title, chosen in (("Other outcome", differing(found)), ("Passed by neither", _passed_by_neither(found))):
        lines += ["", f"## {title}", ""]
        lines += ["| suite | test | outcome | why |", "|---|---|---|---|"] if chosen else ["None."]
        for suite, test in chosen:
            each = [_outcomes(results).get((suite, test), Result(suite, test, "not run")) for results in found.values()]
            words = "; ".join(dict.fromkeys(one.why for one in each if one.why))
            lines.append(f"| {suite} | `{test}` | {', '.join(one.outcome for one in each)} | {_cell(words)} |")
    return "\n".join(lines) + "\n"


def _outcomes(results: Sequence[Result]) -> Mapping[tuple[str, str], Result]:
    return {(each.suite, each.test): each for each in results}


def differing(found: Mapping[str, Sequence[Result]]) -> Sequence[tuple[str, str]]:
    """Return suite and name of each test that has not the same outcome on both clusters."""
    one, other = (_outcomes(results) for results in found.values())
    every = {**one, **other}
    return [key for key in every if key not in one or key not in other or one[key].outcome != other[key].outcome]


def _passed_by_neither(found: Mapping[str, Sequence[Result]]) -> Sequence[tuple[str, str]]:
    apart = {*differing(found)}
    return [key for key, one in _outcomes(found[KAFKA]).items() if one.outcome != "passed" and key not in apart]


def _cell(words: str) -> str:
    """One line of a table; no address and no random name, so that the page is the same each time."""
    words = re.sub(r"127\.0\.0\.1:\d+", "a broker", words)
    words = re.sub(r"(rnd)[0-9a-f]{8,}", r"\1…", words)
    words = words.replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= 140 else words[:139] + "…"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
