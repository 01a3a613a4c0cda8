"""Looks for a serial order of registers' transactions that follows what reads show and real time; it builds no graph.

Most histories have such an order, and then they show no cycle of any name.  The edges of `rw_register.link` would show
the same, but they take several times as long to collect, and only names of anomalies need them.

A transaction waits for the writers of what it read, for the readers of the initial state of a key that it writes, and
for the other readers of a version that it read and then overwrote.  The search places transactions in the order of
their completions, each after those that it waits for.  If one that is placed for an earlier completion was invoked
after it, or if a transaction waits for itself, there is a cycle.  Otherwise the order keeps real time, because all that
completed before an invocation were placed before.  O(micro-operations + events).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import NEVER, OK, READ, WRITE, Transactions, Written

_OPEN, _PLACED = 1, 2


class _Readers(NamedTuple):
    """Readers of the versions that some transaction overwrites after all of them, in one linked list for each version.

    overwritten_later: per row, whether it is a first read of a key that its transaction writes later.
    head: int32 per version (numbered as in `rw_register.link`), its first entry or -1.
    following, reader: int32 per entry, the next entry of the list or -1, and the transaction.
    """

    overwritten_later: Bools
    head: Int32
    following: Int32
    reader: Int32


class _Shown(NamedTuple):
    """What says for whom a transaction waits."""

    txns: Transactions
    base: Int64
    written: Written
    readers: _Readers


class _Walk(NamedTuple):
    """state: int8 per transaction, _OPEN or _PLACED, or 0 before.

    path, cursor: room for the transactions that wait for one another, and the row that each has come to.
    """

    state: Int8
    path: Int32
    cursor: Int64


@kernel
def is_serial_in_time(txns: Transactions, base: Int64, written: Written, event_count: int) -> bool:
    """Whether there is such an order, so that neither dependencies nor real time have a cycle.

    written: from `rw_register.read_registers`, which found nothing wrong with single reads and no value written twice.
    event_count: above all positions.
    """
    m = txns.status.shape[0]
    shown = _Shown(txns, base, written, _readers_to_wait_for(txns, base, written))
    ending = np.full(event_count, -1, np.int32)
    for t in range(m):
        if txns.status[t] == OK:
            ending[txns.completed[t]] = t
    walk = _Walk(np.zeros(m, np.int8), np.empty(m, np.int32), np.empty(m, np.int64))
    for position in range(event_count):
        root = ending[position]
        if root >= 0 and not _place(shown, root, position, walk):
            return False
    for t in range(m):
        if written.happened[t] and not _place(shown, t, NEVER, walk):
            return False
    return True


@kernel
def _readers_to_wait_for(txns: Transactions, base: Int64, written: Written) -> _Readers:
    key_count, elements, rows = base.shape[0] - 1, base[base.shape[0] - 1], txns.kind.shape[0]
    touched, read_at = np.full(key_count, -1, np.int32), np.full(key_count, -1, np.int64)
    overwritten_later, updated = np.zeros(rows, np.bool_), np.zeros(elements, np.bool_)
    for t in range(txns.status.shape[0]):
        if not written.happened[t]:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if txns.kind[row] == WRITE:
                if touched[key] == t and read_at[key] >= 0 and txns.value[read_at[key]] >= 0:
                    overwritten_later[read_at[key]] = True
                    updated[base[key] + txns.value[read_at[key]]] = True
                touched[key], read_at[key] = t, -1
            elif txns.status[t] == OK and touched[key] != t:
                touched[key], read_at[key] = t, row
    head = np.full(elements + key_count, -1, np.int32)
    following, reader = np.empty(rows, np.int32), np.empty(rows, np.int32)
    touched[:] = -1
    n = 0
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            first = touched[key] != t
            touched[key] = t
            if txns.kind[row] != READ or not first or (value >= 0 and not updated[base[key] + value]):
                continue
            version = base[key] + value if value >= 0 else elements + key
            following[n], reader[n] = head[version], t
            head[version] = n
            n += 1
    return _Readers(overwritten_later, head, following, reader)


@inner_kernel
def _place(shown: _Shown, root: int, end: int, walk: _Walk) -> bool:
    """Place a transaction that completed at position `end`, and before it all that it waits for; False on a cycle."""
    txns, state, path, cursor = shown.txns, walk.state, walk.path, walk.cursor
    if state[root] == _PLACED:
        return True
    path[0], cursor[0], state[root] = root, txns.first[root], _OPEN
    depth = 0
    while depth >= 0:
        t = path[depth]
        other, cursor[depth] = _waits_for(shown, t, cursor[depth], state)
        if other < 0:
            state[t] = _PLACED
            depth -= 1
        elif state[other] == _OPEN or txns.invoked[other] > end:
            return False
        else:
            depth += 1
            path[depth], cursor[depth], state[other] = other, txns.first[other], _OPEN
    return True


@inner_kernel
def _waits_for(shown: _Shown, t: int, row: int, state: Int8) -> tuple[int, int]:
    """Return (a transaction that t waits for at this row or a later one, or -1; that row)."""
    txns, base, written, readers = shown
    elements = base[base.shape[0] - 1]
    while row < txns.first[t + 1]:
        key, value = txns.key[row], txns.value[row]
        other = -1
        if txns.kind[row] == WRITE:
            other = _unplaced_reader(readers, elements + key, t, state)
        elif txns.status[t] == OK and value >= 0:
            by = written.writer[base[key] + value]
            if by != t and state[by] != _PLACED:
                other = by
            elif readers.overwritten_later[row]:
                other = _unplaced_reader(readers, base[key] + value, t, state)
        if other >= 0:
            return other, row
        row += 1
    return -1, row


@inner_kernel
def _unplaced_reader(readers: _Readers, version: int, t: int, state: Int8) -> int:
    """Return a reader of the version other than t that is not placed, or -1.  Takes those that are placed off the list.

    The entry of t moves behind others, so that no entry is looked at twice.
    """
    entry = readers.head[version]
    while entry >= 0:
        reader, following = readers.reader[entry], readers.following[entry]
        if reader == t:
            if following < 0:
                return -1
            readers.reader[entry], readers.reader[following] = readers.reader[following], reader
        elif state[reader] == _PLACED:
            entry = following
            readers.head[version] = entry
        else:
            return int(reader)
    return -1
