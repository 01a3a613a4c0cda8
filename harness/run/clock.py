"""The clock of a run, by which the harness reads the time and waits.

The recorder, the conductor, its phases and the observers of the run get the clock as a value and read no other clock.
Timeouts (`asyncio.timeout`) and nemeses wait by the event loop.  So the clock and the loop must show the same time:
`time.monotonic` agrees with asyncio's loop, and `clock_of` returns a clock that agrees with another loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True)
class RunClock:
    """Functions by which a run reads the time and waits.

    monotonic_ns: returns nanoseconds since an arbitrary time
    sleep: waits for a number of seconds
    utc: returns the date and time
    cpu_s: returns the CPU time of the running thread, in seconds
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
    """Return the clock of an event loop that has its own time.

    began: date at which the loop's time was 0
    The clock reports a CPU time of 0, because a simulated run must not depend on the machine that simulates it."""

    def utc() -> datetime:
        return began + timedelta(seconds=loop.time())

    return RunClock(lambda: round(loop.time() * 1e9), asyncio.sleep, utc, lambda: 0.0)
