"""A small run on every backend with nodes: valid when nothing is planted, found when something is, gone when killed."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from long_enough import long_enough

from harness.backends.docker import engine
from harness.backends.namespaces import probe
from harness.campaign.nightly import found
from harness.registry import load_subject

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 22
SMALL = ("--nodes", "3", "--rate", "60", "--keys", "5", "--concurrency", "8")

no_docker, no_namespaces = engine.why_unavailable(), probe.why_unavailable()
on_docker = (pytest.mark.docker, pytest.mark.skipif(no_docker is not None, reason=f"no Docker: {no_docker}"))
in_namespaces = (
    pytest.mark.namespaces,
    pytest.mark.skipif(no_namespaces is not None, reason=f"no namespaces: {no_namespaces}"),
)
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


def command(results: Path, backend: str, seed: int, *words: str) -> list[str]:
    limit = ("--time-limit", str(TIME_LIMIT_S))
    run = ["run", "--backend", backend, "--results", str(results), "--seed", str(seed), *SMALL, *limit, *words]
    return [sys.executable, "-m", "harness", *run]


def enough(
    results: Path, backend: str, *words: str, time_limit_s: int = TIME_LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """A run that tested enough to be valid or invalid."""

    def run(limit_s: int) -> list[str]:
        return command(results, backend, 7, *words, "--time-limit", str(limit_s))

    return long_enough(run, results, time_limit_s, ROOT)


def ended(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


def results_of(results: Path) -> dict:
    return json.loads((results / "latest" / "results.json").read_text())


def outcome_of(results: Path) -> dict:
    return json.loads((results / "latest" / "outcome.json").read_text())


def containers_of(run_id: str) -> list[str]:
    listing = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"label=krucible.run={run_id}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listing.stdout.split()


@pytest.mark.parametrize(
    ("backend", "subject", "mutations"),
    [
        pytest.param("docker", "kraft", 9, marks=on_docker),
        pytest.param("namespaces", "etcd", 3, marks=in_namespaces),
    ],
)
def test_a_clean_system_is_valid_under_partitions_and_a_falsified_row_is_noticed(
    tmp_path: Path, backend: str, subject: str, mutations: int
) -> None:
    done = enough(tmp_path, backend, "--subject", subject)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_of(tmp_path)
    assert results["verdict"] == "valid"
    assert results["judged_by"].startswith("Spark")
    faults = json.loads((tmp_path / "latest" / "faults.json").read_text())
    assert faults and {fault["achieved"] for fault in faults} == {"installed"}
    assert (tmp_path / "latest" / "report.html").stat().st_size > 100_000
    online = outcome_of(tmp_path)["online"]
    assert (online["findings"], online["failure"]) == ([], "")
    assert online["looks"] >= 5 and online["completions"] > 200
    assert (online["trace_rows"] > 1000) == (subject == "kraft")
    falsified = ended([sys.executable, "-m", "harness", "mutate", "--changes", "12", str(tmp_path / "latest")])
    assert falsified.returncode == 0, falsified.stdout + falsified.stderr
    assert len(falsified.stdout.splitlines()) >= mutations


@pytest.mark.parametrize(
    "backend", [pytest.param("docker", marks=on_docker), pytest.param("namespaces", marks=in_namespaces)]
)
def test_a_planted_bug_is_found_by_the_checker_it_was_planted_for(tmp_path: Path, backend: str) -> None:
    done = enough(tmp_path, backend, "--bug", "minority-commit")
    assert done.returncode == 1, done.stdout + done.stderr
    assert found(load_subject("kraft").bugs["minority-commit"], results_of(tmp_path))


@pytest.mark.parametrize(
    ("subject", "bug", "time_limit_s"),
    [
        pytest.param("canary", "stale", 60),
        pytest.param("kraft", "minority-commit", 45, marks=on_docker),
        pytest.param("kraft", "lone-vote", 60, marks=(*on_docker, pytest.mark.nightly)),
        pytest.param("kraft", "stale-read", 60, marks=(*on_docker, pytest.mark.nightly)),
    ],
)
def test_a_run_stops_on_a_violation_before_its_time_and_spark_finds_it_too(
    tmp_path: Path, subject: str, bug: str, time_limit_s: int
) -> None:
    where = ("--subject", subject, "--nemesis", "none" if subject == "canary" else "partition")
    size = ("--nodes", "5", "--rate", "200", "--keys", "10", "--concurrency", "10")
    run = (*where, "--bug", bug, *size, "--stop-on-violation")
    done = enough(tmp_path, "auto", *run, time_limit_s=time_limit_s)
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


@pytest.mark.docker
@pytest.mark.skipif(no_docker is not None, reason=f"no Docker: {no_docker}")
def test_a_harness_killed_in_the_middle_of_a_fault_leaves_a_history_and_nothing_else(tmp_path: Path) -> None:
    words = command(tmp_path, "docker", 8)
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_fault(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)
    run_id = json.loads((tmp_path / "latest" / "test.json").read_text())["run_id"]
    until = time.monotonic() + 120
    while containers_of(run_id) and time.monotonic() < until:
        time.sleep(0.2)
    assert not containers_of(run_id)
    judged = ended([sys.executable, "-m", "harness", "analyze", "--in-process", str(tmp_path / "latest")])
    assert judged.returncode == 2, judged.stdout + judged.stderr
    assert results_of(tmp_path)["checkers"]["linearizability"]["verdict"] == "valid"


@pytest.mark.nightly
@pytest.mark.docker
@pytest.mark.skipif(no_docker is not None, reason=f"no Docker: {no_docker}")
def test_two_runs_at_once_do_not_disturb_each_other_s_verdicts(tmp_path: Path) -> None:
    both = [command(tmp_path / str(seed), "docker", seed) for seed in (21, 22)]
    running = [
        subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for words in both
    ]
    assert {process.wait(timeout=390) for process in running} <= {0, 2}


def wait_for_fault(results: Path) -> None:
    until = time.monotonic() + 240
    while time.monotonic() < until:
        for faults in results.glob("*/*/faults.json"):
            if any(fault["injected_ns"] >= 0 for fault in json.loads(faults.read_text())):
                return
        time.sleep(0.1)
    raise AssertionError(f"no fault was injected under {results}")
