"""Replays an order of transactions and compares every read with the value that it should show.

This module shares no code with the search that found the order.  It reads the micro-operations themselves, tracks the
state of every key, and executes one event after another.  A verdict is *valid* only for an order that passes here.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import NEVER, NIL_VALUE, OK, WRITE, Transactions

FITS = -1
"""The order explains every read, and respects sessions and real time."""


@kernel
def replay_registers(txns: Transactions, order: Int32, key_count: int, snapshots: bool, skipped: Bools) -> int:
    """Return FITS, or the place of the first event that contradicts the history.

    order: transactions, or 2 t for a start and 2 t + 1 for a commit
    skipped: per key, True if it is not judged
    """
    held = np.full(key_count, NIL_VALUE, np.int32)
    written_at = np.full(key_count, -1, np.int64)
    own, own_of = np.empty(key_count, np.int32), np.full(key_count, -1, np.int64)
    started = np.full(txns.status.shape[0], -1, np.int64)
    for at in range(order.shape[0]):
        t = order[at] // 2 if snapshots else order[at]
        if not snapshots or order[at] % 2 == 0:
            if started[t] >= 0:
                return at
            started[t] = at
            for row in range(txns.first[t], txns.first[t + 1]):
                key, value = txns.key[row], txns.value[row]
                if txns.kind[row] == WRITE:
                    own[key], own_of[key] = value, t
                elif (
                    txns.status[t] == OK and not skipped[key] and value != (own[key] if own_of[key] == t else held[key])
                ):
                    return at
        if not snapshots or order[at] % 2 == 1:
            if started[t] < 0:
                return at
            for row in range(txns.first[t], txns.first[t + 1]):
                key = txns.key[row]
                if txns.kind[row] == WRITE:
                    if started[t] < written_at[key] < at and not skipped[key]:
                        return at
                    held[key], written_at[key] = txns.value[row], at
    return FITS


@kernel
def replay_lists(txns: Transactions, base: Int64, order: Int32, snapshots: bool, skipped: Bools) -> int:
    """Replay lists like `replay_registers`.  base: where the elements of each key begin."""
    key_count = base.shape[0] - 1
    room = np.zeros(key_count + 1, np.int64)
    for row in range(txns.kind.shape[0]):
        if txns.kind[row] == WRITE:
            room[txns.key[row] + 1] += 1
    for key in range(key_count):
        room[key + 1] += room[key]
    held = np.empty(room[key_count], np.int32)
    size = np.zeros(key_count, np.int64)
    written_at = np.full(key_count, -1, np.int64)
    own_of, own_rows = np.full(key_count, -1, np.int64), np.zeros(key_count, np.int64)
    started = np.full(txns.status.shape[0], -1, np.int64)
    for at in range(order.shape[0]):
        t = order[at] // 2 if snapshots else order[at]
        if not snapshots or order[at] % 2 == 0:
            if started[t] >= 0:
                return at
            started[t] = at
            for row in range(txns.first[t], txns.first[t + 1]):
                key = txns.key[row]
                if own_of[key] != t:
                    own_of[key], own_rows[key] = t, 0
                if txns.kind[row] == WRITE:
                    own_rows[key] += 1
                elif txns.status[t] == OK and not skipped[key]:
                    first = txns.list_first[row]
                    if txns.list_first[row + 1] - first != size[key] + own_rows[key]:
                        return at
                    if not _same(txns.lists, first, held, room[key], size[key]):
                        return at
                    if not _ends_with_own(txns, t, row, key, own_rows[key]):
                        return at
        if not snapshots or order[at] % 2 == 1:
            if started[t] < 0:
                return at
            for row in range(txns.first[t], txns.first[t + 1]):
                key = txns.key[row]
                if txns.kind[row] == WRITE:
                    if started[t] < written_at[key] < at and not skipped[key]:
                        return at
                    held[room[key] + size[key]], written_at[key] = txns.value[row], at
                    size[key] += 1
    return FITS


@inner_kernel
def _same(lists: Int32, a: int, held: Int32, b: int, size: int) -> bool:
    first, second = np.uint64(a), np.uint64(b)
    different = False
    for i in range(np.uint64(size)):
        different |= lists[first + i] != held[second + i]
    return not different


@inner_kernel
def _ends_with_own(txns: Transactions, t: int, row: int, key: int, count: int) -> bool:
    """Return True if the list that a row read ends with the transaction's own earlier appends, `count` of them."""
    if count == 0:
        return True
    at = txns.list_first[row + 1] - count
    for earlier in range(txns.first[t], row):
        if txns.kind[earlier] == WRITE and txns.key[earlier] == key:
            if txns.lists[at] != txns.value[earlier]:
                return False
            at += 1
    return True


@kernel
def reads_after_writes(txns: Transactions, base: Int64, order: Int32, skipped: Bools) -> bool:
    """Return True if each value that a transaction reads was written before it in the order, or by itself."""
    written = np.zeros(base[-1], np.bool_)
    for t in order:
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            if txns.kind[row] == WRITE:
                written[base[key] + value] = True
            elif txns.status[t] == OK and not skipped[key]:
                if value >= 0 and not written[base[key] + value]:
                    return False
                for at in range(txns.list_first[row], txns.list_first[row + 1]):
                    if not written[base[key] + txns.lists[at]]:
                        return False
    return True


@kernel
def keeps_sessions(process: Int32, order: Int32, snapshots: bool, process_count: int) -> bool:
    """Return True if the order keeps the order of the transactions of each process.

    process: numbered from 0, in order of invocation
    """
    latest = np.full(process_count, -1, np.int64)
    running = np.full(process_count, -1, np.int64)
    for at in range(order.shape[0]):
        t = order[at] // 2 if snapshots else order[at]
        p = process[t]
        if not snapshots or order[at] % 2 == 0:
            if running[p] >= 0 or t <= latest[p]:
                return False
            running[p] = t
        if not snapshots or order[at] % 2 == 1:
            if running[p] != t:
                return False
            running[p], latest[p] = -1, t
    return True


@kernel
def keeps_real_time(txns: Transactions, order: Int32, snapshots: bool) -> bool:
    """Return True if the order respects real time: a transaction starts only after every transaction that completed
    before its invoke has committed."""
    first_end = NEVER
    for at in range(order.shape[0] - 1, -1, -1):
        t = order[at] // 2 if snapshots else order[at]
        if (not snapshots or order[at] % 2 == 0) and txns.invoked[t] > first_end:
            return False
        if not snapshots or order[at] % 2 == 1:
            first_end = min(first_end, txns.completed[t])
    return True
