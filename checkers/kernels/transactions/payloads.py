"""Reads micro-operations from the bytes of JSON payloads, without Python objects, and numbers the values of each key.

The kernels read the form of recorded histories: `[["append", key, value], ["r", key, [value, ...]], ...]`.  Keys are
text or integers; values are integers from 0 to 2^31 - 1.
Other JSON (a value that is text, an escape in a key) is *unsupported*.  A slower reader reads it, and reports an error
if the JSON is no transaction.

Payloads are read twice.  The first pass counts, so that every micro-operation gets its place in columns ordered by
transaction.  The second pass writes the columns.  Texts are compared byte by byte, and numbered in order of appearance.

*Numbers.*  The values of each key are numbered, so that an array can contain the facts about each value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.codes import grouped
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import mates
from checkers.kernels.transactions.columns import NEVER, NIL_VALUE, READ, WRITE

Bytes = npt.NDArray[np.uint8]

OK, INFO, INVOKE = int(Type.OK), int(Type.INFO), int(Type.INVOKE)

_QUOTE, _COMMA, _OPEN, _CLOSE, _BACKSLASH, _MINUS = 34, 44, 91, 93, 92, 45
_ZERO, _NINE, _R, _N = 48, 57, 114, 110


class Pairs(NamedTuple):
    """Transactions in order of invocation.

    process to completed: as in `columns.Transactions`
    ended: row of the completion, even if it is an info; or -1
    described: row of the event whose payload shows what the transaction did
    """

    process: Int32
    status: Int8
    invoked: Int64
    completed: Int64
    ended: Int64
    described: Int64


class Texts(NamedTuple):
    """Numbered texts: a table of hashes, and the text of each number, text[first[n]:first[n + 1]].

    within: number of the key to which a value belongs; equal texts of two keys are different texts
    counts: int64[1], number of texts
    """

    slots: Int32
    hashes: npt.NDArray[np.uint64]
    within: Int32
    first: Int64
    text: Bytes
    counts: Int64


class Columns(NamedTuple):
    """The columns into which micro-operations are written: see `columns.Transactions`."""

    first: Int64
    kind: Int8
    key: Int32
    value: Int32
    list_first: Int64
    lists: Int32


def pair(process: Int32, dense: Int32, process_count: int, type_: Int8, mine: Bools) -> Pairs:
    """Pair the events selected by `mine`.  Positions are rows.  dense: processes numbered from 0."""
    rows = np.flatnonzero(mine)
    mate, of_rows = mates(dense[rows], type_[rows], process_count), type_[rows]
    invokes = np.flatnonzero(of_rows == INVOKE)
    invoked, answer = rows[invokes], mate[invokes]
    ended = np.where(answer >= 0, rows[answer], -1)
    status = np.where(answer >= 0, type_[ended], INFO).astype(np.int8)
    completed, described = np.where(status == INFO, NEVER, ended), np.where(status == OK, ended, invoked)
    return Pairs(process[invoked], status, invoked, completed, ended, described)


@kernel
def count(data: Bytes, offsets: Int64, first_row: int, owner: Int32, sizes: Int64, elements: Int64) -> int:
    """Count micro-operations (`sizes`) and list elements, per transaction, in consecutive rows.

    Returns 0, or -2 - the first unsupported row.  data[offsets[i]:offsets[i + 1]] is the payload of row first_row + i.

    owner: per row, the transaction that its payload describes, or -1
    """
    for i in range(offsets.shape[0] - 1):
        t = owner[first_row + i]
        if t < 0:
            continue
        depth, rows, items, empty, inside = 0, 0, 0, True, False
        for at in range(offsets[i], offsets[i + 1]):
            byte = data[at]
            if byte == _BACKSLASH:
                return -2 - (first_row + i)
            if byte == _QUOTE:
                inside = not inside
            elif inside:
                continue
            elif byte == _OPEN:
                depth += 1
                rows += depth == 2
                empty = True
            elif byte == _CLOSE:
                items += depth == 3 and not empty
                depth -= 1
            elif depth == 3:
                items += byte == _COMMA
                empty = False
        sizes[t], elements[t] = rows, items
    return 0


@kernel
def new_texts() -> Texts:
    return Texts(
        np.full(1024, -1, np.int32),
        np.empty(512, np.uint64),
        np.empty(512, np.int32),
        np.zeros(513, np.int64),
        np.empty(8192, np.uint8),
        np.zeros(1, np.int64),
    )


@kernel
def write(
    data: Bytes,
    offsets: Int64,
    first_row: int,
    owner: Int32,
    status: Int8,
    element_first: Int64,
    lists: bool,
    keys: Texts,
    columns: Columns,
) -> tuple[Texts, int]:
    """Write the micro-operations of consecutive rows into the columns.

    Returns (keys, 0 or -2 - the first unsupported row).

    element_first: per transaction, where its list elements begin
    lists: True if the model is list-append
    """
    for i in range(offsets.shape[0] - 1):
        t = owner[first_row + i]
        if t < 0:
            continue
        at = after(data, offsets[i], offsets[i + 1], _OPEN)
        end = offsets[i + 1]
        row, element = columns.first[t], element_first[t]
        last = columns.first[t + 1]
        while row < last and at >= 0:
            at = after(data, at, end, _OPEN)
            is_read, at = _function(data, at, end, lists)
            key_begin, key_end = key_text(data, after(data, at, end, _COMMA), end)
            if key_begin < 0:
                return keys, -2 - (first_row + i)
            number, hashed = find(keys, data, key_begin, key_end, 0)
            if number < 0:
                keys, number = add(keys, data, key_begin, key_end, 0, hashed)
            at = after(data, key_end, end, _COMMA)
            columns.key[row] = number
            columns.kind[row] = READ if is_read else WRITE
            columns.value[row] = NIL_VALUE
            columns.list_first[row] = element
            if not is_read:
                columns.value[row], at = integer(data, at, end)
            elif status[t] != OK:
                at = null(data, at, end)
            elif lists:
                element, at = _list(data, at, end, columns.lists, element)
            elif at >= 0 and data[at] == _N:
                at = null(data, at, end)
            else:
                columns.value[row], at = integer(data, at, end)
            at = after(data, at, end, _CLOSE)
            row += 1
            if row < last:
                at = after(data, at, end, _COMMA)
        if spaces(data, after(data, at, end, _CLOSE), end) != end or element != element_first[t + 1]:
            return keys, -2 - (first_row + i)
    return keys, 0


@inner_kernel
def spaces(data: Bytes, at: int, end: int) -> int:
    while 0 <= at < end and data[at] <= 32:
        at += 1
    return at


@inner_kernel
def after(data: Bytes, at: int, end: int, byte: int) -> int:
    """Skip this byte and the spaces after it.  Returns the next position, or -1 if the byte does not come next."""
    at = spaces(data, at, end)
    if at < 0 or at >= end or data[at] != byte:
        return -1
    return spaces(data, at + 1, end)


@inner_kernel
def _function(data: Bytes, at: int, end: int, lists: bool) -> tuple[bool, int]:
    """Read the function of a micro-operation.  Returns (True if it is a read, where it ends or -1 if unknown)."""
    if at < 0 or at + 8 > end or data[at] != _QUOTE:
        return False, -1
    if data[at + 1] == _R and data[at + 2] == _QUOTE:
        return True, at + 3
    if not lists:
        return False, at + 3 if data[at + 1] == 119 and data[at + 2] == _QUOTE else -1
    append = (97, 112, 112, 101, 110, 100, _QUOTE)
    for i in range(7):
        if data[at + 1 + i] != append[i]:
            return False, -1
    return False, at + 8


@inner_kernel
def key_text(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return (begin, end) of a key's text, with its quotes; -1 if it is missing or cannot be compared bytewise."""
    if at < 0 or at >= end:
        return -1, -1
    begin = at
    if data[at] == _QUOTE:
        at += 1
        while at < end and data[at] != _QUOTE:
            at += 1
        return (begin, at + 1) if at < end else (-1, -1)
    if data[at] == _MINUS:
        at += 1
        if at < end and data[at] == _ZERO:
            return -1, -1
    digits = at
    while at < end and _ZERO <= data[at] <= _NINE:
        at += 1
    return (begin, at) if at > digits and (data[digits] != _ZERO or at == digits + 1) else (-1, -1)


@inner_kernel
def integer(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Read an integer from 0 to 2^31 - 1.  Returns (value, where it ends, or -1 if there is none)."""
    value, digits = 0, 0
    if at < 0:
        return -1, -1
    begin = at
    while at < end and _ZERO <= data[at] <= _NINE and digits < 11:
        value = value * 10 + int(data[at]) - _ZERO
        digits += 1
        at += 1
    if digits == 0 or value > 2147483647 or (digits > 1 and data[begin] == _ZERO):
        return -1, -1
    return value, at


@inner_kernel
def null(data: Bytes, at: int, end: int) -> int:
    if at < 0 or at + 4 > end or data[at] != _N or data[at + 1] != 117 or data[at + 2] != 108 or data[at + 3] != 108:
        return -1
    return at + 4


@inner_kernel
def _list(data: Bytes, at: int, end: int, lists: Int32, element: int) -> tuple[int, int]:
    """Read a list of integers, or null.  Returns (where the elements of the next list go, where this list ends)."""
    if at >= 0 and at < end and data[at] == _N:
        return element, null(data, at, end)
    at = after(data, at, end, _OPEN)
    if at >= 0 and at < end and data[at] == _CLOSE:
        return element, at + 1
    while at >= 0 and element < lists.shape[0]:
        value, at = integer(data, at, end)
        lists[element] = value
        element += 1
        at = spaces(data, at, end)
        if at < 0 or at >= end:
            return element, -1
        if data[at] == _CLOSE:
            return element, at + 1
        at = after(data, at, end, _COMMA)
    return element, -1


@inner_kernel
def find(texts: Texts, data: Bytes, begin: int, end: int, within: int) -> tuple[int, np.uint64]:
    """Return (the number of a text or -1, its hash)."""
    hashed = np.uint64(14695981039346656037) ^ np.uint64(within)
    for at in range(begin, end):
        hashed = (hashed ^ np.uint64(data[at])) * np.uint64(1099511628211)
    hashed ^= hashed >> np.uint64(29)
    mask = np.uint64(len(texts.slots) - 1)
    slot = hashed & mask
    while texts.slots[slot] >= 0:
        number = texts.slots[slot]
        first = texts.first[number]
        if texts.hashes[number] == hashed and texts.within[number] == within:
            same = texts.first[number + 1] - first == end - begin
            i = 0
            while same and i < end - begin:
                same = texts.text[first + i] == data[begin + i]
                i += 1
            if same:
                return number, hashed
        slot = (slot + np.uint64(1)) & mask
    return -1, hashed


@kernel
def add(texts: Texts, data: Bytes, begin: int, end: int, within: int, hashed: np.uint64) -> tuple[Texts, int]:
    """Add a text, in a larger room if necessary.  Returns (texts, the number of the new text)."""
    number = texts.counts[0]
    slots, hashes, first, text, withins = texts.slots, texts.hashes, texts.first, texts.text, texts.within
    if number == hashes.shape[0]:
        hashes = np.concatenate((hashes, np.empty(number, np.uint64)))
        withins = np.concatenate((withins, np.empty(number, np.int32)))
        first = np.concatenate((first, np.empty(number, np.int64)))
        slots = np.full(4 * number, -1, np.int32)
        for n in range(number):
            _put(slots, hashes[n], n)
    stop = first[number] + end - begin
    if stop > text.shape[0]:
        text = np.concatenate((text, np.empty(stop, np.uint8)))
    text[first[number] : stop] = data[begin:end]
    first[number + 1] = stop
    hashes[number] = hashed
    withins[number] = within
    _put(slots, hashed, number)
    texts.counts[0] += 1
    return Texts(slots, hashes, withins, first, text, texts.counts), number


@inner_kernel
def _put(slots: Int32, hashed: np.uint64, number: int) -> None:
    mask = np.uint64(slots.shape[0] - 1)
    slot = hashed & mask
    while slots[slot] >= 0:
        slot = (slot + np.uint64(1)) & mask
    slots[slot] = number


@kernel
def are_dense(columns: Columns, key_count: int) -> bool:
    """Return True if values can serve as their own numbers.

    They can if the largest value written to each key is not far above the number of the key's writes.
    """
    highest, written = np.zeros(key_count, np.int64), np.zeros(key_count, np.int64)
    for row in range(columns.kind.shape[0]):
        if columns.kind[row] == WRITE:
            key = columns.key[row]
            highest[key] = max(highest[key], columns.value[row] + 1)
            written[key] += 1
    return bool(highest.sum() <= 2 * written.sum() + 1024)


def number_values(key: Int64, value: Int64, key_count: int) -> tuple[Int32, Int64, Int64]:
    """Number the values of each key from 0, in order of appearance.

    Returns (int32: number of each value; base, names: names[base[key] + number] is the value).

    key: int64, from 0
    """
    import pyarrow as pa  # values that are their own numbers need no tables

    texts = pa.array(value).dictionary_encode()
    distinct = np.asarray(texts.dictionary)
    pairs = pa.array(key * max(1, len(distinct)) + np.asarray(texts.indices)).dictionary_encode()
    owner, of_owner = np.divmod(np.asarray(pairs.dictionary), max(1, len(distinct)))
    first, by_key = grouped(owner.astype(np.int32), key_count)
    numbers = np.empty(len(owner), np.int64)
    numbers[by_key] = np.arange(len(owner)) - first[owner[by_key]]
    return numbers[np.asarray(pairs.indices)].astype(np.int32), first, distinct[of_owner[by_key]]
