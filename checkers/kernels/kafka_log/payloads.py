"""Reads sends, polls and assignments of Kafka from the bytes of JSON payloads (`kafka_log/read.py` has their form).

Payloads are read as in `kernels/transactions/payloads.py`.  These are *strange* and are left to the slower reader:
values that are neither integers nor plain text, keys with escapes, offsets below 0 or from 2^31 on, and in an invoke a
list as the value of a send.
Keys are compared without their quotes, values with them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.kafka_log.log_anomalies import ASSIGN, UNKNOWN_OFFSET
from checkers.kernels.transactions.payloads import Bytes, Texts, add, after, find, integer, key_text, null, spaces

OK = int(Type.OK)

SENT, POLLED, ASSIGNED, REBALANCED, POLL = 0, 1, 2, 3, 4

_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _OPEN_MAP, _CLOSE_MAP, _N = 34, 44, 58, 91, 93, 123, 125, 110
_BACKSLASH = 92


class Rows(NamedTuple):
    """Rows that were read, in the order of reading: the operation, the kind (SENT, ...), a message or key, an offset.

    A row of the kind POLL stands before the messages of a poll; its thing is -1.

    counts: int64[1], the number of rows.
    """

    operation: Int32
    kind: Int8
    thing: Int32
    offset: Int64
    counts: Int64


@kernel
def read(
    data: Bytes,
    offsets: Int64,
    first_row: int,
    owner: Int32,
    f: Int8,
    answered: Bools,
    keys: Texts,
    messages: Texts,
    rows: Rows,
) -> tuple[Texts, Texts, int]:
    """Read consecutive payloads; `rows` must have room for one row per four bytes.

    data[offsets[i]:offsets[i + 1]] is the payload of row first_row + i.  owner: per row, the operation that its payload
    describes, or -1.  f: per operation.  answered: per operation, whether the payload is that of a completion, which
    alone has offsets and shows what was polled.
    Returns (keys, messages, 0 or -2 - the first strange row).
    """
    for i in range(offsets.shape[0] - 1):
        o = owner[first_row + i]
        if o < 0:
            continue
        end = offsets[i + 1]
        at = after(data, offsets[i], end, _OPEN)
        if f[o] >= ASSIGN:
            keys, at = _keys(data, at, end, o, ASSIGNED, keys, rows)
        else:
            while 0 <= at < end and data[at] != _CLOSE:
                keys, messages, at = _part(data, after(data, at, end, _OPEN), end, o, answered[o], keys, messages, rows)
                at = after(data, at, end, _CLOSE)
                if 0 <= at < end and data[at] == _COMMA:
                    at = after(data, at, end, _COMMA)
                    at = at if 0 <= at < end and data[at] != _CLOSE else -1
            at = after(data, at, end, _CLOSE)
        if at != end:
            return keys, messages, -2 - (first_row + i)
    return keys, messages, 0


@kernel
def _part(
    data: Bytes, at: int, end: int, o: int, answered: bool, keys: Texts, messages: Texts, rows: Rows
) -> tuple[Texts, Texts, int]:
    """Read one micro-operation from behind its opening bracket; returns where it ends, or -1 if it is strange."""
    if at < 0 or at + 6 > end or data[at] != _QUOTE:
        return keys, messages, -1
    if _is(data, at, end, (115, 101, 110, 100, _QUOTE, _QUOTE, _QUOTE, _QUOTE, _QUOTE), 5):
        keys, key, at = _key(data, after(data, at + 6, end, _COMMA), end, keys)
        at = after(data, at, end, _COMMA)
        if 0 <= at < end and data[at] == _OPEN:
            at = at if answered else -1
            messages, at = _message(data, at, end, o, key, SENT, messages, rows, True)
        else:
            messages, at = _value(data, at, end, o, key, SENT, UNKNOWN_OFFSET, messages, rows, True)
        return keys, messages, at
    if _is(data, at, end, (112, 111, 108, 108, _QUOTE, _QUOTE, _QUOTE, _QUOTE, _QUOTE), 5):
        _row(rows, o, POLL, -1, UNKNOWN_OFFSET)
        at = spaces(data, at + 6, end)
        if 0 <= at < end and data[at] == _CLOSE:
            return keys, messages, at
        at = after(data, at, end, _COMMA)
        if 0 <= at < end and data[at] == _N:
            return keys, messages, null(data, at, end)
        at = after(data, at, end, _OPEN_MAP)
        if 0 <= at < end and data[at] == _CLOSE_MAP:
            return keys, messages, at + 1
        while 0 <= at < end:
            if data[at] != _QUOTE:
                return keys, messages, -1
            keys, key, at = _key(data, at, end, keys)
            at = after(data, after(data, at, end, _COLON), end, _OPEN)
            while 0 <= at < end and data[at] != _CLOSE:
                messages, at = _message(data, at, end, o, key, POLLED, messages, rows, answered)
                at = spaces(data, at, end)
                if 0 <= at < end and data[at] == _COMMA:
                    at = after(data, at, end, _COMMA)
                    at = at if 0 <= at < end and data[at] != _CLOSE else -1
            at = after(data, at, end, _CLOSE)
            if 0 <= at < end and data[at] == _CLOSE_MAP:
                return keys, messages, at + 1
            at = after(data, at, end, _COMMA)
        return keys, messages, -1
    if _is(data, at, end, (114, 101, 98, 97, 108, 97, 110, 99, 101), 9) and at + 11 < end and data[at + 10] == _QUOTE:
        keys, at = _keys(
            data, after(data, after(data, at + 11, end, _COMMA), end, _OPEN), end, o, REBALANCED, keys, rows
        )
        return keys, messages, at
    return keys, messages, -1


@inner_kernel
def _is(data: Bytes, at: int, end: int, word: tuple[int, ...], size: int) -> bool:
    """Return whether this word follows the quote at `at`."""
    if at + 1 + size > end:
        return False
    for i in range(size):
        if data[at + 1 + i] != word[i]:
            return False
    return True


@kernel
def _keys(data: Bytes, at: int, end: int, o: int, kind: int, keys: Texts, rows: Rows) -> tuple[Texts, int]:
    """Read a list of keys from behind its opening bracket; returns the position behind the closing one."""
    while 0 <= at < end and data[at] != _CLOSE:
        keys, key, at = _key(data, at, end, keys)
        _row(rows, o, kind, key, UNKNOWN_OFFSET)
        at = spaces(data, at, end)
        if 0 <= at < end and data[at] == _COMMA:
            at = after(data, at, end, _COMMA)
            at = at if 0 <= at < end and data[at] != _CLOSE else -1
    return keys, after(data, at, end, _CLOSE)


@kernel
def _key(data: Bytes, at: int, end: int, keys: Texts) -> tuple[Texts, int, int]:
    """Read a key; returns (keys, the number of the key, where it ends)."""
    begin, stop = key_text(data, at, end)
    if begin < 0:
        return keys, -1, -1
    quoted = 1 if data[begin] == _QUOTE else 0
    if not _is_plain(data, begin, stop):
        return keys, -1, -1
    number, hashed = find(keys, data, begin + quoted, stop - quoted, 0)
    if number < 0:
        keys, number = add(keys, data, begin + quoted, stop - quoted, 0, hashed)
    return keys, number, stop


@kernel
def _message(
    data: Bytes, at: int, end: int, o: int, key: int, kind: int, messages: Texts, rows: Rows, counts: bool
) -> tuple[Texts, int]:
    """Read a message `[offset, value]`; returns (messages, where it ends)."""
    at = after(data, at, end, _OPEN)
    offset = UNKNOWN_OFFSET
    if 0 <= at < end and data[at] == _N:
        at = null(data, at, end)
    else:
        offset, at = integer(data, at, end)
    messages, at = _value(data, after(data, at, end, _COMMA), end, o, key, kind, offset, messages, rows, counts)
    at = after(data, at, end, _CLOSE)
    return messages, at


@kernel
def _value(
    data: Bytes, at: int, end: int, o: int, key: int, kind: int, offset: int, messages: Texts, rows: Rows, counts: bool
) -> tuple[Texts, int]:
    begin, stop = key_text(data, at, end)
    if begin < 0 or key < 0 or not _is_plain(data, begin, stop):
        return messages, -1
    if stop < end and data[stop] != _COMMA and data[stop] != _CLOSE and data[stop] > 32:
        return messages, -1  # the number is no integer: 1.5, 1e3
    if counts:
        number, hashed = find(messages, data, begin, stop, key)
        if number < 0:
            messages, number = add(messages, data, begin, stop, key, hashed)
        _row(rows, o, kind, number, offset)
    return messages, spaces(data, stop, end)


@inner_kernel
def _is_plain(data: Bytes, begin: int, stop: int) -> bool:
    for at in range(begin, stop):
        if data[at] == _BACKSLASH:
            return False
    return True


@inner_kernel
def _row(rows: Rows, o: int, kind: int, thing: int, offset: int) -> None:
    n = rows.counts[0]
    rows.operation[n], rows.kind[n], rows.thing[n], rows.offset[n] = o, kind, thing, offset
    rows.counts[0] = n + 1


@kernel
def in_order(rows: Rows, kind: int, operations: int) -> tuple[Int64, Int32, Int64]:
    """Return (first, things, offsets) of the rows of one kind, sorted by operation; within one, in order of reading."""
    first = np.zeros(operations + 1, np.int64)
    for n in range(rows.counts[0]):
        if rows.kind[n] == kind:
            first[rows.operation[n] + 1] += 1
    for o in range(operations):
        first[o + 1] += first[o]
    cursor = first[:operations].copy()
    things, offsets = np.empty(first[operations], np.int32), np.empty(first[operations], np.int64)
    for n in range(rows.counts[0]):
        if rows.kind[n] == kind:
            at = cursor[rows.operation[n]]
            cursor[rows.operation[n]] = at + 1
            things[at], offsets[at] = rows.thing[n], rows.offset[n]
    return first, things, offsets


@kernel
def first_difference(invoked: Rows, answered: Rows, compared: Bools) -> int:
    """The first of the compared operations whose answer has other sends or polls than its invoke, or -1.

    Sends are equal if key and value are.  Of polls only their places among the sends count.
    """
    operations = compared.shape[0]
    first, asked = _steps(invoked, operations)
    first_answered, done = _steps(answered, operations)
    for o in range(operations):
        if not compared[o]:
            continue
        size = first[o + 1] - first[o]
        if first_answered[o + 1] - first_answered[o] != size:
            return o
        for n in range(size):
            if asked[first[o] + n] != done[first_answered[o] + n]:
                return o
    return -1


@kernel
def _steps(rows: Rows, operations: int) -> tuple[Int64, Int32]:
    """Return (first, steps): each step of an operation is the message of a send, or -1 for a poll."""
    first = np.zeros(operations + 1, np.int64)
    for n in range(rows.counts[0]):
        if rows.kind[n] == SENT or rows.kind[n] == POLL:
            first[rows.operation[n] + 1] += 1
    for o in range(operations):
        first[o + 1] += first[o]
    cursor = first[:operations].copy()
    steps = np.empty(first[operations], np.int32)
    for n in range(rows.counts[0]):
        if rows.kind[n] == SENT or rows.kind[n] == POLL:
            o = rows.operation[n]
            steps[cursor[o]] = rows.thing[n]
            cursor[o] += 1
    return first, steps
