"""What one node had to keep of its log, and had flushed, by its own trace.

A disk that replaced another one owes nothing of what the node held before (`disks_by_row.py`).
Cost and memory: linear in the rows of that trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.checker import Budget
from checkers.base.run_evidence import BeyondBudget, coded, numbers, read_trace, trace_row
from checkers.base.verdict import Witness
from checkers.kernels.raft.compared_rows import NOWHERE
from checkers.kernels.raft.marks import Marks
from checkers.kernels.raft.node_logs import APPEND, FLUSH, MARK, OTHER, START, TRUNCATE, keeps
from checkers.raft.commits import committed_evidence as evidence_of
from checkers.raft.disks_by_row import DisksByRow, disks_by_row
from checkers.raft.witness_rows import Row

HELD_EVENTS = {
    "high-watermark": MARK,
    "append": APPEND,
    "flush": FLUSH,
    "truncate": TRUNCATE,
    "start": START,
    "disk": OTHER,
}
"""Trace events that show what a node's log holds, with the numbers that `keeps` uses."""

ROW_SIZE_BYTES = 100
"""The memory of one row of the node's own trace while the checker follows it."""


@dataclass(frozen=True, slots=True)
class OwnTrace:
    """What one node had to keep on its disk, and had flushed, after each row of its trace (see `keeps`).

    starts: seqs of starts; fatal: seqs of the rows with which a process ended because of an error.
    disks: the disk that the node had at each of the rows.
    """

    path: str
    seq: Int64
    owed: Int64
    flushed: Int64
    starts: Int64
    fatal: Int64
    disks: DisksByRow

    def owed_by(self, copy: Row) -> int:
        """The position of the mark that the disk of this copy had to hold when it was copied; NOWHERE if none."""
        before = np.flatnonzero((self.seq <= copy["trace_seq"]) & (self.disks.number == self.disks.of_copy(copy)))
        return int(self.owed[before[-1]]) if len(before) else NOWHERE

    def row(self, position: int) -> Row:
        return trace_row(self.path, int(self.seq[position]))

    def flushed_at(self, seq: int) -> int:
        """Return the log end that was certainly durable at `seq` of the trace; 0 before the first flush."""
        before = int(np.searchsorted(self.seq, seq, side="right"))
        return int(self.flushed[before - 1]) if before else 0

    def owes_only_flushed(self, copy: Row) -> bool:
        """Whether the process was dead when it was copied, or its log never changed again before its end."""
        if copy["state"] == "dead":
            return True
        rest = self.seq[self.seq > copy["trace_seq"]]
        end = np.concatenate((self.starts, self.fatal))
        end = end[end > copy["trace_seq"]]
        return len(end) > 0 and (len(rest) == 0 or int(end.min()) <= int(rest[0]))


def own_trace(path: str, marks: Marks, fatal: Int64, budget: Budget) -> tuple[OwnTrace, list[Witness]]:
    """Follow one node's trace: what it must keep after each row, and what it removed although it had to keep it."""
    rows = read_trace(path, HELD_EVENTS, ("epoch", "offset", "detail"))
    if len(rows) * ROW_SIZE_BYTES > budget.size_bytes:
        raise BeyondBudget(f"{path}: {len(rows)} rows are beyond the budget of {budget.size_bytes} bytes")
    owed, removed, flushed = follow(rows, marks)
    seq = numbers(rows, "seq")
    starts = seq[coded(rows, "event", HELD_EVENTS) == START]
    own = OwnTrace(path, seq, owed, flushed, starts, fatal, disks_by_row(rows))
    lost_at = np.flatnonzero(removed != NOWHERE).tolist()
    return own, [evidence_of.removed(own.row(int(removed[at])), own.row(at)) for at in lost_at]


def follow(rows: pa.Table, marks: Marks) -> tuple[Int64, Int64, Int64]:
    """Apply `keeps` to the HELD_EVENTS of one node, in seq order; to those of each disk alone."""
    events = coded(rows, "event", HELD_EVENTS)
    offsets, epochs = numbers(rows, "offset"), numbers(rows, "epoch")
    radix = int(max(epochs.max(initial=0), marks.epoch.max(initial=0))) + 1
    names = np.sort(marks.offset * radix + marks.epoch, kind="stable")
    ends = offsets * radix + epochs
    place = np.minimum(np.searchsorted(names, ends), max(len(names) - 1, 0))
    ends_at_mark = names[place] == ends if len(names) else np.zeros(len(ends), np.bool_)
    holds_mark = (events == MARK) | ((events == APPEND) & ends_at_mark)
    number = disks_by_row(rows).number
    columns: list[tuple[Int64, Int64, Int64]] = []
    for begin, end in pairwise([0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(number)]):
        owed, removed, flushed = keeps(events[begin:end], offsets[begin:end], holds_mark[begin:end])
        columns.append((_behind(begin, owed), _behind(begin, removed), flushed))
    owed, removed, flushed = (np.concatenate(each) for each in zip(*columns, strict=True))
    return owed, removed, flushed


def _behind(begin: int, rows: Int64) -> Int64:
    """Positions among all rows, of positions among those from `begin` on."""
    return np.where(rows == NOWHERE, NOWHERE, rows + begin)
