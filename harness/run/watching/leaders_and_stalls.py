"""Watches a run while it goes on: who leads, whether our own loop stalls, and the line a user sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from checkers.record.outcome import ProcessorSums, Report, SeenLeader, Stall
from harness.backends.backend import HostHealth
from harness.run.clock import RunClock
from harness.run.recorder import Recorder
from system_under_test.subject import Node, NodeStatus, Subject

STATUS_EVERY_S = 0.25
PROCESSOR_EVERY_S = 2.0
SAMPLES_MAX = 5_000
REPORTS_MAX = 20_000
"""A system whose status changes with every look does not fill the memory."""
STALL_MS = 500.0
"""A stall of the harness' own loop that is reported: if it lasts longer, a latency may be ours rather than the
subject's."""


@dataclass
class RunWatch:
    """statuses: the latest status that each node reported.  leaders: every leader seen, in order.
    processor: node -> what it measured of its processors.  reports: each change of what a node reported.
    late_ms: how late this event loop woke up, ten times a second.  seen: called with every answer of all nodes."""

    subject: Subject
    nodes: Sequence[Node]
    recorder: Recorder
    clock: RunClock
    statuses: dict[str, NodeStatus] = field(default_factory=dict)
    leaders: list[SeenLeader] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    processor: dict[str, list[ProcessorSums]] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)
    _standing: dict[str, int] = field(default_factory=dict)
    """Node -> the place in `reports` of its report that still stands."""
    seen: Callable[[Sequence[NodeStatus]], None] = lambda statuses: None

    async def ask(self) -> list[NodeStatus]:
        """The status that every node reports now; silent nodes are left out."""
        answers = await asyncio.gather(*(self._status(node) for node in self.nodes))
        fresh = [s for s in answers if s is not None]
        self.statuses = {s.node: s for s in fresh}
        seen = {(leader.node, leader.epoch) for leader in self.leaders}
        for s in sorted(fresh, key=lambda s: s.epoch):
            if s.role == "leader" and (s.node, s.epoch) not in seen:
                self.leaders.append(SeenLeader(self.recorder.now_ns(), s.node, s.epoch))
        self._keep_reports(fresh)
        self.seen(fresh)
        return fresh

    def _keep_reports(self, fresh: Sequence[NodeStatus]) -> None:
        """Add each report that differs from the last one of its node; else that one still stands.  It does not stand
        through a silence: what a node was while it could not be asked is not known."""
        now_ns = self.recorder.now_ns()
        standing, self._standing = self._standing, {}
        for status in fresh:
            now = Report(now_ns, now_ns, 1, status.node, status.epoch, status.role, status.leader, status.disk)
            place = standing.get(status.node, len(self.reports))
            if place < len(self.reports) and _same(self.reports[place], now):
                last = self.reports[place]
                self.reports[place] = replace(last, until_ns=now_ns, looks=last.looks + 1)
            elif len(self.reports) < REPORTS_MAX:
                place = len(self.reports)
                self.reports.append(now)
            else:
                continue
            self._standing[status.node] = place

    async def _status(self, node: Node) -> NodeStatus | None:
        try:
            return await self.subject.status(node)
        except OSError:
            return None  # its agent does not answer now; a verb that needs the node reports why

    def leader(self) -> NodeStatus | None:
        """The leader of the highest epoch that any node reported last."""
        leading = [s for s in self.statuses.values() if s.role == "leader"]
        return max(leading, key=lambda s: s.epoch, default=None)

    async def poll(self) -> None:
        """Fetch the status of every node again and again, for ever."""
        while True:
            await self.ask()
            await self.clock.sleep(STATUS_EVERY_S)

    async def mind_the_loop(self) -> None:
        """Notice, for ever, when this event loop did not run in time."""
        while True:
            before = self.clock.monotonic_s()
            await self.clock.sleep(0.1)
            late_ms = (self.clock.monotonic_s() - before - 0.1) * 1e3
            self.late_ms.append(max(0.0, late_ms))
            if late_ms > STALL_MS:
                self.stalls.append(Stall(self.recorder.now_ns(), round(late_ms, 1)))

    def lateness(self) -> dict[str, float]:
        """Quantiles of `late_ms`; {} while there are none."""
        if not self.late_ms:
            return {}
        in_order = sorted(self.late_ms)
        places = {"p50": 0.5, "p99": 0.99, "most": 1.0}
        return {name: round(in_order[int(share * (len(in_order) - 1))], 1) for name, share in places.items()}

    async def mind_the_machine(self, health: Callable[[], Awaitable[HostHealth]]) -> None:
        """Note every few seconds, for ever, for how long processes waited for a processor on each node."""
        while True:
            time_ns = self.recorder.now_ns()
            for node, sums in (await health()).processor.items():
                rows = self.processor.setdefault(node, [])
                if sums and len(rows) < SAMPLES_MAX:
                    rows.append(ProcessorSums(time_ns, **{name: round(value, 3) for name, value in sums.items()}))
            await self.clock.sleep(PROCESSOR_EVERY_S)

    async def flush(self) -> None:
        """Bring the history to disk once a second, for ever."""
        while True:
            await self.clock.sleep(1.0)
            self.recorder.flush()


def _same(before: Report, now: Report) -> bool:
    """Whether a node reports the same as before, and of the same disk if it names one."""
    said = (now.node, now.epoch, now.role, now.leader)
    return said == (before.node, before.epoch, before.role, before.leader) and now.disk in ("", before.disk)
