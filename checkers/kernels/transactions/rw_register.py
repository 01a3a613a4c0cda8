"""Judges transactions over registers: derives the version order from unique writes, and the dependencies.

Theory (Elle, section 5).  A read of a register identifies the writer of the value, and nothing else.  Two conclusions
are certain:

  * The initial state (nil) comes before every write of the key.
  * If a transaction read v1 and then wrote v2, v2 comes after v1.  Any other order would be a cycle of one wr and one
    ww, which is a G1c as well.

So there is a wr from a writer to a reader.  There is an rw from a reader of a version to the writers of versions that
are known to follow it.  The kernel does *not* conclude

  * any order between two blind writes, so it finds no ww, no G0, and no lost update of blind writes;
  * anything from a transaction of unknown outcome whose writes no transaction read;
  * anything from time, which orders versions only under some models.

Only a transaction's last write of a key is a version.  Reading an earlier write is an anomaly, and orders nothing.

A value that was written to a key more than once identifies no writer.  Reading such a value is an anomaly only if every
write of it failed.

*Versions in time.*  `versions_in_time` concludes which versions of a register certainly follow others, from the order
in which transactions met the versions.

Theory.  A transaction *meets* a version if it wrote it or read it.  Suppose that a transaction that met v completed
before a transaction that met w was invoked.  If real time counts, w before v would then be a cycle, whose class depends
on the two meetings:

    wrote v, wrote w    ww and real time: G0              wrong for every model
    read v, wrote w     ww, wr and real time: G1c         wrong from read-committed on
    any, read w         the same with one rw: G-single    wrong for repeatable-read and snapshot-isolation on

So v comes before w if the required model forbids that class: the opposite order would itself be a violation.  The same
is true for transactions of one process if the order of processes counts.

There are quadratically many such pairs, so pairs that follow from others are left out.  A *frontier* is a set of
meetings whose transactions have completed.  A transaction follows each meeting that is in the frontier when it is
invoked.  When the transaction completes, its meeting replaces the meetings that it follows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import (
    ABORTED_READ,
    CYCLIC_VERSIONS,
    DIRTY_UPDATE,
    FAIL,
    FUTURE_READ,
    INFO,
    INTERMEDIATE_READ,
    INTERNAL,
    NEVER,
    OK,
    READ,
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
    Groups,
    Links,
    gathered,
    link_direct,
    new_links,
    stand_after,
    stand_before,
)


@kernel
def read_registers(txns: Transactions, base: Int64, found: Findings) -> Written:
    """Find the writers, the transactions that happened, and the anomalies of single reads."""
    key_count = base.shape[0] - 1
    written = index_writers(txns, base, found)
    touched = np.full(key_count, -1, np.int32)
    latest = np.full(key_count, -1, np.int64)
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            external = touched[key] != t
            touched[key] = t
            if txns.kind[row] == READ:
                fresh = external or value != txns.value[latest[key]]
                if fresh and not external:
                    note(found, INTERNAL, t, row, latest[key])
                if fresh and value >= 0:
                    element = base[key] + value
                    if not holds(base, written.writer, key, value):
                        note(found, UNWRITTEN_READ, t, row, 0)
                    else:
                        _check_read(txns, written, t, row, element, found)
            latest[key] = row
    return written


@inner_kernel
def _check_read(txns: Transactions, written: Written, t: int, row: int, element: int, found: Findings) -> None:
    """Check one read of a value that another transaction wrote and that the reading transaction had not met before."""
    if is_rewritten(written, element):
        if shows_failed(written.rewrites, element, 1):
            note(found, ABORTED_READ, t, row, written.rewrites.aborted[element])
        return
    by = written.writer[element]
    if by == t:
        for later in range(row + 1, txns.first[t + 1]):
            if txns.kind[later] == WRITE and txns.key[later] == txns.key[row] and txns.value[later] == txns.value[row]:
                note(found, FUTURE_READ, t, row, later)
        return
    if not written.final[element]:
        note(found, INTERMEDIATE_READ, t, row, by)
    if txns.status[by] == FAIL:
        note(found, ABORTED_READ, t, row, by)
        for later in range(row + 1, txns.first[t + 1]):
            if txns.kind[later] == WRITE and txns.key[later] == txns.key[row]:
                note(found, DIRTY_UPDATE, by, t, txns.key[row])
                break
    elif txns.status[by] == INFO:
        written.happened[by] = True


class _RegistersMet(NamedTuple):
    """The latest contact of transactions with each key.

    touched: the last transaction that read or wrote it
    wrote: the last transaction that wrote it
    read: the version that the last transaction read first, or -1
    opened: the same version, or -1 if a later read of the key shows another one: this anomaly (internal) rules out
        every level that counts rw
    updated_by: per version, the transaction that read it and then wrote the key
    previous: per element, the version known to come before it, or -1
    """

    touched: Int32
    wrote: Int32
    read: Int64
    opened: Int64
    updated_by: Int32
    previous: Int64


@kernel
def link(txns: Transactions, base: Int64, written: Written, found: Findings) -> tuple[Edges, Groups]:
    """Find wr among transactions that happened, and groups for rw.  Each version is a group.

    The number of a version is that of its element, or elements + key for the initial state of a key.  Readers of the
    version come before its group.  Writers of versions that follow it come after the group.
    """
    key_count, elements = base.shape[0] - 1, base[base.shape[0] - 1]
    rows = txns.kind.shape[0]
    links = new_links(rows, rows, 2 * rows)
    met = _RegistersMet(
        np.full(key_count, -1, np.int32),
        np.full(key_count, -1, np.int32),
        np.full(key_count, -1, np.int64),
        np.full(key_count, -1, np.int64),
        np.full(elements + key_count, -1, np.int32),
        np.full(elements, -1, np.int64),
    )
    for t in range(txns.status.shape[0]):
        if not written.happened[t]:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if written.unusable[key] != 0:
                continue
            if txns.kind[row] == WRITE:
                _link_write(txns, base, written, met, t, row, links, found)
            elif txns.status[t] == OK:
                version = _link_writer(txns, base, written, t, row, links)
                if met.touched[key] != t:
                    met.touched[key] = t
                    met.read[key] = met.opened[key] = version
                elif version >= 0 and met.opened[key] != version:
                    met.opened[key] = -1
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if met.touched[key] == t and met.opened[key] >= 0:
                stand_before(links, t, met.opened[key], RW)
                met.opened[key] = -1
    _find_cyclic_versions(base, met.previous, found)
    return gathered(links)


@inner_kernel
def _link_writer(txns: Transactions, base: Int64, written: Written, t: int, row: int, links: Links) -> int:
    """Link a read of a key: wr from the writer.  Returns the version read, or -1."""
    key, value = txns.key[row], txns.value[row]
    if value < 0:
        return int(base[base.shape[0] - 1] + key)
    version = int(base[key] + value)
    by = int(written.writer[version]) if holds(base, written.writer, key, value) else -1
    if by < 0 or by == t or not written.happened[by]:
        return -1
    link_direct(links, by, t, WR)
    return version if written.final[version] else -1


@inner_kernel
def _link_write(
    txns: Transactions,
    base: Int64,
    written: Written,
    met: _RegistersMet,
    t: int,
    row: int,
    links: Links,
    found: Findings,
) -> None:
    """Link a write: it follows the initial state, and the version that its transaction had read."""
    key, elements = txns.key[row], base[base.shape[0] - 1]
    element = base[key] + txns.value[row]
    if met.touched[key] != t:
        met.touched[key] = t
        met.read[key] = -1
    version = met.read[key]
    if 0 <= version < elements and written.final[element]:
        met.previous[element] = version
    if met.wrote[key] == t:
        return
    met.wrote[key] = t
    stand_after(links, t, elements + key)
    if 0 <= version < elements:
        stand_after(links, t, version)
    if version >= 0:
        note_update(met.updated_by, version, t, row, found)


@kernel
def _find_cyclic_versions(base: Int64, previous: Int64, found: Findings) -> None:
    """Find versions that precede themselves, by walks along chains: each version has at most one known predecessor."""
    walk = np.full(previous.shape[0], -1, np.int64)
    key = 0
    for start in range(previous.shape[0]):
        while start >= base[key + 1]:
            key += 1
        element = start
        while element >= 0 and walk[element] < 0:
            walk[element] = start
            element = previous[element]
        if element >= 0 and walk[element] == start:
            note(found, CYCLIC_VERSIONS, key, previous[element] - base[key], element - base[key])


WRITES_AFTER_WRITES, WRITES_AFTER_ALL, ALL_AFTER_ALL = 0, 1, 2
"""The rules that decide which meetings order versions, in the order of the theory above."""

PAIRS_PER_MEETING_MAX = 32
"""Maximum number of concluded pairs per meeting.  Drawing fewer conclusions is sound."""


class Meetings(NamedTuple):
    """Meetings of transactions with versions, one per row, in order of invocation.

    version: the element
    wrote: True if the transaction wrote it, False if it read it
    completed: position, NEVER if the outcome is unknown"""

    txn: Int32
    key: Int32
    version: Int64
    wrote: Bools
    invoked: Int64
    completed: Int64


@kernel
def meetings_of(txns: Transactions, base: Int64, written: Written) -> Meetings:
    """List the meetings of transactions that happened.

    These are last writes of keys, and first reads of values that are other transactions' last writes.
    """
    rows = txns.kind.shape[0]
    txn, key_of = np.empty(rows, np.int32), np.empty(rows, np.int32)
    version, wrote = np.empty(rows, np.int64), np.empty(rows, np.bool_)
    touched = np.full(base.shape[0] - 1, -1, np.int32)
    n = 0
    for t in range(txns.status.shape[0]):
        if not written.happened[t]:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            first = touched[key] != t
            touched[key] = t
            if written.unusable[key] != 0 or not holds(base, written.writer, key, value):
                continue
            element = base[key] + value
            if not written.final[element]:
                continue
            by = written.writer[element]
            if txns.kind[row] == READ and (txns.status[t] != OK or not first or by == t or not written.happened[by]):
                continue
            txn[n], key_of[n], version[n], wrote[n] = t, key, element, txns.kind[row] != READ
            n += 1
    completed = np.empty(n, np.int64)
    for m in range(n):
        completed[m] = txns.completed[txn[m]] if txns.status[txn[m]] == OK else NEVER
    return Meetings(txn[:n], key_of[:n], version[:n], wrote[:n], txns.invoked[txn[:n]], completed)


@kernel
def versions_in_time(meetings: Meetings, order: Int64, first: Int64, rule: int) -> tuple[Int64, Int64]:
    """Return pairs of versions (earlier, later) of one key.

    order: the meetings by group, within a group in order of invocation; a group is a key, or a key and a process
    first: int64[groups + 1], where each group begins in `order`
    rule: one of the constants above
    """
    room = PAIRS_PER_MEETING_MAX * max(1, meetings.txn.shape[0])
    earlier, later = np.empty(room, np.int64), np.empty(room, np.int64)
    n = 0
    for group in range(first.shape[0] - 1):
        mine = order[first[group] : first[group + 1]]
        frontier = np.empty(mine.shape[0], np.int64)
        by_completion = mine[np.argsort(meetings.completed[mine])]
        size, completions = 0, 0
        for m in mine:
            while completions < by_completion.shape[0]:
                done = by_completion[completions]
                if meetings.completed[done] >= meetings.invoked[m]:
                    break
                size = _complete(meetings, frontier, size, done, rule)
                completions += 1
            if rule != ALL_AFTER_ALL and not meetings.wrote[m]:
                continue
            for i in range(size):
                before = frontier[i]
                if meetings.version[before] == meetings.version[m] or n == room:
                    continue
                earlier[n], later[n] = meetings.version[before], meetings.version[m]
                n += 1
    return earlier[:n], later[:n]


@kernel
def _complete(meetings: Meetings, frontier: Int64, size: int, done: int, rule: int) -> int:
    """Complete a meeting: it replaces the meetings that it follows.  Returns the size of the frontier."""
    read = not meetings.wrote[done]
    if read and rule == WRITES_AFTER_WRITES:
        return size
    if read and rule == WRITES_AFTER_ALL:  # it follows no other write, and one read per version is enough
        for i in range(size):
            if meetings.version[frontier[i]] == meetings.version[done]:
                return size
        frontier[size] = done
        return size + 1
    kept = 0
    for i in range(size):
        if meetings.completed[frontier[i]] >= meetings.invoked[done]:
            frontier[kept] = frontier[i]
            kept += 1
    frontier[kept] = done
    return kept + 1
