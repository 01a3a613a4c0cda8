"""The checkers that judge traces by the rules of the monitor, and the parts that they share.

Every trace is read once for all of these checkers: they have one `split` and one `judge`, so a run is judged in these
parts, and each checker combines the findings that concern it:

    one node           a `NodeMonitor` over the condensed trace of the node
    a range of states  the hashes that all nodes reported at the same offsets: applied states and snapshots
    all nodes          a `TimedMonitor`, where the servers share one monotonic clock

Cost: linear in the rows of all traces.  Memory: one row group of a trace, or the states of one range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Need, Part
from checkers.base.clocks import one_clock
from checkers.base.run_evidence import (
    coded,
    conclude,
    gaps,
    log_groups,
    log_rows,
    numbers,
    present,
    read_trace,
    trace_row,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, Witness
from checkers.kernels.raft import disagreements
from checkers.raft.monitor import AtCopy, Leaders, NodeMonitor, NodeReport, Reach, TimedMonitor, elected, sets_apart
from checkers.raft.monitor import two_rows as differing
from checkers.raft.reading import Condensed, beyond_budget, nothing_of, rows_of_table
from checkers.raft.rules import (
    BEGINS_LATE,
    BEHIND_VOTE,
    DISK_REPLACED,
    EPOCH_BACK,
    NO_MAJORITY,
    SNAPSHOT_BEYOND,
    SNAPSHOT_DIFFERS,
    STATES_DIFFER,
    VOTE_NOT_KEPT,
    VOTED_TWICE,
    LogAt,
    RuleBreach,
    RuleEvidence,
    rule_of,
)
from checkers.raft.trace_row import WITNESSES_PER_PART, Row, TraceRow, copy_row, hash_words, in_trace, of_row
from checkers.record.faults import FaultRecord

ROW_SIZE_BYTES = 60
ROWS_PER_RANGE = 4_000_000
"""The approximate number of rows of all traces that are judged for one range of offsets."""

NOT_ONE_CLOCK = "the servers do not share a monotonic clock"
_FOREVER_NS = 2**62
Span = tuple[int, int]
"""From when to when a fault may have taken a disk, in ns since the test began; both ends are included."""


@dataclass(frozen=True, slots=True)
class StatesFinding:
    """states: pairs of applied rows that differ.  snapshots: pairs with a snapshot among them.

    applied, compared, compared_snapshots: numbers of rows, of offsets with two rows, of ends of snapshots with two."""

    states: tuple[Witness, ...] = ()
    snapshots: tuple[Witness, ...] = ()
    applied: int = 0
    compared: int = 0
    compared_snapshots: int = 0
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class TimedFinding:
    """marks, joined: numbers of marks and of voters that were judged.  counts: of violations by checker."""

    witnesses: Mapping[str, Sequence[Witness]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    marks: int = 0
    joined: int = 0
    unknown: str = ""


Finding = NodeReport | StatesFinding | TimedFinding


# Parts


def split_traces(run: StoredRun) -> list[Part]:
    """Return the parts of a run: its nodes, the ranges of states, and all nodes in the order of time."""
    traces, logs = node_files(run.trace), node_files(run.log)
    comparable, until = one_clock(run.header), dict[str, int]()
    for copy in run.copies:
        until[copy["node"]] = max(copy["trace_seq"], until.get(copy["node"], -1))
    parts = []
    for node, path in traces.items():
        spans = spans_of_loss(run.faults, node)
        params = {
            "node": node,
            "copies": [c for c in run.copies if c["node"] == node and not c["error"]],
            "until": until.get(node, -1),
            "log": logs.get(node),
            "spans": spans if comparable else [(-_FOREVER_NS, _FOREVER_NS) for _ in spans],
        }
        parts.append(Part((path,), params))
    parts += _ranges(run, tuple(traces.values()))
    if comparable and traces:
        parts.append(Part(tuple(traces.values()), {"nodes": list(traces), "voters": list(run.servers), "until": until}))
    return parts


def _ranges(run: StoredRun, paths: tuple[str, ...]) -> list[Part]:
    spans = {path: _spans(path) for path in paths}
    files = [
        {"table": "snapshots", "node": copy["node"], "copy": copy["copy"], **snapshot}
        for copy in run.copies
        for snapshot in copy.get("snapshots") or ()
    ]
    rows = sum(count for some in spans.values() for _, _, count in some)
    end = max((last + 1 for some in spans.values() for _, last, _ in some), default=0)
    end = max([end, *(file["end_offset"] + 1 for file in files)])
    size = max(1, -(-end // max(1, -(-rows // ROWS_PER_RANGE))))
    ranges = []
    for first in range(0, end, size):
        groups = [
            [i for i, (low, high, count) in enumerate(spans[path]) if count and low < first + size and high >= first]
            for path in paths
        ]
        here = [file for file in files if first <= file["end_offset"] < first + size]
        ranges.append(Part(paths, {"first": first, "stop": first + size, "groups": groups, "files": here}))
    return ranges


def _spans(path: str) -> list[tuple[int, int, int]]:
    """Return (lowest offset, highest offset, number of rows with an offset) of each row group of a trace."""
    metadata = pq.read_metadata(path)
    at = metadata.schema.names.index("offset")
    spans = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(at).statistics
        if statistics is None or (not statistics.has_min_max and statistics.null_count != group.num_rows):
            raise ValueError(f"{path}: row group {number} has no statistics of its offsets; write it with statistics")
        low, high = (statistics.min, statistics.max) if statistics.has_min_max else (0, -1)
        spans.append((low, high, group.num_rows - (statistics.null_count or 0)))
    return spans


def judge_traces(part: Part, budget: Budget) -> Finding:
    """Judge one part."""
    if "node" in part.params:
        return _judge_node(part, budget)
    return _judge_states(part, budget) if "groups" in part.params else _judge_in_time(part, budget)


def _judge_node(part: Part, budget: Budget) -> NodeReport:
    path, params = part.paths[0], part.params
    rows = pq.read_metadata(path).num_rows
    if excess := beyond_budget(path, rows, ROW_SIZE_BYTES, budget.size_bytes):
        return NodeReport(params["node"], unknown=excess)
    spans = params["spans"]
    condensed = Condensed(path, [params["until"], *(copy["trace_seq"] for copy in params["copies"])])
    monitor = NodeMonitor(params["node"], params["copies"], lambda gone, there: explained(spans, gone, there))
    for row in condensed:
        monitor.take(row)
    report = monitor.finish()
    report.counts |= condensed.counts
    if params["log"] is not None and params["copies"]:
        report.log_epoch = _highest_epoch(params["log"], params["copies"][-1]["copy"])
    return report


def _highest_epoch(path: str, copy: int) -> tuple[int, int]:
    """Return (offset, epoch) of the first entry of the highest epoch in a copy of a log; (0, -1) if it is empty."""
    at, epoch = 0, -1
    file = pq.ParquetFile(path)
    for group in log_groups(file.metadata, copy):
        table = file.read_row_group(group.number, ["copy", "offset", "epoch"], use_threads=False)
        epochs = np.where(numbers(table, "copy") == copy, numbers(table, "epoch"), -1)
        if len(epochs) and epochs.max() > epoch:
            at, epoch = int(numbers(table, "offset")[np.argmax(epochs)]), int(epochs.max())
    return at, epoch


def _judge_states(part: Part, budget: Budget) -> StatesFinding:
    """Compare what all nodes reported of their states in a range of offsets."""
    first, stop = part.params["first"], part.params["stop"]
    tables = []
    count = 0
    for number, (path, groups) in enumerate(zip(part.paths, part.params["groups"], strict=True)):
        rows = read_trace(path, ("applied", "snapshot"), ("offset", "hash"), groups)
        offset = numbers(rows, "offset")
        rows = rows.filter(pa.array((offset >= first) & (offset < stop) & present(rows, "hash")))
        tables.append(rows.append_column("source", pa.repeat(pa.scalar(number), len(rows))))
        count += len(rows)
        if excess := beyond_budget(path, count, ROW_SIZE_BYTES, budget.size_bytes):
            return StatesFinding(unknown=excess)
    table = pa.concat_tables(tables).unify_dictionaries()
    is_applied = coded(table, "event", {"applied": 1}) == 1
    offset, hashes = numbers(table, "offset"), numbers(table, "hash")
    seq, source = numbers(table, "seq"), numbers(table, "source")

    def row(i: int) -> Row:
        return trace_row(part.paths[int(source[i])], int(seq[i]))

    applied = np.flatnonzero(is_applied)
    states = [
        differing(STATES_DIFFER, of_row(row(int(applied[a]))), of_row(row(int(applied[b])))).witness()
        for a, b in first_pairs(disagreements(offset[applied], hashes[applied]))
    ]
    files = [file for file in part.params["files"] if not file["error"]]
    broken = [f"copy {f['copy']} of {f['node']}: {f['error']}" for f in part.params["files"] if f["error"]]
    ends = np.unique(np.concatenate([offset[~is_applied], np.array([f["end_offset"] for f in files], np.int64)]))
    there = np.flatnonzero(np.isin(offset, ends))
    there = there[np.argsort(is_applied[there], kind="stable")]  # snapshots first
    end = np.concatenate([offset[there], np.array([f["end_offset"] for f in files], np.int64)])
    value = np.concatenate([hashes[there], np.array([f["state_hash"] for f in files], np.int64)])

    def mentioned(i: int) -> Row:
        return files[i - len(there)] if i >= len(there) else row(int(there[i]))

    pairs = [(mentioned(a), mentioned(b)) for a, b in first_pairs(disagreements(end, value))]
    snapshots = [_snapshot_differs(*pair) for pair in pairs if any(map(_is_snapshot, pair))]
    return StatesFinding(
        tuple(states),
        tuple(snapshots),
        len(applied),
        _with_two(offset[applied]),
        _with_two(end),
        "; ".join(broken),
    )


def first_pairs(found: tuple[Int64, Int64]) -> Iterable[tuple[int, int]]:
    """Return at most WITNESSES_PER_PART of the pairs of rows that a kernel found."""
    return zip(found[0][:WITNESSES_PER_PART].tolist(), found[1][:WITNESSES_PER_PART].tolist(), strict=True)


def _with_two(offsets: Int64) -> int:
    """Return the number of offsets that occur more than once."""
    return int(np.count_nonzero(np.unique(offsets, return_counts=True)[1] > 1))


def _judge_in_time(part: Part, budget: Budget) -> TimedFinding:
    rows = sum(pq.read_metadata(path).num_rows for path in part.paths)
    if excess := beyond_budget("all traces", rows, ROW_SIZE_BYTES, budget.size_bytes):
        return TimedFinding(unknown=excess)
    monitor = TimedMonitor(part.params["voters"], part.params["nodes"], part.params["until"])
    tables = [read_trace(path, TimedMonitor.EVENTS, TraceRow._fields) for path in part.paths]
    replicas_join = any("voters" in pc.unique(table["event"]).to_pylist() for table in tables)
    traces = [rows_of_table(_that_matter_in_time(table, replicas_join)) for table in tables]
    witnesses: dict[str, list[Witness]] = {}
    counts: Counter[str] = Counter()
    for row in in_time(chain.from_iterable(traces)):
        for broken in monitor.take(row):
            counts[broken.rule.checker] += 1
            if counts[broken.rule.checker] <= WITNESSES_PER_PART:
                witnesses.setdefault(broken.rule.checker, []).append(broken.witness())
    return TimedFinding(witnesses, counts, monitor.marks, monitor.joined)


def _that_matter_in_time(table: pa.Table, replicas_join: bool) -> pa.Table:
    """Return the rows of a node without those that change nothing for a TimedMonitor.  Few of a long trace matter.

    Marks of a node that never leads are not judged.  Of the appends of one epoch the first counts, except where
    replicas join: those must have caught up with the ends of logs at every moment."""
    event = coded(table, "event", {"append": 0, "high-watermark": 1, "role": 2}, 3)
    kept = np.ones(len(table), np.bool_)
    if not np.any(coded(table, "role", {"leader": 1})[event == 2] == 1):
        kept &= event != 1
    if not replicas_join:
        appends = np.flatnonzero(event == 0)
        appends = appends[np.argsort(numbers(table, "time_ns")[appends], kind="stable")]
        epochs = numbers(table, "epoch")[appends]
        kept[appends[1:][epochs[1:] == epochs[:-1]]] = False
    return table if kept.all() else table.filter(pa.array(kept))


def in_time(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """Return rows in the order in which a TimedMonitor takes them.  rows: each node's in the order of seq."""
    return sorted(rows, key=lambda row: (row.time_ns, row.event in TimedMonitor.LAST))


def _of(kind: type[Any], findings: Sequence[Finding]) -> list[Any]:
    return [each for each in findings if isinstance(each, kind)]


def trace_checker(
    name: str,
    title: str,
    question: str,
    combine: Callable[[StoredRun, Sequence[Any]], Verdict],
    *more: Need,
) -> Checker:
    """Return a checker that combines findings of the shared parts.  more: what it needs besides traces."""
    return Checker(name, title, question, split_traces, judge_traces, combine, frozenset({"traces", *more}))


def _broken(checker: str, reports: Sequence[NodeReport]) -> list[Witness]:
    return [broken.witness() for report in reports for broken in report.broken if broken.rule.checker == checker]


def _sum(reports: Sequence[NodeReport], *names: str) -> dict[str, int]:
    return {name: sum(report.counts.get(name, 0) for report in reports) for name in names}


def _unknown(run: StoredRun, findings: Sequence[Any], *needs: str) -> list[str]:
    return [f.unknown for f in findings if f.unknown] + gaps(run, "traces", *needs)


# Elections and votes


def _combine_leaders(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    reports: list[NodeReport] = _of(NodeReport, findings)
    leaders = Leaders()
    for report in reports:
        for row in report.claims:
            leaders.take(row)
    suspicious = leaders.suspicious
    witnesses = [
        elected(
            epoch,
            [row for report in reports for row in report.claims if row.epoch == epoch],
            [row for report in reports for row in report.votes if row.epoch == epoch],
        )
        for epoch in suspicious[:MAX_WITNESSES]
    ]
    own = sum(row.role == "leader" for report in reports for row in report.claims)
    looked_at = {"epochs with a leader": leaders.epochs, "times a node became leader": own}
    if suspicious:
        looked_at["epochs with a violation"] = looked_at["violations"] = len(suspicious)
    unknown = _unknown(run, reports) + nothing_of(looked_at, "epochs with a leader")
    return conclude(witnesses, {"nodes": len(node_files(run.trace)), **looked_at}, unknown)


def _combine_votes(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """The vote in a copied quorum-state file agrees with the votes that the node had reported before.

    After a restart the file is all that the voter knows."""
    reports: list[NodeReport] = _of(NodeReport, findings)
    witnesses: list[Witness] = []
    files = 0
    for report in reports:
        witnesses += _broken("vote-once", [report])
        lost = next((at for at in report.copies if _vote_gone(at)), None)
        if lost is not None and (vote := lost.vote) is not None:
            given = f"{vote.node} gave its vote in epoch {vote.epoch} to {vote.peer} ({vote.where})."
            rows = (vote.as_row(), copy_row(lost.copy))
            witnesses.append(_quorum_state_disagrees(vote.node, str(vote.peer), rows, lost.copy, given))
        copies = [at.copy for at in report.copies]
        witnesses += _copies_disagree(copies)
        files += sum(copy["quorum_epoch"] >= 0 for copy in copies)
    looked_at = {"nodes": len(node_files(run.trace)), **_sum(reports, "votes"), "quorum-state files": files}
    return conclude(witnesses, looked_at, _unknown(run, reports) + nothing_of(looked_at, "votes"))


def _vote_gone(at: AtCopy) -> bool:
    return at.same_disk and at.vote is not None and at.vote.peer != at.copy["voted_for"]


def _copies_disagree(copied: Sequence[Row]) -> list[Witness]:
    """Find the first two successive copies of one epoch whose votes differ."""
    for earlier, later in pairwise(copied):
        given = earlier["voted_for"]
        comparable = all(earlier.get(name) == later.get(name) for name in ("quorum_epoch", "disk"))
        if comparable and given is not None and later["voted_for"] != given:
            why = f"Copy {earlier['copy']} ({earlier['when']}) found a vote of {later['node']} for {given}."
            return [_quorum_state_disagrees(later["node"], given, (copy_row(earlier), copy_row(later)), later, why)]
    return []


def _quorum_state_disagrees(node: str, given: str, rows: tuple[Row, Row], copy: Row, why: str) -> Witness:
    epoch, kept = copy["quorum_epoch"], copy["voted_for"]
    holds = f"a vote for {kept}" if kept is not None else "no vote"
    return Witness(
        kind=VOTED_TWICE if kept is not None else VOTE_NOT_KEPT,
        summary=f"{node} voted for {given} in epoch {epoch}, but later its quorum-state holds {holds} in that epoch.",
        rows=rows,
        facts={
            "nodes": [node, given],
            "epoch": epoch,
            "offset": None,
            "why": [why, f"Copy {copy['copy']} ({copy['when']}), taken later, finds {holds} of epoch {epoch} there."],
            "expected": "a vote is kept for as long as its epoch lasts, or the voter can vote again after a restart",
        },
    )


def _combine_up_to_date(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """A vote is wrong only if every candidacy of that epoch, by every epoch its last entry can have, makes it wrong.

    A vote for a candidate that reports no candidacy is not judged."""
    reports: list[NodeReport] = _of(NodeReport, findings)
    stood: dict[tuple[int, str], list[tuple[TraceRow, LogAt]]] = {}
    for report in reports:
        for row, _, log in report.candidacies:
            stood.setdefault((row.epoch, report.node), []).append((row, log))
    wrong, given, compared = [], 0, 0
    for report in reports:
        for vote, peer, own in report.ballots:
            shown = stood.get((vote.epoch, peer), [])
            given, compared = given + 1, compared + bool(shown)
            if shown and all(log.behind(own) for _, log in shown):
                wrong.append(_behind(vote, own, *shown[-1]))
    wrong.sort(key=lambda witness: (witness.facts["epoch"], witness.facts["nodes"][0]))
    looked_at = {"nodes": len(node_files(run.trace)), "votes for others": given, "votes compared": compared}
    unknown = _unknown(run, reports) + (nothing_of(looked_at, "votes compared") if len(run.servers) > 1 else [])
    return conclude(wrong, looked_at, unknown)


def _behind(vote: TraceRow, own: LogAt, candidacy: TraceRow, log: LogAt) -> Witness:
    epoch, peer = vote.epoch, candidacy.node
    return Witness(
        kind=BEHIND_VOTE,
        summary=f"{vote.node} voted for {peer} in epoch {epoch}, whose log was behind its own.",
        rows=(vote.as_row(), candidacy.as_row()),
        facts={
            "nodes": [vote.node, peer],
            "epoch": epoch,
            "offset": log.end,
            "why": [
                f"The log of {peer} {_shown(log)} when it stood for epoch {epoch} ({candidacy.where}).",
                f"The log of {vote.node} {_shown(own)} when it voted ({vote.where}).",
            ],
            "expected": "a vote goes only to a log at least as up to date as the voter's own: otherwise a leader may "
            "lack what is committed",
        },
    )


def _shown(log: LogAt) -> str:
    if log.end == 0:
        return "was empty"
    epoch = f"epoch {log.lowest}" if log.lowest == log.highest else f"an epoch from {log.lowest} to {log.highest}"
    return f"ended at offset {log.end} with an entry of {epoch}"


# Epochs, disks and states of one node


def _combine_monotonicity(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """An epoch is on disk before it is used, so quorum-state holds at least what the node had reported, and its log."""
    reports: list[NodeReport] = _of(NodeReport, findings)
    witnesses: list[Witness] = []
    missing, files = [], 0
    logs = node_files(run.log)
    for report in reports:
        witnesses += _broken("monotonicity", [report])
        at_disk = [(at.copy, at.highest_epoch) for at in report.copies if at.same_disk and at.highest_epoch is not None]
        behind = next(((c, row) for c, row in at_disk if 0 <= c["quorum_epoch"] < row.epoch), None)
        if behind is not None:
            copy, top = behind
            why = f"{copy['node']} reported that it was in epoch {top.epoch} ({top.where})."
            witnesses.append(_quorum_state_behind(copy, top.as_row(), why))
        if report.copies and 0 <= (last := report.copies[-1].copy)["quorum_epoch"] < report.log_epoch[1]:
            at, epoch = report.log_epoch
            why = f"The log of {last['node']} has an entry of epoch {epoch} at offset {at}."
            (higher,) = log_rows(logs[report.node], last["copy"], [at])
            witnesses.append(_quorum_state_behind(last, higher, why))
        files += sum(at.copy["quorum_epoch"] >= 0 for at in report.copies)
        missing += [
            f"copy {copy['copy']} of {copy['node']} ({copy['when']}) holds no quorum-state file"
            for copy, row in at_disk
            if copy["quorum_epoch"] < 0 and row.epoch > 0
        ]
    counts = _sum(reports, "epochs reported", "high watermarks")
    looked_at = {"nodes": len(node_files(run.trace)), **counts, "quorum-state files": files}
    unknown = missing + _unknown(run, reports) + nothing_of(looked_at, "epochs reported", "high watermarks")
    return conclude(witnesses, looked_at, unknown)


def _quorum_state_behind(copy: Row, higher: Row, why: str) -> Witness:
    node, epoch = copy["node"], copy["quorum_epoch"]
    return Witness(
        kind=EPOCH_BACK,
        summary=f"{node} had reached epoch {higher['epoch']}, but its quorum-state holds epoch {epoch}.",
        rows=(higher, copy_row(copy)),
        facts={
            "nodes": [node],
            "epoch": higher["epoch"],
            "offset": higher["offset"],
            "why": [why, f"Copy {copy['copy']} ({copy['when']}) finds epoch {epoch} in its quorum-state."],
            "expected": "an epoch is on disk before another node learns of it, and before an entry of it is written",
        },
    )


def spans_of_loss(faults: Sequence[FaultRecord], node: str) -> list[Span]:
    """Return when faults may have taken the disk of this node.  A fault that damages data stays in force."""
    return [
        (fault.began_ns, _FOREVER_NS if fault.damages_data else fault.end_ns(_FOREVER_NS))
        for fault in faults
        if fault.carried_out and node in fault.nodes and (fault.wipes_disks or fault.damages_data)
    ]


def explained(spans: Sequence[Span], gone_ns: int, there_ns: int) -> bool:
    """Return True if a fault may have taken a disk.

    gone_ns: the last sign of the old disk.  there_ns: the first sign of the new one."""
    return any(from_ns <= there_ns and to_ns >= gone_ns for from_ns, to_ns in spans)


def _combine_disks(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """A node has another disk than before only where a fault took the one that it had.

    Where the nodes have clocks of their own, any such fault on the node explains it.  The same holds for a copy of a
    disk that no row of the trace names, because no row of the trace is compared with it."""
    reports: list[NodeReport] = _of(NodeReport, findings)
    counts = _sum(reports, "disks named", "disks replaced")
    if not counts["disks named"] and not any(report.unknown for report in reports):
        return Verdict(Validity.NOT_APPLICABLE, reason="no trace names a disk")
    anytime, comparable = (-_FOREVER_NS, _FOREVER_NS), one_clock(run.header)
    witnesses: list[Witness] = []
    for report in reports:
        witnesses += _broken("kept-disk", [report])
        spans = [span if comparable else anytime for span in spans_of_loss(run.faults, report.node)]
        taken_ns = {copy.copy: copy.taken_ns for copy in run.copies_index if copy.node == report.node}
        witnesses += unnamed_disks(report, spans, taken_ns)
    looked_at = {"nodes": len(node_files(run.trace)), **counts}
    return conclude(witnesses, looked_at, _unknown(run, reports))


def unnamed_disks(report: NodeReport, spans: Sequence[Span], taken_ns: Mapping[int, int]) -> list[Witness]:
    """Return the copies of a disk that no row names, for no known reason.

    taken_ns: number of a copy -> when it was complete; -1 if that is not known."""
    witnesses = []
    for at in report.copies:
        copy = at.copy
        if copy.get("disk") is None or copy["disk"] in report.disks or at.disk is None:
            continue
        taken = taken_ns.get(copy["copy"], -1)
        if not explained(spans, at.last_ns, taken if taken >= 0 else _FOREVER_NS):
            words = {"disk": copy["disk"], "found": f"in copy {copy['copy']} ({copy['when']})"}
            witnesses.append(
                RuleBreach(rule_of(DISK_REPLACED), RuleEvidence((at.disk,), words)).witness([copy_row(copy)])
            )
    return witnesses


def _combine_states(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    ranges, reports = _of(StatesFinding, findings), _of(NodeReport, findings)
    witnesses = _broken("state-machine-safety", reports) + [w for each in ranges for w in each.states]
    counts = {
        "applied states": sum(each.applied for each in ranges),
        "offsets compared": sum(each.compared for each in ranges),
    }
    needed = ["applied states", "offsets compared"] if len(run.servers) > 1 else ["applied states"]
    looked_at = {"nodes": len(node_files(run.trace)), **counts}
    return conclude(witnesses, looked_at, _unknown(run, [*reports, *ranges]) + nothing_of(looked_at, *needed))


# Snapshots


def _is_snapshot(row: Row) -> bool:
    return "snapshot" in (row.get("event"), row["table"].rstrip("s"))


def _state_of(row: Row) -> str:
    """Return a sentence with the hash of the state that a row shows."""
    if row["table"] == "snapshots":
        where = f"{row['end_offset']:020d}-{row['epoch']:010d}.checkpoint of copy {row['copy']}"
        return f"{row['node']}, {where}: the hash of the state in this file is {hash_words(row['state_hash'])}."
    state = hash_words(row["hash"])
    return (
        f"{row['node']}, {row['event']} ({in_trace(row)}): the hash of its state at offset {row['offset']} is {state}."
    )


def _snapshot_differs(one: Row, two: Row) -> Witness:
    snapshot, other = sorted((one, two), key=lambda r: (r["table"] != "snapshots", not _is_snapshot(r)))
    end = snapshot.get("offset", snapshot.get("end_offset"))
    reached = "its own snapshot" if _is_snapshot(other) else "applying everything"
    return Witness(
        kind=SNAPSHOT_DIFFERS,
        summary=f"The snapshot of {snapshot['node']} that ends at offset {end} holds another state than the one that "
        f"{other['node']} reached there by {reached}.",
        rows=(snapshot, other),
        facts={
            "nodes": list(dict.fromkeys((snapshot["node"], other["node"]))),
            "epoch": snapshot["epoch"],
            "offset": end,
            "why": [_state_of(snapshot), _state_of(other)],
            "expected": "a snapshot is the state after all entries below its end",
        },
    )


def _combine_snapshots(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """A snapshot (end, exclusive; epoch) replaces the log below its end (KIP-630).

    Its state is one that a node reached by applying everything below; its end is committed; and a log that begins
    above 0 begins at or below the end of a snapshot that the node has."""
    ranges, reports = _of(StatesFinding, findings), _of(NodeReport, findings)
    begun, cut_logs = _log_starts(run, reports)
    snapshots = sum(len(report.snapshots) for report in reports)
    unknown = [each.unknown for each in (*reports, *ranges) if each.unknown]
    if snapshots == 0 and cut_logs == 0 and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no node took a snapshot, and every log begins at offset 0")
    committed = max((report.largest_mark for report in reports), default=0)
    late = [
        RuleBreach(rule_of(SNAPSHOT_BEYOND), RuleEvidence((row,), {"known": "not known yet"})).witness()
        for report in reports
        for row in report.snapshots
        if row.peer is not None and (row.offset or 0) > committed
    ]
    witnesses = [w for each in ranges for w in each.snapshots]
    witnesses += late + _broken("snapshot-equals-prefix", reports) + begun
    looked_at = {
        "nodes": len(node_files(run.trace)),
        "snapshots": snapshots,
        "files of snapshots": sum(not file["error"] for copy in run.copies for file in copy.get("snapshots") or ()),
        "ends at which states were compared": sum(each.compared_snapshots for each in ranges),
        "logs that begin above 0": cut_logs,
    }
    return conclude(witnesses, looked_at, unknown + gaps(run, "traces"))


def _log_starts(run: StoredRun, reports: Sequence[NodeReport]) -> tuple[list[Witness], int]:
    """Return (witnesses of logs that begin above all snapshots of the node, how many logs begin above 0)."""
    logs, witnesses, cut_logs = node_files(run.log), list[Witness](), 0
    for report in reports:
        if (path := logs.get(report.node)) is None:
            continue
        metadata = pq.read_metadata(path)
        # A log that begins where no snapshot ends cannot be read any further, and that is the violation.
        for copy in (c for c in run.copies if c["node"] == report.node and (not c["error"] or c.get("log_start"))):
            start = copy.get("log_start")
            if start is None:
                start = min((group.first for group in log_groups(metadata, copy["copy"])), default=0)
            cut_logs += start > 0
            had = [row for row in report.snapshots if row.seq <= copy["trace_seq"]]
            on_disk = max((each["end_offset"] for each in copy.get("snapshots") or () if not each["error"]), default=0)
            newest = max([on_disk, *(row.offset or 0 for row in had)])
            if start > newest:
                last = [row for row in had if row.offset == newest][:1]
                witnesses.append(_begins_late(path, copy, start, newest, last))
    return witnesses, cut_logs


def _begins_late(path: str, copy: Row, start: int, newest: int, snapshot: Sequence[TraceRow]) -> Witness:
    node = copy["node"]
    has = f"the newest snapshot of {node} ends at {newest}" if snapshot else f"{node} had no snapshot"
    return Witness(
        kind=BEGINS_LATE,
        summary=f"The log of {node} (copy {copy['copy']}) begins at offset {start}, but {has}.",
        rows=(*(row.as_row() for row in snapshot), *log_rows(path, copy["copy"], [start]), copy_row(copy)),
        facts={
            "nodes": [node],
            "copies": [copy["copy"]],
            "epoch": copy["quorum_epoch"],
            "offset": start,
            "why": [f"Entries {newest} to {start - 1} are in no snapshot of {node} and not in its log."],
            "expected": "a log is cut only below the end of a snapshot",
        },
    )


# Commits


def _combine_own_epoch(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    reports: list[NodeReport] = _of(NodeReport, findings)
    looked_at = {"nodes": len(node_files(run.trace)), **_sum(reports, "leaders' high watermarks")}
    unknown = _unknown(run, reports) + nothing_of(looked_at, "leaders' high watermarks")
    return conclude(_broken("commit-own-epoch", reports), looked_at, unknown)


def _combine_voters(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """A set of voters is committed if any node reported a mark beyond its record."""
    reports: list[NodeReport] = _of(NodeReport, findings)
    named = [row for report in reports for row in report.sets]
    unknown = _unknown(run, reports)
    if not named and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no log names voters: they cannot change")
    mark = max((report.largest_mark for report in reports), default=-1)
    committed = sorted((r for r in named if (r.offset or 0) < mark), key=lambda r: (r.offset or 0, r.seq))
    looked_at = {
        "nodes": len(node_files(run.trace)),
        "committed sets of voters": len({row.offset for row in committed}),
        **_sum(reports, "changes by leaders"),
    }
    if not committed:
        unknown.append("there were no committed sets of voters to look at")
    return conclude(_broken("quorum-intersection", reports) + sets_apart(committed), looked_at, unknown)


def _combine_majority(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """A mark of epoch e is wrong if fewer than a majority ever durably held it while they were in an epoch up to e.

    Beyond the start of its epoch, the last entry below the mark is of epoch e.  Any log whose last batch is of epoch e
    is a prefix of the leader's log.  So a node can have held the mark only while its last batch was of epoch e.
    For other marks (a lagging follower reports such), or where the leader is not known, the length decides.

    A leader counts the voters that its own log named last.  A follower repeats a mark of a leader whose log may have
    named others, so that any set that any trace names may excuse it.  Everything unknown counts as held, and only marks
    before the last copy of their node are judged, because all traces were collected after that."""
    reports: list[NodeReport] = _of(NodeReport, findings)
    named = sorted({_names(row) for report in reports for row in report.sets}, key=sorted)
    reaches = {report.node: report.reach for report in reports if not report.unknown}
    starts: dict[int, list[int]] = {}
    for report in reports:
        for row in report.offices:
            starts.setdefault(row.epoch, []).append(-1 if row.offset is None else row.offset)
    witnesses = []
    judged = [top for report in reports for top in report.tops]
    for mark, counted in judged:
        start = starts.get(mark.epoch, [])
        end = mark.offset or 0
        beyond_start = len(start) == 1 and 0 <= start[0] < end
        lacks = {n for n, reach in reaches.items() if not reach.may_have_held(end, mark.epoch, beyond_start)}
        sets = [sorted(counted)] if counted else [sorted(names) for names in named] or [list(run.servers)]
        if all(2 * len(lacks.intersection(voters)) >= len(voters) for voters in sets):
            without = [voter for voter in sets[0] if voter in lacks]
            witnesses.append(_without_majority(mark, sets[0], without, reaches, beyond_start))
    looked_at = {
        "voters": len(run.servers),
        "high watermarks": _sum(reports, "marks before the last copy")["marks before the last copy"],
        "epochs with one": len({mark.epoch for mark, _ in judged}),
    }
    unknown = _unknown(run, reports) + nothing_of(looked_at, "high watermarks")
    return conclude(_worst(witnesses), looked_at, unknown)


def _names(row: TraceRow) -> frozenset[str]:
    return frozenset((row.detail or "").split())


def _worst(witnesses: list[Witness]) -> list[Witness]:
    """Put one violation per epoch before any second one, because several nodes repeat the mark of their leader."""
    seen: Counter[int] = Counter()
    ranked = []
    for witness in sorted(witnesses, key=lambda w: (w.facts["epoch"], -w.facts["offset"])):
        seen[witness.facts["epoch"]] += 1
        ranked.append((seen[witness.facts["epoch"]], witness))
    return [witness for _, witness in sorted(ranked, key=lambda pair: pair[0])]


def _without_majority(
    mark: TraceRow, voters: Sequence[str], without: Sequence[str], reaches: Mapping[str, Reach], beyond_start: bool
) -> Witness:
    node, epoch, offset = mark.node, mark.epoch, mark.offset or 0
    with_it = [voter for voter in voters if voter not in without]
    held = f"only {', '.join(with_it)} of {len(voters)} voters" if with_it else f"none of {len(voters)} voters"
    why = [f"{node} reported in epoch {epoch} ({mark.where}) that everything below {offset} is committed."]
    for voter in without:
        reach = reaches[voter]
        if beyond_start:
            end = reach.own.get(epoch, 0)
            what = f"held entries of epoch {epoch} only up to offset {end}" if end > 0 else "held none of its entries"
            why.append(f"{voter}: while it was in epoch {epoch}, its disk {what}.")
        else:
            why.append(f"{voter}: its log never durably reached beyond {reach.longest(epoch)} up to epoch {epoch}.")
    return Witness(
        kind=NO_MAJORITY,
        summary=f"{node} called everything below offset {offset} committed in epoch {epoch}, but {held} had ever held "
        f"it durably by then.",
        rows=(mark.as_row(),),
        facts={
            "nodes": list(dict.fromkeys([node, *without])),
            "epoch": epoch,
            "offset": offset - 1,
            "committed_below": offset,
            "may_have_held": with_it,
            "why": why,
            "expected": "a majority of voters holds on disk what is committed, so that every majority that elects a "
            "leader has it",
        },
    )


def _combine_before_mark(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """Apply the order of one clock: a majority that came to hold a mark later in the same epoch excuses nothing."""
    if not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason=NOT_ONE_CLOCK)
    timed: list[TimedFinding] = _of(TimedFinding, findings)
    name = "majority-before-mark"
    looked_at = {"high watermarks": sum(each.marks for each in timed)}
    if violations := sum(each.counts.get(name, 0) for each in timed):
        looked_at["violations"] = violations
    unknown = _unknown(run, timed) + nothing_of(looked_at, "high watermarks")
    return conclude([w for each in timed for w in each.witnesses.get(name, ())], looked_at, unknown)


def _combine_joined(run: StoredRun, findings: Sequence[Finding]) -> Verdict:
    """A voter that joins with an empty log endangers no entry, but nothing may commit until it has fetched the rest."""
    if not one_clock(run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason=NOT_ONE_CLOCK)
    timed: list[TimedFinding] = _of(TimedFinding, findings)
    joined, unknown = sum(each.joined for each in timed), _unknown(run, timed)
    if not joined and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no voter joined")
    witnesses = [w for each in timed for w in each.witnesses.get("voters-caught-up", ())]
    return conclude(witnesses, {"voters that joined": joined}, unknown)


ELECTION_SAFETY = trace_checker(
    "election-safety", "Election safety", "Was there at most one leader in every epoch?", _combine_leaders
)
VOTE_ONCE = trace_checker(
    "vote-once",
    "One vote per epoch",
    "Did every voter vote at most once in an epoch, restarts included?",
    _combine_votes,
)
VOTE_UP_TO_DATE = trace_checker(
    "vote-up-to-date",
    "Votes for logs that are up to date",
    "Did every vote go to a log at least as up to date as the voter's own?",
    _combine_up_to_date,
)
MONOTONICITY = trace_checker(
    "monotonicity",
    "Epochs and marks only rise",
    "Did epochs never go back, and high watermarks never within one life of a process?",
    _combine_monotonicity,
)
KEPT_DISK = trace_checker(
    "kept-disk",
    "Nodes keep their disks",
    "Did the directory id of a node's disk (its `disk` rows) change only where a fault took the disk?",
    _combine_disks,
)
STATE_MACHINE_SAFETY = trace_checker(
    "state-machine-safety",
    "State machine safety",
    "Did all nodes that applied the same entries reach the same state, and apply only what was committed?",
    _combine_states,
)
SNAPSHOT_PREFIX = trace_checker(
    "snapshot-equals-prefix",
    "Snapshot equals prefix",
    "Does every snapshot hold what its prefix of the log leads to, and does every log join its snapshot?",
    _combine_snapshots,
)
COMMITS_OWN_EPOCH = trace_checker(
    "commit-own-epoch",
    "A leader commits an entry of its own epoch first",
    "Did every leader commit older entries only together with one of its own epoch?",
    _combine_own_epoch,
)
QUORUM_INTERSECTION = trace_checker(
    "quorum-intersection",
    "Voters change one at a time",
    "Do majorities before and after every change of the voters share a voter?",
    _combine_voters,
    "kraft-steps",
)
HELD_BY_MAJORITY = trace_checker(
    "high-watermark-majority",
    "High watermark held by a majority",
    "Did a majority of voters durably hold everything that was ever called committed?",
    _combine_majority,
    "logs",
)
HELD_BEFORE_MARK = trace_checker(
    "majority-before-mark",
    "A majority holds it before it is called committed",
    "Did a majority of voters durably hold everything at the time when its leader called it committed?",
    _combine_before_mark,
    "logs",
)
JOINED_AFTER_CATCHING_UP = trace_checker(
    "voters-caught-up",
    "Voters join once they have caught up",
    "Had every voter that joined fetched the leader's log before it counted?",
    _combine_joined,
    "kraft-steps",
)
