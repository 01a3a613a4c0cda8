"""Joins writes of a history with entries of logs by their name, which is the pair of key and value.

A hash table with open addressing holds the wanted names.  The caller passes the history piece by piece.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64, UInt8
from checkers.base.history import Type
from checkers.kernels.jit import inner_kernel, kernel

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
