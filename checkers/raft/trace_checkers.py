"""The parts that the checkers of traces share, judged by the rules of the monitor.

All checkers of traces have the same `split` and `judge`, so every trace is read only once.  A run has the following
parts, and each checker combines the findings that concern it:

    one node           a `NodeMonitor` over the condensed trace of the node
    a range of states  the hashes that all nodes reported at the same offsets: applied states and snapshots
    all nodes          a `TimedMonitor`, where the servers share one monotonic clock

Cost: linear in the rows of all traces.  Memory: one row group of a trace, or the states of one range.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base import stored_rows
from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Part
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Witness
from checkers.kernels.raft import disagreements
from checkers.raft import rules
from checkers.raft.monitor import NodeMonitor, NodeReport, named_by
from checkers.raft.monitor import two_rows as differing
from checkers.raft.reading import Condensed, rows_of_table
from checkers.raft.rules import WITNESSES_PER_PART, Row, TraceRow, hash_words, in_trace, of_row
from checkers.record.faults import FaultRecord
from checkers.record.header_and_outcome import one_clock

ROW_SIZE_BYTES = 60
ROWS_PER_RANGE = 4_000_000
"""Approximate number of rows of all traces that are judged for one range of offsets."""

FOREVER_NS = NO_END = 2**62
Span = tuple[int, int]
"""Begin and end of a fault that may have wiped a disk, in ns since the test began; both ends are included."""


@dataclass(frozen=True, slots=True)
class StatesFinding:
    """Finding on the states that all nodes reported in a range of offsets.

    states: witnesses of two applied states that differ
    snapshots: witnesses of a snapshot that differs from another snapshot or from an applied state
    applied: number of rows of applied states
    compared: number of offsets with at least two applied states
    compared_snapshots: number of ends of snapshots with at least two states
    broken_files: files of snapshots that cannot be read, with the error of each; or ""
    """

    states: tuple[Witness, ...] = ()
    snapshots: tuple[Witness, ...] = ()
    applied: int = 0
    compared: int = 0
    compared_snapshots: int = 0
    broken_files: str = ""


@dataclass(frozen=True, slots=True)
class TimedFinding:
    """Finding of a `TimedMonitor`.

    witnesses: checker -> witnesses
    counts: checker -> number of violations
    marks: number of high watermarks that were judged
    joined: number of joined voters that were judged
    """

    witnesses: Mapping[str, Sequence[Witness]] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    marks: int = 0
    joined: int = 0


Finding = NodeReport | StatesFinding | TimedFinding


# Rows of all nodes in the order of one clock


CAUGHT_UP_WITHIN_S = 5.0
"""Maximum lag of a joining replica in seconds that the bundled KRaft allows (`raft.changes`)."""


@dataclass(slots=True)
class _Voter:
    """State of one node in the order of the shared clock.

    last_epoch: epoch of the last batch that the node appended
    reach: epoch of the last batch -> largest durable end of the log
    recovered: largest end of a log that a restart found
    office: (epoch, start of this epoch) while the node leads; otherwise None
    members: the voters in the latest record of voters in the log; None before the first one
    latest: (offset, names) of this record if a row of this incarnation reported it
    written: (time in ns, end of the log) of recent changes
    durable: current durable end of the log
    """

    last_epoch: int | None = None
    reach: dict[int, int] = field(default_factory=dict)
    recovered: int = 0
    office: tuple[int, int] | None = None
    members: frozenset[str] | None = None
    latest: tuple[int, frozenset[str]] | None = None
    written: deque[tuple[int, int]] = field(default_factory=deque)
    durable: int = 0

    def held(self, epoch: int) -> int:
        """Return the largest durable end of the log while its last entry may have been of this epoch."""
        return max(self.recovered, self.reach.get(epoch, 0))

    def wrote(self, time_ns: int, end: int) -> None:
        self.written.append((time_ns, end))
        self.end_before(time_ns)

    def end_before(self, time_ns: int) -> int:
        """Return the end of the log CAUGHT_UP_WITHIN_S seconds before this time, and forget older ends."""
        before_ns = time_ns - round(CAUGHT_UP_WITHIN_S * 1e9)
        while len(self.written) > 1 and self.written[1][0] <= before_ns:
            self.written.popleft()
        return self.written[0][1] if self.written and self.written[0][0] <= before_ns else 0


class TimedMonitor:
    """Processes the rows of all nodes in the order of one clock; at equal times, marks and voters come last.

    A voter stamps its `flush` row before it writes the row, and writes the row before it sends its next Fetch.  The
    leader stamps its mark, or a record of new voters, after it received this Fetch.  So at the time of a mark, a
    majority has reported that all entries below the mark are durable and that its last batch is of the leader's epoch.
    And a replica that joins has reported the first entry of the epoch, and all entries that the leader's log had
    CAUGHT_UP_WITHIN_S seconds earlier.

    A node without a trace counts as having every entry.  A log that a restart recovered counts for every epoch.

    voters: names of the voters of the configuration
    known: names of the voters with a trace, empty or not
    until: node -> the last seq to judge; None to judge all rows
    marks: number of marks judged so far
    joined: number of joined voters judged so far
    """

    EVENTS = ("start", "append", "flush", "truncate", "snapshot", "role", "high-watermark", "voters")
    LAST = frozenset({"high-watermark", "voters"})

    def __init__(
        self, voters: Collection[str], known: Iterable[str] = (), until: Mapping[str, int] | None = None
    ) -> None:
        self.marks = self.joined = 0
        self._all = frozenset(voters)
        self._voters = {name: _Voter() for name in known}
        self._until = until

    def take(self, row: TraceRow) -> list[rules.RuleBreach]:
        voter, offset = self._voters.get(row.node), row.offset or 0
        if voter is None:
            voter = self._voters[row.node] = _Voter()
        match row.event:
            case "append":
                voter.last_epoch = row.epoch
                voter.wrote(row.time_ns, offset)
            case "flush":
                voter.durable = offset
                if voter.last_epoch is not None:
                    voter.reach[voter.last_epoch] = max(offset, voter.reach.get(voter.last_epoch, 0))
            case "high-watermark":
                return self._mark(voter, row, offset)
            case "voters":
                return self._voters_named(voter, row)
            case "role":
                leads = row.role == "leader" and row.offset is not None
                voter.office = (row.epoch, offset) if leads else None
            case "start":
                voter.recovered = max(voter.recovered, offset)
                voter.office = voter.latest = None
        if row.event in ("start", "truncate") or (row.event == "snapshot" and row.peer is not None):
            voter.durable = offset
            voter.wrote(row.time_ns, offset)
        return []

    def _mark(self, leader: _Voter, row: TraceRow, mark: int) -> list[rules.RuleBreach]:
        if leader.office is None or row.epoch != leader.office[0] or mark <= leader.office[1]:
            return []
        if self._until is not None and row.seq > self._until.get(row.node, -1):
            return []
        self.marks += 1
        members = leader.members or self._all
        known = {name: voter for name in members if (voter := self._voters.get(name)) is not None}
        without = [name for name, voter in sorted(known.items()) if voter.held(row.epoch) < mark]
        if 2 * (len(members) - len(without)) > len(members):
            return []
        holders = sorted(known.keys() - set(without))
        held = f"only {', '.join(holders)} of {len(members)} voters" if holders else f"none of {len(members)} voters"
        lacked = " ".join(
            f"{name} durably held entries of that epoch only up to {known[name].held(row.epoch)}." for name in without
        )
        words = {"held": held, "lacked": lacked, "without": " ".join(without)}
        facts = {"offset": mark - 1, "committed_below": mark, "may_have_held": holders}
        return [rules.breach(rules.BEFORE_MAJORITY, (row,), words, facts)]

    def _voters_named(self, leader: _Voter, row: TraceRow) -> list[rules.RuleBreach]:
        names, latest = named_by(row), leader.latest
        leader.members = names
        leader.latest = None if row.offset is None else (row.offset, names)
        if leader.office is None or latest is None or row.offset is None or row.offset <= latest[0]:
            return []
        start = leader.office[1]
        needed, found = max(start + 1, leader.end_before(row.time_ns)), list[rules.RuleBreach]()
        for name in sorted(names - latest[1]):
            replica = self._voters.get(name)
            if replica is None:
                continue
            self.joined += 1
            if replica.durable < needed:
                words = {"voter": name, "reached": replica.durable, "needed": needed, "start": start}
                found.append(rules.breach(rules.JOINED_EARLY, (row,), words | {"within": CAUGHT_UP_WITHIN_S}))
        return found


# Parts


def split_traces(run: StoredRun) -> list[Part]:
    """Return the parts of a run: its nodes, the ranges of states, and all nodes in the order of time."""
    traces, logs = node_files(run.trace), node_files(run.log)
    until, parts = run.copied_seqs, []
    for node, path in traces.items():
        params = {
            "node": node,
            "copies": [c for c in run.copies if c["node"] == node and not c["error"]],
            "until": until.get(node, -1),
            "log": logs.get(node),
            "spans": spans_of(run, node),
        }
        parts.append(Part((path,), params))
    parts += _ranges(run, tuple(traces.values()))
    if one_clock(run.header) and traces:
        parts.append(Part(tuple(traces.values()), {"nodes": list(traces), "voters": list(run.servers), "until": until}))
    return parts


def _ranges(run: StoredRun, paths: tuple[str, ...]) -> list[Part]:
    """Cut the offsets into ranges of about the same size.

    The last range has no end, because a file may lack the statistics that show its largest offset.
    """
    files = [
        {"table": "snapshots", "node": copy["node"], "copy": copy["copy"], **snapshot}
        for copy in run.copies
        for snapshot in copy.get("snapshots") or ()
    ]
    rows, end = 0, max((file["end_offset"] + 1 for file in files), default=0)
    for metadata in map(pq.read_metadata, paths):
        at, rows = metadata.schema.names.index("offset"), rows + metadata.num_rows
        known = (metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups))
        end = max([end, *(each.max + 1 for each in known if each is not None and each.has_min_max)])
    size = max(1, -(-end // max(1, -(-rows // ROWS_PER_RANGE))))
    ranges = []
    for first in range(0, max(end, int(rows > 0)), size):
        stop = first + size if first + size < end else NO_END
        here = [file for file in files if first <= file["end_offset"] < stop]
        ranges.append(Part(paths, {"first": first, "stop": stop, "files": here}))
    return ranges


def judge_traces(part: Part, budget: Budget) -> Finding:
    """Judge one part."""
    if "node" in part.params:
        return _judge_node(part, budget)
    return _judge_states(part, budget) if "files" in part.params else _judge_in_time(part, budget)


def _judge_node(part: Part, budget: Budget) -> NodeReport:
    path, params = part.paths[0], part.params
    rows = pq.read_metadata(path).num_rows
    budget.demand(rows * ROW_SIZE_BYTES, f"{path}: {rows} rows")
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
    for group in stored_rows.log_groups(file.metadata, copy):
        table = file.read_row_group(group.number, ["copy", "offset", "epoch"], use_threads=False)
        epochs = np.where(stored_rows.numbers(table, "copy") == copy, stored_rows.numbers(table, "epoch"), -1)
        if len(epochs) and epochs.max() > epoch:
            at, epoch = int(stored_rows.numbers(table, "offset")[np.argmax(epochs)]), int(epochs.max())
    return at, epoch


def _judge_states(part: Part, budget: Budget) -> StatesFinding:
    """Compare the states that all nodes reported in a range of offsets."""
    first, stop = part.params["first"], part.params["stop"]
    tables = []
    count = 0
    for number, path in enumerate(part.paths):
        rows = stored_rows.read_trace(path, ("applied", "snapshot"), ("offset", "hash"), range(first, stop))
        offset = stored_rows.numbers(rows, "offset")
        rows = rows.filter(pa.array((offset >= first) & (offset < stop) & stored_rows.present(rows, "hash")))
        tables.append(rows.append_column("source", pa.repeat(pa.scalar(number), len(rows))))
        count += len(rows)
        budget.demand(count * ROW_SIZE_BYTES, f"{path}: {count} rows")
    table = pa.concat_tables(tables).unify_dictionaries()
    is_applied = stored_rows.coded(table, "event", {"applied": 1}) == 1
    offset, hashes = stored_rows.numbers(table, "offset"), stored_rows.numbers(table, "hash")
    seq, source = stored_rows.numbers(table, "seq"), stored_rows.numbers(table, "source")

    def row(i: int) -> Row:
        return stored_rows.trace_row(part.paths[int(source[i])], int(seq[i]))

    applied = np.flatnonzero(is_applied)
    states = [
        differing(rules.STATES_DIFFER, of_row(row(int(applied[a]))), of_row(row(int(applied[b])))).witness()
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
    budget.demand(rows * ROW_SIZE_BYTES, f"all traces: {rows} rows")
    monitor = TimedMonitor(part.params["voters"], part.params["nodes"], part.params["until"])
    tables = [stored_rows.read_trace(path, TimedMonitor.EVENTS, TraceRow._fields) for path in part.paths]
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
    """Return the rows of a node that can change the state or the findings of a TimedMonitor.

    Marks of a node that never leads are not judged.  Only the first append of each epoch is relevant, unless replicas
    join: then every append is, because a joining replica must have caught up with the leader's log at some moment.
    """
    event = stored_rows.coded(table, "event", {"append": 0, "high-watermark": 1, "role": 2}, 3)
    kept = np.ones(len(table), np.bool_)
    if not np.any(stored_rows.coded(table, "role", {"leader": 1})[event == 2] == 1):
        kept &= event != 1
    if not replicas_join:
        appends = np.flatnonzero(event == 0)
        appends = appends[np.argsort(stored_rows.numbers(table, "time_ns")[appends], kind="stable")]
        epochs = stored_rows.numbers(table, "epoch")[appends]
        kept[appends[1:][epochs[1:] == epochs[:-1]]] = False
    return table if kept.all() else table.filter(pa.array(kept))


def in_time(rows: Iterable[TraceRow]) -> list[TraceRow]:
    """Return rows in the order in which a TimedMonitor processes them.

    rows: rows of all nodes; those of each node must be in the order of seq
    """
    return sorted(rows, key=lambda row: (row.time_ns, row.event in TimedMonitor.LAST))


def spans_of_loss(faults: Sequence[FaultRecord], node: str) -> list[Span]:
    """Return the spans in which faults may have wiped the disk of this node.

    The span of a fault that corrupts data has no end, because the corruption remains after the fault.
    """
    return [
        (fault.began_ns, FOREVER_NS if fault.damages_data else fault.end_ns(FOREVER_NS))
        for fault in faults
        if fault.carried_out and node in fault.nodes and (fault.wipes_disks or fault.damages_data)
    ]


def spans_of(run: StoredRun, node: str) -> list[Span]:
    """Return the spans in which faults of this run may have wiped the disk of this node.

    If the nodes have separate clocks, such a fault may have been in force at any time.
    """
    spans = spans_of_loss(run.faults, node)
    return spans if one_clock(run.header) else [(-FOREVER_NS, FOREVER_NS) for _ in spans]


def explained(spans: Sequence[Span], gone_ns: int, there_ns: int) -> bool:
    """Return True if a fault may have wiped a disk.

    gone_ns: time when the old disk was last seen, in ns
    there_ns: time when the new disk was first seen, in ns
    """
    return any(from_ns <= there_ns and to_ns >= gone_ns for from_ns, to_ns in spans)


def _is_snapshot(row: Row) -> bool:
    return "snapshot" in (row.get("event"), row["table"].rstrip("s"))


def _state_of(row: Row) -> str:
    """Return a sentence with the hash of the state in a row."""
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
    return Witness.of(
        rules.SNAPSHOT_DIFFERS,
        f"The snapshot of {snapshot['node']} that ends at offset {end} holds another state than the one that "
        f"{other['node']} reached there by {reached}.",
        (snapshot, other),
        nodes=[snapshot["node"], other["node"]],
        epoch=snapshot["epoch"],
        offset=end,
        why=[_state_of(snapshot), _state_of(other)],
        expected="a snapshot is the state after all entries below its end",
    )
