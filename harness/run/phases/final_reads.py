"""The final reads: every object is read until that is ok, and once more at each server.

A copy that is old or empty shows only where it is read itself.  Some workloads read what a system keeps and not what
its newest state is.  Their final reads show something only once the system has recovered, so they are left out before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from checkers.base.demands import READS_OF_A_SERVER
from harness.judge.demands_of_run import reads_each_server_at_end
from harness.run.context import RunContext
from harness.run.interpreter import Interpreter
from system_under_test.client import Placement, Request
from workloads.workload import Workload

READ_LIMIT_S = 20.0
"""For the reads at one server."""
UNRECOVERED_LIMIT_S = 5.0
"""For all reads of a system that has not recovered: most of them would never be ok."""
NOT_RECOVERED = "the system had not recovered"


async def final_reads(run: RunContext) -> None:
    """Read every object, for as long as the system may take to recover."""
    reads = FinalReads(run.workload, run.interpreter, run.spec.placements())
    each = reads_each_server_at_end(run.subject.declares, run.workload)
    servers = [node.name for node in run.nodes] if each else []
    recovered = bool(run.outcome.recovery.get("recovered", True))
    try:
        await reads.run(recovered, run.spec.recovery_limit_s, servers, run.progress.detail)
    finally:
        run.outcome.final_reads, run.outcome.final_reads_by_server = reads.by_key, reads.by_server


class FinalReads:
    """by_key: key -> "ok" or the last error.  by_server: the same for each server that was read."""

    def __init__(self, workload: Workload, interpreter: Interpreter, placements: Sequence[Placement]) -> None:
        self._requests: Sequence[Request] = workload.final()
        self._needs_recovery = workload.final_needs_recovery
        self._interpreter = interpreter
        self._placements = placements
        self.by_key: dict[str, str] = {}
        self.by_server: dict[str, dict[str, str]] = {}

    async def run(
        self, recovered: bool, limit_s: float, servers: Collection[str], detail: Callable[[str], None]
    ) -> None:
        """servers: each is read once more, by a client of its own.  detail: takes what is awaited."""
        if not recovered and self._needs_recovery:
            self.by_key = {str(request.key): NOT_RECOVERED for request in self._requests}
            return
        limit_s = limit_s if recovered else UNRECOVERED_LIMIT_S
        self.by_key = await self._interpreter.until_ok(self._requests, limit_s, detail)
        own = {name: [p for p in self._placements if p.thread % len(servers) == i] for i, name in enumerate(servers)}
        served = {name: clients[:1] for name, clients in own.items() if clients}
        few = self._requests[:READS_OF_A_SERVER]
        reading = (self._interpreter.until_ok(few, READ_LIMIT_S, askers=one) for one in served.values())
        self.by_server = dict(zip(served, await asyncio.gather(*reading), strict=True))
