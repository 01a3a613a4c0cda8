"""The Makefile refuses variables that the goal does not take, and empty ones: a slip must not become another test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--dry-run", f"PYTHON={sys.executable}", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["test-partition", "BUGS=stale-read"], "make test-partition takes no variable BUGS; did you mean BUG?"),
        (["test-partition", "BUG="], "BUG= is empty: give it a value, or leave it out"),
        (["demo", "RATE=50"], "make demo takes no variable RATE"),
        (["find-redis", "SEEDS=3"], "did you mean SEED?"),
        (["nightly", "MINUTES=3"], "It takes BACKEND"),
    ],
)
def test_a_slip_is_refused_before_anything_runs(words: list[str], refusal: str) -> None:
    ended = make(*words)
    assert ended.returncode == 2
    assert refusal in ended.stderr and "harness" not in ended.stdout


def test_what_a_goal_takes_is_passed_on() -> None:
    ended = make("test-partition,kill", "BUG=stale-read", "SEED=3", "SUBJECT=my system.py", "BACKEND=docker")
    assert ended.returncode == 0, ended.stderr
    for words in ("--nemesis partition,kill", "--bug 'stale-read'", "--subject 'my system.py'"):
        assert words in ended.stdout
    assert "--keep on-violation" in make("test-kill", "KEEP=on-violation").stdout
    assert "--all" in make("release").stdout
    assert "release results/latest" in make("release", "RUN=results/latest").stdout
    hunt = make("hunt", "HUNT=--nodes 3 --nemesis kill", "MINUTES=5")
    assert "--minutes 5" in hunt.stdout and "--nodes 3 --nemesis kill" in hunt.stdout


def test_a_goal_that_make_calls_itself_is_not_refused_for_the_variables_of_its_caller() -> None:
    ended = make("nightly", "SEEDS=1", "NIGHT=--bug no-fsync", "BACKEND=docker")
    assert ended.returncode == 0, ended.stderr
    assert "nightly --seeds 1 --backend docker" in ended.stdout and "--bug no-fsync" in ended.stdout
    assert "findings --backend docker --times 1" in ended.stdout
