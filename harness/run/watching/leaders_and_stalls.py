"""Watches a run while it goes on: who leads, whether our own loop stalls, and the line a user sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.backends.backend import HostHealth
from harness.run.clock import Clock
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
class Watch:
    """statuses: the latest status that each node reported.  leaders: every leader seen, in order, as in outcome.json.
    processor: node -> what it measured of its processors (`checkers.record.outcome.ProcessorSums`).
    reports: each change of what a node reported (`checkers.record.outcome.Report`).
    late_ms: how late this event loop woke up, ten times a second.  seen: called with every answer of all nodes."""

    subject: Subject
    nodes: Sequence[Node]
    recorder: Recorder
    clock: Clock
    statuses: dict[str, NodeStatus] = field(default_factory=dict)
    leaders: list[dict[str, object]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    stalls: list[dict[str, float]] = field(default_factory=list)
    processor: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)
    _last_report: dict[str, dict[str, Any]] = field(default_factory=dict)
    seen: Callable[[Sequence[NodeStatus]], None] = lambda statuses: None

    async def ask(self) -> list[NodeStatus]:
        """The status that every node reports now; silent nodes are left out."""
        answers = await asyncio.gather(*(self._status(node) for node in self.nodes))
        fresh = [s for s in answers if s is not None]
        self.statuses = {s.node: s for s in fresh}
        seen = {(entry["node"], entry["epoch"]) for entry in self.leaders}
        for s in sorted(fresh, key=lambda s: s.epoch):
            if s.role == "leader" and (s.node, s.epoch) not in seen:
                self.leaders.append({"time_ns": self.recorder.now_ns(), "node": s.node, "epoch": s.epoch})
        self._keep_reports(fresh)
        self.seen(fresh)
        return fresh

    def _keep_reports(self, fresh: Sequence[NodeStatus]) -> None:
        """Add each report that differs from the last one of its node; else that one still stands.  It does not stand
        through a silence: what a node was while it could not be asked is not known."""
        now_ns = self.recorder.now_ns()
        answered = {status.node for status in fresh}
        self._last_report = {node: last for node, last in self._last_report.items() if node in answered}
        for status in fresh:
            said = {"node": status.node, "epoch": status.epoch, "role": status.role, "leader": status.leader}
            said |= {"disk": status.disk} if status.disk else {}
            last = self._last_report.get(status.node)
            if last is not None and said.items() <= last.items():
                last |= {"until_ns": now_ns, "looks": last["looks"] + 1}
            elif len(self.reports) < REPORTS_MAX:
                self._last_report[status.node] = {"time_ns": now_ns, "until_ns": now_ns, "looks": 1, **said}
                self.reports.append(self._last_report[status.node])

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
                self.stalls.append({"time_ns": self.recorder.now_ns(), "stall_ms": round(late_ms, 1)})

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
                    rows.append({"time_ns": time_ns, **{name: round(value, 3) for name, value in sums.items()}})
            await self.clock.sleep(PROCESSOR_EVERY_S)

    async def flush(self) -> None:
        """Bring the history to disk once a second, for ever."""
        while True:
            await self.clock.sleep(1.0)
            self.recorder.flush()
