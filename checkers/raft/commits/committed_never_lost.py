"""Committed entries are never lost.

What is committed: everything below a high watermark that any node ever reported, and every write acknowledged to a
client.  A *mark* is such a prefix: its end offset, its prefix hash, and an epoch in which it was certainly committed
already.  That is the lowest epoch in which any node reported the mark.  The hash stands for the whole prefix, so a log
holds all of it iff it has that hash at that offset.

Who must hold a mark of epoch e (Ongaro & Ousterhout 2014, leader completeness and log matching):

- a log with an entry of a later epoch: the leader of that epoch had everything committed before;
- a log whose last entry is of epoch e, once it is as long as the mark: it is a prefix of that leader's log.  At the
  end this covers every log that has caught up, and spares a node that was cut off: it rightly lacks what it never saw,
  and its tail of an older epoch may even be longer than the mark;
- a node that held it while in epoch e or later: by its own high watermark, by an append that ended exactly there in
  that epoch, or by an earlier copy.  Held *before* epoch e proves nothing: an uncommitted entry may be truncated, come
  back with a later leader, and only then be committed.

What a node had not yet flushed may rightly be gone after a crash, so a restart is held only to what was flushed.
Two marks at one offset with different hashes, or a log that holds a mark but not a smaller one, mean that two different
things were committed; a truncation below a node's own mark removes what it knew to be committed.

A part is one node, with the marks of all nodes.  Cost: linear in the rows of all traces and in the entries of that
node's copies; memory: the distinct marks, the rows of one trace and one copy at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import Type
from checkers.base.run_evidence import (
    BeyondBudget,
    coded,
    conclude,
    gaps,
    not_judged,
    numbers,
    read_entries,
    read_trace,
    row,
    trace_row,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Verdict, Witness
from checkers.kernels.raft.rows import (
    APPEND,
    FLUSH,
    MARK,
    NOWHERE,
    START,
    TRUNCATE,
    Log,
    Marks,
    disagreements,
    holds,
    keeps,
    must_hold,
)
from checkers.raft.client_writes import Entries, Names, read_writes
from checkers.raft.commits import committed_evidence as evidence_of
from checkers.raft.commits.high_watermarks import Said, read_log, said_marks, snapshot_ends
from checkers.raft.trace_checks import Row, nothing_of, pairs
from checkers.sealing.codes import Words

HELD_EVENTS = {"high-watermark": MARK, "append": APPEND, "flush": FLUSH, "truncate": TRUNCATE, "start": START}
"""Trace events that say what a node's log holds, as `keeps` numbers them."""

TAIL_SIZE_BYTES = 200
"""Of an entry beyond all marks that its log holds."""

ROW_SIZE_BYTES = 100
"""Of a row of the node's own trace while it is followed."""

_TRUNCATION = re.compile(r"truncat.*high.?watermark", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lost:
    """A log that lacks a mark it must hold.  said: the trace row of the mark, or the log row of an acknowledged write.
    differs: the log holds a larger mark, so two different things were committed."""

    node: str
    copy: int
    when: str
    offset: int
    hash: int | None
    epoch: int
    said: Row
    why: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledged write in a log beyond every mark that log holds: committed by the client's word alone."""

    node: str
    offset: int
    end: int
    hash: int
    epoch: int
    entry: Row


@dataclass(frozen=True, slots=True)
class NodeFinding:
    """What the logs and the trace of one node (or, for `node` None, all marks together) say."""

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
    """All marks together: two at one offset are the same."""
    said = said_marks(part.paths, budget)
    marks = said.marks
    found = disagreements(marks.offset[marks.known], marks.hash[marks.known])
    at = np.flatnonzero(marks.known)
    witnesses = [evidence_of.prefixes_differ(said.row(int(at[a])), said.row(int(at[b]))) for a, b in pairs(found)]
    return NodeFinding(tuple(witnesses), marks=len(said))


def _judge_node(part: Part, budget: Budget) -> NodeFinding:
    params = part.params
    said = said_marks(part.paths, budget)
    marks = said.marks
    witnesses: list[Witness] = []
    own = None
    if params["trace"]:
        own, found = _walk(params["trace"], marks, budget)
        witnesses += found + refused(read_trace(params["trace"], ("fatal",)))
    if params["log"] is None:
        return NodeFinding(tuple(witnesses), marks=len(said))
    lost: list[Lost] = []
    tails: list[tuple[Log, pa.Table]] = []
    earlier: list[tuple[Row, Bools]] = []
    snapshots = snapshot_ends(params["trace"])
    for copy in params["copies"]:
        newest = int(snapshots[1][snapshots[0] <= copy["trace_seq"]].max(initial=0))
        log = read_log(params["log"], copy["copy"], budget, newest)
        held, lacks = holds(log, marks)
        lost += _lost_marks(copy, said, log, (held, lacks))
        if own is not None:
            lost += _lost_own(copy, own, log)
            lost += _lost_since(copy, earlier, own, said, lacks)
        earlier.append((copy, held))
        tail = _tail(copy, params, log, int(marks.offset[held].max(initial=0)), budget)
        tails += [] if tail is None else [(log, tail)]
    acknowledged = _acknowledged(params["history"], params["node"], tails)
    return NodeFinding(tuple(witnesses), tuple(lost), tuple(acknowledged), len(said), len(params["copies"]))


def _lost_marks(copy: Row, said: Said, log: Log, state: tuple[Bools, Bools]) -> list[Lost]:
    """Marks that this log must hold by its epochs, or by a larger mark that it holds, and does not."""
    (held, lacks), marks = state, said.marks
    by_epoch = np.flatnonzero(must_hold(log, marks) & lacks)
    if len(by_epoch):
        i = int(by_epoch[0])
        later = marks.epoch[i] < log.last_epoch
        has = f"has an entry of {'the later epoch' if later else 'the same epoch'} {log.last_epoch}"
        rule = "whose leader held everything committed before" if later else "and reaches beyond that offset"
        return [_lost(copy, said, i, f"This log {has}, {rule}.")]
    highest = int(marks.offset[held].max(initial=0))
    split = np.flatnonzero(lacks & marks.known & (marks.offset < highest))
    if len(split):
        why = f"This log holds what was committed up to offset {highest}, but not what was committed below it."
        return [_lost(copy, said, int(split[0]), why, differs=True)]
    return []


def _lost(copy: Row, said: Said, i: int, why: str, differs: bool = False) -> Lost:
    mark = said.row(i)
    return Lost(
        copy["node"], copy["copy"], copy["when"], mark["offset"], mark["hash"], mark["epoch"], mark, why, differs
    )


@dataclass(frozen=True, slots=True)
class _Own:
    """What one node owed and had flushed after each row of its trace (see `keeps`).  starts: seqs of its starts."""

    path: str
    seq: Int64
    owed: Int64
    flushed: Int64
    starts: Int64

    def row(self, position: int) -> Row:
        return trace_row(self.path, int(self.seq[position]))

    def flushed_at(self, seq: int) -> int:
        """The log end known durable when the trace had reached `seq`; 0 if nothing was ever flushed."""
        before = int(np.searchsorted(self.seq, seq, side="right"))
        return int(self.flushed[before - 1]) if before else 0


def _walk(path: str, marks: Marks, budget: Budget) -> tuple[_Own, list[Witness]]:
    """Follow one node's trace: what it owes after each row, and what it removed though it owed it."""
    rows = read_trace(path, HELD_EVENTS, ("epoch", "offset"))
    if len(rows) * ROW_SIZE_BYTES > budget.size_bytes:
        raise BeyondBudget(f"{path}: {len(rows)} rows are beyond the budget of {budget.size_bytes} bytes")
    owed, removed, flushed = follow(rows, marks)
    seq = numbers(rows, "seq")
    own = _Own(path, seq, owed, flushed, seq[coded(rows, "event", HELD_EVENTS) == START])
    lost_at = np.flatnonzero(removed != NOWHERE).tolist()
    return own, [evidence_of.removed(own.row(int(removed[at])), own.row(at)) for at in lost_at]


def follow(rows: pa.Table, marks: Marks) -> tuple[Int64, Int64, Int64]:
    """`keeps` of one node's HELD_EVENTS, in seq order: what it owes, what it removed and what it had flushed."""
    events = coded(rows, "event", HELD_EVENTS)
    offsets, epochs = numbers(rows, "offset"), numbers(rows, "epoch")
    radix = int(max(epochs.max(initial=0), marks.epoch.max(initial=0))) + 1
    names = np.sort(marks.offset * radix + marks.epoch, kind="stable")
    ends = offsets * radix + epochs
    place = np.minimum(np.searchsorted(names, ends), max(len(names) - 1, 0))
    ends_at_mark = names[place] == ends if len(names) else np.zeros(len(ends), np.bool_)
    holds_mark = (events == MARK) | ((events == APPEND) & ends_at_mark)
    return keeps(events, offsets, holds_mark)


def refused(fatal: pa.Table) -> list[Witness]:
    """A node dies instead of truncating below its mark.  The order came from its leader."""
    rows = fatal.to_pylist()
    return [evidence_of.refused({"table": "trace", **r}) for r in rows if _TRUNCATION.search(r["detail"] or "")]


def _lost_own(copy: Row, own: _Own, log: Log) -> list[Lost]:
    """The largest mark the node itself owed when it was copied."""
    before = int(np.searchsorted(own.seq, copy["trace_seq"], side="right"))
    if before == 0 or own.owed[before - 1] == NOWHERE:
        return []
    mark = own.row(int(own.owed[before - 1]))
    if copy["state"] == "dead" and mark["offset"] > own.flushed_at(copy["trace_seq"]):
        return []
    one = Marks(
        np.array([mark["offset"]]), np.array([mark["hash"] or 0]), np.array([mark["hash"] is not None]), np.array([0])
    )
    if not holds(log, one)[1][0]:
        return []
    why = f"{copy['node']} itself held it before it was copied (its trace, seq {mark['seq']})."
    return [Lost(copy["node"], copy["copy"], copy["when"], mark["offset"], mark["hash"], mark["epoch"], mark, why)]


def _lost_since(copy: Row, earlier: list[tuple[Row, Bools]], own: _Own, said: Said, lacks: Bools) -> list[Lost]:
    """Marks that an earlier copy of the same node held in their epoch or a later one."""
    marks = said.marks
    for before, held in earlier:
        owed = held & lacks & (marks.epoch <= before["quorum_epoch"])
        crashed = np.any((own.starts > before["trace_seq"]) & (own.starts <= copy["trace_seq"]))
        if copy["state"] == "dead" or crashed:
            owed &= marks.offset <= own.flushed_at(before["trace_seq"])
        if owed.any():
            why = f"Copy {before['copy']} of {copy['node']} ({before['when']}) still held it."
            return [_lost(copy, said, int(np.flatnonzero(owed)[0]), why)]
    return []


def _tail(copy: Row, params: dict[str, Any], log: Log, held: int, budget: Budget) -> pa.Table | None:
    """The entries beyond `held`, the largest mark that this log holds; None if no client could have written them."""
    if params["history"] is None or held >= log.end:
        return None
    tail = read_entries(params["log"], copy["copy"], held)
    if len(tail) * TAIL_SIZE_BYTES > budget.size_bytes:
        raise BeyondBudget(f"{params['log']}: {len(tail)} entries beyond all marks exceed the budget")
    return tail if len(tail) > tail["key"].null_count else None


def _acknowledged(history: str, node: str, tails: list[tuple[Log, pa.Table]]) -> list[Acknowledged]:
    """Entries of acknowledged writes in these tails.  The history is read once for all of them."""
    if not tails:
        return []
    keys = Words()
    tails = [(log, tail.filter(pc.is_valid(tail["key"]))) for log, tail in tails]
    names, name_of = Names.of([Entries.of(tail, keys) for _, tail in tails], keys)
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
    if (verdict := not_judged(run, "logs", "traces")) is not None:
        return verdict
    acknowledged = [a for f in findings for a in f.acknowledged]
    lost = [x for f in findings for x in f.lost] + _lost_acknowledged(run, acknowledged)
    witnesses = [w for f in findings for w in f.witnesses if w.kind != "committed prefixes differ"]
    witnesses = [evidence_of.lost(run, x) for x in _worst(lost)] + witnesses
    witnesses += [w for f in findings for w in f.witnesses if w.kind == "committed prefixes differ"]
    looked_at = {
        "nodes": len(node_files(run.log)),
        "logs": sum(f.logs for f in findings),
        "committed marks": max((f.marks for f in findings), default=0),
        "acknowledged writes beyond all marks": len({(a.end, a.hash) for a in acknowledged}),
    }
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "logs", "traces")
    unknown += nothing_of(looked_at, "logs", "committed marks")
    return conclude(witnesses, looked_at, unknown)


def _lost_acknowledged(run: StoredRun, acknowledged: list[Acknowledged]) -> list[Lost]:
    """Logs whose epochs require them to hold an acknowledged write, and that do not.  Opens logs only if needed."""
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
    """The latest copy per node and mark, largest loss first; one per node before the second of any."""
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
