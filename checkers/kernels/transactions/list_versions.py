"""The order of the versions of lists that only grow, and the anomalies of single reads.

Theory (Elle, section 4).  A list that was read shows all its earlier versions.  So the longest list of a key that
committed transactions read gives the order of its versions.  Every other list must be a prefix of it.

Every committed transaction happened.  One of unknown outcome happened if a committed transaction read any of its
appends.  Elements of aborted transactions are an anomaly, and the order skips them.

A key has no order of versions if its lists are no prefixes of one another, repeat an element, or contain one that no
transaction wrote.  This is reported, and nothing is concluded from the key.

A key to which a value was appended more than once has no order either.  A list may show such a value as often as it was
appended.  No conclusion depends on which append it shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import (
    ABORTED_READ,
    DIRTY_UPDATE,
    DUPLICATE_ELEMENTS,
    FAIL,
    INCOMPATIBLE_ORDER,
    INFO,
    OK,
    READ,
    UNWRITTEN_READ,
    WRITE,
    Findings,
    Transactions,
    Written,
    holds,
    index_writers,
    is_rewritten,
    note,
    shows_failed,
)


class Versions(NamedTuple):
    """What is known of the versions of keys.

    position: int32 per element, its position in the order of its key, -1 if no list contains it or it is rewritten.
    longest: int64 per key, the row that read the longest list, or -1.  length: int32 per key, the length of that list.
    """

    written: Written
    position: Int32
    longest: Int64
    length: Int32


class _Shown(NamedTuple):
    """The list that showed an element last, and how often it did.

    row: int64 per element, of the read, or -1.  times: int32 per element.  Both are empty if every value was appended
    once and the lists of each key agree.
    """

    row: Int64
    times: Int32


@kernel
def order_versions(txns: Transactions, base: Int64, found: Findings) -> Versions:
    """Find the order of the versions of every key, and the anomalies that rule out an order."""
    key_count = base.shape[0] - 1
    written = index_writers(txns, base, found)
    longest = np.full(key_count, -1, np.int64)
    length = np.zeros(key_count, np.int32)
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            if txns.kind[row] == READ:
                key = txns.key[row]
                size = txns.list_first[row + 1] - txns.list_first[row]
                if size > length[key] or longest[key] < 0:
                    longest[key] = row
                    length[key] = size
    crooked = np.zeros(key_count, np.bool_)
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if txns.kind[row] == WRITE or row == longest[key]:
                continue
            start = txns.list_first[row]
            size = txns.list_first[row + 1] - start
            other = txns.list_first[longest[key]]
            if _differ(txns.lists, start, other, size):
                at = 0
                while txns.lists[start + at] == txns.lists[other + at]:
                    at += 1
                crooked[key] = True
                written.unusable[key] = 1
                note(found, INCOMPATIBLE_ORDER, row, longest[key], at)
    position = np.full(written.writer.shape[0], -1, np.int32)
    elements = written.writer.shape[0] if crooked.any() or written.rewrites.writes.shape[0] else 0
    shown = _Shown(np.full(elements, -1, np.int64), np.zeros(elements, np.int32))
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if txns.kind[row] == READ and (row == longest[key] or crooked[key]):
                _look_at_list(txns, base, written, t, row, row == longest[key], position, shown, found)
    return Versions(written, position, longest, length)


@inner_kernel
def _differ(lists: Int32, a: int, b: int, size: int) -> bool:
    """Whether two stretches differ.

    The loop has no early exit, and its indices are never negative, so the compiler compares many elements at once."""
    first, second = np.uint64(a), np.uint64(b)
    different = False
    for i in range(np.uint64(size)):
        different |= lists[first + i] != lists[second + i]
    return different


@inner_kernel
def _look_at_list(
    txns: Transactions,
    base: Int64,
    written: Written,
    t: int,
    row: int,
    is_longest: bool,
    position: Int32,
    shown: _Shown,
    found: Findings,
) -> None:
    """Check the writer of each element of a list that transaction t read."""
    key = txns.key[row]
    start = txns.list_first[row]
    aborted = -1
    for i in range(txns.list_first[row + 1] - start):
        value = txns.lists[start + i]
        element = base[key] + value
        if not holds(base, written.writer, key, value):
            written.unusable[key] = 1
            note(found, UNWRITTEN_READ, t, row, i)
            continue
        if is_rewritten(written, element):
            _check_rewritten(written, t, row, i, element, _times(shown, element, row), found)
            continue
        if position[element] >= 0 if is_longest else _times(shown, element, row) > 1:
            written.unusable[key] = 1
            note(found, DUPLICATE_ELEMENTS, t, row, i)
        if is_longest:
            position[element] = i
        by = written.writer[element]
        if txns.status[by] == FAIL:
            note(found, ABORTED_READ, t, row, by)
            if aborted < 0:
                aborted = by
            continue
        if aborted >= 0 and is_longest:
            note(found, DIRTY_UPDATE, aborted, by, key)
            aborted = -1
        if txns.status[by] == INFO:
            written.happened[by] = True


@inner_kernel
def _times(shown: _Shown, element: int, row: int) -> int:
    """Count an element of a list; returns how often that list has shown it so far."""
    shown.times[element] = shown.times[element] + 1 if shown.row[element] == row else 1
    shown.row[element] = row
    return int(shown.times[element])


@inner_kernel
def _check_rewritten(written: Written, t: int, row: int, at: int, element: int, times: int, found: Findings) -> None:
    """Note a rewritten element that a list shows more often than its writes explain."""
    if times > written.rewrites.writes[element]:
        note(found, DUPLICATE_ELEMENTS, t, row, at)
    elif shows_failed(written.rewrites, element, times):
        note(found, ABORTED_READ, t, row, written.rewrites.aborted[element])
