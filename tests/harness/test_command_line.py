"""The command line as a user meets it: what it teaches, what it refuses, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import NO_SPARK, krucible
from journals import recorded
from long_enough import long_enough
from waiting import until

from nemesis.kinds import KINDS

ROOT = Path(__file__).parents[2]
HEARS_CTRL_C = ("env", "--default-signal=INT")
"""A shell that starts the tests in the background makes their children ignore SIGINT."""


def canary(results: Path, *words: str) -> list[str]:
    return ["run", "--subject", "canary", "--nemesis", "none", "--results", str(results), "--seed", "5", *words]


def newest(results: Path) -> Path:
    return (results / "latest").resolve()


def test_list_names_everything_one_may_type() -> None:
    names = json.loads(krucible("list", "--json").stdout)
    of_kraft = {"kraft", "kraft-apart", "kraft-brokers", "kraft-snapshots", "kraft-voters", "kraft-whole"}
    assert set(names["subjects"]) == {*of_kraft, "kafka", "kafka-brokers", "kafka-mixed", "etcd", "canary"}
    assert {"docker", "namespaces", "ssh", "simulator", "in-process"} == set(names["backends"])
    assert set(names["nemeses"]) == {"none", "all", *KINDS}
    assert {"kraft/stale-read", "kraft/minority-commit", "kraft/divergence-by-offset", "kraft/lone-vote"} <= set(
        names["bugs"]
    )
    assert names["findings"]["mariadb"] == "MariaDB 10.11: lost update, read skew"


def test_a_process_ends_with_its_code_its_output_and_its_exit_functions() -> None:
    script = (
        "import atexit, concurrent.futures, sys, time\nfrom harness.cli import main\n"
        "pool = concurrent.futures.ThreadPoolExecutor(1)\npool.submit(lambda: (time.sleep(0.2), print('thread')))\n"
        "atexit.register(print, 'exit function')\nprint('output')\nsys.argv = ['krucible', 'flounder']\nmain.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout.split("\n")[:3] == ["output", "thread", "exit function"]
    assert "No such command 'flounder'" in done.stderr


def test_a_locale_without_utf_8_is_no_obstacle() -> None:
    script = "from harness.cli import main\nmain._demand_utf8()\nprint('\\N{MIDDLE DOT}')"
    narrow = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, env=narrow, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("\N{MIDDLE DOT}\n".encode(), b"", 0)


@pytest.mark.parametrize("bug", ["", "stale", "lose"])
def test_the_canary_is_judged_though_no_cluster_is_there(tmp_path: Path, bug: str) -> None:
    """On Spark it is judged in test_early_ends."""
    planted = ["--bug", bug] if bug else []

    def run(limit_s: int, hz: int) -> list[str]:
        size = ("--time-limit", str(limit_s), "--rate", str(hz))
        return [sys.executable, "-m", "harness", *canary(tmp_path, *size, *planted, *NO_SPARK)]

    done = long_enough(run, tmp_path, 2, 1500 if bug else 300, ROOT)
    assert done.returncode == bool(bug), done.stdout + done.stderr
    run = newest(tmp_path)
    results = json.loads((run / "results.json").read_text())
    assert results["exit_code"] == done.returncode
    judged_by = f"in process (no Spark master answers at {NO_SPARK[1]} (127.0.0.1:9: Connection refused))"
    assert results["judged_by"] == judged_by and f"judged {judged_by}" in done.stdout
    if bug:
        witnesses = results["checkers"]["linearizability"]["witness"]
        assert witnesses[0]["events"]
        words = " ".join(done.stdout.split())  # click wraps lines between words; lower case follows a colon
        assert any(witness["summary"][1:] in words for witness in witnesses)
        assert results["planted"]["found"] is True
    assert {p.name for p in run.iterdir()} >= {"report.html", "junit.xml", "history.parquet", "test.json"}
    assert str(Path(os.path.relpath(run / "report.html", ROOT)).name) in done.stdout


def test_ctrl_c_keeps_what_was_recorded_and_says_how_to_judge_it(tmp_path: Path) -> None:
    run = canary(tmp_path, "--time-limit", "1000", "--rate", "500", *NO_SPARK)
    words = [*HEARS_CTRL_C, sys.executable, "-m", "harness", *run]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: any(path.stat().st_size >= 100_000 for path in tmp_path.glob("*/*/history.arrows")))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=1000)
    assert process.returncode == 3
    assert re.search(r"(krucible|-m harness) analyze ", out), "as this process was started"
    assert "Traceback" not in out + err
    assert recorded(newest(tmp_path), "outcome")["interrupted"] is True
