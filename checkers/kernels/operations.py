"""Turns events into operations: the data that a register checker needs for each operation, key by key.

An operation is an interval between two *positions*.  Positions number the relevant events of one key in index order.
Only the index decides order, and operations on other keys cannot change the content of a key.

These operations are kept, in this form:

    read   ok            READ of the answer
    read   fail, info,   dropped: a read changes nothing, and no client saw its answer
           open
    write  ok            WRITE
    write  fail          dropped: it certainly did not happen
    write  info, open    WRITE that never returns (`ret` = OPEN)
    cas    ok            CAS; a cas from a value to itself is a READ, because it observes the value and changes nothing
    cas    fail          dropped: a cas that did not match did not happen
    cas    info, open    CAS that never returns; a cas from a value to itself is dropped

A failed cas may also count as an answer: the register held something other than the expected value.  For this
interpretation the caller passes these events with the kind MISMATCH.  Each becomes a MISMATCH operation, which saw a
value other than `a`.

*Numbers* replace values, so that a value is an index into a table.  Each key has separate numbers: 0, 1, 2, ...
First come the values that operations produce, in order of their first production.  Then come the values that were only
observed, in order of their first appearance.  nil stays NIL.  A checker only compares values with each other and with
nil, so the numbers give the same verdict as the values.  A plain array finds values from a small range, such as those
of a counter.  A hash table finds all others.

*Stored operations* of a bucket are verified and widened.  Kernels use the numbers as indices without checks, so a
corrupt or forged bucket must be rejected here.  A bucket keeps every failed cas as a mismatch, with its positions.  If
a failed cas counts as "did not happen", the mismatch is dropped before a search.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.jit import inner_kernel, kernel

READ, WRITE, CAS, OTHER, MISMATCH = 0, 1, 2, 3, 4
KINDS = {"read": READ, "write": WRITE, "cas": CAS}

NIL = -(2**63)
"""Value that represents null in value columns; a history that writes this number is unfit (see `Operations.unfit`)."""

OPEN = 2**31 - 1
"""`ret` of an operation that never returned."""

FIT, OTHER_FUNCTION, VALUE_OUT_OF_RANGE, HAS_MISMATCH = 0, 1, 2, 3

SIZE_BYTES_PER_OPERATION = 140
"""Peak memory per operation while a linear kernel judges a key: columns and arrays together."""

_INVOKE, _OK, _FAIL = int(Type.INVOKE), int(Type.OK), int(Type.FAIL)


class Events(NamedTuple):
    """Client events of some keys, in index order.  `checkers.sealing.seal` has verified the grammar of the history.

    key, process: int32, dense from 0.  Every completion follows its invoke, with the same key.  Events with a negative
        key are skipped.
    type: int8 of `Type`
    kind: int8, READ to MISMATCH
    value, value2: int64, NIL for null
    out_of_range: int8, 1 if a value is not null but equals NIL
    """

    key: Int32
    process: Int32
    type: Int8
    kind: Int8
    value: Int64
    value2: Int64
    out_of_range: Int8


class Operations(NamedTuple):
    """Operations of many keys.  Those of key k are the rows from offsets[k] to offsets[k+1] - 1, in order of call.

    offsets: int64[keys + 1]
    positions: int32[keys], number of positions of the key
    unfit: int8[keys], reason why no register checker can judge the key; FIT if every checker can, HAS_MISMATCH if only
        `register_antichain.py` can
    kind: int8
    a: int64, the value read, written or expected
    b: int64, the new value of a CAS, else NIL
    call, ret: int32 positions; ret is OPEN if the operation never returned
    invoked, completed: int32 rows of the events; completed is -1 if there is no completion
    """

    offsets: Int64
    positions: Int32
    unfit: Int8
    kind: Int8
    a: Int64
    b: Int64
    call: Int32
    ret: Int32
    invoked: Int32
    completed: Int32


@kernel
def pair_events(events: Events, key_count: int, process_count: int) -> Operations:
    """Pair invokes with completions, and lay out the operations key by key.  O(events)."""
    return lay_out(events, mates(events.process, events.type, process_count), key_count)


@kernel
def mates(process: Int32, type_: Int8, process_count: int) -> Int32:
    """Return the row of each invoke's completion, and of each completion's invoke; -1 for an open invoke."""
    count = process.shape[0]
    mate = np.full(count, -1, np.int32)
    open_row = np.full(process_count, -1, np.int32)
    for row in range(count):
        if type_[row] == _INVOKE:
            open_row[process[row]] = row
        else:
            mate[row] = open_row[process[row]]
            mate[open_row[process[row]]] = row
    return mate


@kernel
def lay_out(events: Events, mate: Int32, key_count: int) -> Operations:
    """Lay out the operations of every key, key by key.  mate: as returned by `mates`.  Two passes, O(events)."""
    event_key, event_type, event_kind, value, value2 = events.key, events.type, events.kind, events.value, events.value2
    count = event_key.shape[0]
    offsets, unfit = _count_kept(events, mate, key_count)
    total = offsets[key_count]
    kind = np.empty(total, np.int8)
    a = np.empty(total, np.int64)
    b = np.empty(total, np.int64)
    call = np.empty(total, np.int32)
    ret = np.empty(total, np.int32)
    invoked = np.empty(total, np.int32)
    completed = np.empty(total, np.int32)
    positions = np.zeros(key_count, np.int32)
    cursor = offsets[:key_count].copy()
    operation_of = np.full(count, -1, np.int32)
    for row in range(count):
        key = event_key[row]
        if key < 0:
            continue
        other = mate[row]
        if event_type[row] == _INVOKE:
            how = event_type[other] if other >= 0 else -1
            if not _matters(event_kind[row], how, value[row] == value2[row]):
                continue
            op = cursor[key]
            cursor[key] += 1
            operation_of[row] = op
            observes = event_kind[row] == READ
            from_itself = event_kind[row] == CAS and value[row] == value2[row]
            kind[op] = READ if from_itself else event_kind[row]
            a[op] = value[other] if observes else value[row]
            b[op] = value2[row] if event_kind[row] == CAS and not from_itself else NIL
            invoked[op] = row
            completed[op] = other
            ret[op] = OPEN
            call[op] = positions[key]
            positions[key] += 1
        elif operation_of[other] >= 0 and (event_type[row] == _OK or event_kind[row] == MISMATCH):
            ret[operation_of[other]] = positions[key]
            positions[key] += 1
    return Operations(offsets, positions, unfit, kind, a, b, call, ret, invoked, completed)


@kernel
def _count_kept(events: Events, mate: Int32, key_count: int) -> tuple[Int64, Int8]:
    """Return (offsets, unfit) of `Operations`."""
    unfit = np.zeros(key_count, np.int8)
    offsets = np.zeros(key_count + 1, np.int64)
    for row in range(events.key.shape[0]):
        key = events.key[row]
        if key < 0:
            continue
        if events.out_of_range[row] != 0:
            unfit[key] = VALUE_OUT_OF_RANGE
        if events.kind[row] == OTHER:
            unfit[key] = OTHER_FUNCTION
        if events.kind[row] == MISMATCH and unfit[key] == FIT:
            unfit[key] = HAS_MISMATCH
        if events.type[row] == _INVOKE:
            how = events.type[mate[row]] if mate[row] >= 0 else -1
            offsets[key + 1] += _matters(events.kind[row], how, events.value[row] == events.value2[row])
    for key in range(key_count):
        offsets[key + 1] += offsets[key]
    return offsets, unfit


@inner_kernel
def _matters(kind: int, completed_as: int, from_itself: bool) -> bool:
    """Return True if an operation is kept (see the table above).  completed_as: a `Type`, -1 if it stayed open."""
    if kind == READ:
        return completed_as == _OK
    if kind == WRITE:
        return completed_as != _FAIL
    if kind == CAS:
        return completed_as == _OK or (completed_as != _FAIL and not from_itself)
    return kind == MISMATCH


_CLOSE_TOGETHER = 4
"""Maximum size of a range of values, per operation, for which a plain array is used."""


@kernel
def number_keys(ops: Operations) -> tuple[Int32, Int32]:
    """Apply `numbered` to every key.  Returns int32 columns in which -1 stands for nil."""
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
    """Return the columns a and b of one key, with numbers instead of values.

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
    """Return operations in the form in which they are read from a bucket, for keys that were never in a file.

    ops: operations with values; mismatches count as observations
    """
    none = np.empty(0, np.int32)
    a, b = (np.where(column < 0, NIL, column.astype(np.int64)) for column in number_keys(ops))
    return ops._replace(a=a, b=b, invoked=none, completed=none)


@kernel
def are_numbers(a: Int64, b: Int64, below: int) -> bool:
    """Return True if every value of two columns is NIL or lies in 0 .. below - 1."""
    for op in range(a.shape[0]):
        if (a[op] != NIL and (a[op] < 0 or a[op] >= below)) or (b[op] != NIL and (b[op] < 0 or b[op] >= below)):
            return False
    return True


@inner_kernel
def _range_of(a: Int64, b: Int64) -> tuple[int, np.uint64]:
    """Return the lowest value except nil, and the distance to the highest value, which may exceed an int64."""
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
    """Return the number of a value.  A new value gets the number `fresh`."""
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
    """Return the operations without the mismatches of keys that are HAS_MISMATCH.  These keys become FIT.

    The remaining positions are renumbered.

    ops: operations without rows of events
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
    """Columns of a bucket, one row per operation.  a, b: as `number_keys` returns them."""

    kind: Int8
    a: Int32
    b: Int32
    call: Int32
    ret: Int32


@kernel
def check_and_widen(offsets: Int64, positions: Int32, unfit: Int8, stored: StoredColumns) -> tuple[int, Operations]:
    """Return (first impossible row or -1, copies of the operations with numbers instead of values and without rows).

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
    """Return True if kernels may use the columns of one operation as indices."""
    kind, a, b, call, ret = stored.kind[op], stored.a[op], stored.b[op], stored.call[op], stored.ret[op]
    if not 0 <= kind <= MISMATCH or kind == OTHER:
        return False
    if not (-1 <= a < numbers and -1 <= b < numbers):
        return False
    return bool(0 <= call < positions and (ret == OPEN or call < ret < positions))
