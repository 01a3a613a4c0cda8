"""Compares one range of offsets of all logs with the whole history.

Copies of healthy logs hold the same entries, so equal copies are judged together.  A finding contains what other ranges
need: which writes are in this range (one bit for each row of the history), the write that was invoked last, and the
write that completed first.  `history_against_log` joins the ranges.

Cost: the entries of all copies in the range, and one reading of the history.  Memory: SIZE_BYTES_PER_ENTRY for each
distinct entry in the range, a chunk of the history, and a few bits for each of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64, UInt8
from checkers.base.checker import Budget, Part
from checkers.base.history import Type
from checkers.base.run_evidence import BeyondBudget, read_entries
from checkers.kernels.raft.compared_rows import out_of_order
from checkers.kernels.raft.writes_in_logs import OPEN
from checkers.raft.client_writes import SIZE_BYTES_PER_NAME, Entries, WantedNames, WritesInHistory, read_writes
from checkers.sealing.codes import Words

SIZE_BYTES_PER_ENTRY = 30 + SIZE_BYTES_PER_NAME

MISSING = "acknowledged write missing from a log"
FAILED = "failed write in a log"
TWICE = "write in a log twice"
DISORDER = "log order against real time"
ORPHAN = "entry that no client wrote"

Log = tuple[str, int]
"""Node and number of the copy."""

Found = tuple[str, int, tuple[int, ...], tuple[int, ...]]
"""A kind of clash, how often, and of the first: rows of the invokes, and offsets in log order."""


@dataclass(frozen=True, slots=True)
class Bits:
    """A set of rows: one bit each, the lowest first, from row 8 * `start` on."""

    start: int
    content: bytes

    @staticmethod
    def of(rows: Int64) -> Bits:
        if len(rows) == 0:
            return Bits(0, b"")
        start = int(rows.min()) >> 3
        flags = np.zeros(8 * ((int(rows.max()) >> 3) + 1 - start), np.bool_)
        flags[rows - 8 * start] = True
        return Bits(start, np.packbits(flags, bitorder="little").tobytes())

    @staticmethod
    def trimmed(whole: UInt8) -> Bits:
        used = np.flatnonzero(whole)
        return Bits(int(used[0]), whole[used[0] : used[-1] + 1].tobytes()) if len(used) else Bits(0, b"")

    def into(self, whole: UInt8) -> UInt8:
        """The part of a larger set that these bits lie in; a view."""
        return whole[self.start : self.start + len(self.content)]

    def array(self) -> UInt8:
        return np.frombuffer(self.content, np.uint8)


@dataclass(frozen=True, slots=True)
class Border:
    """What later or earlier ranges of the same log have to know.

    called: (row of the invoke, offset) of the write that was invoked last; (-1, -1) if there is none.
    returned: (row of the completion, row of the invoke, offset) of the one that had completed first; OPEN if none has.
    """

    called: tuple[int, int] = (-1, -1)
    returned: tuple[int, int, int] = (OPEN, -1, -1)


@dataclass(frozen=True, slots=True)
class RangeContent:
    """What some logs hold in the range, all the same.  writes: rows of their invokes."""

    logs: tuple[Log, ...]
    found: tuple[Found, ...]
    orphans: int
    writes: Bits
    border: Border


@dataclass(frozen=True, slots=True)
class RangeFinding:
    """first: offset of the range.  acknowledged: writes in the whole history; with their rows in `answered` if this is
    the first range.  shared: writes that share their name with another one, `repeated` of them.  rows: of the history.
    whole: no operation is missing from the history."""

    first: int
    contents: tuple[RangeContent, ...] = ()
    rows: int = 0
    acknowledged: int = 0
    answered: Bits | None = None
    shared: Bits = Bits(0, b"")
    repeated: int = 0
    unknown: str = ""


def judge_range(part: Part, budget: Budget) -> RangeFinding:
    """params: logs (path, node, copy); first and end, offsets; answered, whether to say which writes were acknowledged.

    Raises BeyondBudget.
    """
    history, params = part.paths[0], part.params
    keys = Words()
    contents, owners = _distinct(params["logs"], params["first"], params["end"], keys, budget)
    names, name_of = WantedNames.of(contents, keys)
    written = read_writes(history, names)
    fates = written.fates
    judged = [
        _content(tuple(owner), entries, name, written)
        for owner, entries, name in zip(owners, contents, name_of, strict=True)
    ]
    return RangeFinding(
        params["first"],
        tuple(judged),
        written.rows,
        written.acknowledged,
        Bits.trimmed(fates.acknowledged) if params["answered"] else None,
        Bits.trimmed(fates.shared),
        int(fates.times[fates.times > 1].sum()),
    )


def _distinct(
    logs: Sequence[tuple[str, str, int]], first: int, end: int, keys: Words, budget: Budget
) -> tuple[list[Entries], list[list[Log]]]:
    """The distinct contents of the range, and which logs have each."""
    contents: list[Entries] = []
    owners: list[list[Log]] = []
    for path, node, copy in logs:
        entries = Entries.of(read_entries(path, copy, first, ("key", "value"), end), keys)
        for other, owner in zip(contents, owners, strict=True):
            if entries.same_as(other):
                owner.append((node, copy))
                break
        else:
            contents.append(entries)
            owners.append([(node, copy)])
        needed_bytes = sum(map(len, contents)) * SIZE_BYTES_PER_ENTRY
        if needed_bytes > budget.size_bytes:
            raise BeyondBudget(f"logs that differ need {needed_bytes} bytes, the budget is {budget.size_bytes}")
    return contents, owners


def _content(logs: tuple[Log, ...], entries: Entries, name: Int32, written: WritesInHistory) -> RangeContent:
    fates = written.fates
    there = np.where(name >= 0, fates.times[name], 0) if len(fates.times) else np.zeros(len(name), np.int32)
    once = there == 1
    write, offset = name[once], entries.offset[once]
    row, completed, outcome = fates.row[write], fates.completed[write], fates.outcome[write]
    found = _clashes(row, completed, outcome, offset)
    alone = entries.offset[there == 0]
    if len(alone):
        found.append((ORPHAN, len(alone), (), (int(alone[0]),)))
    return RangeContent(logs, tuple(found), len(alone), Bits.of(row), _border(row, completed, offset))


def _clashes(row: Int64, completed: Int64, outcome: Int8, offset: Int64) -> list[Found]:
    """Of each kind in which entries disagree with the writes that they are; all columns in offset order."""
    found: list[Found] = []
    failed = np.flatnonzero(outcome == Type.FAIL)
    found += [(FAILED, len(failed), (int(row[i]),), (int(offset[i]),)) for i in failed[:1].tolist()]
    distinct, first, times = np.unique(row, return_index=True, return_counts=True)
    twice = distinct[times > 1]
    found += [(TWICE, len(twice), (i,), tuple(offset[row == i].tolist())) for i in twice[:1].tolist()]
    first.sort()
    disorder = out_of_order(row[first], completed[first])
    if disorder is not None:
        at = [int(first[i]) for i in disorder]
        found.append((DISORDER, 1, tuple(int(row[i]) for i in at), tuple(int(offset[i]) for i in at)))
    return found


def _border(row: Int64, completed: Int64, offset: Int64) -> Border:
    if len(row) == 0:
        return Border()
    last, first = int(np.argmax(row)), int(np.argmin(completed))
    return Border((int(row[last]), int(offset[last])), (int(completed[first]), int(row[first]), int(offset[first])))
