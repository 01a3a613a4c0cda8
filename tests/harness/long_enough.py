"""Runs that are repeated where they tested too little: on a busy machine a short or fast one is unknown."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

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
