"""The final reads: every object is read until that is ok, and once more at each server.

Where a workload states that all servers must come to answer the same, each is read again and again until they do, or
until the time is over.

A copy that is old or empty shows only where it is read itself.  A system that has not recovered is read for a short
time, too: what it lacks must be seen.  Where a workload states that its final reads need a recovered system,
`checkers.judging.pipeline.set_aside_unrecovered` tells what they show from what they may show only now.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from checkers.base.demands import READS_OF_A_SERVER
from harness.judge.demands_of_run import reads_each_server_at_end
from harness.run.clock import RunClock
from harness.run.context import RunContext
from harness.run.interpreter import Interpreter
from system_under_test.client import Outcome, Placement, Request
from workloads.workload import Workload

READ_LIMIT_S = 20.0
"""For the reads at one server."""
UNRECOVERED_LIMIT_S = 5.0
"""For all reads of a system that has not recovered: most of them would never be ok."""
AGAIN_S = 0.5
"""Between two rounds of reads of servers that must come to answer the same."""


async def final_reads(run: RunContext) -> None:
    """Read every object, for as long as the system may take to recover."""
    reads = FinalReads(run.workload, run.interpreter, run.spec.placements(), run.clock)
    each = reads_each_server_at_end(run.subject.declares, run.workload)
    servers = [node.name for node in run.nodes] if each else []
    recovery = run.outcome.recovery
    recovered = recovery is None or recovery.recovered is not False
    try:
        await reads.run(recovered, run.spec.recovery_limit_s, servers, run.progress.detail)
    finally:
        run.outcome = replace(run.outcome, final_reads=reads.by_key, final_reads_by_server=reads.by_server)


class FinalReads:
    """by_key: key -> "ok" or the last error.  by_server: the same for each server that was read."""

    def __init__(
        self, workload: Workload, interpreter: Interpreter, placements: Sequence[Placement], clock: RunClock
    ) -> None:
        self._requests: Sequence[Request] = workload.final()
        self._until_same = workload.final_until_same
        self._clock = clock
        self._interpreter = interpreter
        self._placements = placements
        self.by_key: dict[str, str] = {}
        self.by_server: dict[str, dict[str, str]] = {}

    async def run(
        self, recovered: bool, limit_s: float, servers: Collection[str], detail: Callable[[str], None]
    ) -> None:
        """servers: each is read once more, by a client of its own.  detail: takes what is awaited."""
        limit_s, each_s = (limit_s, READ_LIMIT_S) if recovered else (UNRECOVERED_LIMIT_S, UNRECOVERED_LIMIT_S)
        self.by_key = await self._interpreter.until_ok(self._requests, limit_s, detail)
        own = {name: [p for p in self._placements if p.thread % len(servers) == i] for i, name in enumerate(servers)}
        served = {name: clients[:1] for name, clients in own.items() if clients}
        few = self._requests[:READS_OF_A_SERVER]
        until_s = self._clock.monotonic_s() + limit_s
        while not await self._read_each(few, served, each_s) and self._clock.monotonic_s() < until_s:
            detail("the servers do not answer the same yet")
            await self._clock.sleep(AGAIN_S)

    async def _read_each(
        self, few: Sequence[Request], served: Mapping[str, Sequence[Placement]], limit_s: float
    ) -> bool:
        """Read every server once.  Return True if they agreed, or need not agree."""
        answers: dict[str, dict[str, object]] = {name: {} for name in served}

        def hearing(name: str) -> Callable[[Request, Outcome], None]:
            def heard(request: Request, outcome: Outcome) -> None:
                answers[name][f"{request.f} {request.key}"] = (outcome.type, outcome.value, _unordered(outcome.payload))

            return heard

        reading = (
            self._interpreter.until_ok(few, limit_s, askers=one, heard=hearing(name)) for name, one in served.items()
        )
        self.by_server = dict(zip(served, await asyncio.gather(*reading), strict=True))
        one_answer = all(each == next(iter(answers.values())) for each in answers.values())
        return one_answer or not self._until_same


def _unordered(payload: str | None) -> object:
    """A list without its order: two servers may show one set in two orders."""
    shown = None if payload is None else json.loads(payload)
    return sorted(map(str, shown)) if isinstance(shown, list) else shown
