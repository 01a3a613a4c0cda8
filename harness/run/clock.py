"""The clock of a run: the one value by which the harness reads time and waits.

The recorder, the conductor, its phases and observers of the run get this value and read no other clock.  Limits
(`asyncio.timeout`) and the nemeses wait by the event loop.  So the clock and the loop must show the same time, as
`time.monotonic` and asyncio's own loop do, and as `clock_of` makes sure for any other loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True)
class RunClock:
    """monotonic_ns: ns since an arbitrary beginning. sleep: waits this number of seconds. utc: the date.
    cpu_s: the processor time of the running thread.
    """

    monotonic_ns: Callable[[], int]
    sleep: Callable[[float], Awaitable[None]]
    utc: Callable[[], datetime]
    cpu_s: Callable[[], float]

    def monotonic_s(self) -> float:
        return self.monotonic_ns() / 1e9


MACHINE = RunClock(time.monotonic_ns, asyncio.sleep, lambda: datetime.now(UTC), time.thread_time)
"""The clock of this machine."""


def clock_of(loop: asyncio.AbstractEventLoop, began: datetime) -> RunClock:
    """Return the clock of an event loop with its own time. began: the date at which the loop's time was 0.

    Processor time costs nothing there, so it counts as 0: a run must not depend on the machine that simulates it."""

    def utc() -> datetime:
        return began + timedelta(seconds=loop.time())

    return RunClock(lambda: round(loop.time() * 1e9), asyncio.sleep, utc, lambda: 0.0)
