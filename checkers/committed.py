"""Committed entries are never lost.

What is committed: everything below a high watermark that any node ever said, and every write acknowledged to a
client.  A *mark* is such a prefix: its end offset, its prefix hash, and an epoch in which it was certainly committed
already (the lowest in which any node said that mark).  Because the hash stands for the whole prefix, a log holds all of
it iff it has that hash at that offset.

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
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from checkers import committed_evidence as evidence_of
from checkers.checker import Budget, Checker, Part, RunFiles
from checkers.evidence import (
    conclude,
    copies,
    gaps,
    node_files,
    not_judged,
    numbers,
    over_budget,
    present,
    read_table,
    read_trace,
    row,
    words,
)
from checkers.history import Type
from checkers.kernels.raft import (
    NOWHERE,
    Bools,
    Int64,
    Log,
    Marks,
    disagreements,
    holds,
    keeps,
    must_hold,
)
from checkers.raft_traces import Row
from checkers.verdict import Verdict, Witness
from checkers.writes import join, read_writes

_HELD = {"high-watermark": 0, "append": 1, "flush": 2, "truncate": 3, "start": 4}
"""Trace events that say what a node's log holds, as `keeps` numbers them."""

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


def _split(run: RunFiles) -> list[Part]:
    traces, logs, copied = node_files(run.trace), node_files(run.log), copies(run)
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
    if excess := over_budget(part, budget, ("event", "offset", "hash", "epoch", "seq", "incarnation")):
        return NodeFinding(unknown=excess)
    said = said_marks(part.paths)
    if part.params["node"] is None:
        known = said.filter(pa.array(present(said, "hash")))
        found = disagreements(numbers(known, "offset"), numbers(known, "hash"))
        pairs = [(row(known, int(a), "trace"), row(known, int(b), "trace")) for a, b in zip(*found, strict=True)]
        return NodeFinding(tuple(evidence_of.prefixes_differ(*pair) for pair in pairs), marks=len(said))
    return _judge_node(part.params, said)


def said_marks(paths: Sequence[str]) -> pa.Table:
    """One trace row per distinct (offset, hash) of all high watermarks above 0: that of the lowest epoch; ascending."""
    tables = [read_trace(path, ("high-watermark",)) for path in paths]
    rows = pa.concat_tables(tables)
    offsets, hashes, epochs = numbers(rows, "offset"), numbers(rows, "hash", 0), numbers(rows, "epoch")
    order = np.lexsort((epochs, hashes, present(rows, "hash"), offsets))
    order = order[offsets[order] > 0]
    keys = np.stack([offsets[order], hashes[order], present(rows, "hash")[order]])
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return rows.take(pa.array(order[fresh]))


def marks_of(said: pa.Table) -> Marks:
    return Marks(numbers(said, "offset"), numbers(said, "hash", 0), present(said, "hash"), numbers(said, "epoch"))


def read_log(path: str, copy: int) -> tuple[Log, pa.Table]:
    """One copy of a node's log as batches, and its rows in offset order."""
    table = read_table(path, copy=copy).sort_by("offset")
    offsets, batches = numbers(table, "offset"), numbers(table, "batch_offset")
    is_last = np.ones(len(table), np.bool_)
    is_last[:-1] = batches[1:] != batches[:-1]
    ends = offsets[is_last] + 1
    last_epoch = int(numbers(table, "epoch")[-1]) if len(table) else NOWHERE
    return Log(ends, numbers(table, "batch_hash")[is_last], int(ends[-1]) if len(ends) else 0, last_epoch), table


def _judge_node(params: dict[str, Any], said: pa.Table) -> NodeFinding:
    marks = marks_of(said)
    witnesses: list[Witness] = []
    own = read_trace(params["trace"], _HELD) if params["trace"] else None
    owed_by_row = np.empty(0, np.int64)
    if own is not None:
        owed_by_row, found = _walk(own, marks)
        witnesses += found + _refused(params["trace"])
    if params["log"] is None:
        return NodeFinding(tuple(witnesses), marks=len(said))
    lost: list[Lost] = []
    acknowledged: list[Acknowledged] = []
    earlier: list[tuple[Row, Bools]] = []
    for copy in params["copies"]:
        log, entries = read_log(params["log"], copy["copy"])
        held, lacks = holds(log, marks)
        lost += _lost_marks(copy, said, marks, log, (held, lacks))
        if own is not None:
            lost += _lost_own(copy, own, owed_by_row, log)
            lost += _lost_since(copy, earlier, own, (said, marks), lacks)
        earlier.append((copy, held))
        acknowledged += _acknowledged(copy, params["history"], entries, log, marks.offset[held])
    return NodeFinding(tuple(witnesses), tuple(lost), tuple(acknowledged), len(said), len(params["copies"]))


def _lost_marks(copy: Row, said: pa.Table, marks: Marks, log: Log, state: tuple[Bools, Bools]) -> list[Lost]:
    """Marks that this log must hold by its epochs, or by a larger mark that it holds, and does not."""
    held, lacks = state
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


def _lost(copy: Row, said: pa.Table, i: int, why: str, differs: bool = False) -> Lost:
    mark = row(said, i, "trace")
    return Lost(
        copy["node"], copy["copy"], copy["when"], mark["offset"], mark["hash"], mark["epoch"], mark, why, differs
    )


def _walk(own: pa.Table, marks: Marks) -> tuple[Int64, list[Witness]]:
    """Follow one node's trace: after each row, the row of the largest mark it owes (NOWHERE: none); and what it
    removed though it owed it."""
    events = np.array([_HELD[str(event)] for event in words(own, "event")], np.int64)
    offsets, epochs = numbers(own, "offset"), numbers(own, "epoch")
    radix = int(max(epochs.max(initial=0), marks.epoch.max(initial=0))) + 1
    ends_at_mark = np.isin(offsets * radix + epochs, marks.offset * radix + marks.epoch)
    holds_mark = (events == _HELD["high-watermark"]) | ((events == _HELD["append"]) & ends_at_mark)
    owed, removed = keeps(events, offsets, holds_mark)
    witnesses = []
    for at in np.flatnonzero(removed != NOWHERE).tolist():
        mark, cut = row(own, int(removed[at]), "trace"), row(own, at, "trace")
        witnesses.append(evidence_of.removed(mark, cut))
    return owed, witnesses


def _refused(trace: str) -> list[Witness]:
    """A node that would rather die than truncate below its mark had been told to by its leader."""
    rows = read_trace(trace, ("fatal",)).to_pylist()
    return [evidence_of.refused({"table": "trace", **r}) for r in rows if _TRUNCATION.search(r["detail"] or "")]


def _lost_own(copy: Row, own: pa.Table, owed_by_row: Int64, log: Log) -> list[Lost]:
    """The largest mark the node itself owed when it was copied."""
    seqs = numbers(own, "seq")
    before = int(np.searchsorted(seqs, copy["trace_seq"], side="right"))
    if before == 0 or owed_by_row[before - 1] == NOWHERE:
        return []
    mark = row(own, int(owed_by_row[before - 1]), "trace")
    if copy["state"] == "dead" and mark["offset"] > _flushed(own, copy["trace_seq"]):
        return []
    one = Marks(
        np.array([mark["offset"]]), np.array([mark["hash"] or 0]), np.array([mark["hash"] is not None]), np.array([0])
    )
    if not holds(log, one)[1][0]:
        return []
    why = f"{copy['node']} itself held it before it was copied (its trace, seq {mark['seq']})."
    return [Lost(copy["node"], copy["copy"], copy["when"], mark["offset"], mark["hash"], mark["epoch"], mark, why)]


def _flushed(own: pa.Table, seq: int) -> int:
    """The log end known durable when the trace had reached `seq`; 0 if nothing was ever flushed."""
    flushed = 0
    for r in own.filter(pa.array(numbers(own, "seq") <= seq)).select(["event", "offset"]).to_pylist():
        if r["event"] == "flush":
            flushed = r["offset"]
        elif r["event"] in ("truncate", "start"):
            flushed = min(flushed, r["offset"])
    return flushed


def _lost_since(
    copy: Row, earlier: list[tuple[Row, Bools]], own: pa.Table, all_marks: tuple[pa.Table, Marks], lacks: Bools
) -> list[Lost]:
    """Marks that an earlier copy of the same node held in their epoch or a later one."""
    said, marks = all_marks
    seqs = numbers(own, "seq")
    starts = seqs[np.array([event == "start" for event in words(own, "event")], np.bool_)]
    for before, held in earlier:
        owed = held & lacks & (marks.epoch <= before["quorum_epoch"])
        crashed = copy["state"] == "dead" or np.any((starts > before["trace_seq"]) & (starts <= copy["trace_seq"]))
        if crashed:
            owed &= marks.offset <= _flushed(own, before["trace_seq"])
        if owed.any():
            why = f"Copy {before['copy']} of {copy['node']} ({before['when']}) still held it."
            return [_lost(copy, said, int(np.flatnonzero(owed)[0]), why)]
    return []


def _acknowledged(copy: Row, history: str | None, entries: pa.Table, log: Log, held: Int64) -> list[Acknowledged]:
    """Entries of acknowledged writes beyond the largest mark that this log holds."""
    if history is None:
        return []
    tail = entries.filter(pa.array(numbers(entries, "offset") >= held.max(initial=0)))
    if len(tail) == tail["key"].null_count:
        return []
    writes = read_writes(history)
    which, _ = join(writes, tail["key"], tail["value"])
    found = []
    for i in np.flatnonzero((which >= 0) & (writes.outcome[which] == Type.OK)).tolist():
        entry = row(tail, i, "log")
        end = int(log.ends[np.searchsorted(log.ends, entry["offset"], side="right")])
        found.append(Acknowledged(copy["node"], entry["offset"], end, entry["batch_hash"], entry["epoch"], entry))
    return found


def _combine(run: RunFiles, findings: Sequence[NodeFinding]) -> Verdict:
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
    return conclude(witnesses, looked_at, unknown)


def _lost_acknowledged(run: RunFiles, acknowledged: list[Acknowledged]) -> list[Lost]:
    """Logs that must hold what a client was told, by their epochs, and do not.  Opens logs only if there is any."""
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
    for copy in copies(run):
        if copy["error"] or copy["node"] not in files:
            continue
        log, _ = read_log(files[copy["node"]], copy["copy"])
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
)
