"""Verify that controllers fence brokers that are silent, keep those that they hear of, and believe no broker too early.

Records of the metadata log say what a controller decided.  Traces say when, and what a broker knew or had answered.
Servers of one machine share one monotonic clock, so these times can be compared.  Six rules, each with its evidence:

    fenced although heard    A record fences a broker.  By the broker's own trace, a controller had answered a heartbeat
                             that was sent less than a session before the record was appended, and the broker was not
                             leaving.  A new controller gives each broker a whole session, so no controller may do that.
    silent, never fenced     Measurements show the broker's process dead or stopped, or its link to the controller cut,
                             for longer than a session and SLACK_S.  The controller worked: it appended and committed
                             meanwhile.  But in what it had appended by then, the broker stays unfenced.
    unfenced too early       A record unfences a broker whose trace shows no mark beyond its own registration by then.
    joins too early          An in-sync set grows although its leader's trace shows no mark beyond the last change of
                             the partition, or beyond the registration of the broker that joins.
    eligible, refused        See the rows of traces, below.

A record was appended when the leader of its epoch wrote the `append` row that covers it.  The decision came before, so
evidence against it is judged at a time that favours the controller.  Only committed records are judged: those of one
final copy, below the largest mark of its own node.

Not applicable where the servers do not share a clock, or where no trace reports what brokers had answered.  One part.
Cost: linear; memory: 60 bytes a row of all traces, and the records of brokers and partitions of one copy.

*Traces.*  Reads from traces what brokers and controllers knew: when a broker was heard, who was the active controller,
when records were appended, how much a node knew to be committed, and how brokers registered.  All times are ns since
the test began.

Two rules follow from how a broker registered, by its own trace and by the committed records:

    eligible   A broker that registers without the epoch that the log has of its former incarnation did not leave in
               order, and may have lost data (KIP-966).  While it is fenced after that, it is no eligible leader: the
               records of its registration take it out, and only a broker that was in sync becomes one.
    refused    An incarnation is registered, and each controller of the run knew that before it was asked once more.
               So it may not be refused because of another incarnation (KAFKA-16952).

Only what a broker reported is judged.  Where its row or the record of its former registration is missing, nothing is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import one_clock
from checkers.base.run_evidence import (
    coded,
    conclude,
    gaps,
    log_groups,
    log_rows,
    numbers,
    read_trace,
    trace_row,
    words,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.cluster.replay import NO_LEADER, REFUSED_ITSELF, STAYS_ELIGIBLE
from checkers.record.faults import cut_links, silent_processes

FENCED_THOUGH_HEARD = "broker is fenced although it was heard"
NEVER_FENCED = "silent broker is never fenced"
UNFENCED_EARLY = "broker is unfenced before it knew its registration"
JOINED_EARLY = "in-sync set grew by a leader that did not know the partition"

SLACK_S = 1.5
"""Seconds of silence beyond a session that prove it: heartbeats were on their way, and a loop may lag."""
WITNESSES_MAX = 100
"""Maximum number of witnesses; others are only counted."""
ROW_SIZE_BYTES = 60
RECORD_SIZE_BYTES = 1000


@dataclass(frozen=True, slots=True)
class SessionsFinding:
    """counts: what was judged, by rule."""

    witnesses: tuple[Witness, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class _Silence:
    """A node that no controller of `deaf_to` could hear; None: no controller at all."""

    node: str
    words: str
    deaf_to: str | None
    from_ns: int
    to_ns: int


class _Judge:
    def __init__(self, log: str, copy: int, traces: Mapping[str, NodeTrace], silences: Sequence[_Silence]) -> None:
        self._log, self._copy = log, copy
        self._traces, self._silences = traces, silences
        self._appended = AppendTimes(traces)
        self._node_of = {epoch: node for node, trace in traces.items() for epoch in trace.brokers()}
        self._heard = [each for trace in traces.values() for each in trace.heard()]
        self._sessions = {
            (office.node, office.epoch): office for trace in traces.values() for office in trace.offices()
        }
        self.witnesses: list[Witness] = []
        self.counts: Counter[str] = Counter()

    def judge(self, records: Sequence[CommittedRecord]) -> None:
        epoch_of: dict[int, int] = {}  # broker -> its epoch
        isr: dict[str, tuple[int, int, frozenset[int]]] = {}  # partition -> (last change, leader, in sync)
        changes: dict[int, list[CommittedRecord]] = {}  # broker -> records about it
        registrations = Registrations(self._traces)
        for record in records:
            if (stays := registrations.record(record)) is not None:
                self._stays_eligible(record, stays)
            if record.kind in ("register broker", "unregister broker") or record.fences or record.unfences:
                changes.setdefault(record.broker, []).append(record)
            if record.kind == "register broker":
                epoch_of[record.broker] = record.fields["epoch"]
            elif record.fences:
                self._look_at_fence(record)
            elif record.unfences:
                self._look_at_unfence(record)
            elif record.kind in ("partition", "change partition"):
                self._look_at_partition(record, isr, epoch_of)
        self.counts["unclean registrations"] = registrations.came_back
        for silence in self._silences:
            self._look_at_silence(silence, changes)
        self.counts["refusals"] = sum(1 for trace in self._traces.values() for _ in trace.refusals())
        for record, trace, refusal in refused_themselves(records, self._traces, self._appended):
            self._broken(
                REFUSED_ITSELF,
                record,
                f"Broker {record.broker} is registered at offset {record.offset}, and every controller knew that when "
                f"the same incarnation asked once more. It was refused because of another incarnation.",
                [trace_row(trace.path, refusal.seq)],
                "an incarnation that is registered may register again, and keeps its epoch (KAFKA-16952)",
            )

    def _stays_eligible(self, record: CommittedRecord, found: CameBack) -> None:
        former = found.answer.previous_epoch
        showed = "no epoch" if former < 0 else f"epoch {former}, which was not the last one,"
        self._broken(
            STAYS_ELIGIBLE,
            record,
            f"Broker {record.broker} showed {showed} of its former incarnation when it registered at offset "
            f"{found.record.offset}, so it may have lost data. It is unfenced at offset {record.offset}, and still an "
            f"eligible leader of {', '.join(found.partitions)}.",
            [trace_row(found.trace.path, found.answer.seq)],
            "a broker that did not leave in order is no eligible leader when it comes back (KIP-966)",
        )

    def _look_at_fence(self, record: CommittedRecord) -> None:
        appended = self._appended.of(record)
        node = self._node_of.get(record.fields["epoch"])
        if appended is None or node is None:
            return
        leader, at_ns, seq = appended
        office = self._sessions.get((leader.node, record.epoch))
        if office is None:
            return
        self.counts["fences"] += 1
        for heard in self._heard:
            mine = heard.broker_epoch == record.fields["epoch"] and heard.from_ns <= at_ns < heard.to_ns
            if mine and heard.within_ns < office.session_ns:
                within_s, session_s = heard.within_ns / 1e9, office.session_ns / 1e9
                self._broken(
                    FENCED_THOUGH_HEARD,
                    record,
                    f"Broker {record.broker} is fenced at offset {record.offset}, though a heartbeat that it sent less "
                    f"than {within_s:g} s before was answered, and a session lasts {session_s:g} s.",
                    [trace_row(self._traces[node].path, heard.seq), trace_row(leader.path, seq)],
                    "a broker is fenced when no heartbeat of it has arrived for a whole session",
                )

    def _look_at_unfence(self, record: CommittedRecord) -> None:
        appended = self._appended.of(record)
        node = self._node_of.get(record.fields["epoch"])
        if appended is None or node is None:
            return
        leader, at_ns, seq = appended
        self.counts["unfences"] += 1
        if (knew := self._traces[node].knew(at_ns)) <= record.fields["epoch"]:
            self._broken(
                UNFENCED_EARLY,
                record,
                f"Broker {record.broker} is unfenced at offset {record.offset}, and knew only what is below {knew} to "
                f"be committed then; its registration is at {record.fields['epoch']}.",
                [trace_row(leader.path, seq)],
                "a broker is fenced until it has applied the record of its own registration",
            )

    def _look_at_partition(
        self, record: CommittedRecord, isr: dict[str, tuple[int, int, frozenset[int]]], epoch_of: Mapping[int, int]
    ) -> None:
        changed, leader, before = isr.get(record.about, (-1, NO_LEADER, frozenset[int]()))
        fields = record.fields
        after = frozenset(fields["isr"] or ()) if "isr" in fields else before
        led = fields["leader"] if fields.get("leader", -2) != -2 else leader
        isr[record.about] = record.offset, led, after
        joined = sorted(after - before - {leader})
        # Only a leader adds others to its in-sync set; a record that names a leader is an election.
        if not joined or changed < 0 or "leader" in fields or leader == NO_LEADER:
            return
        appended = self._appended.of(record)
        node = self._node_of.get(epoch_of.get(leader, -1))
        if appended is None or node is None:
            return
        trace, at_ns, seq = appended
        self.counts["joins"] += 1
        knew = self._traces[node].knew(at_ns)
        needed = max([changed, *(epoch_of[each] for each in joined if each in epoch_of)])
        if knew <= needed:
            self._broken(
                JOINED_EARLY,
                record,
                f"Broker {leader} takes {joined} into an in-sync set at offset {record.offset}, and knew only what is "
                f"below {knew} to be committed then; the request rests on the record at {needed}.",
                [trace_row(trace.path, seq)],
                "a leader reports who is in sync by the last change of its partition, and by present registrations",
            )

    def _look_at_silence(self, silence: _Silence, changes: Mapping[int, Sequence[CommittedRecord]]) -> None:
        for about in changes.values():
            for office in self._sessions.values():
                if office.node == silence.node or silence.deaf_to not in (None, office.node):
                    continue
                since_ns = max(silence.from_ns, office.began_ns)
                deadline_ns = since_ns + office.session_ns + max(int(SLACK_S * 1e9), office.session_ns // 2)
                if deadline_ns >= silence.to_ns:
                    continue
                worked = self._traces[office.node].worked_until(office, deadline_ns, silence.to_ns)
                last = None if worked is None else next((r for r in reversed(about) if r.offset < worked[1]), None)
                if worked is None or last is None or self._node_of.get(last.fields["epoch"]) != silence.node:
                    continue
                appended = self._appended.of(last)
                self.counts["silences"] += 1
                if not last.unfences or appended is None or appended[1] > since_ns:
                    continue  # it is fenced, or has been heard of since
                self._broken(
                    NEVER_FENCED,
                    last,
                    f"Broker {last.broker} was unfenced at offset {last.offset} and is not fenced, though "
                    f"{silence.words} from {silence.from_ns / 1e9:.3f} s to {silence.to_ns / 1e9:.3f} s. "
                    f"{office.node} was the controller from {office.began_ns / 1e9:.3f} s on, and had committed all "
                    f"below {worked[1]} at {worked[0] / 1e9:.3f} s; a session lasts {office.session_ns / 1e9:g} s.",
                    [trace_row(self._traces[office.node].path, office.seq)],
                    "a broker is fenced when no heartbeat of it has arrived for a whole session",
                )

    def _broken(
        self, kind: str, record: CommittedRecord, summary: str, rows: Sequence[dict[str, Any]], expected: str
    ) -> None:
        self.counts["violations"] += 1
        if len(self.witnesses) >= WITNESSES_MAX:
            return
        in_log = log_rows(self._log, self._copy, [record.offset])
        in_traces = [row if "table" in row else {"table": "trace", **row} for row in rows]
        self.witnesses.append(
            Witness.of(
                kind,
                summary,
                (*in_log, *in_traces),
                nodes=sorted({row["node"] for row in in_traces}),
                epoch=record.epoch,
                offset=record.offset,
                expected=expected,
            )
        )


def _split(run: StoredRun) -> list[Part]:
    files, logs = node_files(run.trace), node_files(run.log)
    if not one_clock(run.header) or not files:
        return []
    silences = [
        *(
            _Silence(held.subject, f"{held.subject} was {held.what}", None, held.from_ns, held.to_ns)
            for fault in run.faults
            for held in silent_processes(fault)
        ),
        *(
            _Silence(source, f"the link from {source} to {to} was cut", to, held.from_ns, held.to_ns)
            for fault in run.faults
            for held in cut_links(fault)
            for source, to in [held.subject]
        ),
    ]
    clusters = node_files(run.cluster)
    choices = [
        (node, logs[node], clusters[node], copy["copy"])
        for node, copy in run.final_copies.items()
        if node in logs and node in clusters
    ]
    return [Part(tuple(files.values()), {"nodes": list(files), "choices": choices, "silences": silences})]


def _judge(part: Part, budget: Budget) -> SessionsFinding:
    traces: dict[str, NodeTrace] = {}
    rows = reports = 0
    for node, path in zip(part.params["nodes"], part.paths, strict=True):
        traces[node] = NodeTrace(node, path)
        rows += len(traces[node].seq)
        reports += int((traces[node].event == BROKER).sum())
        budget.demand(rows * ROW_SIZE_BYTES, f"{rows} rows of traces")
    if not reports:
        return SessionsFinding()
    known = [
        (-_log_start(log, copy), traces[node].largest_mark, node, log, cluster, copy)
        for node, log, cluster, copy in part.params["choices"]
        if node in traces
    ]
    if not known:
        return SessionsFinding(reports=reports, unknown="no node has a final copy of its log, with a trace")
    _, committed, _, log, cluster, copy = max(known)
    size = pq.read_metadata(cluster).num_rows
    budget.demand(size * RECORD_SIZE_BYTES, f"{cluster}: {size} records")
    judge = _Judge(log, copy, traces, part.params["silences"])
    judge.judge(list(_records(cluster, copy, committed)))
    return SessionsFinding(tuple(judge.witnesses), judge.counts, reports)


def _log_start(log: str, copy: int) -> int:
    return min((group.first for group in log_groups(pq.read_metadata(log), copy)), default=0)


def _records(cluster: str, copy: int, committed: int) -> Iterator[CommittedRecord]:
    """The records below an offset, as far as they can be decoded."""
    table = pq.read_table(cluster, partitioning=None)
    table = table.filter(pc.and_(pc.equal(table["copy"], copy), pc.less(table["offset"], committed)))
    for row in table.select(["offset", "epoch", "kind", "about", "fields"]).to_pylist():
        if row["kind"] == "undecodable":
            return
        yield CommittedRecord(row["offset"], row["epoch"], row["kind"], row["about"], json.loads(row["fields"]))


def _combine(run: StoredRun, findings: Sequence[SessionsFinding]) -> Verdict:
    if not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock")
    unknown = [each.unknown for each in findings if each.unknown] + gaps(run, "logs", "traces")
    if not any(each.reports for each in findings) and not [each for each in findings if each.unknown]:
        return Verdict(Validity.NOT_APPLICABLE, reason="no trace reports what brokers had answered")
    counts: Counter[str] = Counter()
    for each in findings:
        counts.update(each.counts)
    judged = ("fences", "silences", "unfences", "joins", "unclean registrations", "refusals", "violations")
    looked_at = {name: counts[name] for name in judged}
    if not counts["violations"]:
        del looked_at["violations"]
    if not any(looked_at.values()):
        unknown.append("no record about a broker could be placed in time")
    return conclude([witness for each in findings for witness in each.witnesses], looked_at, unknown)


BROKER_SESSIONS = Checker(
    "broker-sessions",
    "Brokers are fenced when they are silent",
    "Is each broker fenced when controllers no longer hear of it, not before, and unfenced only when it has caught up?",
    _split,
    _judge,
    _combine,
    frozenset({"logs", "traces", "kraft-steps"}),
)


AWAKE_NS = 1_000_000_000
"""A process that writes a row so much later has had its turn in between, and would have reported a missing answer."""

START, APPEND, MARK, APPLIED, SNAPSHOT, ROLE, SESSIONS, BROKER = range(8)
EVENTS = {
    "start": START,
    "append": APPEND,
    "high-watermark": MARK,
    "applied": APPLIED,
    "snapshot": SNAPSHOT,
    "role": ROLE,
    "sessions": SESSIONS,
    "broker": BROKER,
}
_OF_REGISTRATIONS = ("registered", "refused")
"""The first words of reports that say nothing of heartbeats."""
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


@dataclass(frozen=True, slots=True)
class Heard:
    """From `from_ns` to `to_ns`, this incarnation's last answered heartbeat was sent less than `within_ns` ago.

    seq: of the row that says so."""

    broker_epoch: int
    from_ns: int
    to_ns: int
    within_ns: int
    seq: int


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a broker: its incarnation has `broker_epoch`.  previous_epoch: of the incarnation before, as the
    file said that it leaves when it leaves; -1 without such a file.  seq: of the row that says so."""

    broker_epoch: int
    previous_epoch: int
    incarnation: str
    seq: int


@dataclass(frozen=True, slots=True)
class RefusedRegistration:
    """At `at_ns` a broker heard that its request of `sent_ns`, or a little before, is refused because of another
    incarnation."""

    incarnation: str
    sent_ns: int
    at_ns: int
    seq: int


@dataclass(frozen=True, slots=True)
class Office:
    """A node as the active controller: sessions last `session_ns` from `began_ns` on.  rows: of its trace."""

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
        """The largest offset below which this node ever knew everything to be committed, by this time."""
        at = int(np.searchsorted(self._knew_ns, time_ns, "right"))
        return int(self._knew[at - 1]) if at else 0

    @property
    def largest_mark(self) -> int:
        return int(self.offset[self.event == MARK].max(initial=0))

    def heard(self) -> Iterator[Heard]:
        """Each stretch of time in which the broker was heard, as far as later rows prove it."""
        reports = np.flatnonzero((self.event == BROKER) | (self.event == START)).tolist()
        reports = [report for report in reports if self._word(report) not in _OF_REGISTRATIONS]
        for place, report in enumerate(reports):
            word, _, value = (self.detail.get(report) or "").partition(" ")
            if self.event[report] != BROKER or word != "heard":
                continue
            within_ns = int(value) * 1_000_000
            following = reports[place + 1] if place + 1 < len(reports) else len(self.event)
            to_ns = self._proven_until(report, following, within_ns)
            yield Heard(int(self.offset[report]), int(self.time_ns[report]), to_ns, within_ns, int(self.seq[report]))

    def registrations(self) -> Iterator[Registered]:
        for report, previous, incarnation in self._of_registrations("registered"):
            yield Registered(int(self.offset[report]), previous, incarnation, int(self.seq[report]))

    def refusals(self) -> Iterator[RefusedRegistration]:
        for report, ago_ms, incarnation in self._of_registrations("refused"):
            at_ns = int(self.time_ns[report])
            yield RefusedRegistration(incarnation, at_ns - ago_ms * 1_000_000, at_ns, int(self.seq[report]))

    def _of_registrations(self, word: str) -> Iterator[tuple[int, int, str]]:
        """(row, number, incarnation) of each report of this kind."""
        for report in np.flatnonzero(self.event == BROKER).tolist():
            if self._word(report) == word:
                _, number, incarnation = (self.detail[report] or "").split(" ")
                yield report, int(number), incarnation

    def _word(self, report: int) -> str:
        return (self.detail.get(report) or "").partition(" ")[0]

    def _proven_until(self, report: int, following: int, within_ns: int) -> int:
        """following: the next row about the broker, or of the next start, or behind the last row."""
        if following < len(self.event) and self.event[following] == BROKER:
            _, _, value = (self.detail[following] or "").partition(" ")
            if value and int(value) >= 0:  # it may have been asleep until now
                last_sent_ns = int(self.time_ns[following]) - int(value) * 1_000_000
                return min(int(self.time_ns[following]), last_sent_ns + within_ns)
        times = self.time_ns[report:following]
        awake = times[times <= times[-1] - AWAKE_NS]
        return int(awake[-1]) if len(awake) else int(times[0])

    def brokers(self) -> set[int]:
        """The epochs that this node's broker had."""
        return set(self.offset[(self.event == BROKER) & (self.offset >= 0)].tolist())

    def offices(self) -> Iterator[Office]:
        ends = np.flatnonzero((self.event == ROLE) | (self.event == START))
        for begin in np.flatnonzero(self.event == SESSIONS).tolist():
            later = ends[ends > begin]
            rows = (begin, int(later[0]) if len(later) else len(self.event))
            session_ns = int(self.detail[begin] or 0) * 1_000_000
            yield Office(
                self.node, int(self.epoch[begin]), int(self.time_ns[begin]), session_ns, int(self.seq[begin]), rows
            )

    def worked_until(self, office: Office, deadline_ns: int, limit_ns: int) -> tuple[int, int] | None:
        """(time, mark): the controller had committed, in office and by that time, all that it had appended by a moment
        after the deadline and one loop turn.  None if it did not show that within the limit."""
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
        """(trace of the leader, time, seq of its row); None where that is not known."""
        leaders = self._of.get(record.epoch, [])
        if len(leaders) != 1:
            return None
        trace, ends, times, seqs = leaders[0]
        at = int(np.searchsorted(ends, record.offset, "right"))
        return (trace, int(times[at]), int(seqs[at])) if at < len(ends) else None


UNKNOWN_EPOCH = -1


class CameBack(NamedTuple):
    """A broker came back uncleanly.  record: of its registration.  partitions: of which it stays an eligible leader."""

    record: CommittedRecord
    trace: NodeTrace
    answer: Registered
    partitions: Sequence[str]


class Registrations:
    """Takes committed records in the order of their offsets.  came_back: how many registrations were unclean."""

    def __init__(self, traces: Mapping[str, NodeTrace]) -> None:
        self._answers = {
            (answer.broker_epoch, answer.incarnation): (trace, answer)
            for trace in traces.values()
            for answer in trace.registrations()
        }
        self._epochs: dict[int, int] = {}  # of the brokers that are registered
        self._incarnations: dict[int, str] = {}
        self._lost: dict[int, CameBack] = {}  # came back uncleanly, and is fenced since then
        self._eligible: dict[str, frozenset[int]] = {}
        self.came_back = 0

    def record(self, record: CommittedRecord) -> CameBack | None:
        """The broker that is unfenced by this record, if it must not be eligible and is."""
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
    """Registrations of incarnations that were refused later, though every controller knew of them."""
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
    """Return whether a later record about this broker may have been there at that time."""
    for later in about:
        other = later.offset > mine.offset and later.broker == mine.broker
        if other and later.fields.get("incarnation") != mine.fields["incarnation"]:
            found = appended.of(later)
            if found is None or found[1] <= at_ns:
                return True
    return False
