"""Measure how long something takes: seconds of the wall clock, of each of some runs."""

from __future__ import annotations

import time
from collections.abc import Callable


def taken_s(work: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of each run, in order."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return taken


def least_s(work: Callable[[], object], times: int = 1) -> float:
    """Return the seconds of the fastest run: other processes only make runs longer."""
    return min(taken_s(work, times))
