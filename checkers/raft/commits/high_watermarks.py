"""Joins the marks of all traces, which are the prefixes that nodes reported as committed, and reads logs as batches.

A mark is a high-watermark row above 0: everything below its offset is committed, and the prefix hash represents it.
For each offset and hash, only the row of the lowest epoch is kept: the prefix was certainly committed in that epoch.

Cost: linear in the rows of all traces (marks lie in ascending runs, which a merge sort joins, one trace after another);
memory: 100 bytes a distinct mark, and 16 bytes a batch of one log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.checker import Budget
from checkers.base.run_evidence import BeyondBudget, log_groups, numbers, present, read_trace, trace_row
from checkers.kernels.raft.compared_rows import NOWHERE, lowest
from checkers.kernels.raft.marks import CopiedLog, Marks
from checkers.raft.disks_by_row import EVENT as DISK
from checkers.raft.disks_by_row import disks_by_row
from checkers.raft.witness_rows import Row

MARK_SIZE_BYTES = 100
"""The memory of one mark while it is joined with others."""

BATCH_SIZE_BYTES = 16

_COLUMNS = ("epoch", "offset", "hash")
_OF_LOG = ("offset", "epoch", "batch_offset", "batch_hash")

Columns = tuple[npt.NDArray[Any], ...]
"""Offset, hash, known, epoch, seq, source."""


@dataclass(frozen=True, slots=True)
class ReportedMarks:
    """Distinct marks in ascending order of offset.  source, seq: the row that reported each; source counts `paths`."""

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
    """Return every distinct (offset, hash) in any of these traces, with the lowest epoch in which it was reported.

    Parts of one run need the same marks one after another, so the last result is cached.  Raises BeyondBudget.
    """
    stamps = tuple((stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in map(os.stat, paths))
    return _reported_marks(tuple(paths), stamps, budget)


@lru_cache(maxsize=1)
def _reported_marks(paths: tuple[str, ...], stamps: tuple[tuple[int, int, int], ...], budget: Budget) -> ReportedMarks:
    """Read the marks.  stamps: they distinguish files of the same name."""
    joined = _of_trace(0, paths[0]) if paths else _NOTHING
    for number, path in enumerate(paths[1:], 1):
        more = _of_trace(number, path)
        if (count := len(joined[0]) + len(more[0])) * MARK_SIZE_BYTES > budget.size_bytes:
            raise BeyondBudget(f"{count} marks are beyond the budget of {budget.size_bytes} bytes")
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
        order = np.lexsort((hashes, known, offset))  # several prefixes up to one offset: rare, and slower
    fresh = _steps(offset[order]) | _steps(hashes[order]) | _steps(known[order])
    begins = np.concatenate(([0], np.flatnonzero(fresh) + 1))
    kept = order[lowest(begins, epoch[order])]
    return tuple(column[kept] for column in columns)


def _steps(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(values[1:] != values[:-1], np.bool_)


def newest_snapshots(trace: str | None) -> Callable[[Row], int]:
    """Return a function from a copy to the end of the newest snapshot that its node had reported with that disk, or 0.

    trace: of the node; None: there is none."""
    if trace is None:
        return lambda copy: 0
    rows = read_trace(trace, (DISK, "snapshot"), ("offset", "detail"))
    disks, seq, end = disks_by_row(rows), numbers(rows, "seq"), numbers(rows, "offset")

    def newest(copy: Row) -> int:
        reported = ~disks.is_report & (seq <= copy["trace_seq"]) & (disks.number == disks.of_copy(copy))
        return int(end[reported].max(initial=0))

    return newest


def read_log(path: str, copy: int, budget: Budget, snapshot: int = 0) -> CopiedLog:
    """Read one copy of a node's log as batches, row group by row group.  snapshot: where its newest snapshot ends.

    Raises BeyondBudget, and ValueError if its offsets do not ascend.
    """
    file = pq.ParquetFile(path)
    groups = log_groups(file.metadata, copy)
    rows = sum(file.metadata.row_group(group.number).num_rows for group in groups)
    if rows * BATCH_SIZE_BYTES > budget.size_bytes:
        raise BeyondBudget(f"{path}: {rows} entries are beyond the budget of {budget.size_bytes} bytes")
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
        if pieces and pieces[-1][0][-1] == batch[0]:  # its batch begins in the group before
            before = pieces.pop()
            if len(before[0]) > 1:
                pieces.append((before[0][:-1], before[1][:-1], before[2][:-1]))
        pieces.append((batch[last], offset[last] + 1, hashes[last]))
    ends, hashes = (np.concatenate([p[i] for p in pieces] or [np.empty(0, np.int64)]) for i in (1, 2))
    start = snapshot if first == NOWHERE else first
    return CopiedLog(ends, hashes, max(reached + 1, start), last_epoch, start)
