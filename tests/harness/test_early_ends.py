"""Runs that end early: stopped by a violation, and judged like any other; or killed in the middle of a fault."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from command_line import NO_SPARK, krucible
from docker_things import needs_docker
from waiting import until
from whole_runs import ROOT, command, enough, outcome_of, results_of

from checkers.record.reading import RunRecord

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


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
