"""Linearizability in the order of the log: every answer about a key fits the order in which the log holds its writes.

Clients know little of a write that got no answer.  It may have happened at any time, or never.  So the order of answers
explains much that was wrong, and a search has to try all outcomes.  The logs settle them.  A write in
the committed log happened at its offset; a write in no log never happened.  Then no search is left:

* A read returns what stands at one offset, so each write and each read of a key has a place in the order of the log.
  The answers are linearizable in that order if and only if no operation had returned before an operation at an earlier
  place was invoked (Herlihy & Wing 1990; Gibbons & Korach 1997, with the order of writes given).
* A read that returned a write which never happened has no place.

This is stronger than linearizability as clients see it: the order of the log is the one in which the system itself
applied the writes.  The figures of the verdict count the unknown writes that were found in the log, those that are not
in it, and those that stay open.  Where logs settle nothing the verdict is unknown, with the reason.

A part is some buckets of keys, with all logs and traces.  Cost: n log n in the operations of the part, and one reading
of one log.  Memory: 150 bytes an operation of the part and an entry of its keys.

*What logs settle.*  A client that gets no answer does not know whether its write happened.  The logs know.  A write
that stands in the committed log happened, at that offset and in that epoch.  A write that stands in no log that has
caught up did not happen (`history_against_log.py`), and no client can have read it: a read returns only what is
committed, and what is committed before the final copies are taken stands below the largest mark.

Logs settle nothing if one of these holds:

* The final copy of a node is missing: a mark that it knew may be missing too.
* No final log has caught up.  That includes logs that begin above offset 0, and the trailing log of a wiped node.
* A log lacks an acknowledged write.  Then it is not the whole log (`history_against_log.py` reports the loss).
* Values repeat on a key.  Then an entry does not show which write made it.

An entry at or above the largest mark settles nothing about its own write: it may still be replaced.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import Type
from checkers.base.run_evidence import BeyondBudget, conclude, gaps, log_rows, numbers, present, read_entries
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, Witness
from checkers.kernels.operations import OPEN as NEVER_RETURNED
from checkers.kernels.operations import READ, WRITE
from checkers.kernels.raft import OPEN
from checkers.raft.client_writes import offset_ranges, operations
from checkers.raft.committed import holds, read_log
from checkers.raft.history_against_log import caught_up, largest_marks
from checkers.raft.reading import nothing_of
from checkers.sealing.codes import dictionary_codes
from checkers.sealing.key_buckets import Bucket, open_bucket, read_values

NOT_IN_LOG = -1


class FinalCopy(NamedTuple):
    """The final copy of one node's log, and the last row of its trace before it.

    path: None if the copy is unreadable, or if a fault had damaged the disk.  The trace still counts then.
    """

    node: str
    path: str | None
    copy: int
    trace_seq: int


@dataclass(frozen=True, slots=True)
class CommittedLog:
    """A final log that has caught up.  end: the largest committed mark.  unusable: why there is no such log, or "".
    tails: key and value of the entries from the mark on, in all logs that have caught up.
    """

    node: str = ""
    path: str = ""
    copy: int = -1
    end: int = 0
    tails: pa.Table = field(
        default_factory=lambda: pa.table({"key": pa.nulls(0, pa.string()), "value": pa.nulls(0, pa.int64())})
    )
    unusable: str = ""


def committed_log(
    traces: Sequence[str], copies: Sequence[FinalCopy], nodes: Sequence[str], budget: Budget
) -> CommittedLog:
    """The log that settles outcomes.  traces: paths, named by node.  nodes: every server.

    Parts of one run need the same log one after another, so the last result is cached.  Raises BeyondBudget.
    """
    if lacking := sorted(set(nodes) - {copy.node for copy in copies}):
        return CommittedLog(unusable=f"{', '.join(lacking)}: there is no final copy")
    paths = [*traces, *(copy.path for copy in copies if copy.path)]
    stamps = tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in map(os.stat, paths))
    return _committed_log(tuple(traces), tuple(copies), stamps, budget)


@lru_cache(maxsize=1)
def _committed_log(
    traces: tuple[str, ...], copies: tuple[FinalCopy, ...], stamps: tuple[tuple[int, int, int], ...], budget: Budget
) -> CommittedLog:
    """Choose the log.  stamps: they distinguish files of the same name."""
    top = largest_marks(traces, {copy.node: copy.trace_seq for copy in copies})
    reached = []
    for copy in (copy for copy in copies if copy.path):
        log = read_log(str(copy.path), copy.copy, budget)
        if caught_up(log, top):
            reached.append((not holds(log, top)[0].any(), copy))
    if not reached:
        return CommittedLog(unusable="no node's final log had caught up with the largest committed mark")
    first, end = min(reached)[1], int(top.offset[0])  # one whose prefix hash is that of the mark, if there is one
    tails = [read_entries(str(c.path), c.copy, end, ("key", "value")).select(["key", "value"]) for _, c in reached]
    return CommittedLog(first.node, str(first.path), first.copy, end, pa.concat_tables(tails))


class ObjectEntries(NamedTuple):
    """Entries of some objects.

    key: int32, the number of the object's name.  value: int64.  has_value: bool; False if the entry removes the object.
    offset: int64, -1 if the entry may still be replaced.
    """

    key: Int32
    value: Int64
    has_value: Bools
    offset: Int64


def entries_of(log: CommittedLog, names: Sequence[str]) -> ObjectEntries:
    """Return the committed entries of some objects, and the entries of the tails.  Reads the log range by range."""
    pieces = [_coded(log.tails, names, None)]
    for first, end in offset_ranges([log.path]):
        if first < log.end:
            rows = read_entries(log.path, log.copy, first, ("key", "value"), min(end, log.end))
            pieces.append(_coded(rows, names, numbers(rows, "offset")))
    return ObjectEntries(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _coded(rows: pa.Table, names: Sequence[str], offset: Int64 | None) -> ObjectEntries:
    local, words = dictionary_codes(rows["key"])
    known = pc.fill_null(pc.index_in(pa.array(words, pa.string()), value_set=pa.array(names, pa.string())), -1)
    key = np.array([*known.to_pylist(), -1], np.int32)[local]
    kept = np.flatnonzero(key >= 0)
    at = np.full(len(kept), NOT_IN_LOG, np.int64) if offset is None else offset[kept]
    return ObjectEntries(key[kept], numbers(rows, "value", 0)[kept], present(rows, "value")[kept], at)


class RegisterOperations(NamedTuple):
    """Reads that returned, and writes that did not fail, of some registers.

    key: int32.  reads: bool, else it writes.  value: int64, and has_value: false of a read of nil.
    invoked, completed: int64 rows of the history; completed is OPEN if the outcome is unknown.
    """

    key: Int32
    reads: Bools
    value: Int64
    has_value: Bools
    invoked: Int64
    completed: Int64


class Settled(NamedTuple):
    """One entry per operation.  offset: the committed entry that it wrote or read, NOT_IN_LOG if there is none.

    never: whether it is a write of unknown outcome that never happened, or a read of such a write.  maker: the write
    that such a read returned.
    lacking: acknowledged writes that the log lacks.  repeated: writes that share key and value with another one.
    """

    offset: Int64
    never: Bools
    maker: Int64
    made: int
    lost: int
    left_open: int
    lacking: int
    repeated: int


def settle(ops: RegisterOperations, entries: ObjectEntries) -> Settled:
    """Join operations and entries by key and value.  O(n log n)."""
    count = len(ops.key)
    name = _names(np.concatenate((ops.key, entries.key)), np.concatenate((ops.value, entries.value)))
    name_of, entry_name = name[:count], name[count:][entries.has_value]
    names = int(name.max(initial=-1)) + 1
    at = entries.offset[entries.has_value]
    committed = at >= 0
    offset = np.full(names, NOT_IN_LOG, np.int64)
    offset[entry_name[committed]] = at[committed]
    times = np.bincount(entry_name[committed], minlength=names)
    somewhere = np.bincount(entry_name, minlength=names) > 0
    writes = np.flatnonzero(~ops.reads)
    written = np.bincount(name_of[writes], minlength=names)
    maker = np.full(names, -1, np.int64)
    maker[name_of[writes]] = writes
    unknown = np.flatnonzero(~ops.reads & (ops.completed == OPEN))
    never = np.zeros(names, np.bool_)
    never[name_of[unknown]] = ~somewhere[name_of[unknown]]
    answered = ops.has_value if count else np.empty(0, np.bool_)
    acknowledged = ~ops.reads & (ops.completed != OPEN)
    made, lost = int((offset[name_of[unknown]] >= 0).sum()), int(never[name_of[unknown]].sum())
    return Settled(
        offset=np.where(answered & (times[name_of] == 1), offset[name_of], NOT_IN_LOG),
        never=answered & never[name_of],
        maker=maker[name_of],
        made=made,
        lost=lost,
        left_open=len(unknown) - made - lost,
        lacking=int(np.count_nonzero(acknowledged & ~somewhere[name_of])),
        repeated=int(written[written > 1].sum()),
    )


def _names(key: Int32, value: Int64) -> Int64:
    """Number the distinct pairs."""
    _, rank = np.unique(value, return_inverse=True)
    _, name = np.unique(key.astype(np.int64) * (int(rank.max(initial=0)) + 1) + rank, return_inverse=True)
    return np.asarray(name, np.int64)


NEVER_MADE = "read of a write that never happened"
DISORDER = "answer against the order of the log"

OPERATIONS_PER_PART = 4_000_000
SIZE_BYTES_PER_OPERATION = 150

_NIL = -1
"""The place of a read that found nothing: before every entry."""


class OrderClash(NamedTuple):
    """One answer that does not fit.  operations: rows of two invokes.  offsets: of the entries that they wrote or read,
    where there are any.  NEVER_MADE: the read, then the write.  DISORDER: the one at the earlier place first."""

    kind: str
    node: str
    copy: int
    operations: tuple[int, int]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OrderFinding:
    """clashes: one of each kind and key, the first MAX_WITNESSES.  wrong: how many there are.  counts: what was looked
    at.  lacking, repeated: as in `Settled`.  unknown: why nothing was judged."""

    clashes: tuple[OrderClash, ...] = ()
    wrong: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    lacking: int = 0
    repeated: int = 0
    unknown: str = ""


def _split(run: StoredRun) -> list[Part]:
    logs, traces = node_files(run.log), node_files(run.trace)
    if not logs or not traces or not run.buckets.is_dir() or not _of_registers(run):
        return []
    copies = [
        FinalCopy(c["node"], logs.get(c["node"]) if readable and not c["error"] else None, c["copy"], c["trace_seq"])
        for found, readable in ((run.copies, True), (run.damaged_copies, False))
        for c in found
        if c["when"] == "final"
    ]
    params = {"copies": copies, "traces": list(traces.values()), "nodes": list(traces)}
    parts: list[Part] = []
    gathered: list[str] = []
    count = 0
    for path in map(str, sorted(run.buckets.glob("bucket-*.parquet"))):
        more = pq.read_metadata(path).num_rows
        if gathered and count + more > OPERATIONS_PER_PART:
            parts.append(Part((str(run.history), *gathered), params))
            gathered, count = [], 0
        gathered.append(path)
        count += more
    return [*parts, Part((str(run.history), *gathered), params)] if gathered else parts


def _of_registers(run: StoredRun) -> bool:
    return run.demands.reads == {"read"} and run.demands.writes == {"write"}


def _judge(part: Part, budget: Budget) -> OrderFinding:
    params = part.params
    history, *paths = map(Path, part.paths)
    buckets = [open_bucket(path, history) for path in paths]
    needed_bytes = sum(int(b.operations.sum()) for b in buckets) * SIZE_BYTES_PER_OPERATION
    if needed_bytes > budget.size_bytes:
        return OrderFinding(
            unknown=f"{len(paths)} buckets need {needed_bytes} bytes, the budget is {budget.size_bytes}"
        )
    try:
        log = committed_log(params["traces"], params["copies"], params["nodes"], budget)
    except BeyondBudget as problem:
        return OrderFinding(unknown=str(problem))
    if log.unusable:
        return OrderFinding(unknown=log.unusable)
    ops = _operations(buckets)
    if ops is None:
        return OrderFinding(unknown="the history holds operations that are neither reads nor writes")
    entries = entries_of(log, [name for bucket in buckets for name in bucket.keys])
    settled = settle(ops, entries)
    place = _places(ops, settled.offset, bool(entries.has_value.all()))
    found = [
        OrderClash(NEVER_MADE, log.node, log.copy, (int(ops.invoked[read]), int(ops.invoked[settled.maker[read]])), ())
        for read in _first_of_each_key(ops, np.flatnonzero(settled.never & ops.reads))
    ]
    for early, late, offsets in out_of_place(ops.key, place, ops.invoked, ops.completed):
        at = tuple(offset for offset in offsets if offset >= 0)
        found.append(OrderClash(DISORDER, log.node, log.copy, (early, late), at))
    counts = {
        "keys": len(np.unique(ops.key)),
        "reads": int(np.count_nonzero(ops.reads)),
        "writes of unknown outcome": settled.made + settled.lost + settled.left_open,
        "unknown writes found in the log": settled.made,
        "unknown writes not in the log": settled.lost,
        "left open": settled.left_open,
    }
    return OrderFinding(tuple(found[:MAX_WITNESSES]), len(found), counts, settled.lacking, settled.repeated)


def _operations(buckets: Sequence[Bucket]) -> RegisterOperations | None:
    """All operations of some buckets; None if one is neither a read nor a write."""
    pieces, before = [], 0
    for bucket in buckets:
        rows = read_values(bucket, 0, len(bucket.keys))
        kind = numbers(rows, "kind")
        if len(kind) and not np.isin(kind, (READ, WRITE)).all():
            return None
        key = np.repeat(np.arange(before, before + len(bucket.keys), dtype=np.int32), bucket.operations)
        returned = numbers(rows, "ret") != NEVER_RETURNED
        completed = np.where(returned, numbers(rows, "completed"), OPEN)
        has_value = present(rows, "value")
        invoked = numbers(rows, "invoked")
        pieces.append(RegisterOperations(key, kind == READ, numbers(rows, "value", 0), has_value, invoked, completed))
        before += len(bucket.keys)
    return RegisterOperations(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))


def _first_of_each_key(ops: RegisterOperations, chosen: Int64) -> list[int]:
    """Return, for each key, the chosen operation that returned first."""
    chosen = chosen[np.argsort(ops.completed[chosen], kind="stable")]
    _, first = np.unique(ops.key[chosen], return_index=True)
    return [int(op) for op in chosen[np.sort(first)]]


NO_PLACE = -2


def _places(ops: RegisterOperations, offset: Int64, nil_comes_first: bool) -> Int64:
    """Return the place of each operation.

    It is twice the offset of a write, one more for a read of that write, and -1 for a read of nil.  It is NO_PLACE if
    the write is not committed.  nil_comes_first: no entry removes a key.
    """
    place = np.where(offset == NOT_IN_LOG, NO_PLACE, 2 * offset + ops.reads)
    return np.where(ops.reads & ~ops.has_value & nil_comes_first, _NIL, place)


def out_of_place(key: Int32, place: Int64, invoked: Int64, completed: Int64) -> list[tuple[int, int, tuple[int, int]]]:
    """Return, of each key with an answer out of place: (invoke of an operation, invoke of one that stands at a later
    place and had returned before, offset of each or -1), in order of the later one's return.

    place: as `_places` returns it; what has NO_PLACE is left out.
    Reads of one entry may stand in any order, so they are compared in the order in which they were invoked.
    """
    there = np.flatnonzero(place != NO_PLACE)
    if len(there) < 2:
        return []
    order = there[np.lexsort((invoked[there], place[there], key[there]))]
    key, place, invoked, completed = key[order].astype(np.int64), place[order], invoked[order], completed[order]
    beyond = int(invoked.max()) + 1
    base = key * beyond  # calls of an earlier key are smaller than all of a later one
    latest = np.maximum.accumulate(base + invoked)
    wrong = np.flatnonzero(base[1:] + np.minimum(completed[1:], beyond - 1) < latest[:-1]) + 1
    wrong = wrong[np.argsort(completed[wrong], kind="stable")]
    _, first = np.unique(key[wrong], return_index=True)
    found = []
    for later in wrong[np.sort(first)].tolist():
        start = int(np.searchsorted(key, key[later]))
        earlier = start + int(np.argmax(invoked[start:later]))
        offsets = (int(place[earlier]) // 2, int(place[later]) // 2)
        found.append((int(invoked[earlier]), int(invoked[later]), offsets))
    return found


def _combine(run: StoredRun, findings: Sequence[OrderFinding]) -> Verdict:
    if not _of_registers(run):
        return Verdict(Validity.NOT_APPLICABLE, reason="clients do more than read and write registers")
    looked_at: Counter[str] = Counter()
    for finding in findings:
        looked_at.update(finding.counts)
    unknown = list(dict.fromkeys(f.unknown for f in findings if f.unknown)) + gaps(run, "logs", "traces")
    if not run.history.exists():
        unknown.append("there is no sealed history")
    clashes = [clash for f in findings for clash in f.clashes]
    if lacking := sum(f.lacking for f in findings):
        what = "an acknowledged write" if lacking == 1 else f"{lacking} acknowledged writes"
        unknown.append(f"the log lacks {what}, so it settles nothing")
        clashes = []
    if repeated := sum(f.repeated for f in findings):
        unknown.append(f"{repeated} writes share their key and value with another, so logs settle nothing")
        clashes = []
    if not unknown:
        unknown = nothing_of(looked_at, "keys", "reads")
    if clashes:
        looked_at["violations"] = sum(f.wrong for f in findings)
    clashes.sort(key=lambda clash: max(clash.operations))
    return conclude([_witness(run, clash) for clash in clashes[:MAX_WITNESSES]], dict(looked_at), unknown)


class _LoggedOperation(NamedTuple):
    """One operation in words.

    words: a clause, such as "process 7 wrote 3 to k2 (index 368)".  name: the same as a noun, "process 7's write of 3
    to k2 (index 368)".  returned: history index of its completion, None if there is none.
    """

    words: str
    name: str
    node: str | None
    key: str
    value: int | None
    called: int
    returned: int | None


def _operation(events: Sequence[dict[str, Any]], called: int) -> _LoggedOperation:
    """events: as `client_writes.operations` returns them.  called: history index of the invoke."""
    call = next(event for event in events if event["index"] == called)
    own = [event for event in events if event["process"] == call["process"] and event["index"] > called]
    answer = own[0] if own else None
    returned = answer["index"] if answer and answer["type"] == Type.OK else None
    value = answer["value"] if answer and call["f"] == "read" else call["value"]
    shown = "nil" if value is None else value
    who, where = f"process {call['process']}", f"{call['key']} (index {called})"
    did, made = ("read", "read") if call["f"] == "read" else ("wrote", "write")
    words = f"{who} {did} {shown} {'from' if made == 'read' else 'to'} {where}"
    name = f"{who}'s {made} of {shown} {'from' if made == 'read' else 'to'} {where}"
    return _LoggedOperation(words, name, (answer or call)["node"], call["key"], value, called, returned)


def _witness(run: StoredRun, clash: OrderClash) -> Witness:
    events = operations(str(run.history), clash.operations)
    rows = log_rows(node_files(run.log)[clash.node], clash.copy, clash.offsets) if clash.offsets else []
    one, other = (_operation(events, index) for index in clash.operations)
    log = f"the log of {clash.node}"
    if clash.kind == NEVER_MADE:
        why = [
            f"P{other.words[1:]} and got no answer.",
            f"No log that has caught up holds that write, {log} among them: it never happened.",
        ]
        summary = f"P{one.words[1:]}, but no log holds the write of it."
        expected = "a read returns what the committed log holds"
    else:
        places = " and ".join(f"{row['value']} at offset {row['offset']}" for row in rows)
        why = [f"P{other.words[1:]}, and returned at index {other.returned}.", f"Of {one.key}, {log} holds {places}."]
        summary = f"P{one.words[1:]} after {other.name} had returned, and {log} holds them in the reverse order."
        expected = "an operation takes effect between its invoke and its completion, in the order of the log"
    return Witness(
        kind=clash.kind,
        summary=summary,
        events=tuple(events),
        rows=tuple(rows),
        facts={
            "nodes": [one.node or clash.node],
            "copies": [clash.copy],
            "epoch": rows[0]["epoch"] if rows else None,
            "offset": clash.offsets[0] if clash.offsets else None,
            "key": one.key,
            "value": one.value,
            "why": [*why, summary],
            "expected": expected,
        },
    )


LOG_ORDER = Checker(
    name="log-order",
    title="Linearizability in the order of the log",
    question="Do all answers about each key fit the order in which the committed log holds its writes?",
    split=_split,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"history", "logs", "traces", "unique-values", "client-records"}),
)
