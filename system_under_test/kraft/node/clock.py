"""The clock of an asyncio loop: real time in a container, virtual time wherever the loop itself is virtual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from system_under_test.kraft.ports import Timer


class LoopClock:
    """`ports.Clock` on the running loop, whose `time()` is CLOCK_MONOTONIC on a real one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return self._loop.time()

    def now_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        if when <= self._loop.time():
            return self._loop.call_soon(callback)  # a timer would ring in the same turn, and costs more
        return self._loop.call_at(when, callback)
