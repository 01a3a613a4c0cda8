"""Reads traces and logs for the checkers of Raft, and finds the writes of clients.

`Condensed` passes a trace to the monitor without the irrelevant rows.  Appends, flushes, high watermarks and applied
offsets come in long runs in which every value rises.  The monitor keeps only extreme values, and a rising run has its
extremes at its ends.  So only the first and the last row of each event in a run can change the monitor's findings.  A
row whose value does not rise, or to which a rule about single rows could apply, ends the run and is passed, too.  Each
passed applied offset comes after its mark, each mark after its flush, and each flush after its append.  So the monitor
is in the same state as the node when it receives the row.

A workload writes every value at most once per key, so that a stale answer differs from a repeated one.  Therefore
(key, value) identifies a write in the history and in a log.

Cost: linear in the rows of a trace, one row group in memory at a time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget
from checkers.base.stored_rows import coded, log_groups, numbers, present, read_trace, trace_row
from checkers.kernels.raft import NOWHERE, lowest
from checkers.raft.rules import CURRENT_EPOCH_EVENTS, Row, TraceRow
from checkers.sealing import sealed_history
from checkers.sealing.sealed_history import history_tables

_APPEND, _FLUSH, _MARK, _APPLIED, _APPEND_AT_MARK, _ROLE, _START, _OTHER = range(8)
_STEADY = (_APPEND, _FLUSH, _MARK, _APPLIED, _APPEND_AT_MARK)
_EVENTS = {
    "append": _APPEND,
    "flush": _FLUSH,
    "high-watermark": _MARK,
    "applied": _APPLIED,
    "role": _ROLE,
    "start": _START,
}


def rows_of_table(table: pa.Table) -> Iterator[TraceRow]:
    """Return the rows of a table of schema TRACE."""
    return map(TraceRow._make, zip(*(table[name].to_pylist() for name in TraceRow._fields), strict=True))


def read_rows(path: str) -> Iterator[TraceRow]:
    """Return the rows of a trace in seq order, one row group in memory at a time."""
    file = pq.ParquetFile(path)
    for group in range(file.num_row_groups):
        yield from rows_of_table(file.read_row_group(group, list(TraceRow._fields), use_threads=False))


class Condensed:
    """The relevant rows of one trace.

    cuts: seqs after which the caller reads the state of the monitor
    marks: (offset, epoch) of the committed prefixes, sorted; appends that end at one of them are a kind of their own
    counts: numbers of rows of the whole trace, by name; complete after the last row was read
    """

    def __init__(self, path: str, cuts: Sequence[int] = (), marks: tuple[Int64, Int64] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._path, self._cuts = path, np.array(sorted(cuts), np.int64)
        self._marks = marks
        self._mark, self._office = 0, -1

    def __iter__(self) -> Iterator[TraceRow]:
        file = pq.ParquetFile(self._path, read_dictionary=["node", "event", "peer", "role"])
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, list(TraceRow._fields), use_threads=False)
            if len(table):
                seq = numbers(table, "seq")
                table = table if np.all(seq[1:] >= seq[:-1]) else table.sort_by("seq")
                yield from rows_of_table(table.take(pa.array(self._kept(table))))

    def _kept(self, table: pa.Table) -> Int64:
        event, offset = coded(table, "event", _EVENTS, _OTHER), numbers(table, "offset")
        epoch, life, seq = (numbers(table, name) for name in ("epoch", "incarnation", "seq"))
        if self._marks is not None:
            event = np.where((event == _APPEND) & self.at_mark(offset, epoch), _APPEND_AT_MARK, event)
        alone = (event >= _ROLE) | (offset < 0)
        known = (event == _MARK) & (offset >= 0)
        marks = _carried(known, offset, self._mark)
        alone |= (event == _APPLIED) & (offset > marks)
        leads = (event == _ROLE) & (coded(table, "role", {"leader": 1}) == 1)
        office = _carried((event == _ROLE) | (event == _START), np.where(leads, offset, -1), self._office)
        alone |= (event == _MARK) & (offset <= office)
        for kind in _STEADY:
            at = np.flatnonzero(event == kind)
            before, after = at[:-1], at[1:]
            rises = (offset[after] >= offset[before]) & (epoch[after] == epoch[before]) & (life[after] == life[before])
            alone[after[~rises]] = True
        self._count(table, event, offset, seq, office)
        begins = alone | np.concatenate(([True], alone[:-1]))
        begins[np.searchsorted(seq, self._cuts[self._cuts < seq[-1]], side="right")] = True
        run, kept = np.cumsum(begins), alone
        places = {kind: np.flatnonzero(event == kind) for kind in _STEADY}
        for at in places.values():
            changes = np.flatnonzero(np.diff(run[at]))
            kept[at[:1]] = kept[at[-1:]] = kept[at[changes]] = kept[at[changes + 1]] = True
        for kind, needs in ((_APPLIED, _MARK), (_MARK, _FLUSH), (_FLUSH, _APPEND), (_FLUSH, _APPEND_AT_MARK)):
            before = np.searchsorted(places[needs], np.flatnonzero(kept & (event == kind))) - 1
            kept[places[needs][before[before >= 0]]] = True
        self._mark, self._office = int(marks[-1]), int(office[-1])
        return np.flatnonzero(kept)

    def at_mark(self, offset: Int64, epoch: Int64) -> Bools:
        """Return, per append, whether it ended at a committed prefix in the epoch in which the prefix was committed."""
        assert self._marks is not None
        radix = int(max(epoch.max(initial=0), self._marks[1].max(initial=0))) + 1
        return np.isin(offset * radix + epoch, self._marks[0] * radix + self._marks[1])

    def _count(self, table: pa.Table, event: Int64, offset: Int64, seq: Int64, office: Int64) -> None:
        is_mark = (event == _MARK) & (offset >= 0)
        votes = coded(table, "event", {"vote": 1}) == 1
        reports = coded(table, "event", dict.fromkeys(CURRENT_EPOCH_EVENTS, 1)) == 1
        until = self._cuts[-1] if len(self._cuts) else -1
        self.counts += Counter(
            {
                "votes": int(votes.sum()),
                "epochs reported": int(reports.sum()),
                "high watermarks": int(is_mark.sum()),
                "leaders' high watermarks": int((is_mark & (office >= 0)).sum()),
                "marks before the last copy": int((is_mark & (offset > 0) & (seq <= until)).sum()),
            }
        )


def _carried(shows: Bools, values: Int64, before: int) -> Int64:
    """Return, for each row, the value of the latest row that has a value, this row included.

    before: the latest value in earlier row groups
    """
    at = np.maximum.accumulate(np.where(shows, np.arange(len(shows)), -1))
    return np.where(at >= 0, values[np.maximum(at, 0)], before)


# Disks


DISK = "disk"
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class DisksByRow:
    """The disk of a node at each row of its trace.  A node reports the id of its disk before its `start` row.

    number: number of the disk at each row, from 0 on
    ids: the id of each disk; "" if no row names the disk
    """

    number: Int64
    ids: tuple[str, ...]

    def of_copy(self, copy: Row) -> int:
        """Return the number of the disk of which this copy (a row of COPIES) was made.

        Returns UNKNOWN if no row names that disk: then no row of the trace applies to it.  If no row names any disk,
        the node has only one.
        """
        if self.ids == ("",):
            return 0
        return max((number for number, known in enumerate(self.ids) if known == copy.get("disk")), default=UNKNOWN)


def disks_by_row(rows: pa.Table) -> DisksByRow:
    """Return the disk at each row of one node's trace.

    rows: in seq order; they include all rows with event DISK
    """
    reports = np.flatnonzero(coded(rows, "event", {DISK: 1}) == 1)
    named = [str(name) for name in rows["detail"].take(pa.array(reports)).to_pylist()]
    replaced = np.zeros(len(rows), np.int64)
    replaced[reports[1:]] = [after != before for before, after in pairwise(named)]
    ids = [name for at, name in enumerate(named) if at == 0 or name != named[at - 1]]
    return DisksByRow(np.cumsum(replaced), tuple(ids) or ("",))


# High watermarks, and the copied logs that contain their entries


MARK_SIZE_BYTES = 100
"""Memory per mark in bytes while the marks of several traces are joined."""

BATCH_SIZE_BYTES = 16
"""Memory per batch of a `CopiedLog` in bytes."""


class CopiedLog(NamedTuple):
    """The batches of one copied log.

    ends: int64[n]; the end offset of each batch, exclusive, ascending
    hashes: the prefix hash at the end of each batch
    end: the log end offset
    last_epoch: the epoch of the last entry; NOWHERE if the log is empty
    start: the first offset; a snapshot covers all entries below it
    """

    ends: Int64
    hashes: Int64
    end: int
    last_epoch: int
    start: int = 0


class Marks(NamedTuple):
    """Committed prefixes: all entries below `offset`, with this prefix hash, were committed in `epoch` or earlier.

    known: False if the hash is unknown because the mark lies inside a batch
    """

    offset: Int64
    hash: Int64
    known: Bools
    epoch: Int64


def holds(log: CopiedLog, marks: Marks) -> tuple[Bools, Bools]:
    """Return, per mark, (True if the log begins with exactly this prefix, True if it certainly does not).

    A log that begins above 0 has no prefix hashes, because a prefix hash starts at offset 0.
    """
    reaches = marks.offset <= log.end
    if log.start > 0:
        return np.zeros(len(marks.offset), np.bool_), ~reaches
    if len(log.ends) == 0:
        at_batch_end = np.zeros(len(marks.offset), np.bool_)
        equal = at_batch_end
    else:
        place = np.minimum(np.searchsorted(log.ends, marks.offset), len(log.ends) - 1)
        at_batch_end = log.ends[place] == marks.offset
        equal = at_batch_end & (log.hashes[place] == marks.hash)
    return marks.known & equal, ~reaches | (marks.known & ~equal)


def must_hold(log: CopiedLog, marks: Marks) -> Bools:
    """Return, per mark, whether every correct log with this end and this last epoch contains the marked prefix.

    A leader of a later epoch has all entries committed before (leader completeness).  A log with an entry of that later
    epoch equals the leader's log up to this entry (log matching).  A log whose last entry is of the mark's own epoch is
    a prefix of that epoch's leader's log.  So it must contain the marked prefix if it is long enough.
    """
    later = marks.epoch < log.last_epoch
    as_long = (marks.epoch == log.last_epoch) & (marks.offset <= log.end)
    return np.asarray(later | as_long, np.bool_)


_COLUMNS = ("epoch", "offset", "hash")
_OF_LOG = ("offset", "epoch", "batch_offset", "batch_hash")

Columns = tuple[npt.NDArray[Any], ...]
"""Offset, hash, known, epoch, seq, source."""


@dataclass(frozen=True, slots=True)
class ReportedMarks:
    """Distinct marks in ascending order of offset.

    source: index in `paths` of the trace that reported each mark
    seq: seq of the row that reported each mark
    """

    marks: Marks
    paths: tuple[str, ...]
    source: Int64
    seq: Int64

    def __len__(self) -> int:
        return len(self.seq)

    def row(self, position: int) -> Row:
        """Return the trace row that reported a mark."""
        return trace_row(self.paths[int(self.source[position])], int(self.seq[position]))


def reported_marks(paths: Sequence[str], budget: Budget) -> ReportedMarks:
    """Return every distinct mark (offset, hash) of these traces, with the lowest epoch in which a node reported it.

    The last result is cached, because the parts of one run need the same marks.  Raises BeyondBudget.
    """
    stamps = tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in map(os.stat, paths))
    return _reported_marks(tuple(paths), stamps, budget)


@lru_cache(maxsize=1)
def _reported_marks(paths: tuple[str, ...], stamps: tuple[tuple[int, int, int], ...], budget: Budget) -> ReportedMarks:
    """Read the marks.

    stamps: (inode, modification time, size) of each file; part of the cache's key
    """
    joined = _of_trace(0, paths[0]) if paths else _NOTHING
    for number, path in enumerate(paths[1:], 1):
        more = _of_trace(number, path)
        count = len(joined[0]) + len(more[0])
        budget.demand(count * MARK_SIZE_BYTES, f"{count} marks")
        joined = _distinct(tuple(np.concatenate(pair) for pair in zip(joined, more, strict=True)))
    offset, hashes, known, epoch, seq, source = _distinct(joined)
    return ReportedMarks(Marks(offset, hashes, known, epoch), paths, source, seq)


_NOTHING: Columns = tuple(np.empty(0, kind) for kind in (np.int64, np.int64, np.bool_, np.int64, np.int64, np.int64))


def _of_trace(number: int, path: str) -> Columns:
    rows = read_trace(path, ("high-watermark",), _COLUMNS)
    offset, epoch, seq = numbers(rows, "offset"), numbers(rows, "epoch"), numbers(rows, "seq")
    columns = (offset, numbers(rows, "hash", 0), present(rows, "hash"), epoch, seq, np.full(len(seq), number, np.int64))
    real = offset > 0
    return columns if real.all() else tuple(column[real] for column in columns)


def _distinct(columns: Columns) -> Columns:
    """Keep one row per (offset, hash, known): the first row of the lowest epoch."""
    offset, hashes, known, epoch, _, _ = columns
    if len(offset) == 0:
        return columns
    order = np.argsort(offset, kind="stable")
    one_offset = np.diff(offset[order]) == 0
    if np.any(one_offset & (_steps(hashes[order]) | _steps(known[order]))):
        order = np.lexsort((hashes, known, offset))  # several prefixes end at one offset: rare, and slower
    fresh = _steps(offset[order]) | _steps(hashes[order]) | _steps(known[order])
    begins = np.concatenate(([0], np.flatnonzero(fresh) + 1))
    kept = order[lowest(begins, epoch[order])]
    return tuple(column[kept] for column in columns)


def _steps(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(values[1:] != values[:-1], np.bool_)


def read_log(path: str, copy: int, budget: Budget, snapshot: int = 0) -> CopiedLog:
    """Read one copy of a node's log as batches, row group by row group.

    snapshot: end offset of the node's newest snapshot
    Raises BeyondBudget, and ValueError if the offsets do not ascend.
    """
    file = pq.ParquetFile(path)
    groups = log_groups(file.metadata, copy)
    rows = sum(file.metadata.row_group(group.number).num_rows for group in groups)
    budget.demand(rows * BATCH_SIZE_BYTES, f"{path}: {rows} entries")
    pieces: list[tuple[Int64, Int64, Int64]] = []
    last_epoch, first, reached = NOWHERE, NOWHERE, NOWHERE
    for group in groups:
        columns = _OF_LOG if group.copy >= 0 else (*_OF_LOG, "copy")
        table = file.read_row_group(group.number, columns, use_threads=False)
        if group.copy < 0:
            table = table.filter(numbers(table, "copy") == copy)
        if len(table) == 0:
            continue
        offset, batch, hashes = (numbers(table, name) for name in ("offset", "batch_offset", "batch_hash"))
        if offset[0] < reached or np.any(offset[1:] < offset[:-1]):
            raise ValueError(f"{path}: the offsets of copy {copy} do not ascend")
        first = int(offset[0]) if first == NOWHERE else first
        reached, last_epoch = int(offset[-1]), int(table["epoch"][-1].as_py())
        last = np.concatenate((np.flatnonzero(_steps(batch)), [len(batch) - 1]))
        if pieces and pieces[-1][0][-1] == batch[0]:  # its batch begins in the previous group
            before = pieces.pop()
            if len(before[0]) > 1:
                pieces.append((before[0][:-1], before[1][:-1], before[2][:-1]))
        pieces.append((batch[last], offset[last] + 1, hashes[last]))
    ends, hashes = (np.concatenate([p[i] for p in pieces] or [np.empty(0, np.int64)]) for i in (1, 2))
    start = snapshot if first == NOWHERE else first
    return CopiedLog(ends, hashes, max(reached + 1, start), last_epoch, start)


# Writes of clients


WRITES = ("write", "add", "append")
"""Operations (`f`) of clients that write one value: to a register, a set or a list."""

NAMED_WRITES = f"""
CREATE TEMP TABLE writes AS
SELECT "index" AS row, key, value, type, CASE WHEN type < 3 THEN ended_index END AS completed
FROM operations WHERE f IN {WRITES} AND key IS NOT NULL AND value IS NOT NULL;
CREATE TEMP TABLE names AS
SELECT key, value, count(*) AS times, any_value(row) AS row, any_value(type) AS type, any_value(completed) AS completed
FROM writes GROUP BY key, value"""
"""SQL that makes two tables from a history (`sealed_history.py`).

writes: one row per write; `completed` is the row of its completion if the outcome is known
names: one row per (key, value); `times` is the number of writes with this key and value; `row`, `type` and `completed`
are those of one of these writes
"""


def operations(history: Path, invoked: Sequence[int]) -> list[Row]:
    """Return the invokes and completions of some operations, in index order, in the form of a witness.

    invoked: rows of the invokes
    """
    ended = 'SELECT ended_index FROM operations WHERE list_contains(?, "index") AND ended_index IS NOT NULL'
    with history_tables(history) as sql:
        rows = {*invoked, *(row for (row,) in sql.execute(ended, [list(invoked)]).fetchall())}
    return sealed_history.read_rows(history, sorted(rows))


def invoke_of(history: Path, key: str, value: int) -> int | None:
    """Return the row of the invoke of the first write of a value to a key; None if no client wrote it."""
    with history_tables(history) as sql:
        first = f'SELECT min("index") FROM operations WHERE f IN {WRITES} AND key = ? AND value = ?'
        [(row,)] = sql.execute(first, [key, value]).fetchall()
    return None if row is None else int(row)


# Findings


def nothing_of(looked_at: Mapping[str, int | float | str], *names: str) -> list[str]:
    """Return one clause for each named count that is 0.

    A run with such a clause is never judged valid, because nothing of that name was examined.
    """
    return [f"there were no {name} to look at" for name in names if not looked_at.get(name)]
