"""Verify that controllers fence silent brokers, do not fence brokers with heartbeats, and unfence no broker too early.

The records of the metadata log show the decisions of a controller.  The traces show the times of these records, and
which commits and answers each broker knew.  Servers on one machine share one monotonic clock, so these times can be
compared.  The following are violations:

    fenced although heard    A record fences a broker that was not shutting down.  But by the broker's own trace, a
                             controller had answered a heartbeat that was sent less than a session before the record
                             was appended.  A new controller, too, must wait for a full session before it fences.
    silent, never fenced     Measurements show that the broker's process was dead or stopped, or that its link to the
                             controller was cut, for longer than a session and SLACK_S.  The controller appended and
                             committed records meanwhile.  But after these records the broker is still unfenced.
    unfenced too early       A record unfences a broker whose trace shows no high watermark above the offset of its own
                             registration before that time.
    joins too early          An in-sync set grows although its leader's trace shows no high watermark above the last
                             change of the partition, or above the registration of the broker that joins.
    eligible, refused        See `broker_traces.py`.

The time of a record is that of the `append` row with which the leader of its epoch reported the append.  The controller
decided earlier, so this time favours the controller.  Only committed records are judged: those of one final copy, below
the largest high watermark of its own node.

Not applicable if the servers do not share a clock, or if no trace reports the answers to brokers.  There is one part.
Cost: linear.  Memory: 60 bytes per row of all traces, and the records of brokers and partitions of one copy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Part
from checkers.base.stored_rows import log_rows, log_start, trace_row
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.cluster import broker_traces
from checkers.cluster.replay import NO_LEADER, REFUSED_ITSELF, STAYS_ELIGIBLE
from checkers.record.faults import cut_links, silent_processes
from checkers.record.header_and_outcome import one_clock

FENCED_THOUGH_HEARD = "broker is fenced although it was heard"
NEVER_FENCED = "silent broker is never fenced"
UNFENCED_EARLY = "broker is unfenced before it knew its registration"
JOINED_EARLY = "in-sync set grew by a leader that did not know the partition"

SLACK_S = 1.5
"""Seconds of silence beyond a session before a controller must have fenced a broker.

Heartbeats may be in flight, and the controller's loop may lag.
"""
WITNESSES_MAX = 100
"""Maximum number of witnesses; further violations are only counted."""
ROW_SIZE_BYTES = 60
RECORD_SIZE_BYTES = 1000


@dataclass(frozen=True, slots=True)
class SessionsFinding:
    """Finding on the brokers of a run.

    counts: number of judged cases, by rule
    reports: number of rows in which brokers report answers
    """

    witnesses: tuple[Witness, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class _Silence:
    """Span of time in which controllers could not receive messages from a node.

    words: the reason, as a clause
    deaf_to: the controller that could not receive them; None if no controller could
    """

    node: str
    words: str
    deaf_to: str | None
    from_ns: int
    to_ns: int


_FENCE = "a broker is fenced when no heartbeat of it has arrived for a whole session"
_EXPECTED = {
    FENCED_THOUGH_HEARD: _FENCE,
    NEVER_FENCED: _FENCE,
    UNFENCED_EARLY: "a broker is fenced until it has applied the record of its own registration",
    JOINED_EARLY: "a leader that adds replicas knows the last change of its partition and their registrations",
    REFUSED_ITSELF: "an incarnation that is registered may register again, and keeps its epoch (KAFKA-16952)",
    STAYS_ELIGIBLE: "a broker that restarts after an unclean shutdown is no eligible leader (KIP-966)",
}

_Shown = tuple[broker_traces.NodeTrace, int]
"""(trace, seq of one of its rows)."""


class _Judge:
    def __init__(
        self, log: str, copy: int, traces: Mapping[str, broker_traces.NodeTrace], silences: Sequence[_Silence]
    ) -> None:
        self._log, self._copy = log, copy
        self._traces, self._silences = traces, silences
        self._appended = broker_traces.AppendTimes(traces)
        self._of_broker = {epoch: trace for trace in traces.values() for epoch in trace.brokers()}
        self._heard = [each for trace in traces.values() for each in trace.heard()]
        self._sessions = {
            (office.node, office.epoch): office for trace in traces.values() for office in trace.offices()
        }
        self.witnesses: list[Witness] = []
        self.counts: Counter[str] = Counter()

    def judge(self, records: Sequence[broker_traces.CommittedRecord]) -> None:
        epoch_of: dict[int, int] = {}  # broker -> its epoch
        isr: dict[str, tuple[int, int, frozenset[int]]] = {}  # partition -> (offset of last change, leader, in sync)
        changes: dict[int, list[broker_traces.CommittedRecord]] = {}  # broker -> its records
        registrations = broker_traces.Registrations(self._traces)
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
        for record, trace, refusal in broker_traces.refused_themselves(records, self._traces, self._appended):
            self._broken(
                REFUSED_ITSELF,
                record,
                f"Broker {record.broker} is registered at offset {record.offset}, and every controller knew this "
                "when the same incarnation registered again. The request was refused because of another incarnation.",
                (trace, refusal.seq),
            )

    def _stays_eligible(self, record: broker_traces.CommittedRecord, found: broker_traces.CameBack) -> None:
        former = found.answer.previous_epoch
        showed = "no epoch" if former < 0 else f"epoch {former}, which was not the last one,"
        self._broken(
            STAYS_ELIGIBLE,
            record,
            f"Broker {record.broker} showed {showed} of its former incarnation when it registered at offset "
            f"{found.record.offset}, so it may have lost data. It is unfenced at offset {record.offset}, and still an "
            f"eligible leader of {', '.join(found.partitions)}.",
            (found.trace, found.answer.seq),
        )

    def _placed(
        self, record: broker_traces.CommittedRecord, broker_epoch: int
    ) -> tuple[broker_traces.NodeTrace, int, _Shown] | None:
        """Return (trace of the broker, time of the record's append, row that shows this append) if all are known."""
        appended, trace = self._appended.of(record), self._of_broker.get(broker_epoch)
        if appended is None or trace is None:
            return None
        leader, at_ns, seq = appended
        return trace, at_ns, (leader, seq)

    def _look_at_fence(self, record: broker_traces.CommittedRecord) -> None:
        if (placed := self._placed(record, record.fields["epoch"])) is None:
            return
        trace, at_ns, append = placed
        if (office := self._sessions.get((append[0].node, record.epoch))) is None:
            return
        self.counts["fences"] += 1
        for heard in self._heard:
            mine = heard.broker_epoch == record.fields["epoch"] and heard.from_ns <= at_ns < heard.to_ns
            if mine and heard.within_ns < office.session_ns:
                self._broken(
                    FENCED_THOUGH_HEARD,
                    record,
                    f"Broker {record.broker} is fenced at offset {record.offset}, though a heartbeat that it sent less "
                    f"than {heard.within_ns / 1e9:g} s before was answered, and a session lasts "
                    f"{office.session_ns / 1e9:g} s.",
                    (trace, heard.seq),
                    append,
                )

    def _look_at_unfence(self, record: broker_traces.CommittedRecord) -> None:
        if (placed := self._placed(record, record.fields["epoch"])) is None:
            return
        trace, at_ns, append = placed
        self.counts["unfences"] += 1
        if (knew := trace.knew(at_ns)) <= record.fields["epoch"]:
            self._broken(
                UNFENCED_EARLY,
                record,
                f"Broker {record.broker} is unfenced at offset {record.offset}, but then it knew only the entries "
                f"below {knew} to be committed; its registration is at {record.fields['epoch']}.",
                append,
            )

    def _look_at_partition(
        self,
        record: broker_traces.CommittedRecord,
        isr: dict[str, tuple[int, int, frozenset[int]]],
        epoch_of: Mapping[int, int],
    ) -> None:
        changed, leader, before = isr.get(record.about, (-1, NO_LEADER, frozenset[int]()))
        fields = record.fields
        after = frozenset(fields["isr"] or ()) if "isr" in fields else before
        led = fields["leader"] if fields.get("leader", -2) != -2 else leader
        isr[record.about] = record.offset, led, after
        joined = sorted(after - before - {leader})
        # Only the leader adds replicas to its in-sync set; a record that names a leader is an election.
        if not joined or changed < 0 or "leader" in fields or leader == NO_LEADER:
            return
        if (placed := self._placed(record, epoch_of.get(leader, -1))) is None:
            return
        trace, at_ns, append = placed
        self.counts["joins"] += 1
        needed = max([changed, *(epoch_of[each] for each in joined if each in epoch_of)])
        if (knew := trace.knew(at_ns)) <= needed:
            self._broken(
                JOINED_EARLY,
                record,
                f"Broker {leader} adds {joined} to an in-sync set at offset {record.offset}, but then it knew only the "
                f"entries below {knew} to be committed; the request depends on the record at {needed}.",
                append,
            )

    def _look_at_silence(
        self, silence: _Silence, changes: Mapping[int, Sequence[broker_traces.CommittedRecord]]
    ) -> None:
        for about in changes.values():
            for office in self._sessions.values():
                if office.node == silence.node or silence.deaf_to not in (None, office.node):
                    continue
                since_ns = max(silence.from_ns, office.began_ns)
                deadline_ns = since_ns + office.session_ns + max(int(SLACK_S * 1e9), office.session_ns // 2)
                if deadline_ns >= silence.to_ns:
                    continue
                controller = self._traces[office.node]
                worked = controller.worked_until(office, deadline_ns, silence.to_ns)
                last = None if worked is None else next((r for r in reversed(about) if r.offset < worked[1]), None)
                broker = None if last is None else self._of_broker.get(last.fields["epoch"])
                if worked is None or last is None or broker is None or broker.node != silence.node:
                    continue
                appended = self._appended.of(last)
                self.counts["silences"] += 1
                if not last.unfences or appended is None or appended[1] > since_ns:
                    continue  # the broker is fenced, or was unfenced during the silence
                self._broken(
                    NEVER_FENCED,
                    last,
                    f"Broker {last.broker} was unfenced at offset {last.offset} and is not fenced, though "
                    f"{silence.words} from {silence.from_ns / 1e9:.3f} s to {silence.to_ns / 1e9:.3f} s. "
                    f"{office.node} was the controller from {office.began_ns / 1e9:.3f} s on, and had committed all "
                    f"entries below {worked[1]} at {worked[0] / 1e9:.3f} s; a session lasts "
                    f"{office.session_ns / 1e9:g} s.",
                    (controller, office.seq),
                )

    def _broken(self, kind: str, record: broker_traces.CommittedRecord, summary: str, *shown: _Shown) -> None:
        self.counts["violations"] += 1
        if len(self.witnesses) >= WITNESSES_MAX:
            return
        rows = [*log_rows(self._log, self._copy, [record.offset]), *(trace_row(at.path, seq) for at, seq in shown)]
        nodes = sorted({trace.node for trace, _ in shown})
        of_record: dict[str, Any] = {"epoch": record.epoch, "offset": record.offset, "expected": _EXPECTED[kind]}
        self.witnesses.append(Witness.of(kind, summary, rows, nodes=nodes, **of_record))


def _split(run: StoredRun) -> list[Part]:
    files, logs = node_files(run.trace), node_files(run.log)
    if not one_clock(run.header) or not files:
        return []
    silences = [
        _Silence(held.subject, f"{held.subject} was {held.what}", None, held.from_ns, held.to_ns)
        for fault in run.faults
        for held in silent_processes(fault)
    ]
    for held in (held for fault in run.faults for held in cut_links(fault)):
        source, to = held.subject
        silences.append(_Silence(source, f"the link from {source} to {to} was cut", to, held.from_ns, held.to_ns))
    clusters = node_files(run.cluster)
    choices = [
        (node, logs[node], clusters[node], copy["copy"])
        for node, copy in run.final_copies.items()
        if node in logs and node in clusters
    ]
    return [Part(tuple(files.values()), {"nodes": list(files), "choices": choices, "silences": silences})]


def _judge(part: Part, budget: Budget) -> SessionsFinding:
    traces: dict[str, broker_traces.NodeTrace] = {}
    rows = reports = 0
    for node, path in zip(part.params["nodes"], part.paths, strict=True):
        traces[node] = broker_traces.NodeTrace(node, path)
        rows += len(traces[node].seq)
        reports += int((traces[node].event == broker_traces.BROKER).sum())
        budget.demand(rows * ROW_SIZE_BYTES, f"{rows} rows of traces")
    if not reports:
        return SessionsFinding()
    known = [
        (-log_start(log, copy), traces[node].largest_mark, node, log, cluster, copy)
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


def _records(cluster: str, copy: int, committed: int) -> Iterator[broker_traces.CommittedRecord]:
    """Yield the records below an offset, up to the first one that cannot be decoded."""
    table = pq.read_table(cluster, partitioning=None)
    table = table.filter(pc.and_(pc.equal(table["copy"], copy), pc.less(table["offset"], committed)))
    for row in table.select(["offset", "epoch", "kind", "about", "fields"]).to_pylist():
        if row["kind"] == "undecodable":
            return
        yield broker_traces.CommittedRecord(
            row["offset"], row["epoch"], row["kind"], row["about"], json.loads(row["fields"])
        )


def _combine(run: StoredRun, findings: Sequence[SessionsFinding]) -> Verdict:
    if not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason="the servers do not share a monotonic clock")
    unknown = [each.unknown for each in findings if each.unknown] + gaps(run, "logs", "traces")
    if not any(each.reports for each in findings) and not [each for each in findings if each.unknown]:
        return Verdict(Validity.NOT_APPLICABLE, reason="no trace reports what brokers had answered")
    counts = sum((each.counts for each in findings), Counter[str]())
    judged = ("fences", "silences", "unfences", "joins", "unclean registrations", "refusals")
    looked_at = {name: counts[name] for name in judged}
    looked_at |= {"violations": counts["violations"]} if counts["violations"] else {}
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
