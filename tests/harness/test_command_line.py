"""The command line as a user meets it: what it teaches, what it refuses, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEARS_CTRL_C = ("env", "--default-signal=INT")
"""Whoever starts the tests in the background lets their children ignore SIGINT."""


def krucible(*words: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)


def canary(results: Path, *words: str) -> list[str]:
    return ["run", "--subject", "canary", "--nemesis", "none", "--results", str(results), "--seed", "5", *words]


def newest(results: Path) -> Path:
    return (results / "latest").resolve()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--subject", "zookeeper"], "unknown subject 'zookeeper'; known: kraft, etcd, canary"),
        (["run", "--workload", "bank"], "unknown workload 'bank'; known: register"),
        (["run", "--nemesis", "flood"], "unknown nemesis 'flood'"),
        (["run", "--backend", "cloud"], "unknown backend 'cloud'"),
        (["run", "--bug", "off-by-one"], "subject kraft has no planted bug 'off-by-one'; it knows: stale-read"),
        (["run", "--nodes", "0"], "--nodes must be at least 1, not 0"),
        (["run", "--no-online", "--stop-on-violation"], "--stop-on-violation needs online checks"),
        (["run", "--time-limit", "soon"], "'soon' is not a valid"),
        (["run", "--spark-master", "node:7077"], "'node:7077' is no address of a Spark master"),
        (["analyze", "results"], "is not a run folder"),
        (["analyze", "/nowhere"], "does not exist"),
        (["flounder"], "No such command 'flounder'"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence_with_exit_code_3(words: list[str], told: str) -> None:
    done = krucible(*words)
    assert done.returncode == 3
    assert told in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_a_schedule_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    schedule.write_text('[{"number": 1}]')
    done = krucible(*canary(tmp_path / "results", "--schedule", str(schedule)))
    assert done.returncode == 3
    assert "schedule.json: card 1 of the schedule must have exactly the fields" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_help_teaches_the_exit_codes_and_a_first_run() -> None:
    told = krucible("--help").stdout
    assert "python -m harness run --nemesis partition" in told
    assert "0 valid, 1 invalid, 2 unknown" in told
    assert "--bug" in krucible("run", "--help").stdout


def test_list_names_everything_one_may_type() -> None:
    names = json.loads(krucible("list", "--json").stdout)
    assert set(names["subjects"]) == {"kraft", "etcd", "canary"}
    assert {"docker", "namespaces", "in-process"} == set(names["backends"])
    assert {"partition", "pause", "kill", "none"} == set(names["nemeses"])
    assert {"kraft/stale-read", "kraft/minority-commit", "kraft/divergence-by-offset", "kraft/lone-vote"} <= set(
        names["bugs"]
    )


@pytest.mark.spark
@pytest.mark.parametrize(("bug", "code"), [(None, 0), ("stale", 1), ("lose", 1)])
def test_the_canary_comes_out_valid_invalid_invalid(tmp_path: Path, bug: str | None, code: int) -> None:
    done = krucible(*canary(tmp_path, "--time-limit", "2", "--rate", "1500", *(["--bug", bug] if bug else [])))
    assert done.returncode == code, done.stdout + done.stderr
    run = newest(tmp_path)
    results = json.loads((run / "results.json").read_text())
    assert results["exit_code"] == code
    assert results["judged_by"].startswith("Spark")
    if bug:
        witness = results["checkers"]["linearizability"]["witness"][0]
        assert witness["events"]
        assert witness["summary"] in done.stdout
    assert {p.name for p in run.iterdir()} >= {"report.html", "junit.xml", "history.parquet", "test.json"}
    assert str(Path(os.path.relpath(run / "report.html", ROOT)).name) in done.stdout


def test_a_cluster_that_is_not_there_is_told_and_the_run_is_judged(tmp_path: Path) -> None:
    nobody = "spark://127.0.0.1:9"
    done = krucible(*canary(tmp_path, "--time-limit", "2", "--bug", "lose", "--spark-master", nobody))
    assert done.returncode == 1, done.stdout + done.stderr
    told = f"in process (no Spark master answers at {nobody} (127.0.0.1:9: Connection refused))"
    assert f"judged {told}" in done.stdout
    assert json.loads((newest(tmp_path) / "results.json").read_text())["judged_by"] == told


def test_a_run_whose_harness_was_killed_can_still_be_judged(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "harness",
        *canary(tmp_path, "--time-limit", "60", "--rate", "500", "--bug", "stale"),
    ]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            stream = wait_for_history(tmp_path, 200_000)
        finally:
            process.send_signal(signal.SIGKILL)
    assert stream.exists()
    done = krucible("analyze", "--in-process", str(newest(tmp_path)))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "linearizability" in done.stdout
    assert (newest(tmp_path) / "report.html").exists()


def test_ctrl_c_keeps_what_was_recorded_and_says_how_to_judge_it(tmp_path: Path) -> None:
    words = [*HEARS_CTRL_C, sys.executable, "-m", "harness", *canary(tmp_path, "--time-limit", "60", "--rate", "500")]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_history(tmp_path, 100_000)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "python -m harness analyze" in out
    assert "Traceback" not in out + err
    assert json.loads((newest(tmp_path) / "outcome.json").read_text())["interrupted"] is True


def wait_for_history(results: Path, size_bytes: int) -> Path:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for stream in results.glob("*/*/history.arrows"):
            if stream.stat().st_size >= size_bytes:
                return stream
        time.sleep(0.1)
    raise AssertionError(f"no history of {size_bytes} bytes appeared under {results}")
