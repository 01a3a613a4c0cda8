"""What logs settle: which writes of unknown outcome happened, and at which place among all writes.

A client that gets no answer does not know whether its write happened.  The logs know.  A write that stands in the
committed log happened, at that offset and in that epoch.  A write that stands in no log that has caught up did not
happen (`caught_up.py`), and no client can have read it: a read returns only what is committed, and what is committed
before the final copies are taken stands below the largest mark.

When logs settle nothing:

* The final copy of a node is missing: a mark that it knew may be missing too.
* No final log has caught up.  That includes logs that begin above offset 0, and the trailing log of a wiped node.
* A log lacks an acknowledged write.  Then it is not the whole log (`history_against_log.py` reports the loss).
* Values repeat on a key.  Then an entry does not show which write made it.

An entry at or above the largest mark settles nothing about its own write: it may still be replaced.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.checker import Budget
from checkers.base.run_evidence import numbers, present, read_entries
from checkers.kernels.raft.writes_in_logs import OPEN
from checkers.raft.client_writes import offset_ranges
from checkers.raft.clients.caught_up import caught_up, largest_marks
from checkers.raft.committed import holds, read_log
from checkers.sealing.codes import dictionary_codes

NOT_IN_LOG = -1


class FinalCopy(NamedTuple):
    """The final copy of one node's log, and the last row of its trace before it.

    path: None if the copy is unreadable, or if a fault had damaged the disk.  What the node had reported still counts.
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
