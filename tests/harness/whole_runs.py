"""Whole runs in a process of their own, as a user starts them, for tests of what comes out of them.

They are repeated where they tested too little: on a busy machine a short or fast one is unknown.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from journals import recorded

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 22
RATE_HZ = 60
SMALL = ("--nodes", "3", "--rate", str(RATE_HZ), "--keys", "5", "--concurrency", "8")


def command(results: Path, backend: str, seed: int, *words: str) -> list[str]:
    limit = ("--time-limit", str(TIME_LIMIT_S))
    run = ["run", "--backend", backend, "--results", str(results), "--seed", str(seed), *SMALL, *limit, *words]
    return [sys.executable, "-m", "harness", *run]


def enough(
    results: Path, backend: str, *words: str, time_limit_s: int = TIME_LIMIT_S, rate_hz: int = RATE_HZ
) -> subprocess.CompletedProcess[str]:
    """A run that tested enough to be valid or invalid."""

    def run(limit_s: int, hz: int) -> list[str]:
        return command(results, backend, 7, *words, "--time-limit", str(limit_s), "--rate", str(hz))

    return long_enough(run, results, time_limit_s, rate_hz, ROOT)


def ended(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=1000, check=False)


def results_of(results: Path) -> dict:
    return json.loads((results / "latest" / "results.json").read_text())


def outcome_of(results: Path) -> dict:
    return recorded(results / "latest", "outcome")


UNKNOWN = 2
SLOWER = (1, 2, 4, 12)
LONGER_MAX = 4
RUN_LIMIT_S = 1000
TOO_LITTLE = {"vacuity"}
"""The checker that is unknown because the machine was busy.  An unknown verdict of any other one fails the test."""


def long_enough(
    run: Callable[[int, int], Sequence[str]], results: Path, time_limit_s: int, rate_hz: int, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """The first run that does not end as unknown, or the last one.  Each takes longer, and asks less in a second.

    run: gives the command for a time limit in seconds and a rate.  results: the folder of its results.
    """
    for slower in SLOWER:
        words = run(min(slower, LONGER_MAX) * time_limit_s, rate_hz // slower)
        done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False)
        if done.returncode != UNKNOWN or slower == SLOWER[-1]:
            break
        verdicts = json.loads((results / "latest" / "results.json").read_text())
        unknown = {name for name, entry in verdicts["checkers"].items() if entry["verdict"] == "unknown"}
        assert unknown <= TOO_LITTLE, done.stdout + done.stderr
    return done
