"""Lists that only grow: the order of their versions, dependencies of transactions over them, and anomalies of reads.

*Versions.*  `order_versions` finds their order, and the anomalies of single reads.

Theory (Elle, section 4).  A list that was read shows all its earlier versions.  So the longest list of a key that
committed transactions read gives the order of its versions.  Every other list must be a prefix of the longest one.

Every committed transaction happened.  A transaction of unknown outcome happened if a committed transaction read any of
its appends.  Elements of aborted transactions are an anomaly, and the order skips them.

A key has no order of versions if its lists are no prefixes of one another, repeat an element, or contain an element
that no transaction wrote.  This is reported, and nothing is concluded from the key.  Once it is certain that lists
contradict one another, the longest list counts as the order, but only to name cycles (`by_longest_lists`).

A key to which a value was appended more than once has no order either.  A list may show such a value as often as it was
appended.  No conclusion depends on which append it shows.

*Dependencies.*  `link` finds those of transactions; `check_transactions` finds anomalies inside one transaction.

Theory (Elle, section 4).  Dependencies follow from the order of the versions of each key:

    ww   from the writer of an element to the writer of the next element
    wr   from the writer of the last element of a list to its reader
    rw   from a reader to the writer of the element after the list that it read

An append that happened, and that no list contains, comes after all elements of the longest list.  So it comes after the
last writer of this list (ww), and after every transaction that read all of the list (rw).  The order among such appends
is unknown.

A read is *external* if it is a transaction's first micro-operation on the key.  Later reads must agree with the
external read and with the transaction's own appends since then.  If they do not, levels up to read-committed still
allow them.  So every read gives a wr, and only external reads give an rw.  If a later read shows another writer, the
external read gives no rw either: the anomaly (internal) already rules out every level that counts rw.

The appends of one transaction to one key must appear in the transaction's order; otherwise this is an anomaly.
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
    FUTURE_READ,
    INCOMPATIBLE_ORDER,
    INFO,
    INTERMEDIATE_READ,
    INTERNAL,
    NO_WRITER,
    OK,
    READ,
    REORDERED_APPENDS,
    UNWRITTEN_READ,
    WRITE,
    Edges,
    Findings,
    Transactions,
    Written,
    holds,
    index_writers,
    is_rewritten,
    note,
    note_update,
    shows_failed,
)
from checkers.kernels.transactions.dependencies import (
    RW,
    WR,
    WW,
    Groups,
    Links,
    gathered,
    link_direct,
    new_links,
    stand_after,
    stand_before,
)


class Versions(NamedTuple):
    """Knowledge of the versions of keys.

    position: int32 per element, its position in the order of its key, -1 if no list contains it or it is rewritten
    longest: int64 per key, the row that read the longest list, or -1
    length: int32 per key, the length of the longest list
    """

    written: Written
    position: Int32
    longest: Int64
    length: Int32


def by_longest_lists(versions: Versions) -> Versions | None:
    """Return the versions if the longest list orders a key whose lists contradict each other; None if there is none."""
    unusable = versions.written.unusable
    if not (unusable == CONTRADICTED).any():
        return None
    left = np.where(unusable == CONTRADICTED, 0, unusable).astype(np.int8)
    return versions._replace(written=versions.written._replace(unusable=left))


class _Shown(NamedTuple):
    """The last list that showed an element, and how often this list did.

    Both arrays are empty if every value was appended once and the lists of each key agree.

    row: int64 per element, the row that read the list, or -1
    times: int32 per element
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
    """Return, per key: the row of the longest list or -1, its length, and True if the lists contradict one another.

    Each list is compared with the longest one so far, which was read shortly before and so is in the cache.  If no
    list contradicts the longest one so far, all lists are prefixes of the final longest list.
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
    """Store each list that is no prefix of the longest one of its key as a finding."""
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
    """Return True if two stretches differ.

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
    """Verify the writer of each element of a list that transaction t read."""
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
    """Count an element of a list.  Returns how often the list has shown the element so far."""
    shown.times[element] = shown.times[element] + 1 if shown.row[element] == row else 1
    shown.row[element] = row
    return int(shown.times[element])


@inner_kernel
def _check_rewritten(written: Written, t: int, row: int, at: int, element: int, times: int, found: Findings) -> None:
    """Report a rewritten element that a list shows more often than its writes explain."""
    if times > written.rewrites.writes[element]:
        note(found, DUPLICATE_ELEMENTS, t, row, at)
    elif shows_failed(written.rewrites, element, times):
        note(found, ABORTED_READ, t, row, written.rewrites.aborted[element])


@kernel
def check_transactions(txns: Transactions, base: Int64, versions: Versions, found: Findings) -> None:
    """Find anomalies inside one transaction, and reads that end with an append that was not its writer's last."""
    key_count = base.shape[0] - 1
    touched = np.full(key_count, -1, np.int32)
    known = np.full(key_count, -1, np.int64)  # row of the transaction's last read of the key, or -1
    longest = np.full(key_count, -1, np.int64)  # row of the transaction's longest read of the key, or -1
    own = np.zeros(key_count, np.int32)  # number of the transaction's own appends since the last read
    latest = np.full(key_count, -1, np.int64)  # row of the last of these appends
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if touched[key] != t:
                touched[key] = t
                known[key] = longest[key] = latest[key] = -1
                own[key] = 0
                external = True
            else:
                external = False
            if txns.kind[row] == WRITE:
                element = base[key] + txns.value[row]
                if longest[key] >= 0 and versions.written.unusable[key] == 0 and versions.position[element] >= 0:
                    seen = txns.list_first[longest[key] + 1] - txns.list_first[longest[key]]
                    if versions.position[element] < seen:
                        note(found, FUTURE_READ, t, longest[key], row)
                latest[key] = row
                own[key] += 1
                continue
            _check_last_element(txns, base, versions, t, row, found)
            if not external:
                contradicted = _contradicted(txns, row, known[key], own[key], latest[key])
                if contradicted >= 0:
                    note(found, INTERNAL, t, row, contradicted)
            known[key] = row
            if longest[key] < 0 or _size(txns, row) > _size(txns, longest[key]):
                longest[key] = row
            own[key] = 0
            latest[key] = -1


@inner_kernel
def _size(txns: Transactions, row: int) -> int:
    return int(txns.list_first[row + 1] - txns.list_first[row])


@inner_kernel
def _check_last_element(txns: Transactions, base: Int64, versions: Versions, t: int, row: int, found: Findings) -> None:
    key = txns.key[row]
    end = txns.list_first[row + 1]
    if end == txns.list_first[row]:
        return
    value = txns.lists[end - 1]
    element = base[key] + value
    if not holds(base, versions.written.writer, key, value) or is_rewritten(versions.written, element):
        return
    by = versions.written.writer[element]
    if by != t and not versions.written.final[element]:
        note(found, INTERMEDIATE_READ, t, row, by)


@inner_kernel
def _contradicted(txns: Transactions, row: int, known: int, own: int, latest: int) -> int:
    """Return the earlier row of the same transaction that a read contradicts, or -1.

    The read must show the list of row `known`, followed by the transaction's own appends since then.

    own: number of these appends
    latest: row of the last of them
    """
    start, end = txns.list_first[row], txns.list_first[row + 1]
    size = end - start
    if known >= 0:
        known_start = txns.list_first[known]
        known_size = txns.list_first[known + 1] - known_start
        if size != known_size + own:
            return latest if latest >= 0 and size < known_size + own else known
        for i in range(known_size):
            if txns.lists[start + i] != txns.lists[known_start + i]:
                return known
    append = latest
    for i in range(own):
        if i >= size or txns.lists[end - 1 - i] != txns.value[append]:
            return append
        if i + 1 < own:
            append -= 1
            while txns.kind[append] != WRITE or txns.key[append] != txns.key[row]:
                append -= 1
    return -1


class _ListsMet(NamedTuple):
    """The latest contact of transactions with each key.

    touched: the last transaction that read or wrote it
    beyond: the last transaction with an append that no list contains
    appended: row of its last append
    read: row of the first read of the key by the transaction `touched`; -1 if this transaction has appended
    opened: the last transaction whose first micro-operation on the key is a read and whose later reads show the same
        writer
    shown: the writer that this first read shows, or -1
    updated_by: per version, the transaction that read it and then appended
    """

    touched: Int32
    beyond: Int32
    appended: Int64
    read: Int64
    opened: Int32
    shown: Int32
    updated_by: Int32


@kernel
def link(txns: Transactions, base: Int64, versions: Versions, found: Findings) -> tuple[Edges, Groups]:
    """Find dependencies among transactions that happened.  Each key is a group.

    Transactions that reached the end of the key's known order come before its group.  Transactions that appended beyond
    this end come after the group.
    """
    key_count = base.shape[0] - 1
    appends = 0
    for row in range(txns.kind.shape[0]):
        appends += txns.kind[row] == WRITE
    reads = txns.kind.shape[0] - appends
    links = new_links(appends + 2 * reads, reads + key_count, appends)
    last_writer = link_versions(txns, base, versions, links)
    met = _ListsMet(
        np.full(key_count, -1, np.int32),
        np.full(key_count, -1, np.int32),
        np.full(key_count, -1, np.int64),
        np.full(key_count, -1, np.int64),
        np.full(key_count, -1, np.int32),
        np.full(key_count, -1, np.int32),
        np.full(versions.written.writer.shape[0] + key_count, -1, np.int32),
    )
    torn = found.times[INTERNAL] > 0  # if False, later reads of a key agree with the first one
    for t in range(txns.status.shape[0]):
        if not versions.written.happened[t]:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if versions.written.unusable[key] != 0:
                continue
            if txns.kind[row] == WRITE:
                _link_append(txns, base, versions, met, t, row, links, found)
            elif txns.status[t] == OK:
                by = _link_writer(txns, base, versions, t, row, links)
                if met.touched[key] != t:
                    met.touched[key] = met.opened[key] = t
                    met.read[key] = row
                    met.shown[key] = by
                    if not torn:
                        _link_overwriter(txns, base, versions, last_writer[key], t, row, links)
                elif by >= 0 and met.opened[key] == t and met.shown[key] != by:
                    met.opened[key] = -1
        for row in range(txns.first[t], txns.first[t + 1] if torn else txns.first[t]):
            key = txns.key[row]
            if met.opened[key] == t and txns.kind[row] != WRITE:
                met.opened[key] = -1
                _link_overwriter(txns, base, versions, last_writer[key], t, row, links)
    return gathered(links)


@kernel
def link_versions(txns: Transactions, base: Int64, versions: Versions, links: Links) -> Int32:
    """Link ww along each key's longest list.  Returns int32 per key: the last happened writer in the list, or -1."""
    key_count = base.shape[0] - 1
    last_writer = np.full(key_count, -1, np.int32)
    for key in range(key_count):
        if versions.longest[key] < 0 or versions.written.unusable[key] != 0:
            continue
        start = txns.list_first[versions.longest[key]]
        last = -1
        for i in range(versions.length[key]):
            by = int(versions.written.writer[base[key] + txns.lists[start + i]])
            if not versions.written.happened[by]:
                continue
            if last >= 0 and last != by:
                link_direct(links, last, by, WW)
            last = by
        if last >= 0:
            stand_before(links, last, key, WW)
        last_writer[key] = last
    return last_writer


@inner_kernel
def _link_append(
    txns: Transactions, base: Int64, versions: Versions, met: _ListsMet, t: int, row: int, links: Links, found: Findings
) -> None:
    """Link one append: it comes after its key's group if no list contains it.

    Report an append that comes before an earlier append of its transaction, and two transactions that read the same
    version and then append.
    """
    key = txns.key[row]
    position = versions.position[base[key] + txns.value[row]]
    before = met.appended[key]
    if position >= 0 and before >= txns.first[t]:
        earlier = versions.position[base[key] + txns.value[before]]
        if earlier < 0 or earlier > position:
            note(found, REORDERED_APPENDS, t, row, before)
    met.appended[key] = row
    if position < 0 and versions.longest[key] >= 0 and met.beyond[key] != t:
        met.beyond[key] = t
        stand_after(links, t, key)
    if met.touched[key] == t and met.read[key] >= 0:
        note_update(met.updated_by, _version(txns, base, met.read[key]), t, met.read[key], found)
    met.read[key] = -1
    met.touched[key] = t


@inner_kernel
def _link_writer(txns: Transactions, base: Int64, versions: Versions, t: int, row: int, links: Links) -> int:
    """Link a read of a key: wr from the writer of the last element that another transaction appended.

    Returns this writer, or -1.
    """
    key, written = txns.key[row], versions.written
    for i in range(txns.list_first[row + 1] - 1, txns.list_first[row] - 1, -1):
        by = written.writer[base[key] + txns.lists[i]]
        if by != t and written.happened[by]:
            link_direct(links, by, t, WR)
            return int(by)
    return -1


@inner_kernel
def _link_overwriter(
    txns: Transactions, base: Int64, versions: Versions, last_writer: int, t: int, row: int, links: Links
) -> None:
    """Link a transaction's first read of a key: rw to the writer of the element after the last one that it read."""
    key, written = txns.key[row], versions.written
    start, end, seen = txns.list_first[versions.longest[key]], txns.list_first[row + 1], 0
    if end > txns.list_first[row]:
        seen = versions.position[base[key] + txns.lists[end - 1]] + 1
        if not seen:  # a list that contradicts the longest one
            return
    for i in range(seen, versions.length[key]):
        by = written.writer[base[key] + txns.lists[start + i]]
        if written.happened[by]:
            if by != t:
                link_direct(links, t, by, RW)
            return
    if last_writer != t:
        stand_before(links, t, key, RW)


@inner_kernel
def _version(txns: Transactions, base: Int64, row: int) -> int:
    """Return the number of a list's version: the element that the list ends with, or the empty list of its key."""
    key = txns.key[row]
    start, end = txns.list_first[row], txns.list_first[row + 1]
    return int(base[key + 1] + key if end == start else base[key] + key + txns.lists[end - 1])
