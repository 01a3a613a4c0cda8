"""The interpreter: turns generators into operations, paced, one at a time per process, and records both ends.

A *thread* is a place where a process lives.  After an operation of unknown outcome its process is retired: it might
still take effect at any time, so no later operation may claim to follow it.  The thread goes on as a new process,
`process + concurrency`, with the same generator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic

from checkers.history import Type
from harness.backends.backend import ClientHost
from harness.recorder import Recorder
from system_under_test.client import Outcome, Placement, Request
from workloads.workload import Generator

BACKLOG_S = 1.0
"""How far a thread may fall behind its schedule and still catch up; what is further behind is dropped."""


@dataclass
class Tally:
    """Operations so far, for the progress line and the achieved rate."""

    invoked: int = 0
    by_type: dict[Type, int] = field(default_factory=lambda: dict.fromkeys(Type, 0))


class Interpreter:
    """hosts: client node -> its ClientHost.  rng: thread -> the random stream that paces it."""

    def __init__(
        self,
        placements: Sequence[Placement],
        hosts: Mapping[str, ClientHost],
        recorder: Recorder,
        timeout_s: float,
    ) -> None:
        self.tally = Tally()
        self._placements = placements
        self._hosts = hosts
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._process = {p.thread: p.thread for p in placements}
        self._ended = False
        self._pausing: set[asyncio.Future[None]] = set()

    def end(self) -> None:
        """No thread asks anything more in `run`; operations under way go on to their outcome."""
        self._ended = True
        for pause in self._pausing:
            _wake(pause)

    async def ask(self, placement: Placement, request: Request) -> Outcome:
        """One operation of one thread, recorded; retires the process if the outcome is unknown."""
        process = self._process[placement.thread]
        self._recorder.invoke(process, request)
        self.tally.invoked += 1
        outcome = await self._hosts[placement.client_node].invoke(placement.thread, request, self._timeout_s)
        self._recorder.complete(process, request, outcome)
        self.tally.by_type[outcome.type] += 1
        if outcome.type is Type.INFO:
            self._process[placement.thread] = process + len(self._placements)
        return outcome

    async def run(
        self,
        generator_of: Callable[[Placement], Generator],
        rng_of: Callable[[Placement], Random],
        rate_hz: float,
        until: float,
    ) -> None:
        """Every thread asks what its generator says until `until` (time.monotonic()), at rate_hz over all threads
        (exponential gaps; 0 = without a pause) or until `end`.  Returns when the last operation has its outcome."""
        async with asyncio.TaskGroup() as group:
            for placement in self._placements:
                group.create_task(self._thread(placement, generator_of(placement), rng_of(placement), rate_hz, until))

    async def until_ok(
        self, requests: Sequence[Request], limit_s: float, follow: Callable[[str], None] = lambda _: None
    ) -> dict[str, str]:
        """Ask each request, by threads that follow the leader, again and again until it is ok or `limit_s` is over.
        Returns key -> "ok" or the last error."""
        askers = [p for p in self._placements if p.follows and not p.reads_only] or list(self._placements)
        result = {str(r.key): "not asked: the time was over" for r in requests}
        until = monotonic() + limit_s
        waiting = list(reversed(requests))

        async def asker(placement: Placement) -> None:
            while waiting and monotonic() < until:
                request = waiting.pop()
                outcome = await self.ask(placement, request)
                key = str(request.key)
                result[key] = "ok" if outcome.type is Type.OK else outcome.error or str(outcome.type.name).lower()
                if outcome.type is not Type.OK:
                    waiting.insert(0, request)
                    follow(f"{request.f} {key}: {result[key]}")
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(asker(p) for p in askers))
        return result

    async def _thread(
        self, placement: Placement, generator: Generator, rng: Random, rate_hz: float, until: float
    ) -> None:
        mean_gap_s = len(self._placements) / rate_hz if rate_hz else 0.0
        due = monotonic() + rng.random() * mean_gap_s
        while due < until:
            wait = due - monotonic()
            if wait > 0 and not self._ended:
                await self._pause(wait)
            if self._ended:
                return
            await self.ask(placement, generator.next())
            now = monotonic()
            gap_s = rng.expovariate(1 / mean_gap_s) if mean_gap_s else 0.0
            due = max(due + gap_s, now - BACKLOG_S) if mean_gap_s else now

    async def _pause(self, seconds: float) -> None:
        """A sleep that `end` cuts short."""
        loop = asyncio.get_running_loop()
        pause: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _wake, pause)
        self._pausing.add(pause)
        try:
            await pause
        finally:
            timer.cancel()
            self._pausing.discard(pause)


def _wake(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
