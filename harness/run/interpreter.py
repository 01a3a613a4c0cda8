"""The interpreter: it invokes the operations of generators at a given pace, and records each invoke and completion.

A process has one operation at a time.  After an operation with an unknown outcome, its process is retired: the
operation may still take effect at any time, so no later operation may claim to follow it.  A *thread* is a sequence of
processes: it continues as a new process, `process + concurrency`, with the same generator.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import median

from checkers.base.history import Type
from harness.backends.backend import ClientHost
from harness.run.clock import RunClock
from harness.run.recorder import Recorder
from system_under_test.client import CANNOT_BE_MADE, MISTAKE_IN_CODE, Outcome, Placement, Request
from system_under_test.own.read_own_system import CodeMistake
from workloads.generators import Generator, Pace, Steady, ThreadPace, Turn, Wait

RETRY_S = 0.05
"""Seconds until a failed request is invoked again."""


@dataclass
class Tally:
    """Counts of the operations so far, for the progress line and the achieved rate.

    took_s: function -> durations of its ok operations in seconds, as client nodes measured them"""

    invoked: int = 0
    by_type: dict[Type, int] = field(default_factory=lambda: dict.fromkeys(Type, 0))
    took_s: dict[str, array[float]] = field(default_factory=dict)

    def ended(self, f: str, outcome: Outcome) -> None:
        self.by_type[outcome.type] += 1
        if outcome.took_s and outcome.type is Type.OK:
            self.took_s.setdefault(f, array("f")).append(outcome.took_s)

    def took_ms(self) -> dict[str, float]:
        """Return function -> median duration in milliseconds."""
        return {f: round(median(took) * 1e3, 3) for f, took in self.took_s.items()}


class Interpreter:
    """Invoker and recorder of the operations of a run.

    hosts: client node -> its ClientHost
    timeout_s: time limit of an operation"""

    def __init__(
        self,
        placements: Sequence[Placement],
        hosts: Mapping[str, ClientHost],
        recorder: Recorder,
        timeout_s: float,
        clock: RunClock,
    ) -> None:
        self.wrong_request: Callable[[object], str] = lambda request: ""
        """Function of the workload that returns one sentence if no client can execute a request, else ""."""
        self._clock = clock
        self.tally = Tally()
        self._placements = placements
        self._hosts = hosts
        self._recorder = recorder
        self._timeout_s = timeout_s
        self._process = {p.thread: p.thread for p in placements}
        self._ended = False
        self._pausing: set[asyncio.Future[None]] = set()

    def end(self) -> None:
        """End `run`: threads invoke no further operations, and operations in progress continue to their outcome."""
        self._ended = True
        for pause in self._pausing:
            _wake(pause)

    async def ask(self, placement: Placement, request: Request) -> Outcome:
        """Invoke one operation of a thread, and record it.  Retire the process if the outcome is unknown.

        Raises CodeMistake for an error in the user's client or workload, because a run with such an error proves
        nothing about the system.
        """
        if wrong := self.wrong_request(request):
            raise CodeMistake(wrong)
        process = self._process[placement.thread]
        self._recorder.invoke(process, request)
        self.tally.invoked += 1
        outcome = await self._hosts[placement.client_node].invoke(placement.thread, request, self._timeout_s)
        self._recorder.complete(process, request, outcome)
        self.tally.ended(request.f, outcome)
        if outcome.error and outcome.error.startswith(MISTAKE_IN_CODE):
            raise CodeMistake(outcome.error.removeprefix(MISTAKE_IN_CODE))
        if outcome.type is Type.INFO:
            self._process[placement.thread] = process + len(self._placements)
        return outcome

    async def run(
        self,
        generator_of: Callable[[Placement], Generator],
        rng_of: Callable[[Placement], Random],
        pace_rng_of: Callable[[Placement], Random],
        rate_hz: float,
        until: float,
        pace: Pace | None = None,
    ) -> None:
        """Let every thread invoke the requests of its generator until `until` or `end`.  Return when the last operation
        has its outcome.

        rng_of, pace_rng_of: return the random generators for the choices and for the gaps of a thread
        rate_hz: operations per second of all threads, with exponential gaps; 0 for no gaps
        until: end by the clock, in seconds
        """
        thread_pace = ThreadPace(rate_hz / len(self._placements), until, self._clock.monotonic_s(), pace or Steady())
        async with asyncio.TaskGroup() as group:
            for placement in self._placements:
                turn = Turn(placement, len(self._placements), rng_of(placement))
                group.create_task(self._thread(generator_of(placement), turn, pace_rng_of(placement), thread_pace))

    async def until_ok(
        self,
        requests: Sequence[Request],
        limit_s: float,
        follow: Callable[[str], None] = lambda _: None,
        askers: Sequence[Placement] = (),
        heard: Callable[[Request, Outcome], None] = lambda request, outcome: None,
    ) -> dict[str, str]:
        """Repeat each request until it is ok or `limit_s` is over, or until a client reports that it can never be
        created.  Return key -> "ok", or the last error of one of its requests.

        follow: called with a sentence about each failure
        askers: threads that invoke the requests; by default those that write and follow the leader.  A failed request
            goes to the next free thread, because the server of a thread may be down.
        heard: called with each request and its outcome
        """
        leading = [p for p in self._placements if p.follows and not p.reads_only] or self._placements
        result = ["not invoked: the time was over"] * len(requests)
        until = self._clock.monotonic_s() + limit_s
        unanswered = set(range(len(requests)))
        waiting: asyncio.Queue[int | None] = asyncio.Queue()
        for number in range(len(requests)):
            waiting.put_nowait(number)

        async def asker(placement: Placement) -> None:
            while unanswered and (number := await waiting.get()) is not None and self._clock.monotonic_s() < until:
                request = requests[number]
                outcome = await self.ask(placement, request)
                heard(request, outcome)
                result[number] = "ok" if outcome.type is Type.OK else outcome.error or str(outcome.type.name).lower()
                if outcome.type is Type.OK:
                    unanswered.discard(number)
                elif CANNOT_BE_MADE in result[number]:
                    result[:] = [result[number] if words != "ok" else words for words in result]
                    unanswered.clear()
                else:
                    follow(f"{request.f} {request.key}: {result[number]}")
                    await self._clock.sleep(RETRY_S)
                    waiting.put_nowait(number)
                    await asyncio.sleep(0)  # otherwise this thread would get the same request again
            waiting.put_nowait(None)  # ends the next thread that waits

        await asyncio.gather(*(asker(p) for p in askers or leading))
        by_key: dict[str, str] = {}
        for request, words in zip(requests, result, strict=True):
            if by_key.get(str(request.key), "ok") == "ok":
                by_key[str(request.key)] = words
        return by_key

    async def _thread(self, generator: Generator, turn: Turn, rng: Random, pace: ThreadPace) -> None:
        due = self._clock.monotonic_s() + rng.random() * pace.mean_gap_s(self._clock.monotonic_s())
        while due < pace.until:
            wait = due - self._clock.monotonic_s()
            if wait > 0 and not self._ended:
                await self._pause(wait)
            if self._ended:
                return
            turn = replace(turn, time_s=self._clock.monotonic_s() - pace.began)
            step, generator = generator.next(turn)
            if step is None:
                return
            if isinstance(step, Wait):
                due = self._clock.monotonic_s() + step.seconds
                continue
            outcome = await self.ask(turn.placement, step)
            generator = generator.heard(step, outcome)
            turn = replace(turn, count=turn.count + 1)
            due = pace.after(due, self._clock.monotonic_s(), rng)

    async def _pause(self, seconds: float) -> None:
        """Sleep for this number of seconds, or until `end` is called."""
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
