"""Committed entries are never lost.

Two things prove that an entry is committed: a high watermark above it that any node reported, or an acknowledgement to
a client.  A *mark* is a committed prefix: its end offset, its prefix hash, and an epoch in which it was certainly
committed.  That is the lowest epoch in which any node reported the mark.  The hash represents the whole prefix.  So a
log holds the prefix iff it has that hash at that offset.

These must hold a mark of epoch e (Ongaro & Ousterhout 2014, leader completeness and log matching):

- A log with an entry of a later epoch, because the leader of that epoch had everything committed before.
- A log whose last entry is of epoch e and that is as long as the mark, because it is a prefix of that leader's log.  At
  the end of a run, this covers every log that has caught up.  It excludes a node that was cut off.  Such a node rightly
  lacks what it never received, and its tail of an older epoch may even be longer than the mark.
- A node that held the prefix in epoch e or later.  Its own high watermark, an append that ended exactly there in that
  epoch, or an earlier copy shows this.  Holding it *before* epoch e proves nothing: an uncommitted entry may be
  truncated, return with a later leader, and only then be committed.

A disk that replaced another one, with an id of its own, held nothing yet: the node is another replica (KIP-853).
A crash may rightly remove what a node had not flushed, so a restarted node must hold only what it had flushed.  A
failed fsync may do the same: then the node ends, and a copy may catch it between the loss and its last trace row.
Two marks at one offset with different hashes show that two different things were committed.  A log that holds a mark
but lacks a smaller one shows the same.  A truncation below a node's own mark removes entries that it knew to be
committed.

A part is one node, with the marks of all nodes.  Cost: linear in the rows of all traces and in the entries of that
node's copies.  Memory: the distinct marks, and the rows of one trace and one copy at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Bools
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import Type
from checkers.base.run_evidence import (
    BeyondBudget,
    conclude,
    gaps,
    numbers,
    read_entries,
    read_trace,
    row,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.kernels.raft.compared_rows import NOWHERE, disagreements
from checkers.kernels.raft.marks import CopiedLog, Marks, holds, must_hold
from checkers.raft.client_writes import Entries, WantedNames, read_writes
from checkers.raft.commits import committed_evidence as evidence_of
from checkers.raft.commits.high_watermarks import ReportedMarks, newest_snapshots, read_log, reported_marks
from checkers.raft.commits.kept_by_own_trace import OwnTrace, own_trace
from checkers.raft.trace_findings_to_verdict import nothing_of
from checkers.raft.witness_rows import Row, in_trace, pairs
from checkers.sealing.codes import Words

TAIL_SIZE_BYTES = 200
"""The memory of one entry beyond all marks that its log holds."""

_TRUNCATION = re.compile(r"truncat.*high.?watermark", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lost:
    """A log that lacks a mark it must hold.

    proof: the trace row of the mark, or the log row of an acknowledged write.
    differs: the log holds a larger mark, so two different things were committed.
    """

    node: str
    copy: int
    when: str
    offset: int
    hash: int | None
    epoch: int
    proof: Row
    why: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledged write beyond every mark that its log holds: only the client's answer shows its commit."""

    node: str
    offset: int
    end: int
    hash: int
    epoch: int
    entry: Row


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What the logs and the trace of one node show; for `node` None, what all marks together show."""

    witnesses: tuple[Witness, ...] = ()
    lost: tuple[Lost, ...] = ()
    acknowledged: tuple[Acknowledged, ...] = ()
    marks: int = 0
    logs: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    traces, logs, copied = node_files(run.trace), node_files(run.log), run.copies
    if not traces and not logs:
        return []
    parts = [Part(tuple(traces.values()), {"node": None})]
    for node in dict.fromkeys([*traces, *logs]):
        parts.append(
            Part(
                tuple(traces.values()),
                {
                    "node": node,
                    "trace": traces.get(node),
                    "log": logs.get(node),
                    "history": str(run.history) if run.history.exists() else None,
                    "copies": [c for c in copied if c["node"] == node and not c["error"]],
                },
            )
        )
    return parts


def _judge(part: Part, budget: Budget) -> NodeFinding:
    try:
        return _judge_marks(part, budget) if part.params["node"] is None else _judge_node(part, budget)
    except BeyondBudget as problem:
        return NodeFinding(unknown=str(problem))


def _judge_marks(part: Part, budget: Budget) -> NodeFinding:
    """Check all marks together: marks at one offset must have one hash."""
    reported = reported_marks(part.paths, budget)
    marks = reported.marks
    found = disagreements(marks.offset[marks.known], marks.hash[marks.known])
    at = np.flatnonzero(marks.known)
    rows = [(reported.row(int(at[a])), reported.row(int(at[b]))) for a, b in pairs(found)]
    witnesses = [evidence_of.prefixes_differ(one, other) for one, other in rows]
    return NodeFinding(tuple(witnesses), marks=len(reported))


def _judge_node(part: Part, budget: Budget) -> NodeFinding:
    params = part.params
    reported = reported_marks(part.paths, budget)
    marks = reported.marks
    witnesses: list[Witness] = []
    own = None
    if params["trace"]:
        fatal = read_trace(params["trace"], ("fatal",))
        own, found = own_trace(params["trace"], marks, numbers(fatal, "seq"), budget)
        witnesses += found + refused(fatal)
    if params["log"] is None:
        return NodeFinding(tuple(witnesses), marks=len(reported))
    lost: list[Lost] = []
    tails: list[tuple[CopiedLog, pa.Table]] = []
    earlier: list[tuple[Row, Bools]] = []
    newest = newest_snapshots(params["trace"])
    for copy in params["copies"]:
        log = read_log(params["log"], copy["copy"], budget, newest(copy))
        held, lacks = holds(log, marks)
        lost += _lost_marks(copy, reported, log, (held, lacks))
        if own is not None:
            lost += _lost_own(copy, own, log)
            lost += _lost_since(copy, earlier, own, reported, lacks)
        earlier.append((copy, held))
        tail = _tail(copy, params, log, int(marks.offset[held].max(initial=0)), budget)
        tails += [] if tail is None else [(log, tail)]
    acknowledged = _acknowledged(params["history"], params["node"], tails)
    return NodeFinding(tuple(witnesses), tuple(lost), tuple(acknowledged), len(reported), len(params["copies"]))


def _lost_marks(copy: Row, reported: ReportedMarks, log: CopiedLog, state: tuple[Bools, Bools]) -> list[Lost]:
    """Find a mark that this log lacks although its epochs, or a larger mark that it holds, require it."""
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
    return Lost(
        copy["node"], copy["copy"], copy["when"], mark["offset"], mark["hash"], mark["epoch"], mark, why, differs
    )


def refused(fatal: pa.Table) -> list[Witness]:
    """Find nodes that stopped because their leader ordered a truncation below their high watermark."""
    rows = fatal.to_pylist()
    return [evidence_of.refused({"table": "trace", **r}) for r in rows if _TRUNCATION.search(r["detail"] or "")]


def _lost_own(copy: Row, own: OwnTrace, log: CopiedLog) -> list[Lost]:
    """Check the largest mark that the node itself had to keep when it was copied."""
    owed = own.owed_by(copy)
    if owed == NOWHERE:
        return []
    mark = own.row(owed)
    one = Marks(
        np.array([mark["offset"]]), np.array([mark["hash"] or 0]), np.array([mark["hash"] is not None]), np.array([0])
    )
    if not holds(log, one)[1][0]:
        return []
    why = f"{copy['node']} itself held it before it was copied ({in_trace(mark)})."
    return [Lost(copy["node"], copy["copy"], copy["when"], mark["offset"], mark["hash"], mark["epoch"], mark, why)]


def _lost_since(
    copy: Row, earlier: list[tuple[Row, Bools]], own: OwnTrace, reported: ReportedMarks, lacks: Bools
) -> list[Lost]:
    """Find a mark that this copy lacks and that an earlier copy of the node held in the mark's epoch or later."""
    marks = reported.marks
    for before, held in earlier:
        if before.get("disk") != copy.get("disk"):
            continue
        owed = held & lacks & (marks.epoch <= before["quorum_epoch"])
        crashed = np.any((own.starts > before["trace_seq"]) & (own.starts <= copy["trace_seq"]))
        if crashed or own.owes_only_flushed(copy):
            owed &= marks.offset <= own.flushed_at(before["trace_seq"])
        if owed.any():
            why = f"Copy {before['copy']} of {copy['node']} ({before['when']}) still held it."
            return [_lost(copy, reported, int(np.flatnonzero(owed)[0]), why)]
    return []


def _tail(copy: Row, params: dict[str, Any], log: CopiedLog, held: int, budget: Budget) -> pa.Table | None:
    """Return the entries beyond `held`, the largest mark that this log holds; None if no client wrote any of them."""
    if params["history"] is None or held >= log.end:
        return None
    tail = read_entries(params["log"], copy["copy"], held)
    if len(tail) * TAIL_SIZE_BYTES > budget.size_bytes:
        raise BeyondBudget(f"{params['log']}: {len(tail)} entries beyond all marks exceed the budget")
    return tail if len(tail) > tail["key"].null_count else None


def _acknowledged(history: str, node: str, tails: list[tuple[CopiedLog, pa.Table]]) -> list[Acknowledged]:
    """Find entries of acknowledged writes in these tails, with one pass over the history."""
    if not tails:
        return []
    keys = Words()
    tails = [(log, tail.filter(pc.is_valid(tail["key"]))) for log, tail in tails]
    names, name_of = WantedNames.of([Entries.of(tail, keys) for _, tail in tails], keys)
    fates = read_writes(history, names).fates
    found = []
    for (log, tail), name in zip(tails, name_of, strict=True):
        ok = (name >= 0) & (fates.times[name] == 1) & (fates.outcome[name] == Type.OK) if len(names) else name >= 0
        for i in np.flatnonzero(ok).tolist():
            entry = row(tail, i, "log")
            end = int(log.ends[np.searchsorted(log.ends, entry["offset"], side="right")])
            found.append(Acknowledged(node, entry["offset"], end, entry["batch_hash"], entry["epoch"], entry))
    return found


def _combine(run: StoredRun, findings: Sequence[NodeFinding]) -> Verdict:
    acknowledged = [a for f in findings for a in f.acknowledged]
    lost = [x for f in findings for x in f.lost] + _lost_acknowledged(run, acknowledged)
    witnesses = [w for f in findings for w in f.witnesses if w.kind != "committed prefixes differ"]
    witnesses = [evidence_of.lost(run, x) for x in _worst(lost)] + witnesses
    witnesses += [w for f in findings for w in f.witnesses if w.kind == "committed prefixes differ"]
    looked_at = {
        "nodes": len(node_files(run.log)),
        "logs": sum(f.logs for f in findings),
        "high watermarks": max((f.marks for f in findings), default=0),
        "acknowledged writes above every high watermark": len({(a.end, a.hash) for a in acknowledged}),
    }
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    unknown += nothing_of(looked_at, "logs", "high watermarks")
    return conclude(witnesses, looked_at, unknown)


def _lost_acknowledged(run: StoredRun, acknowledged: list[Acknowledged]) -> list[Lost]:
    """Find logs that lack an acknowledged write although their epochs require it.  Opens logs only if needed."""
    unique = {(a.end, a.hash, a.epoch): a for a in acknowledged}
    if not unique:
        return []
    some = [unique[key] for key in sorted(unique)]
    marks = Marks(
        np.array([a.end for a in some]),
        np.array([a.hash for a in some]),
        np.ones(len(some), np.bool_),
        np.array([a.epoch for a in some]),
    )
    lost = []
    files = node_files(run.log)
    for copy in run.copies:
        if copy["error"] or copy["node"] not in files:
            continue
        log = read_log(files[copy["node"]], copy["copy"], Budget())
        missing = np.flatnonzero(must_hold(log, marks) & holds(log, marks)[1])
        if len(missing):
            a = some[int(missing[0])]
            why = f"It was acknowledged to a client, and this log goes on in epoch {log.last_epoch} without it."
            lost.append(Lost(copy["node"], copy["copy"], copy["when"], a.end, a.hash, a.epoch, a.entry, why))
    return lost


def _worst(lost: list[Lost]) -> list[Lost]:
    """Return the latest copy per node and mark, largest loss first; the first of each node precedes any second one."""
    latest = {(x.node, x.offset, x.hash): x for x in sorted(lost, key=lambda x: x.copy)}
    by_size = sorted(latest.values(), key=lambda x: (x.differs, x.offset, -x.copy, x.node))
    seen: dict[str, int] = {}
    ranked = []
    for x in by_size:
        seen[x.node] = seen.get(x.node, -1) + 1
        ranked.append((seen[x.node], x))
    return [x for _, x in sorted(ranked, key=lambda pair: pair[0])]


COMMITTED = Checker(
    name="committed-never-lost",
    title="Committed entries are never lost",
    question="Does every log that must hold a committed entry hold it, and was only one thing committed at an offset?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"logs", "traces"}),
)
