"""Turns events into operations: the data that a register checker needs of each operation, key by key.

An operation is an interval between two *positions*.  Positions number the relevant events of one key in index order.
Only the index decides order, and operations on other keys cannot change the content of a key.

The operations that are kept, and their form:

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
"""Peak memory for each operation while a linear kernel judges a key, columns and arrays together."""

_INVOKE, _OK, _FAIL = int(Type.INVOKE), int(Type.OK), int(Type.FAIL)


class Events(NamedTuple):
    """Client events of some keys, in index order.  `checkers.sealing.seal` has checked the grammar of the history.

    key, process: int32, dense from 0; every completion follows its invoke, with the same key.  Events with a negative
    key are skipped.
    type: int8 of `Type`.  kind: int8, READ to MISMATCH.  value, value2: int64, NIL where null.
    out_of_range: int8, 1 where a value is not null and equals NIL.
    """

    key: Int32
    process: Int32
    type: Int8
    kind: Int8
    value: Int64
    value2: Int64
    out_of_range: Int8


class Operations(NamedTuple):
    """Operations of many keys; those of key k are rows offsets[k] to offsets[k+1], in order of call.

    offsets: int64[keys + 1].  positions: int32[keys], the number of positions of the key.
    unfit: int8[keys], why no register checker can judge the key; FIT if every checker can, HAS_MISMATCH if only
    `registers/antichain.py` can.
    kind: int8.  a: int64, the value read, written or expected.  b: int64, the new value of a CAS (else NIL).
    call, ret: int32 positions; ret is OPEN if the operation never returned.
    invoked, completed: int32 rows of the events (completed is -1 where there is no completion).
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
    """Pair invokes with completions and lay the operations out key by key.  O(events)."""
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
    """Return whether an operation is kept (see the table above).  completed_as: a `Type`, -1 if it stayed open."""
    if kind == READ:
        return completed_as == _OK
    if kind == WRITE:
        return completed_as != _FAIL
    if kind == CAS:
        return completed_as == _OK or (completed_as != _FAIL and not from_itself)
    return kind == MISMATCH
