"""Reads from traces the times of answered heartbeats, of controllers' terms and of appends, the commits that each node
knew, and the registrations of brokers.  All times are ns since the test began.

Two rules concern a broker's registration.  Each compares the broker's own trace with the committed records:

    eligible   If a broker registers without the epoch of its previous incarnation in the log, this incarnation did not
               shut down cleanly and the broker may have lost data (KIP-966).  While the broker stays fenced after this
               registration, it must not be an eligible leader: the controller removes it from all sets of eligible
               leaders, and only a broker that was in sync may be added.
    refused    If an incarnation is registered, and every controller of the run knew this before the incarnation asked
               once more, no controller may refuse it because of another incarnation (KAFKA-16952).

Only a broker's own reports are judged.  If the report or the record of the previous registration is missing, nothing is
judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from checkers.base.arrays import Int64
from checkers.base.stored_rows import coded, numbers, read_trace, words

AWAKE_NS = 1_000_000_000
"""Time in ns.  A process that writes another row after this time has run in between, and would have reported a missing
answer.
"""

START, APPEND, MARK, APPLIED, SNAPSHOT, ROLE, SESSIONS, BROKER = range(8)
_NAMES = ("start", "append", "high-watermark", "applied", "snapshot", "role", "sessions", "broker")
EVENTS = {name: number for number, name in enumerate(_NAMES)}
_OF_REGISTRATIONS = ("registered", "refused")
"""First words of those reports of a broker that are not about heartbeats."""
_COLUMNS = ("epoch", "offset", "time_ns", "incarnation", "role", "detail")


@dataclass(frozen=True, slots=True)
class CommittedRecord:
    offset: int
    epoch: int
    kind: str
    about: str
    fields: dict[str, Any]

    @property
    def broker(self) -> int:
        return int(self.about.rpartition(" ")[2])

    @property
    def fences(self) -> bool:
        return self.kind == "fence broker" or (self.kind == "change broker" and self.fields.get("fenced") == 1)

    @property
    def unfences(self) -> bool:
        return self.kind == "unfence broker" or (self.kind == "change broker" and self.fields.get("fenced") == -1)


class Heard(NamedTuple):
    """Span of time in which a broker's heartbeats were answered.

    At any time from `from_ns` to `to_ns`, the incarnation's last answered heartbeat was sent less than `within_ns`
    before.

    broker_epoch: epoch of the incarnation
    seq: seq of the row that shows the span
    """

    broker_epoch: int
    from_ns: int
    to_ns: int
    within_ns: int
    seq: int


class Registered(NamedTuple):
    """The answer to a broker's registration.

    broker_epoch: epoch that the incarnation got
    previous_epoch: epoch of the previous incarnation, from the file of its clean shutdown; -1 without such a file
    seq: seq of the row that shows the answer
    """

    broker_epoch: int
    previous_epoch: int
    incarnation: str
    seq: int


class RefusedRegistration(NamedTuple):
    """A broker's registration that was refused because of another incarnation.

    sent_ns: time when the request was sent, or a little later
    at_ns: time when the broker received the refusal
    """

    incarnation: str
    sent_ns: int
    at_ns: int
    seq: int


class Office(NamedTuple):
    """A term of a node as the active controller.

    began_ns: time when the term began
    session_ns: duration of a broker's session in ns
    rows: (first, end) of the rows of the node's trace in this term
    """

    node: str
    epoch: int
    began_ns: int
    session_ns: int
    seq: int
    rows: tuple[int, int]


class NodeTrace:
    """The rows of one node, as columns."""

    def __init__(self, node: str, path: str) -> None:
        rows = read_trace(path, EVENTS, _COLUMNS)
        self.node, self.path = node, path
        self.event = coded(rows, "event", EVENTS)
        self.epoch, self.offset, self.time_ns, self.incarnation, self.seq = (
            numbers(rows, name) for name in ("epoch", "offset", "time_ns", "incarnation", "seq")
        )
        self.leads = coded(rows, "role", {"leader": 1}) == 1
        reported = np.flatnonzero((self.event == SESSIONS) | (self.event == BROKER))
        self.detail = dict(zip(reported.tolist(), words(rows.take(reported), "detail"), strict=True))
        knows = np.flatnonzero((self.event == MARK) | (self.event == APPLIED) | (self.event == SNAPSHOT))
        self._knew_ns, self._knew = self.time_ns[knows], np.maximum.accumulate(self.offset[knows])

    def knew(self, time_ns: int) -> int:
        """Return the offset below which this node knew all entries to be committed at this time."""
        at = int(np.searchsorted(self._knew_ns, time_ns, "right"))
        return int(self._knew[at - 1]) if at else 0

    @property
    def largest_mark(self) -> int:
        return int(self.offset[self.event == MARK].max(initial=0))

    def heard(self) -> Iterator[Heard]:
        """Yield the spans in which the broker's heartbeats were answered, as far as later rows prove them."""
        reports = np.flatnonzero((self.event == BROKER) | (self.event == START)).tolist()
        reports = [report for report in reports if self._words(report)[0] not in _OF_REGISTRATIONS]
        for report, following in pairwise([*reports, len(self.event)]):
            word, *values = self._words(report)
            if word == "heard":
                within_ns = int(values[0]) * 1_000_000
                to_ns = self._proven_until(report, following, within_ns)
                from_ns = int(self.time_ns[report])
                yield Heard(int(self.offset[report]), from_ns, to_ns, within_ns, int(self.seq[report]))

    def registrations(self) -> Iterator[Registered]:
        for report, previous, incarnation in self._of_registrations("registered"):
            yield Registered(int(self.offset[report]), previous, incarnation, int(self.seq[report]))

    def refusals(self) -> Iterator[RefusedRegistration]:
        for report, ago_ms, incarnation in self._of_registrations("refused"):
            at_ns = int(self.time_ns[report])
            yield RefusedRegistration(incarnation, at_ns - ago_ms * 1_000_000, at_ns, int(self.seq[report]))

    def _of_registrations(self, word: str) -> Iterator[tuple[int, int, str]]:
        """Yield (row, number, incarnation) of each report that begins with this word."""
        for report in np.flatnonzero(self.event == BROKER).tolist():
            if self._words(report)[0] == word:
                _, number, incarnation = self._words(report)
                yield report, int(number), incarnation

    def _words(self, report: int) -> list[str]:
        """Return the words of a `broker` or `sessions` row; [""] for any other row."""
        return (self.detail.get(report) or "").split(" ")

    def _proven_until(self, report: int, following: int, within_ns: int) -> int:
        """Return the time until which a report of answered heartbeats certainly holds.

        following: the next row about the broker's heartbeats, the next start, or the number of rows
        """
        _, *values = self._words(following)
        if values and int(values[0]) >= 0:  # otherwise the process may have been stopped until this row
            last_sent_ns = int(self.time_ns[following]) - int(values[0]) * 1_000_000
            return min(int(self.time_ns[following]), last_sent_ns + within_ns)
        times = self.time_ns[report:following]
        awake = times[times <= times[-1] - AWAKE_NS]
        return int(awake[-1]) if len(awake) else int(times[0])

    def brokers(self) -> set[int]:
        """Return the epochs of this node's broker."""
        return set(self.offset[(self.event == BROKER) & (self.offset >= 0)].tolist())

    def offices(self) -> Iterator[Office]:
        ends = np.flatnonzero((self.event == ROLE) | (self.event == START))
        for begin in np.flatnonzero(self.event == SESSIONS).tolist():
            later = ends[ends > begin]
            rows = (begin, int(later[0]) if len(later) else len(self.event))
            epoch, began_ns, seq = (int(column[begin]) for column in (self.epoch, self.time_ns, self.seq))
            yield Office(self.node, epoch, began_ns, int(self.detail[begin] or 0) * 1_000_000, seq, rows)

    def worked_until(self, office: Office, deadline_ns: int, limit_ns: int) -> tuple[int, int] | None:
        """Return (time, high watermark) by which the controller had committed every record that it had appended before
        its first high watermark after the deadline.

        Returns None if the controller did not report such a high watermark in this term before the limit.
        """
        rows = np.arange(*office.rows)
        after = rows[(self.time_ns[rows] >= deadline_ns) & (self.event[rows] == MARK)]
        if not len(after):
            return None
        before = np.arange(0, int(after[0]))
        appended = self.offset[before[self.event[before] == APPEND]]
        end = int(appended[-1]) if len(appended) else 0
        done = after[(self.offset[after] >= end) & (self.time_ns[after] <= limit_ns)]
        return (int(self.time_ns[done[0]]), int(self.offset[done[0]])) if len(done) else None


class AppendTimes:
    """Times at which the leader of each epoch appended its records."""

    def __init__(self, traces: Mapping[str, NodeTrace]) -> None:
        self._of: dict[int, list[tuple[NodeTrace, Int64, Int64, Int64]]] = {}
        for trace in traces.values():
            for epoch in np.unique(trace.epoch[trace.leads]).tolist():
                rows = np.flatnonzero((trace.event == APPEND) & (trace.epoch == epoch))
                self._of.setdefault(epoch, []).append((trace, trace.offset[rows], trace.time_ns[rows], trace.seq[rows]))

    def of(self, record: CommittedRecord) -> tuple[NodeTrace, int, int] | None:
        """Return (trace of the leader, time, seq of its row); None if it is unknown."""
        leaders = self._of.get(record.epoch, [])
        if len(leaders) != 1:
            return None
        trace, ends, times, seqs = leaders[0]
        at = int(np.searchsorted(ends, record.offset, "right"))
        return (trace, int(times[at]), int(seqs[at])) if at < len(ends) else None


UNKNOWN_EPOCH = -1


class CameBack(NamedTuple):
    """A broker that restarted after an unclean shutdown.

    record: record of its registration
    trace: trace of the broker
    answer: answer to its registration
    partitions: partitions of which it is still an eligible leader
    """

    record: CommittedRecord
    trace: NodeTrace
    answer: Registered
    partitions: Sequence[str]


class Registrations:
    """Processes committed records in the order of their offsets.

    came_back: number of registrations after an unclean shutdown
    """

    def __init__(self, traces: Mapping[str, NodeTrace]) -> None:
        self._answers = {
            (answer.broker_epoch, answer.incarnation): (trace, answer)
            for trace in traces.values()
            for answer in trace.registrations()
        }
        self._epochs: dict[int, int] = {}  # registered broker -> its epoch
        self._incarnations: dict[int, str] = {}
        self._lost: dict[int, CameBack] = {}  # brokers that restarted uncleanly and are still fenced
        self._eligible: dict[str, frozenset[int]] = {}
        self.came_back = 0

    def record(self, record: CommittedRecord) -> CameBack | None:
        """Process a record; if it unfences a broker that is an eligible leader but must not be, return this broker."""
        match record.kind:
            case "register broker":
                self._register(record)
            case "unregister broker":
                self._epochs.pop(record.broker, None)
                self._lost.pop(record.broker, None)
            case "partition" | "change partition":
                if "elr" in record.fields:
                    self._eligible[record.about] = frozenset(record.fields["elr"] or ())
            case "remove topic":
                for partition in [each for each in self._eligible if each.startswith(f"{record.about}/")]:
                    del self._eligible[partition]
        lost = self._lost.pop(record.broker, None) if record.unfences else None
        if lost is None:
            return None
        stays = sorted(about for about, eligible in self._eligible.items() if record.broker in eligible)
        return lost._replace(partitions=stays) if stays else None

    def _register(self, record: CommittedRecord) -> None:
        broker, epoch, incarnation = record.broker, record.fields["epoch"], record.fields["incarnation"]
        former, same = self._epochs.get(broker), self._incarnations.get(broker) == incarnation
        self._epochs[broker], self._incarnations[broker] = epoch, incarnation
        if same:
            return
        self._lost.pop(broker, None)
        trace, answer = self._answers.get((epoch, incarnation), (None, None))
        if trace is None or answer is None or epoch != record.offset:
            return
        if answer.previous_epoch == UNKNOWN_EPOCH or (former is not None and answer.previous_epoch != former):
            self.came_back += 1
            self._lost[broker] = CameBack(record, trace, answer, ())


def refused_themselves(
    records: Sequence[CommittedRecord], traces: Mapping[str, NodeTrace], appended: AppendTimes
) -> Iterator[tuple[CommittedRecord, NodeTrace, RefusedRegistration]]:
    """Yield registrations whose incarnation was refused later although every controller knew the registration."""
    about = [each for each in records if each.kind in ("register broker", "unregister broker")]
    controllers = [trace for trace in traces.values() if any(trace.offices())]
    for trace in traces.values():
        for refusal in trace.refusals():
            mine = next((each for each in about if each.fields.get("incarnation") == refusal.incarnation), None)
            if mine is None or not controllers:
                continue
            known = all(each.knew(refusal.sent_ns) > mine.offset for each in controllers)
            if known and not _replaced(mine, about, appended, refusal.at_ns):
                yield mine, trace, refusal


def _replaced(mine: CommittedRecord, about: Sequence[CommittedRecord], appended: AppendTimes, at_ns: int) -> bool:
    """Return True if a later record may have replaced this registration before that time."""
    later = (each for each in about if each.offset > mine.offset and each.broker == mine.broker)
    others = (each for each in later if each.fields.get("incarnation") != mine.fields["incarnation"])
    return any((found := appended.of(other)) is None or found[1] <= at_ns for other in others)
