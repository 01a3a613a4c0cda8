"""Small runs on every backend with nodes: valid when nothing is planted, and found when something is.

Runs that end early, stopped by a violation or killed in the middle of a fault; and a live system without a leader.
"""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import NO_SPARK, krucible
from docker_things import needs_docker, needs_namespaces
from waiting import until
from whole_runs import ROOT, command, ended, enough, outcome_of, results_of

from checkers.record.faults import Achieved
from checkers.record.run_record import RunRecord
from harness.judge.judge_run import decide
from harness.registry import load_subject
from system_under_test.etcd import BINARY, OF_DEBIAN
from tests.support.records_of_runs import results_in

pytestmark = pytest.mark.timeout(1200)


PACKAGED = pytest.mark.skipif(not Path(BINARY).exists(), reason=f"no {BINARY} here: install Debian's etcd-server")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("backend", "subject", "version", "mutations"),
    [
        pytest.param("docker", "kraft", "", 9, marks=needs_docker),
        pytest.param("namespaces", "etcd", OF_DEBIAN, 3, marks=(*needs_namespaces, PACKAGED)),
        pytest.param("namespaces", "etcd", "", 3, marks=(*needs_namespaces, pytest.mark.nightly)),
    ],
)
def test_a_clean_system_is_valid_under_partitions_and_a_falsified_row_is_noticed(
    tmp_path: Path, backend: str, subject: str, version: str, mutations: int
) -> None:
    """The newest etcd is built from its source at night: that takes minutes of processor time on a new machine."""
    chosen = ("--set", f"version={version}") if version else ()
    done = enough(tmp_path, backend, "--subject", subject, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_of(tmp_path)
    assert results["verdict"] == "valid"
    assert results["judged_by"].startswith("Spark")
    achieved = {fault.achieved for fault in RunRecord(tmp_path / "latest").faults}
    assert achieved - {Achieved.SKIPPED} == {Achieved.INSTALLED}, "a card may find no leader on a busy machine"
    assert (tmp_path / "latest" / "report.html").stat().st_size > 100_000
    online = outcome_of(tmp_path)["online"]
    assert (online["findings"], online["failure"]) == ([], "")
    assert online["looks"] >= 5 and online["completions"] > 100
    assert (online["trace_rows"] > 300) == (subject == "kraft")
    falsified = krucible("mutate", str(tmp_path / "latest"))
    assert falsified.returncode == 0, falsified.stdout + falsified.stderr
    assert len(falsified.stdout.splitlines()) >= mutations


@pytest.mark.spark
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("docker", marks=(*needs_docker, pytest.mark.nightly)),
        pytest.param("namespaces", marks=needs_namespaces),
    ],
)
def test_a_planted_bug_is_found_by_the_checker_it_was_planted_for(tmp_path: Path, backend: str) -> None:
    """On docker, a run that stops early finds it after every change."""
    done = enough(tmp_path, backend, "--bug", "minority-commit", *NO_SPARK)
    assert done.returncode == 1, done.stdout + done.stderr
    assert decide(load_subject("kraft").bugs["minority-commit"], results_in(results_of(tmp_path))).found


@pytest.mark.spark
@pytest.mark.parametrize(
    ("subject", "bug", "time_limit_s"),
    [
        pytest.param("canary", "stale", 60),
        pytest.param("kraft", "minority-commit", 45, marks=needs_docker),
        pytest.param("kraft", "lone-vote", 60, marks=(*needs_docker, pytest.mark.nightly)),
        pytest.param("kraft", "stale-read", 60, marks=(*needs_docker, pytest.mark.nightly)),
    ],
)
def test_a_run_stops_on_a_violation_before_its_time_and_spark_finds_it_too(
    tmp_path: Path, subject: str, bug: str, time_limit_s: int
) -> None:
    where = ("--subject", subject, "--nemesis", "none" if subject == "canary" else "partition")
    size = ("--nodes", "5", "--keys", "10", "--concurrency", "10")
    run = (*where, "--bug", bug, *size, "--stop-on-violation")
    done = enough(tmp_path, "auto", *run, time_limit_s=time_limit_s, rate_hz=200)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "violated: " in done.stdout and "stopping" in done.stdout
    outcome, results = outcome_of(tmp_path), results_of(tmp_path)
    main = next(phase for phase in outcome["phases"] if phase["name"] == "main")
    limit_s = json.loads((tmp_path / "latest" / "test.json").read_text())["spec"]["time_limit_s"]
    assert main["end_ns"] - main["start_ns"] < 1e9 * limit_s
    assert main["start_ns"] < outcome["stopped"]["time_ns"] < main["end_ns"]
    assert results["judged_by"].startswith("Spark")
    for finding in outcome["online"]["findings"]:
        assert results["checkers"][finding["checker"]]["verdict"] == "invalid"
    assert {phase["name"] for phase in outcome["phases"]} >= {"recovery", "final reads", "collection"}
    assert "stopped early" in (tmp_path / "latest" / "report.html").read_text()


@pytest.mark.spark
@needs_docker[0]
@needs_docker[1]
def test_a_harness_killed_in_the_middle_of_a_fault_leaves_a_history_and_nothing_else(tmp_path: Path) -> None:
    words = command(tmp_path, "docker", 8, *NO_SPARK)
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_fault(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)
    run_id = json.loads((tmp_path / "latest" / "test.json").read_text())["run_id"]
    until(lambda: not containers_of(run_id))
    judged = krucible("analyze", "--in-process", str(tmp_path / "latest"))
    assert judged.returncode == 2, judged.stdout + judged.stderr
    assert results_of(tmp_path)["checkers"]["linearizability"]["verdict"] == "valid"


def containers_of(run_id: str) -> list[str]:
    listing = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"label=krucible.run={run_id}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listing.stdout.split()


def wait_for_fault(results: Path) -> None:
    def is_injected() -> bool:
        return any(
            fault.injected_ns >= 0 for test in results.glob("*/*/test.json") for fault in RunRecord(test.parent).faults
        )

    until(is_injected)


NEVER_ELECTS = """
from registers import RegisterClient, Registers

class NeverElects(Registers):
    client = RegisterClient
    failover_s, unavailable_s, elections = 2, 5, True

    async def status(self, node):
        return node.reports(1, "n1")
"""
CARD = {"number": 1, "kind": "pause", "name": "leader", "at_s": 5.0, "heal_s": 20.0}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", [pytest.param("namespaces", marks=needs_namespaces)])
def test_a_majority_that_does_not_serve_is_found(tmp_path: Path, backend: str) -> None:
    system, schedule = tmp_path / "never_elects", tmp_path / "one_pause.json"
    system.mkdir()
    shutil.copy(ROOT / "examples" / "tcp_register.py", system / "registers.py")
    (system / "system.py").write_text(NEVER_ELECTS)
    schedule.write_text(json.dumps({"schedule": 1, "cards": [CARD]}))
    words = ("--subject", str(system), "--schedule", str(schedule), "--nemesis", "pause", "--rate", "20", *NO_SPARK)
    done = ended(command(tmp_path / "results", backend, 7, *words, "--time-limit", "26"))
    checkers = results_of(tmp_path / "results")["checkers"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert {name for name, entry in checkers.items() if entry["verdict"] == "invalid"} == {"availability"}
    (witness,) = checkers["availability"]["witness"]
    assert witness["kind"] == "no operation succeeded"
    assert "although n2 and n3 ran, reached each other and were reached by" in witness["summary"]
    assert witness["summary"] in " ".join(done.stdout.split())
