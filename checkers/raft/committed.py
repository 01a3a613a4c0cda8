"""Committed entries are never lost, and every leader has them: requirements on logs from the marks of all traces.

An entry is known to be committed if any node reported a high watermark above it, or if its write was acknowledged to a
client.  A *mark* is a committed prefix: its end offset, its prefix hash, and an epoch in which it was certainly
committed: the lowest epoch in which any node reported the mark.  The hash represents the whole prefix.  So a log
*holds* the mark iff it has that hash at that offset.

The following must hold a mark of epoch e (Ongaro & Ousterhout 2014, leader completeness and log matching):

- A log with an entry of a later epoch, because the leader of that epoch had all entries committed before.
- A log whose last entry is of epoch e and that is as long as the mark, because the log is a prefix of that leader's
  log.  At the end of a run, these are all logs that have caught up.  The log of a node that was cut off is not among
  them: it rightly lacks entries that it never received, and its tail of an older epoch may even be longer than the
  mark.
- A node that held the mark in epoch e or later.  The node's own high watermark, an append that ended exactly at the
  mark in that epoch, or an earlier copy shows this.  An entry that a node had only *before* epoch e may be missing: an
  uncommitted entry may be truncated, return with a later leader, and only then be committed.
- A leader of a later epoch, from its first moment.  The leader's `role` row shows the end of its log at that moment.
  Any copy of the log, taken before or after the row, shows the entries that the leader had then, but only those below
  every end that its trace reports between the row and the copy (truncations, restarts, the copy's own end).

A replacement disk with a new id holds no mark at first, because the node is another replica (KIP-853).  A crash may
rightly remove unflushed entries, so a restarted node must hold only the flushed ones.  A failed fsync may also remove
unflushed entries: then the node stops, and a copy may be taken after the loss but before the node's last trace row.
Two marks at one offset with different hashes show that two different entries were committed.  So does a log that holds
a mark but lacks a smaller mark.

A part is one node, with the marks of all nodes.  Cost: linear in the rows of all traces and in the entries of that
node's copies; a merge sort joins the marks of one trace after another.  Memory: 100 bytes per distinct mark and 16
bytes per batch of one log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Checker, Need, Part
from checkers.base.stored_rows import log_rows
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Verdict, Witness, conclude, one_of_each_first
from checkers.kernels.raft import disagreements
from checkers.raft.monitor import AtCopy, NodeMonitor, NodeReport, two_rows
from checkers.raft.reading import (
    NAMED_WRITES,
    Condensed,
    CopiedLog,
    Marks,
    ReportedMarks,
    holds,
    invoke_of,
    must_hold,
    nothing_of,
    operations,
    read_log,
    reported_marks,
)
from checkers.raft.rules import ENTRY_LOST, LACKING_LEADER, PREFIXES_DIFFER, Row, TraceRow, in_trace, of_row
from checkers.raft.trace_checkers import first_pairs
from checkers.sealing.sealed_history import dicts, give_files, history_tables, new_database

# Committed entries in the logs of one node


class Lost(NamedTuple):
    """A mark that a copy of a log lacks although the log must hold it.

    copy: the row of the copy
    offset, hash, epoch: fields of the mark
    proof: the trace row that reported the mark, or the log row of an acknowledged write
    why: the reason why the log must hold the mark, as a sentence
    differs: True if the log holds a larger mark, so that two different entries were committed at one offset
    """

    copy: Row
    offset: int
    hash: int | None
    epoch: int
    proof: Row
    why: str
    differs: bool = False


class Acknowledged(NamedTuple):
    """An acknowledged write above every mark that the log holds, so that only the client's answer shows its commit.

    end, hash: end offset and prefix hash of its batch
    epoch: epoch of its entry
    entry: row of its entry
    """

    end: int
    hash: int
    epoch: int
    entry: Row


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """Finding on the logs and the trace of one node, or on the marks of all nodes.

    lost: marks that a copy of the node's log lacks
    held: (node, number, offset of the largest mark that the copy holds) of each copy
    lacking: terms in which this node led without a mark of an earlier epoch
    offices: number of terms in which this node led
    compared: number of pairs of a term and a copy that shows the leader's log in that term
    """

    witnesses: tuple[Witness, ...] = ()
    lost: tuple[Lost, ...] = ()
    held: tuple[tuple[str, int, int], ...] = ()
    lacking: tuple[Lacking, ...] = ()
    offices: int = 0
    compared: int = 0
    marks: int = 0
    logs: int = 0


def _split(run: StoredRun) -> list[Part]:
    traces, logs, copied = node_files(run.trace), node_files(run.log), run.copies
    if not traces and not logs:
        return []
    params: list[dict[str, Any]] = [{"node": None}]
    for node in dict.fromkeys([*traces, *logs]):
        copies = [c for c in copied if c["node"] == node and not c["error"]]
        params.append({"node": node, "trace": traces.get(node), "log": logs.get(node), "copies": copies})
    return [Part(tuple(traces.values()), each) for each in params]


def _judge(part: Part, budget: Budget) -> NodeFinding:
    return _judge_marks(part, budget) if part.params["node"] is None else _judge_node(part, budget)


def _judge_marks(part: Part, budget: Budget) -> NodeFinding:
    """Verify that all marks at one offset have the same hash."""
    reported = reported_marks(part.paths, budget)
    marks, at = reported.marks, np.flatnonzero(reported.marks.known)
    found = disagreements(marks.offset[at], marks.hash[at])
    rows = [(of_row(reported.row(int(at[a]))), of_row(reported.row(int(at[b])))) for a, b in first_pairs(found)]
    return NodeFinding(tuple(two_rows(PREFIXES_DIFFER, *pair).witness() for pair in rows), marks=len(reported))


def _judge_node(part: Part, budget: Budget) -> NodeFinding:
    params = part.params
    reported = reported_marks(part.paths, budget)
    marks, copies = reported.marks, params["copies"]
    own = follow(params["trace"], params["node"], copies, marks) if params["trace"] else NodeReport(params["node"])
    witnesses = [b.witness() for b in own.broken if b.rule.checker == "committed-never-lost"]
    offices = [row for row in own.offices if row.offset is not None]
    lacking = [found for office in offices for found in _too_short(office, reported)]
    if params["log"] is None:
        return NodeFinding(tuple(witnesses), lacking=tuple(lacking), offices=len(offices), marks=len(reported))
    cut_seqs, cut_offsets = (np.array([getattr(row, name) for row in own.cuts], np.int64) for name in ("seq", "offset"))
    of_other_content: dict[int, list[Lacking]] = {}
    lost: list[Lost] = []
    largest: list[tuple[str, int, int]] = []
    earlier: list[tuple[Row, Bools, AtCopy | None]] = []
    compared = 0
    at_copies: Sequence[AtCopy | None] = own.copies or [None] * len(copies)
    for copy, at in zip(copies, at_copies, strict=True):
        log = read_log(params["log"], copy["copy"], budget, at.snapshot if at is not None and at.same_disk else 0)
        held, lacks = holds(log, marks)
        lost += _lost_marks(copy, reported, log, (held, lacks))
        if at is not None:
            lost += _lost_own(at, log)
            lost += _lost_since(at, earlier, reported, lacks)
        earlier.append((copy, held, at))
        contradicted = lacks & marks.known & (marks.offset <= log.end)
        for number, office in enumerate(offices):
            moments = (copy["trace_seq"], copy["log_end"]), (office.seq, office.offset or 0)
            end = shared_prefix(cut_seqs, cut_offsets, *moments)
            compared += end > 0
            if found := _other_content(office, copy, contradicted, reported, end):
                of_other_content.setdefault(number, found)
        largest.append((params["node"], copy["copy"], int(marks.offset[held].max(initial=0))))
    lacking += [found for number in sorted(of_other_content) for found in of_other_content[number]]
    figures = {"offices": len(offices), "compared": compared, "marks": len(reported), "logs": len(copies)}
    return NodeFinding(tuple(witnesses), tuple(lost), tuple(largest), tuple(lacking), **figures)


def follow(trace: str, node: str, copies: Sequence[Row], marks: Marks) -> NodeReport:
    """Read a node's trace, and report the entries that the node must keep according to this trace.

    marks: the marks of all nodes
    """
    rows = Condensed(trace, [copy["trace_seq"] for copy in copies], (marks.offset, marks.epoch))
    names = set(zip(marks.offset.tolist(), marks.epoch.tolist(), strict=True))
    monitor = NodeMonitor(node, copies, at_mark=lambda offset, epoch: (offset, epoch) in names)
    for each in rows:
        monitor.take(each)
    return monitor.finish()


def _lost_marks(copy: Row, reported: ReportedMarks, log: CopiedLog, state: tuple[Bools, Bools]) -> list[Lost]:
    """Return the first mark that this log lacks although its last epoch, or a larger mark, requires the mark."""
    (held, lacks), marks = state, reported.marks
    by_epoch = np.flatnonzero(must_hold(log, marks) & lacks)
    if len(by_epoch):
        i = int(by_epoch[0])
        later = marks.epoch[i] < log.last_epoch
        has = f"has an entry of {'the later epoch' if later else 'the same epoch'} {log.last_epoch}"
        rule = "whose leader held everything committed before" if later else "and reaches beyond that offset"
        return [_lost(copy, reported, i, f"This log {has}, {rule}.")]
    highest = int(marks.offset[held].max(initial=0))
    split = np.flatnonzero(lacks & marks.known & (marks.offset < highest))
    if len(split):
        why = f"This log holds what was committed up to offset {highest}, but not what was committed below it."
        return [_lost(copy, reported, int(split[0]), why, differs=True)]
    return []


def _lost(copy: Row, reported: ReportedMarks, i: int, why: str, differs: bool = False) -> Lost:
    mark = reported.row(i)
    return Lost(copy, mark["offset"], mark["hash"], mark["epoch"], mark, why, differs)


def _lost_own(at: AtCopy, log: CopiedLog) -> list[Lost]:
    """Verify that the copy holds the largest mark that the node itself had to keep when the copy was taken."""
    mark = at.owed
    if not at.same_disk or mark is None:
        return []
    known = np.array([mark.hash is not None])
    one = Marks(np.array([mark.offset or 0]), np.array([mark.hash or 0]), known, np.array([0]))
    if not holds(log, one)[1][0]:
        return []
    why = f"{at.copy['node']} itself had this committed entry before its disk was copied ({mark.where})."
    return [Lost(at.copy, mark.offset or 0, mark.hash, mark.epoch, mark.as_row(), why)]


def _lost_since(
    at: AtCopy, earlier: list[tuple[Row, Bools, AtCopy | None]], reported: ReportedMarks, lacks: Bools
) -> list[Lost]:
    """Return a mark that this copy lacks although an earlier copy held it in the mark's epoch or later."""
    marks, copy = reported.marks, at.copy
    for before, held, then in earlier:
        if before.get("disk") != copy.get("disk") or then is None:
            continue
        owed = held & lacks & (marks.epoch <= before["quorum_epoch"])
        if at.starts > then.starts or at.only_flushed:
            owed &= marks.offset <= then.flushed
        if owed.any():
            why = f"Copy {before['copy']} of {copy['node']} ({before['when']}) still contains this entry."
            return [_lost(copy, reported, int(np.flatnonzero(owed)[0]), why)]
    return []


_ACKNOWLEDGED = """
SELECT logs.*, 1 + max("offset") OVER (PARTITION BY logs.node, logs.copy, batch_offset) AS batch_end
FROM logs JOIN held USING (node, copy) LEFT JOIN names ON logs.key = names.key AND logs.value = names.value
WHERE "offset" >= mark QUALIFY times = 1 AND type = 1 ORDER BY node, copy, "offset" ASC"""


def _acknowledged(run: StoredRun, findings: Sequence[NodeFinding]) -> list[Acknowledged]:
    """Return entries of acknowledged writes above the largest mark of their log, one per batch and epoch."""
    held = [dict(zip(("node", "copy", "mark"), each, strict=True)) for f in findings for each in f.held]
    if not held or not run.history.exists():
        return []
    with history_tables(run.history) as sql:
        give_files(sql, "logs", node_files(run.log).values())
        sql.register("held", pa.Table.from_pylist(held))
        sql.execute(NAMED_WRITES)
        entries = [{"table": "log", **entry} for entry in dicts(sql, _ACKNOWLEDGED)]
    found = [Acknowledged(entry.pop("batch_end"), entry["batch_hash"], entry["epoch"], entry) for entry in entries]
    return [*{(each.end, each.hash, each.epoch): each for each in found}.values()]


def _combine(run: StoredRun, findings: Sequence[NodeFinding]) -> Verdict:
    acknowledged = _acknowledged(run, findings)
    lost = [x for f in findings for x in f.lost] + _lost_acknowledged(run, acknowledged)
    witnesses = [w for f in findings for w in f.witnesses if w.kind != PREFIXES_DIFFER]
    witnesses = [lost_witness(run, x) for x in _worst(lost)] + witnesses
    witnesses += [w for f in findings for w in f.witnesses if w.kind == PREFIXES_DIFFER]
    looked_at = {
        "nodes": len(node_files(run.log)),
        "logs": sum(f.logs for f in findings),
        "high watermarks": max((f.marks for f in findings), default=0),
        "acknowledged writes above every high watermark": len({(a.end, a.hash) for a in acknowledged}),
    }
    unknown = gaps(run, "logs", "traces") + nothing_of(looked_at, "logs", "high watermarks")
    return conclude(witnesses, looked_at, unknown)


def _lost_acknowledged(run: StoredRun, acknowledged: list[Acknowledged]) -> list[Lost]:
    """Return the logs that lack an acknowledged write although their last epoch requires the write.

    Reads the logs only if there are such writes.
    """
    if not acknowledged:
        return []
    some = sorted(acknowledged, key=lambda a: a[:3])
    ends, hashes, epochs = (np.array(column) for column in list(zip(*some, strict=True))[:3])
    marks = Marks(ends, hashes, np.ones(len(some), np.bool_), epochs)
    lost = []
    files = node_files(run.log)
    for copy in run.copies:
        if copy["error"] or copy["node"] not in files:
            continue
        log = read_log(files[copy["node"]], copy["copy"], Budget())
        missing = np.flatnonzero(must_hold(log, marks) & holds(log, marks)[1])
        if len(missing):
            a = some[int(missing[0])]
            why = (
                f"The write was acknowledged to a client, but this log has later entries of epoch {log.last_epoch} "
                "without this write."
            )
            lost.append(Lost(copy, a.end, a.hash, a.epoch, a.entry, why))
    return lost


def _worst(lost: list[Lost]) -> list[Lost]:
    """Return the latest copy per node and mark, largest loss first; the first of each node precedes all second ones."""
    in_order = sorted(lost, key=lambda x: int(x.copy["copy"]))
    latest = {(x.copy["node"], x.offset, x.hash): x for x in in_order}
    by_size = sorted(latest.values(), key=lambda x: (x.differs, x.offset, -x.copy["copy"], x.copy["node"]))
    return one_of_each_first(by_size, lambda x: x.copy["node"])


# Witnesses


def lost_witness(run: StoredRun, missing: Lost) -> Witness:
    """Return the witness of a log that lacks a mark.

    The witness shows the mark, the first offset at which a log with the mark differs from this log, and the write of
    the first missing entry.
    """
    proof, (node, copy, when) = missing.proof, (missing.copy[name] for name in ("node", "copy", "when"))
    holder, at, rows = parting(run, missing.offset, missing.hash, (node, copy))
    if holder is None:
        rows = log_rows(node_files(run.log)[node], copy, [missing.offset - 1])
    events = _events(run, [r for r in rows if holder is not None and (r["node"], r["copy"]) == holder])
    log = f"the log of {node} (copy {copy}, {when})"
    committed = _committed(proof, missing.offset)
    difference = f"has {'another' if len(rows) > 1 else 'no'} entry at offset {at}"
    holds = f" {holder[0]} (copy {holder[1]}) still holds the committed one." if holder is not None else ""
    return Witness.of(
        PREFIXES_DIFFER if missing.differs else ENTRY_LOST,
        f"A committed entry was lost: {log} {difference}. {committed}{holds}",
        (proof, *rows),
        events=events,
        nodes=[node, *([holder[0]] if holder else []), proof["node"]],
        copies=[copy, *([holder[1]] if holder else [])],
        kept_by=list(holder) if holder is not None else None,
        epoch=missing.epoch,
        offset=at,
        committed_below=missing.offset,
        why=[committed, missing.why, f"Yet it {difference}."],
        expected=f"every entry below offset {missing.offset}, as it was committed",
    )


def _committed(proof: Row, offset: int) -> str:
    if proof["table"] == "log":
        write = f"The write of {proof['value']} to {proof['key']} at offset {proof['offset']}"
        return f"{write} was acknowledged to a client."
    if proof["event"] == "append":
        return f"{proof['node']} held everything below offset {offset} in epoch {proof['epoch']}, and it was committed."
    return f"{proof['node']} reported in epoch {proof['epoch']} that everything below offset {offset} is committed."


def holder_of(run: StoredRun, offset: int, prefix_hash: int | None) -> tuple[str, int] | None:
    """Return (node, number) of the latest copy that holds the mark; None if no copy does, or the hash is unknown."""
    if prefix_hash is None:
        return None
    files = node_files(run.log)
    found = [
        (copy["copy"], copy["node"])
        for copy in run.copies
        if not copy["error"] and copy["node"] in files
        for entry in log_rows(files[copy["node"]], copy["copy"], [offset - 1])
        if entry["batch_hash"] == prefix_hash
    ]
    return (max(found)[1], max(found)[0]) if found else None


_PARTING = """
SELECT coalesce(min("offset") FILTER (NOT alike), max("offset"), -1) FROM (
    SELECT "offset", coalesce(held.epoch = other.epoch AND held.checksum = other.checksum, false) AS alike
    FROM (FROM holder WHERE copy = $held) AS held LEFT JOIN (FROM loser WHERE copy = $other) AS other USING ("offset")
)"""


def parting(
    run: StoredRun, offset: int, prefix_hash: int | None, loser: tuple[str, int]
) -> tuple[tuple[str, int] | None, int, list[Row]]:
    """Return (a copy that holds a mark, the first offset at which the loser's log differs from that copy, the rows at
    this offset).

    loser: (node, number) of a copy that lacks the mark
    Returns (None, the mark's last offset, []) if no copy holds the mark.
    """
    if (holder := holder_of(run, offset, prefix_hash)) is None:
        return None, offset - 1, []
    files = node_files(run.log)
    with new_database() as sql:
        give_files(sql, "holder", [files[holder[0]]])
        give_files(sql, "loser", [files[loser[0]]])
        [(at,)] = sql.execute(_PARTING, {"held": holder[1], "other": loser[1]}).fetchall()
    return holder, at, log_rows(files[holder[0]], holder[1], [at]) + log_rows(files[loser[0]], loser[1], [at])


def _events(run: StoredRun, rows: list[Row]) -> list[Row]:
    """Return the history rows (invoke, completion) of the write that made the first of these entries."""
    wanted = [(r["key"], r["value"]) for r in rows if r["key"] is not None and r["value"] is not None]
    if not wanted or not run.history.exists():
        return []
    call = invoke_of(run.history, *wanted[0])
    return [] if call is None else operations(run.history, [call])


# Leaders


@dataclass(frozen=True, slots=True)
class Lacking:
    """A leader that lacked a mark of an earlier epoch.

    office: the row in which it became leader
    mark: the row that reported the mark
    copy: the copy that shows other entries in the leader's log; None if the log was too short
    """

    office: TraceRow
    mark: Row
    copy: Row | None = None


def _too_short(office: TraceRow, reported: ReportedMarks) -> list[Lacking]:
    """Return the largest mark of an earlier epoch if this mark lies above the end of the log of a new leader."""
    earlier = np.flatnonzero(reported.marks.epoch < office.epoch)
    if not len(earlier) or reported.marks.offset[earlier[-1]] <= (office.offset or 0):
        return []
    return [Lacking(office, reported.row(int(earlier[-1])))]


def _other_content(
    office: TraceRow, copy: Row, contradicted: Bools, reported: ReportedMarks, end: int
) -> list[Lacking]:
    """Return the smallest mark of an earlier epoch that a leader did not hold according to a copy of its log.

    contradicted: per mark, True if the copy has other entries below the mark's offset
    end: length of the prefix that the log certainly kept between the row `office` and the copy
    """
    marks = reported.marks
    wrong = np.flatnonzero(contradicted & (marks.offset <= end) & (marks.epoch < office.epoch))
    return [Lacking(office, reported.row(int(wrong[0])), copy)] if len(wrong) else []


def shared_prefix(cut_seqs: Int64, cut_offsets: Int64, one: tuple[int, int], other: tuple[int, int]) -> int:
    """Return the length of the prefix that a log certainly kept between two moments of one node's trace.

    cut_seqs, cut_offsets: seq and log end of every truncation and every start, in seq order
    one, other: (seq, log end) of each moment.  The log end of a copy may include one change that the trace does not
    report yet.
    """
    (first, first_end), (last, last_end) = sorted((one, other))
    between = cut_offsets[(cut_seqs > first) & (cut_seqs <= last)]
    return int(min(first_end, last_end, between.min(initial=first_end)))


def _combine_leaders(run: StoredRun, findings: Sequence[NodeFinding]) -> Verdict:
    lacking = [x for f in findings for x in f.lacking]
    witnesses = [_without(run, x) for x in sorted(lacking, key=lambda x: (x.office.epoch, x.copy is not None))]
    looked_at = {
        "nodes": len(node_files(run.trace)),
        "terms of office": sum(f.offices for f in findings),
        "copies compared with the log a leader began with": sum(f.compared for f in findings),
    }
    unknown = gaps(run, "logs", "traces") + nothing_of(looked_at, "terms of office")
    return conclude(witnesses, looked_at, unknown)


def _without(run: StoredRun, lacking: Lacking) -> Witness:
    office, mark, copy = lacking.office, lacking.mark, lacking.copy
    leader, epoch, start = office.node, office.epoch, office.offset or 0
    committed = _committed(mark, mark["offset"]).removesuffix(".")
    rows: list[Row] = [mark, office.as_row()]
    at, copies_shown, nodes = start, [], [leader, mark["node"]]
    if copy is None:
        lack = f"its log ended at offset {start}"
    else:
        holder, at, shown = parting(run, mark["offset"], mark["hash"], (leader, copy["copy"]))
        rows += shown
        copies_shown = [copy["copy"]]
        lack = f"copy {copy['copy']} ({copy['when']}) shows that its log held something else there"
        if holder is not None:
            nodes.append(holder[0])
            lack += f", from offset {at} on"
    return Witness.of(
        LACKING_LEADER,
        f"{leader} became leader of epoch {epoch} without an entry committed in an earlier epoch: {committed}, "
        f"but {lack}.",
        rows,
        nodes=nodes,
        copies=copies_shown,
        epoch=epoch,
        offset=at,
        committed_below=mark["offset"],
        why=[
            f"{committed} ({in_trace(mark)}).",
            f"{leader} became leader of the later epoch {epoch} ({office.where}), and {lack}.",
        ],
        expected="a leader holds every entry committed in an earlier epoch: a majority holds it, and a majority "
        "votes only for a log as complete as its own",
    )


_NEEDS: frozenset[Need] = frozenset({"logs", "traces"})
COMMITTED = Checker(
    "committed-never-lost",
    "Committed entries are never lost",
    "Does every log that must hold a committed entry hold it, and was only one thing committed at an offset?",
    _split,
    _judge,
    _combine,
    _NEEDS,
)
LEADER_COMPLETENESS = Checker(
    "leader-completeness",
    "Leader completeness",
    "Did every leader hold, when it took office, all that was committed in earlier epochs?",
    _split,
    _judge,
    _combine_leaders,
    _NEEDS,
)
