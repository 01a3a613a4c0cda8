"""Compares logs and rows, and joins them with writes: pure functions over columns, in process and on Spark alike.

Rows: do two disagree that must agree?  Does one order respect another?  How far is a log durable after each row?

Logs are compared at equal *offsets*, never at equal row numbers.  `align` lays the entries of one log over a range of
offsets and marks missing entries as ABSENT.

A write and an entry have one name, the pair of key and value.  A hash table with open addressing holds the wanted
names.  The caller passes the history piece by piece.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64, UInt8
from checkers.base.history import Type
from checkers.kernels.jit import inner_kernel, kernel

NOWHERE = -1
"""Stands for a row, position or offset that does not exist."""


@kernel
def lowest(begins: Int64, values: Int64) -> Int64:
    """Return the position of the lowest value of each group; the first one if several are equal.

    Group i begins at begins[i] and ends where the next one begins.
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

    Returns (rows, other rows), in order of the key: for each such key its first row, and the first row with another
    value.
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


def out_of_order(invoked: Int64, completed: Int64) -> tuple[int, int] | None:
    """Return positions (earlier, later) in the log such that the later one completed before the earlier was invoked.

    invoked, completed: of operations in log order; `completed` is beyond every index for an open operation.
    Returns None if the order respects real time.
    """
    if len(invoked) < 2:
        return None
    latest_call = np.maximum.accumulate(invoked)[:-1]
    wrong = np.flatnonzero(completed[1:] < latest_call)
    if len(wrong) == 0:
        return None
    later = int(wrong[0]) + 1
    return int(np.argmax(invoked[:later])), later


APPEND, FLUSH, TRUNCATE, START, OTHER = 1, 2, 3, 4, 5
"""Trace events as numbers; OTHER: any event that changes no log."""


ABSENT = -1
"""Stands for the epoch of an entry that a log lacks; real epochs are >= 0."""


def align(first: int, size: int, offsets: Int64, epochs: Int32, checksums: Int64) -> tuple[Int32, Int64]:
    """Lay the entries of one log over offsets first .. first + size - 1; each offset occurs at most once.

    Returns (epochs int32[size], ABSENT where there is no entry; checksums int64[size], 0 there).
    """
    aligned_epochs = np.full(size, ABSENT, np.int32)
    aligned_checksums = np.zeros(size, np.int64)
    aligned_epochs[offsets - first] = epochs
    aligned_checksums[offsets - first] = checksums
    return aligned_epochs, aligned_checksums


def irregular(offsets: Int64, epochs: Int32) -> tuple[int, int]:
    """Check one log in file order.

    Returns (the first row whose offset is not one above that of the row before, the first row whose epoch is below that
    of the row before); each is NOWHERE if no such row exists.
    """
    hole, fall = _first(np.diff(offsets) != 1), _first(np.diff(epochs) < 0)
    return hole + (hole != NOWHERE), fall + (fall != NOWHERE)


def compare(epochs_a: Int32, checksums_a: Int64, epochs_b: Int32, checksums_b: Int64) -> tuple[int, int]:
    """Return, for two aligned logs, (first position where entries differ, last position where epochs are equal).

    Only positions that both logs have count; NOWHERE stands for no such position.  Two logs match iff the last equal
    epoch lies before the first difference.  One is a minimum and the other a maximum, so ranges of offsets can be
    compared separately.
    """
    both = (epochs_a != ABSENT) & (epochs_b != ABSENT)
    equal = both & (epochs_a == epochs_b)
    from_end = _first(equal[::-1])
    last = NOWHERE if from_end == NOWHERE else len(equal) - 1 - from_end
    return _first(both & ~(equal & (checksums_a == checksums_b))), last


def _first(found: Bools) -> int:
    """Return the first place that is True, or NOWHERE."""
    place = int(np.argmax(found)) if len(found) else 0
    return place if len(found) and found[place] else NOWHERE


class Slice(NamedTuple):
    """The entries of one log in a range of offsets: the i-th is at offset `start + i`, ABSENT if the log has a hole.

    dense: the range has no hole.
    """

    start: int
    epochs: Int32
    checksums: Int64
    dense: bool

    @property
    def stop(self) -> int:
        """The offset behind the last entry."""
        return self.start + len(self.epochs)


def slice_of(offsets: Int64, epochs: Int32, checksums: Int64, dense: bool) -> Slice:
    """Make a slice of entries in offset order, each offset at most once.  Dense entries are not copied."""
    start = int(offsets[0])
    if not dense:
        epochs, checksums = align(start, int(offsets[-1]) + 1 - start, offsets, epochs, checksums)
    return Slice(start, epochs, checksums, dense)


def compare_slices(a: Slice, b: Slice) -> tuple[int, int]:
    """Apply `compare` to the overlap of two slices; returns offsets."""
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    if start >= stop:
        return NOWHERE, NOWHERE
    of_a, of_b = slice(start - a.start, stop - a.start), slice(start - b.start, stop - b.start)
    different, equal = compare(a.epochs[of_a], a.checksums[of_a], b.epochs[of_b], b.checksums[of_b])
    return (
        NOWHERE if different == NOWHERE else start + different,
        NOWHERE if equal == NOWHERE else start + equal,
    )


def compare_all(slices: list[Slice]) -> tuple[list[int], dict[tuple[int, int], tuple[int, int]]]:
    """Group identical slices, and compare one slice of each group with one slice of every other group.

    Returns (class of each slice, (later class, earlier class) -> the result of `compare_slices`).
    Thirty copies of one healthy log cost thirty comparisons instead of 435.
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
    """Return whether two slices have entries at the same offsets; their common entries are already known to be
    equal."""
    if (a.start, a.stop) != (b.start, b.stop):
        return False
    return (a.dense and b.dense) or np.array_equal(a.epochs == ABSENT, b.epochs == ABSENT)


OPEN = np.iinfo(np.int64).max
"""`completed` of a write without an answer: it counts as later than every row."""

_INVOKE, _OK, _INFO = int(Type.INVOKE), int(Type.OK), int(Type.INFO)


class NameTable(NamedTuple):
    """Distinct names, numbered in order of appearance.

    slots: int32, the number of a name or -1; their count is a power of two.  code, value: those of each name.
    """

    slots: Int32
    code: Int32
    value: Int64


@kernel
def number_names(code: Int32, value: Int64) -> tuple[Int32, NameTable]:
    """Number the pairs (code, value).  Returns (the number of each pair, -1 if its code is negative; the table).

    O(pairs); memory: 16 to 32 bytes a pair.
    """
    size = 16
    while size < 2 * code.shape[0]:
        size *= 2
    slots = np.full(size, -1, np.int32)
    number = np.full(code.shape[0], -1, np.int32)
    codes, values = np.empty(code.shape[0], np.int32), np.empty(code.shape[0], np.int64)
    count = 0
    for i in range(code.shape[0]):
        if code[i] < 0:
            continue
        at = _slot(code[i], value[i], slots, codes, values)
        if slots[at] < 0:
            slots[at], codes[count], values[count] = count, code[i], value[i]
            count += 1
        number[i] = slots[at]
    return number, NameTable(slots, codes[:count].copy(), values[:count].copy())


@kernel
def look_up(table: NameTable, code: Int32, value: Int64) -> Int32:
    """Return the number of each pair, or -1 if the table does not contain it or its code is negative."""
    found = np.full(code.shape[0], -1, np.int32)
    for i in range(code.shape[0]):
        if code[i] >= 0:
            found[i] = table.slots[_slot(code[i], value[i], table.slots, table.code, table.value)]
    return found


class Under(NamedTuple):
    """The open operation of every process, by the dense number of the process.

    row: int64, the row of its invoke, -1 if no operation is open.
    name: int32, the number of its name; -1 for a write of an unwanted name, -2 for any other operation."""

    row: Int64
    name: Int32


class Fates(NamedTuple):
    """Outcome of the writes of each name.

    row: the row of the first write's invoke, -1 if there is none.  completed: the row of its completion, or OPEN.
    outcome: int8 of `Type`, INFO without an answer.  times: the number of writes with this name.
    acknowledged: one bit for each row of the history, set for the invoke of an acknowledged write.
    shared: one bit for each row, set for the invoke of a write that shares its name with another write.
    """

    row: Int64
    completed: Int64
    outcome: Int8
    times: Int32
    acknowledged: UInt8
    shared: UInt8


@kernel
def follow(
    first_row: int,
    process: Int32,
    type_: Int8,
    is_write: Bools,
    name: Int32,
    is_client: Bools,
    under: Under,
    fates: Fates,
) -> int:
    """Update `under` and `fates` with the next rows of a history; returns the number of writes acknowledged there.

    process: indices of `under`.  is_write: whether the row belongs to a write of one value to one key.  name: the
    number of its name, -1 if the table does not contain it.  O(rows).
    """
    acknowledged = 0
    for i in range(type_.shape[0]):
        if not is_client[i]:
            continue
        p, row = process[i], first_row + i
        if type_[i] == _INVOKE:
            under.row[p], under.name[p] = row, name[i] if is_write[i] else -2
            if is_write[i] and name[i] >= 0:
                _invoked(row, name[i], fates)
            continue
        invoked, its_name = under.row[p], under.name[p]
        under.row[p] = -1
        if invoked < 0 or its_name == -2:
            continue
        if type_[i] == _OK:
            acknowledged += 1
            fates.acknowledged[invoked >> 3] |= np.uint8(1 << (invoked & 7))
        if its_name >= 0 and fates.row[its_name] == invoked and type_[i] != _INFO:
            fates.outcome[its_name], fates.completed[its_name] = type_[i], row
    return acknowledged


@inner_kernel
def _invoked(row: int, name: int, fates: Fates) -> None:
    fates.times[name] += 1
    if fates.times[name] == 1:
        fates.row[name] = row
        return
    for shared in (row, fates.row[name]):
        fates.shared[shared >> 3] |= np.uint8(1 << (shared & 7))


@inner_kernel
def _slot(code: int, value: int, slots: Int32, codes: Int32, values: Int64) -> int:
    """Return the slot of a name, or the empty slot for it."""
    mask = slots.shape[0] - 1
    mixed = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(code) * np.uint64(0xC2B2AE3D27D4EB4F)
    at = np.int64(mixed >> np.uint64(33)) & mask
    while slots[at] >= 0 and (codes[slots[at]] != code or values[slots[at]] != value):
        at = (at + 1) & mask
    return int(at)
