"""Compares logs and rows: pure functions over columns, used in process and on Spark.

`disagreements` finds rows that disagree although they must agree.

Logs are compared at equal *offsets*, never at equal row numbers.  A slice contains the entries of one log in a range of
offsets, with ABSENT for missing entries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import kernel

NOWHERE = -1
"""Value for a row, position or offset that does not exist."""


@kernel
def lowest(begins: Int64, values: Int64) -> Int64:
    """Return the position of the lowest value of each group, or of the first one if several are equal.

    Group i begins at begins[i] and ends where the next group begins.
    """
    found = np.empty(begins.shape[0], np.int64)
    for group in range(begins.shape[0]):
        stop = begins[group + 1] if group + 1 < begins.shape[0] else values.shape[0]
        best = begins[group]
        for i in range(begins[group] + 1, stop):
            if values[i] < values[best]:
                best = i
        found[group] = best
    return found


def disagreements(keys: Int64, values: Int64) -> tuple[Int64, Int64]:
    """Find rows with equal keys and different values.

    Returns (rows, other rows), in order of the key.  For each key with different values, these are its first row, and
    its first row with a different value.
    """
    if len(keys) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    begins = np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1]))
    first_row = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    differs = np.flatnonzero(values[order] != values[first_row])
    _, one_per_key = np.unique(sorted_keys[differs], return_index=True)
    picked = differs[one_per_key]
    return first_row[picked].astype(np.int64), order[picked].astype(np.int64)


APPEND, FLUSH, TRUNCATE, START, OTHER = 1, 2, 3, 4, 5
"""Trace events as numbers.  OTHER: any event that does not change a log."""


ABSENT = -1
"""Value for the epoch of an entry that a log lacks; real epochs are >= 0."""


def irregular(offsets: Int64, epochs: Int32) -> tuple[int, int]:
    """Check one log in file order.

    Returns (first row whose offset is not the previous row's plus one, first row whose epoch is lower than the previous
    row's); each is NOWHERE if there is no such row.
    """
    hole, fall = _first(np.diff(offsets) != 1), _first(np.diff(epochs) < 0)
    return hole + (hole != NOWHERE), fall + (fall != NOWHERE)


def _first(found: Bools) -> int:
    """Return the first index that is True, or NOWHERE."""
    place = int(np.argmax(found)) if len(found) else 0
    return place if len(found) and found[place] else NOWHERE


class Slice(NamedTuple):
    """The entries of one log in a range of offsets.  Entry i is at offset `start + i`, or ABSENT if the log has a gap.

    dense: True if the range has no gap
    """

    start: int
    epochs: Int32
    checksums: Int64
    dense: bool

    @property
    def stop(self) -> int:
        """Return the offset after the last entry."""
        return self.start + len(self.epochs)


def slice_of(offsets: Int64, epochs: Int32, checksums: Int64, dense: bool) -> Slice:
    """Make a slice from entries in order of their offsets, without duplicates.  Dense entries are not copied."""
    start = int(offsets[0])
    if dense:
        return Slice(start, epochs, checksums, dense)
    size = int(offsets[-1]) + 1 - start
    found = Slice(start, np.full(size, ABSENT, np.int32), np.zeros(size, np.int64), dense)
    found.epochs[offsets - start], found.checksums[offsets - start] = epochs, checksums
    return found


def compare_slices(a: Slice, b: Slice) -> tuple[int, int]:
    """Return, for two slices, (first offset where entries differ, last offset where epochs are equal).

    Only offsets that both logs contain count; NOWHERE stands for no such offset.  Two logs match iff the last equal
    epoch lies before the first difference.  The former is a maximum and the latter a minimum, so ranges of offsets can
    be compared separately.
    """
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    if start >= stop:
        return NOWHERE, NOWHERE
    of_a, of_b = slice(start - a.start, stop - a.start), slice(start - b.start, stop - b.start)
    both = (a.epochs[of_a] != ABSENT) & (b.epochs[of_b] != ABSENT)
    equal = both & (a.epochs[of_a] == b.epochs[of_b])
    different, from_end = _first(both & ~(equal & (a.checksums[of_a] == b.checksums[of_b]))), _first(equal[::-1])
    return (
        NOWHERE if different == NOWHERE else start + different,
        NOWHERE if from_end == NOWHERE else stop - 1 - from_end,
    )


def compare_all(slices: list[Slice]) -> tuple[list[int], dict[tuple[int, int], tuple[int, int]]]:
    """Group identical slices, and compare one slice of each group with one slice of every other group.

    Returns (class of each slice, {(later class, earlier class): result of `compare_slices`}).
    Thirty identical copies of a log cost thirty comparisons instead of 435.
    """
    class_of: list[int] = []
    representatives: list[Slice] = []
    compared: dict[tuple[int, int], tuple[int, int]] = {}
    for one in slices:
        found: list[tuple[int, int]] = []
        for number, other in enumerate(representatives):
            found.append(compare_slices(one, other))
            if found[-1][0] == NOWHERE and _same(one, other):
                class_of.append(number)
                break
        else:
            new = len(representatives)
            class_of.append(new)
            representatives.append(one)
            compared |= {(new, number): pair for number, pair in enumerate(found)}
            compared[new, new] = NOWHERE, one.stop - 1
    return class_of, compared


def _same(a: Slice, b: Slice) -> bool:
    """Return True if two slices, whose common entries are known to be equal, have entries at the same offsets."""
    if (a.start, a.stop) != (b.start, b.stop):
        return False
    return (a.dense and b.dense) or np.array_equal(a.epochs == ABSENT, b.epochs == ABSENT)
