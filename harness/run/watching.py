"""Observers of a running test: leaders, stalls of the harness' own event loop, and online checks.

*Online checks.*  About once a second, new rows of the history, traces and logs are judged in a thread.

The event loop only passes on batches that the recorder has written and no longer changes, and fetches rows of traces
through the agents, outside the data network.  The thread builds tables and text and calls the kernels, which run
without the interpreter's lock.  A look begins only when the previous look has ended.  So a slow machine makes fewer
looks and never has a backlog.  `behind_s` is the longest duration of a look.

Online findings are no verdict.  The sealed run is judged on Spark as usual, and that judgement must have the same
findings (`contradictions`).  If it does not, one of the two is wrong, and the harness reports a failure of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from checkers.base.checker import in_words
from checkers.base.verdict import Validity
from checkers.online import Alarm, OnlineFinding, OnlineKeys, OnlineLogs, OnlineMarks, OnlineTraces, judge_prefix
from checkers.record.header_and_outcome import OnlineChecks, ProcessorSums, Report, SeenLeader, Stall
from harness.backends.backend import HostHealth
from harness.run.clock import RunClock
from harness.run.recorder import Recorder
from system_under_test.own.subject import Subject
from system_under_test.subject import Collected, Live, Node, NodeStatus

STATUS_EVERY_S = 0.25
PROCESSOR_EVERY_S = 2.0
SAMPLES_MAX = 5_000
REPORTS_MAX = 20_000
"""Maximum number of reports, so that a system whose status changes all the time does not fill the memory."""
STALL_MS = 500.0
"""Minimum stall of the harness' event loop, in milliseconds, that is reported.  After a longer stall, the harness may
have caused a measured latency.
"""


@dataclass
class RunWatch:
    """Observations of a running test.

    statuses: node -> its latest status
    leaders: all leaders that were observed, in order
    reports: all changes of the nodes' reports
    stalls: long delays of this event loop
    processor: node -> measurements of its processors
    late_ms: delays of this event loop, measured ten times a second
    seen: called with the statuses of all nodes after each poll
    """

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
    """Node -> index of its latest report in `reports`; no entry for a node that did not answer the latest poll."""
    seen: Callable[[Sequence[NodeStatus]], None] = lambda statuses: None

    async def ask(self) -> list[NodeStatus]:
        """Return the present status of every node that answers."""
        answers = await asyncio.gather(*(self._status(node) for node in self.nodes))
        answered = [(time_ns, status) for time_ns, status in answers if status is not None]
        fresh = [status for _, status in answered]
        self.statuses = {s.node: s for s in fresh}
        seen = {(leader.node, leader.epoch) for leader in self.leaders}
        for s in sorted(fresh, key=lambda s: s.epoch):
            if s.role == "leader" and (s.node, s.epoch) not in seen:
                self.leaders.append(SeenLeader(self.recorder.now_ns(), s.node, s.epoch))
        self._keep_reports(answered)
        self.seen(fresh)
        return fresh

    def _keep_reports(self, answered: Sequence[tuple[int, NodeStatus]]) -> None:
        """Add a new report for each node whose status has changed; otherwise extend the node's last report.  A report
        is not extended after a poll without an answer, because the node's state at that time is unknown.

        Each report has the time of its own answer, because a paused node can delay the end of a poll by seconds.
        """
        standing, self._standing = self._standing, {}
        for now_ns, status in answered:
            now = Report(now_ns, now_ns, 1, status.node, status.epoch, status.role, status.leader, status.disk)
            place = standing.get(status.node, len(self.reports))
            if place < len(self.reports) and _same(self.reports[place], now):
                last = self.reports[place]
                self.reports[place] = replace(last, until_ns=max(last.until_ns, now_ns), looks=last.looks + 1)
            elif len(self.reports) < REPORTS_MAX:
                place = len(self.reports)
                self.reports.append(now)
            else:
                continue
            self._standing[status.node] = place

    async def _status(self, node: Node) -> tuple[int, NodeStatus | None]:
        """Return the time of the node's answer, and the answer."""
        try:
            status = await self.subject.status(node)
        except OSError:
            status = None  # the node's agent does not answer; the next verb that needs the node reports why
        return self.recorder.now_ns(), status

    def leader(self) -> NodeStatus | None:
        """Return the leader of the highest epoch in the nodes' latest reports."""
        leading = [s for s in self.statuses.values() if s.role == "leader"]
        return max(leading, key=lambda s: s.epoch, default=None)

    async def poll(self) -> None:
        """Fetch the status of every node repeatedly, forever."""
        while True:
            await self.ask()
            await self.clock.sleep(STATUS_EVERY_S)

    async def mind_the_loop(self) -> None:
        """Measure, forever, the delays of this event loop."""
        while True:
            before = self.clock.monotonic_s()
            await self.clock.sleep(0.1)
            late_ms = (self.clock.monotonic_s() - before - 0.1) * 1e3
            self.late_ms.append(max(0.0, late_ms))
            if late_ms > STALL_MS:
                self.stalls.append(Stall(self.recorder.now_ns(), round(late_ms, 1)))

    def lateness(self) -> dict[str, float]:
        """Return quantiles of `late_ms`; {} before the first measurement."""
        if not self.late_ms:
            return {}
        in_order = sorted(self.late_ms)
        places = {"p50": 0.5, "p99": 0.99, "most": 1.0}
        return {name: round(in_order[int(share * (len(in_order) - 1))], 1) for name, share in places.items()}

    async def mind_the_machine(self, health: Callable[[], Awaitable[HostHealth]]) -> None:
        """Record, forever, every few seconds the measurements of each node's processors."""
        while True:
            time_ns = self.recorder.now_ns()
            for node, sums in (await health()).processor.items():
                rows = self.processor.setdefault(node, [])
                if sums and len(rows) < SAMPLES_MAX:
                    rows.append(ProcessorSums(time_ns, **{name: round(value, 3) for name, value in sums.items()}))
            await self.clock.sleep(PROCESSOR_EVERY_S)

    async def flush(self) -> None:
        """Flush the history to disk once a second, forever."""
        while True:
            await self.clock.sleep(1.0)
            self.recorder.flush()


def _same(before: Report, now: Report) -> bool:
    """Return True if two reports of a node are equal.  The disk may be missing in the second."""
    said = (now.node, now.epoch, now.role, now.leader)
    return said == (before.node, before.epoch, before.role, before.leader) and now.disk in ("", before.disk)


EVERY_S = 1.0
FETCH_LIMIT_S = 2.0
"""Maximum seconds that a node may take to send new rows.  After that, the next look fetches them."""

LINEARIZABILITY = "linearizability"


class OnlineDisagreement(AssertionError):
    """The online checks and the judgement of the sealed run contradict each other about the same events."""


class Online:
    """The online checks of a run.

    stream: path of the run's history.arrows
    checkers: names of the checkers that will judge the sealed run; rules of other checkers are skipped
    record: counts and findings so far
    found: called on the event loop with the findings of a look and their time in ns since the test began
    """

    def __init__(
        self,
        stream: Path,
        checkers: Collection[str],
        clock: RunClock,
        now_ns: Callable[[], int],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.record = OnlineChecks()
        self._stream = stream
        self._checkers = frozenset(checkers)
        self._clock = clock
        self._now_ns = now_ns
        self.found: Callable[[Sequence[OnlineFinding], int], Awaitable[None]] = _ignored
        self._say = say
        self._batches: list[pa.RecordBatch] = []
        self._lives: Mapping[str, Live] = {}
        self._marks: OnlineMarks | None = None
        self._copies: list[Collected] = []
        self._keys = OnlineKeys()
        self._traces = OnlineTraces()
        self._logs = OnlineLogs()

    def hand_over(self, batch: pa.RecordBatch) -> None:
        """Add the next batch of the history, which is already on disk (the recorder's `on_flush`)."""
        self._batches.append(batch)

    def follow(self, lives: Mapping[str, Live], *, one_clock: bool = False) -> None:
        """Judge the traces and logs of these nodes from their beginning.

        lives: server -> its traces and logs, for all servers
        one_clock: True if all servers share a monotonic clock, so that times of two servers are comparable
        """
        self._lives = lives
        self._marks = OnlineMarks(tuple(lives)) if one_clock else None

    def copied(self, copies: Sequence[Collected]) -> None:
        """Judge, at the next look, the entries in these copies that are beyond the stable part of their logs."""
        self._copies += [copy for copy in copies if copy.node in self._lives]

    async def watch(self) -> None:
        """Look, forever, or until a look fails.  After a failure, the sealed run is judged without online checks."""
        while not self.record.failure:
            began = self._clock.monotonic_s()
            await self.look()
            took_s = round(self._clock.monotonic_s() - began, 3)
            self.record = replace(self.record, behind_s=max(self.record.behind_s, took_s))
            await self._clock.sleep(max(0.0, began + EVERY_S - self._clock.monotonic_s()))
        await asyncio.Event().wait()

    async def look(self) -> None:
        """Judge all rows that are new since the last look."""
        batches, self._batches = self._batches, []
        copies, self._copies = self._copies, []
        answered = await asyncio.gather(*map(_fetched, self._lives.values()))
        fresh = {node: live for (node, live), there in zip(self._lives.items(), answered, strict=True) if there}
        try:
            findings = await asyncio.to_thread(self._judge, batches, fresh, copies)
        except Exception as problem:  # noqa: BLE001 - a failed check proves nothing about the run, which continues
            self.record = replace(self.record, failure=in_words(problem))
            self._say(
                f"  online checks failed and were stopped; the recorded run will be judged ({self.record.failure})"
            )
            return
        if findings:
            time_ns = self._now_ns()
            seen = (*self.record.findings, *(finding.found_at(time_ns) for finding in findings))
            self.record = replace(self.record, findings=seen)
            await self.found(findings, time_ns)

    def _judge(
        self, batches: Sequence[pa.RecordBatch], fresh: Mapping[str, Live], copies: Sequence[Collected]
    ) -> list[OnlineFinding]:
        """Judge new rows, in a separate thread, and return the findings."""
        began = self._clock.cpu_s()
        findings: list[OnlineFinding] = []
        if batches and LINEARIZABILITY in self._checkers:
            findings += self._confirmed(self._keys.take(pa.Table.from_batches(batches)))
            self._withdraw()
        traces = {node: live.trace() for node, live in fresh.items()}
        judged = self._traces.take(list(traces.values()))
        judged += self._marks.take(traces) if self._marks is not None else []
        for live in fresh.values():
            judged += self._logs.take(live.entries())
        for copy in copies:
            judged += self._logs.take(self._lives[copy.node].tail(copy))
        findings += [finding for finding in judged if finding.checker in self._checkers]
        self.record = replace(
            self.record,
            looks=self.record.looks + 1,
            completions=self._keys.judged,
            trace_rows=self._traces.rows,
            log_entries=self._logs.entries,
            cpu_s=round(self.record.cpu_s + self._clock.cpu_s() - began, 6),
        )
        return findings

    def _withdraw(self) -> None:
        """Withdraw findings about keys that later rows made unfit, because the sealed run is not judged on such
        keys."""
        kept = (
            finding
            for finding in self.record.findings
            if finding.checker != LINEARIZABILITY or finding.key not in self._keys.unfit
        )
        self.record = replace(self.record, findings=tuple(kept))

    def _confirmed(self, alarms: Sequence[Alarm]) -> list[OnlineFinding]:
        """Judge the complete history so far of these keys, as the sealed run will be judged, and return the
        violations."""
        if not alarms:
            return []
        verdict = judge_prefix(self._stream, {alarm.key for alarm in alarms})
        wrong = {str(w.facts["key"]): w for w in verdict.witnesses}
        for alarm in alarms:
            if alarm.key in wrong or alarm.why == "not linearizable":
                self._keys.close(alarm.key)
        denied = [a.key for a in alarms if a.why == "not linearizable" and a.key not in wrong]
        if denied and verdict.validity is Validity.VALID:
            raise OnlineDisagreement(f"key {denied[0]}: its full history is linearizable, but online checks said no")
        return [OnlineFinding(LINEARIZABILITY, witness) for witness in wrong.values()]


async def _ignored(findings: Sequence[OnlineFinding], time_ns: int) -> None:
    return None


async def _fetched(live: Live) -> bool:
    """Fetch new rows of a node.  Return False if the node does not answer in time."""
    try:
        async with asyncio.timeout(FETCH_LIMIT_S):
            await live.fetch()
    except OSError:  # TimeoutError too
        return False
    return True
