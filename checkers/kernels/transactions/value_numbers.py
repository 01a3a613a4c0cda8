"""Numbers the values of each key, so that an array can hold what is known of each value."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import READ, WRITE
from checkers.kernels.transactions.payloads import Columns


class Numbered(NamedTuple):
    """Values numbered from 0 in each key: names[base[key] + number] is the value."""

    base: Int64
    names: Int32


@kernel
def are_dense(columns: Columns, key_count: int) -> bool:
    """Return whether values can serve as their own numbers.

    They can if the largest value written to each key is not far above the number of its writes.
    """
    highest, written = np.zeros(key_count, np.int64), np.zeros(key_count, np.int64)
    for row in range(columns.kind.shape[0]):
        if columns.kind[row] == WRITE:
            key = columns.key[row]
            highest[key] = max(highest[key], columns.value[row] + 1)
            written[key] += 1
    return bool(highest.sum() <= 2 * written.sum() + 1024)


@kernel
def number_values(columns: Columns, key_count: int) -> Numbered:
    """Number the values of each key, in place: written values in their order, then values that were only read."""
    writes = 0
    for row in range(columns.kind.shape[0]):
        writes += columns.kind[row] == WRITE
    size = 1024
    while size < 2 * writes:
        size *= 2
    table = _number_writes(columns, size, key_count)
    unwritten = _count_unwritten(columns, table)
    if 2 * (writes + unwritten) > size:
        while size < 2 * (writes + unwritten):
            size *= 2
        table = _number_writes(columns, size, key_count)
    for row in range(columns.kind.shape[0]):
        key = columns.key[row]
        if columns.value[row] >= 0:
            columns.value[row] = _number(table, key, columns.value[row])
        for i in range(columns.list_first[row], columns.list_first[row + 1]):
            columns.lists[i] = _number(table, key, columns.lists[i])
    base = np.zeros(key_count + 1, np.int64)
    for key in range(key_count):
        base[key + 1] = base[key] + table.known[key]
    names = np.empty(base[key_count], np.int32)
    for slot in range(size):
        if table.slots[slot] >= 0:
            names[base[table.slots[slot] >> 31] + table.numbers[slot]] = table.slots[slot] & 2147483647
    return Numbered(base, names)


class _ValueTable(NamedTuple):
    """Values by key.  slots: elements or -1.  numbers: their numbers.  known: how many values each key has."""

    slots: Int64
    numbers: Int32
    known: Int32


@kernel
def _number_writes(columns: Columns, size: int, key_count: int) -> _ValueTable:
    table = _ValueTable(np.full(size, -1, np.int64), np.zeros(size, np.int32), np.zeros(key_count, np.int32))
    for row in range(columns.kind.shape[0]):
        if columns.kind[row] == WRITE:
            _number(table, columns.key[row], columns.value[row])
    return table


@kernel
def _count_unwritten(columns: Columns, table: _ValueTable) -> int:
    """Count reads of values that no transaction wrote."""
    unwritten = 0
    for row in range(columns.kind.shape[0]):
        key = columns.key[row]
        if columns.kind[row] == READ and columns.value[row] >= 0:
            unwritten += table.slots[_slot_of(table.slots, key, columns.value[row])] < 0
        for i in range(columns.list_first[row], columns.list_first[row + 1]):
            unwritten += table.slots[_slot_of(table.slots, key, columns.lists[i])] < 0
    return unwritten


@inner_kernel
def _element(key: int, value: int) -> int:
    return (int(key) << 31) | int(value)


@inner_kernel
def _slot_of(slots: Int64, key: int, value: int) -> int:
    """Return the slot of a written value, or the empty slot for it."""
    element = _element(key, value)
    mask = len(slots) - 1
    mixed = np.uint64(element) * np.uint64(11400714819323198485)
    slot = int(mixed >> np.uint64(20)) & mask
    while slots[slot] >= 0 and slots[slot] != element:
        slot = (slot + 1) & mask
    return slot


@inner_kernel
def _number(table: _ValueTable, key: int, value: int) -> int:
    """Return the number of a value; a new value gets the next number of its key."""
    slot = _slot_of(table.slots, key, value)
    if table.slots[slot] < 0:
        table.slots[slot] = _element(key, value)
        table.numbers[slot] = table.known[key]
        table.known[key] += 1
    return int(table.numbers[slot])
