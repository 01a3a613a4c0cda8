"""Measure how fast this machine is, in one number, so that a goal can be a multiple of it and not a number of seconds.

The kernel sorts, sums and walks over a few hundred thousand integers: the kind of work that judging is made of.  The
least of several runs counts, in CPU seconds, so other processes disturb it little.  A goal was set on a machine where
the kernel took REFERENCE_S; here it is worth `factor()` times as many seconds.
"""

from __future__ import annotations

import time
from functools import cache

import numpy as np

REFERENCE_S = 0.036
"""What the kernel took on the machine that the goals were set on."""

_REPEATS = 7
_SIZE = 400_000


@cache
def factor() -> float:
    """The kernel's time here, divided by its time where the goals were set; measured once in a process."""
    return min(_seconds() for _ in range(_REPEATS)) / REFERENCE_S


def _seconds() -> float:
    numbers = np.random.default_rng(1).integers(0, 1 << 40, _SIZE)
    began = time.process_time()
    ordered = np.sort(numbers, kind="stable")
    total = int(np.cumsum(ordered)[-1])
    for number in ordered[: _SIZE // 4].tolist():
        total ^= number
    assert total
    return time.process_time() - began
