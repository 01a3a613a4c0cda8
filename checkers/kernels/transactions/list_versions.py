"""The order of the versions of lists that only grow, and the anomalies of single reads.

Theory (Elle, section 4).  A list that was read shows all its earlier versions.  So the longest list of a key that
committed transactions read gives the order of its versions.  Every other list must be a prefix of it.

Every committed transaction happened.  One of unknown outcome happened if a committed transaction read any of its
appends.  Elements of aborted transactions are an anomaly, and the order skips them.

A key has no order of versions if its lists are no prefixes of one another, repeat an element, or contain one that no
transaction wrote.  This is reported, and nothing is concluded from the key.  Once it is certain that lists contradict
one another, the longest list counts as the order, only to name cycles (`by_longest_lists`).

A key to which a value was appended more than once has no order either.  A list may show such a value as often as it was
appended.  No conclusion depends on which append it shows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import (
    ABORTED_READ,
    CONTRADICTED,
    DIRTY_UPDATE,
    DUPLICATE_ELEMENTS,
    FAIL,
    INCOMPATIBLE_ORDER,
    INFO,
    NO_WRITER,
    OK,
    READ,
    UNWRITTEN_READ,
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
    """Knowledge of the versions of keys.

    position: int32 per element, its position in the order of its key, -1 if no list contains it or it is rewritten.
    longest: int64 per key, the row that read the longest list, or -1.  length: int32 per key, the length of that list.
    """

    written: Written
    position: Int32
    longest: Int64
    length: Int32


def by_longest_lists(versions: Versions) -> Versions | None:
    """Return the versions where the longest list orders a key whose lists contradict each other; None without such."""
    unusable = versions.written.unusable
    if not (unusable == CONTRADICTED).any():
        return None
    left = np.where(unusable == CONTRADICTED, 0, unusable).astype(np.int8)
    return versions._replace(written=versions.written._replace(unusable=left))


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
    written = index_writers(txns, base, found)
    longest, length, crooked = _longest_lists(txns, base.shape[0] - 1)
    if crooked.any():
        _note_crooked(txns, longest, crooked, written, found)
    position = np.full(written.writer.shape[0], -1, np.int32)
    elements = written.writer.shape[0] if crooked.any() or written.rewrites.writes.shape[0] else 0
    shown = _Shown(np.full(elements, -1, np.int64), np.zeros(elements, np.int32))
    rows = _rows_to_look_at(txns, longest, crooked)
    owners = np.searchsorted(txns.first, rows, side="right")
    for i in range(rows.shape[0]):
        row = rows[i]
        is_longest = row == longest[txns.key[row]]
        _look_at_list(txns, base, written, owners[i] - 1, row, is_longest, position, shown, found)
    return Versions(written, position, longest, length)


@kernel
def _longest_lists(txns: Transactions, key_count: int) -> tuple[Int64, Int32, Bools]:
    """Return, per key: the row of the longest list or -1, its length, and whether the lists contradict one another.

    Each list is compared with the longest one so far, which was read shortly before and so stands in the cache.  All
    lists are prefixes of the longest one if each agrees with that.
    """
    longest = np.full(key_count, -1, np.int64)
    length = np.zeros(key_count, np.int32)
    crooked = np.zeros(key_count, np.bool_)
    t, count = 0, txns.status.shape[0]
    while t < count:  # one loop over the rows of many transactions is faster than many short ones
        begin = t
        while t < count and txns.status[t] == OK:
            t += 1
        for row in range(txns.first[begin], txns.first[t]):
            if txns.kind[row] != READ:
                continue
            key = txns.key[row]
            start = txns.list_first[row]
            size = txns.list_first[row + 1] - start
            known = longest[key]
            if known >= 0 and _differ(txns.lists, start, txns.list_first[known], min(size, length[key])):
                crooked[key] = True
            if known < 0 or size > length[key]:
                longest[key] = row
                length[key] = size
        t += 1
    return longest, length, crooked


@kernel
def _note_crooked(txns: Transactions, longest: Int64, crooked: Bools, written: Written, found: Findings) -> None:
    """Note each list that is no prefix of the longest one of its key."""
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if not crooked[key] or txns.kind[row] != READ:
                continue
            start, other = txns.list_first[row], txns.list_first[longest[key]]
            if _differ(txns.lists, start, other, txns.list_first[row + 1] - start):
                at = 0
                while txns.lists[start + at] == txns.lists[other + at]:
                    at += 1
                written.unusable[key] |= CONTRADICTED
                note(found, INCOMPATIBLE_ORDER, row, longest[key], at)


@kernel
def _rows_to_look_at(txns: Transactions, longest: Int64, crooked: Bools) -> Int64:
    """Return the rows of the longest lists, and of all lists of keys whose lists contradict one another, in order."""
    if not crooked.any():
        return np.sort(longest[longest >= 0])
    rows = np.empty(txns.kind.shape[0], np.int64)
    n = 0
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if txns.kind[row] == READ and (row == longest[key] or crooked[key]):
                rows[n] = row
                n += 1
    return rows[:n]


@inner_kernel
def _differ(lists: Int32, a: int, b: int, size: int) -> bool:
    """Return whether two stretches differ.

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
            written.unusable[key] |= NO_WRITER
            note(found, UNWRITTEN_READ, t, row, i)
            continue
        if is_rewritten(written, element):
            _check_rewritten(written, t, row, i, element, _times(shown, element, row), found)
            continue
        if position[element] >= 0 if is_longest else _times(shown, element, row) > 1:
            written.unusable[key] |= NO_WRITER
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
