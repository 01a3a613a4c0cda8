"""Linearizability in the order of the log: every answer about a key fits the order in which the log holds its writes.

Clients know little of a write that got no answer.  It may have happened at any time, or never.  So the order of answers
explains much that was wrong, and a search has to try all outcomes.  The logs settle them (`settled.py`).  A write in
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
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from checkers.base.arrays import Int32, Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.history import Type
from checkers.base.run_evidence import BeyondBudget, conclude, gaps, log_rows, numbers, present
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, Witness
from checkers.kernels.operations import OPEN as NEVER_RETURNED
from checkers.kernels.operations import READ, WRITE
from checkers.kernels.raft.writes_in_logs import OPEN
from checkers.raft.client_writes import operations
from checkers.raft.clients.settled import NOT_IN_LOG, FinalCopy, RegisterOperations, committed_log, entries_of, settle
from checkers.raft.reading import nothing_of
from checkers.sealing.key_buckets import Bucket, open_bucket, read_values

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
    """Of each key with an answer out of place: (invoke of an operation, invoke of one that stands at a later place and
    had returned before, offset of each or -1), in order of the later one's return.

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
