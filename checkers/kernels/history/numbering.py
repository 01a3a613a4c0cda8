"""Numbers the values of keys, and turns the columns of a stored bucket into those that kernels read.

*Numbers.*  Replaces values by small numbers, so that a table finds a value by its index.

Each key has numbers of its own: 0, 1, 2, ...  Values that operations produce come first, in order of their first
production.  Values that were only observed follow, in order of their first mention.  nil stays NIL.
A checker only compares values with each other and with nil.  So the numbers give the same verdict as the values.

A plain array finds values that lie close together, such as those of a counter.  A hash table finds all others.

*Failed cas.*  They are dropped from a stored bucket before a search, if a failed cas counts as "did not happen".

A bucket keeps every failed cas as a mismatch, with its positions.

*Impossible operations.*  They are found in a stored bucket; and the check widens the columns of the others for the
kernels.

Kernels use these numbers as indices and check nothing.  So a damaged or forged bucket must be rejected here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import CAS, FIT, HAS_MISMATCH, MISMATCH, NIL, OPEN, OTHER, WRITE, Operations

_CLOSE_TOGETHER = 4
"""Values lie close together if their range has at most this many numbers for each operation."""


@kernel
def number_keys(ops: Operations) -> tuple[Int32, Int32]:
    """Apply `numbered` to every key; returns int32 columns in which -1 stands for nil."""
    a, b = np.empty(ops.a.shape[0], np.int32), np.empty(ops.a.shape[0], np.int32)
    for k in range(ops.positions.shape[0]):
        low, high = ops.offsets[k], ops.offsets[k + 1]
        key_a, key_b = numbered(ops.kind[low:high], ops.a[low:high], ops.b[low:high])
        for op in range(low, high):
            a[op] = -1 if key_a[op - low] == NIL else key_a[op - low]
            b[op] = -1 if key_b[op - low] == NIL else key_b[op - low]
    return a, b


@kernel
def numbered(kind: Int8, a: Int64, b: Int64) -> tuple[Int64, Int64]:
    """Return the columns a and b of one key, with numbers in place of values.

    n operations need fewer than 2n numbers.  O(n) steps, and O(n) words of memory.
    """
    n = kind.shape[0]
    lowest, span = _range_of(a, b)
    direct = bool(span < np.uint64(_CLOSE_TOGETHER * n + 16))
    size = 4
    if direct:
        size = int(span) + 1
    else:
        while size < 4 * n:
            size *= 2
    number_at = np.full(size, -1, np.int32)
    value_at = np.empty(0 if direct else size, np.int64)
    new_a, new_b = np.full(n, NIL, np.int64), np.full(n, NIL, np.int64)
    fresh = 0
    for op in range(n):
        if kind[op] == WRITE and a[op] != NIL:
            new_a[op] = _number(a[op], fresh, direct, lowest, number_at, value_at)
            fresh = max(fresh, new_a[op] + 1)
        elif kind[op] == CAS and b[op] != NIL:
            new_b[op] = _number(b[op], fresh, direct, lowest, number_at, value_at)
            fresh = max(fresh, new_b[op] + 1)
    for op in range(n):
        if kind[op] != WRITE and a[op] != NIL:
            new_a[op] = _number(a[op], fresh, direct, lowest, number_at, value_at)
            fresh = max(fresh, new_a[op] + 1)
    return new_a, new_b


def numbered_operations(ops: Operations) -> Operations:
    """Return operations of the form that are read from a bucket, for keys that were never in a file.

    ops: with values.  Mismatches count as observations.
    """
    none = np.empty(0, np.int32)
    a, b = (np.where(column < 0, NIL, column.astype(np.int64)) for column in number_keys(ops))
    return ops._replace(a=a, b=b, invoked=none, completed=none)


@kernel
def are_numbers(a: Int64, b: Int64, below: int) -> bool:
    """Return whether every value of two columns is NIL or lies in 0 .. below - 1."""
    for op in range(a.shape[0]):
        if (a[op] != NIL and (a[op] < 0 or a[op] >= below)) or (b[op] != NIL and (b[op] < 0 or b[op] >= below)):
            return False
    return True


@inner_kernel
def _range_of(a: Int64, b: Int64) -> tuple[int, np.uint64]:
    """Return the lowest value except nil, and the distance to the highest, which may exceed an int64."""
    lowest, highest = np.int64(2**63 - 1), np.int64(NIL)
    for op in range(a.shape[0]):
        for value in (a[op], b[op]):
            if value != NIL:
                lowest, highest = min(lowest, value), max(highest, value)
    if highest < lowest:
        return 0, np.uint64(0)
    return int(lowest), np.uint64(highest) - np.uint64(lowest)


@inner_kernel
def _number(value: int, fresh: int, direct: bool, lowest: int, number_at: Int32, value_at: Int64) -> int:
    """Return the number of a value; a new value gets `fresh`."""
    if direct:
        at = value - lowest
    else:
        mask = number_at.shape[0] - 1
        at = np.int64((np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
        while number_at[at] >= 0 and value_at[at] != value:
            at = (at + 1) & mask
        value_at[at] = value
    if number_at[at] < 0:
        number_at[at] = fresh
    return int(number_at[at])


def drop_failed_cas(ops: Operations) -> Operations:
    """Return the operations without mismatches of keys that are HAS_MISMATCH; these keys become FIT.

    ops: operations without rows of events.  The positions that are left are numbered anew.
    """
    mismatched = ops.unfit == HAS_MISMATCH
    if not mismatched.any():
        return ops
    key = np.repeat(np.arange(len(mismatched)), np.diff(ops.offsets))
    kept = (ops.kind != MISMATCH) | ~mismatched[key]
    before = np.concatenate([[0], np.cumsum(ops.positions, dtype=np.int64)])
    first, ended = before[key[kept]], ops.ret[kept] != OPEN
    call, ret = first + ops.call[kept], (first + ops.ret[kept])[ended]
    used = np.zeros(before[-1], np.bool_)
    used[call] = used[ret] = True
    place = np.concatenate([[0], np.cumsum(used)])
    new_ret: Int32 = np.full(len(call), OPEN, np.int32)
    new_ret[ended] = place[ret] - place[first[ended]]
    return ops._replace(
        offsets=np.concatenate([[0], np.cumsum(kept)])[ops.offsets],
        positions=np.diff(place[before]).astype(np.int32),
        unfit=np.where(mismatched, FIT, ops.unfit).astype(np.int8),
        kind=ops.kind[kept],
        a=ops.a[kept],
        b=ops.b[kept],
        call=(place[call] - place[first]).astype(np.int32),
        ret=new_ret,
    )


class StoredColumns(NamedTuple):
    """Columns of a bucket, a row for each operation.  a, b: as `numbering.number_keys` returns them."""

    kind: Int8
    a: Int32
    b: Int32
    call: Int32
    ret: Int32


@kernel
def check_and_widen(offsets: Int64, positions: Int32, unfit: Int8, stored: StoredColumns) -> tuple[int, Operations]:
    """Return (the first impossible row or -1, copies of the operations whose values are numbers, without rows).

    O(operations).
    """
    kind, a, b, call, ret = stored.kind, stored.a, stored.b, stored.call, stored.ret
    new_a, new_b = np.empty(kind.shape[0], np.int64), np.empty(kind.shape[0], np.int64)
    wrong = -1
    for k in range(positions.shape[0]):
        numbers = 2 * (offsets[k + 1] - offsets[k])
        for op in range(offsets[k], offsets[k + 1]):
            if not _is_possible(stored, op, numbers, positions[k]):
                wrong = op
                break
            new_a[op] = NIL if a[op] < 0 else a[op]
            new_b[op] = NIL if b[op] < 0 else b[op]
        if wrong >= 0:
            break
    rows = np.empty(0, np.int32)
    return wrong, Operations(
        offsets.copy(),
        positions.copy(),
        unfit.copy(),
        kind.copy(),
        new_a,
        new_b,
        call.copy(),
        ret.copy(),
        rows,
        rows,
    )


@inner_kernel
def _is_possible(stored: StoredColumns, op: int, numbers: int, positions: int) -> bool:
    """Return whether kernels may use the columns of one operation as indices."""
    kind, a, b, call, ret = stored.kind[op], stored.a[op], stored.b[op], stored.call[op], stored.ret[op]
    if not 0 <= kind <= MISMATCH or kind == OTHER:
        return False
    if not (-1 <= a < numbers and -1 <= b < numbers):
        return False
    return bool(0 <= call < positions and (ret == OPEN or call < ret < positions))
