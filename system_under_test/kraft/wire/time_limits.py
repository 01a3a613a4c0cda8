"""Time limits of many requests, of which nearly all are answered long before: a timing wheel.

A timer of the loop for each request costs as much as half of a request's other bookkeeping.  Here the limits that end
within the same TICK_S share one timer; to begin and to end a limit costs one entry in a dictionary each.  A limit rings
up to TICK_S late, and never early.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

TICK_S = 0.05

_Ring = Callable[[], None]


class TimeLimit:
    """One limit that runs; made by `TimeLimits.begin`."""

    __slots__ = ("_ring", "_running")

    def __init__(self, running: dict[TimeLimit, None], ring: _Ring) -> None:
        self._running = running
        self._ring = ring
        running[self] = None

    def end(self) -> bool:
        """End the limit.  False if it was over already: it has rung, or was ended before."""
        return self._running.pop(self, self) is None

    def expire(self) -> None:
        """Ring, unless the limit is over."""
        if self.end():
            self._ring()


class TimeLimits:
    """By the clock of the loop that runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wheel: dict[int, dict[TimeLimit, None]] = {}

    def begin(self, limit_s: float, ring: _Ring) -> TimeLimit:
        """`ring` is called once, after limit_s, unless the limit is ended before.  limit_s: not negative."""
        tick = math.ceil((self._loop.time() + limit_s) / TICK_S)
        running = self._wheel.get(tick)
        if running is None:
            running = self._wheel[tick] = {}
            self._loop.call_at(tick * TICK_S, self._turn, tick)
        return TimeLimit(running, ring)

    def close(self) -> None:
        """End all limits."""
        for running in self._wheel.values():
            running.clear()

    def _turn(self, tick: int) -> None:
        for limit in list(self._wheel.pop(tick)):
            limit.expire()
