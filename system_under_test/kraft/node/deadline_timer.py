"""One timer that rings at the earliest time it was set for."""

from __future__ import annotations

import math
from collections.abc import Callable

from system_under_test.kraft.ports import Clock, Timer


class DeadlineTimer:
    """Times are those of the clock.  An earlier time is left to ring in vain, which is cheaper than to move it."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._at = math.inf

    def set(self, at: float) -> None:
        """Ring at `at`, unless it rings earlier already."""
        if at >= self._at:
            return
        self.cancel()
        self._at = at
        self._timer = self._clock.call_at(at, self._rings)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _rings(self) -> None:
        self._timer, self._at = None, math.inf
        self._ring()
