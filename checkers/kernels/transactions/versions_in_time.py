"""Concludes which versions of a register certainly follow others, from the order in which transactions met them.

Theory.  A transaction *meets* a version if it wrote it or read it.  Let a transaction that met v complete before
another that met w was invoked.  Where real time counts, w before v would then be a cycle, whose class depends on the
two meetings:

    wrote v, wrote w    ww and real time: G0              wrong for every model
    read v, wrote w     ww, wr and real time: G1c         wrong from read-committed on
    any, read w         the same with one rw: G-single    wrong for repeatable-read and snapshot-isolation on

So v comes before w if the required model forbids that class: the opposite order would itself be a violation.  The same
holds for transactions of one process if the order of processes counts.

There are quadratically many such pairs, so pairs that follow from others are left out.  A *frontier* holds meetings
that completed.  A transaction follows the whole frontier at its invoke.  When it completes, it replaces the meetings
that it follows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.transactions.columns import NEVER, OK, READ, Transactions, Written, holds

WRITES_AFTER_WRITES, WRITES_AFTER_ALL, ALL_AFTER_ALL = 0, 1, 2
"""The rules that decide which meetings order versions, in the order of the theory above."""

PAIRS_PER_MEETING_MAX = 32
"""The largest number of pairs that are concluded.  Drawing fewer conclusions is sound."""


class Meetings(NamedTuple):
    """One row per meeting, in order of invocation.

    version: the element.  wrote: True if the transaction wrote it, False if it read it.
    completed: position, NEVER if the outcome is unknown."""

    txn: Int32
    key: Int32
    version: Int64
    wrote: Bools
    invoked: Int64
    completed: Int64


@kernel
def meetings_of(txns: Transactions, base: Int64, written: Written) -> Meetings:
    """List the meetings of transactions that happened.

    These are last writes of keys, and first reads of values that other transactions wrote last.
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

    order: the meetings by group, within a group in order of invocation.  A group is a key, or a key and a process.
    first: int64[groups + 1], where each group begins in `order`.  rule: one of the constants above.
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
    """Let a meeting complete: it replaces the meetings that it follows.  Returns the size of the frontier."""
    read = not meetings.wrote[done]
    if read and rule == WRITES_AFTER_WRITES:
        return size
    if read and rule == WRITES_AFTER_ALL:  # it certainly follows nothing, and one read of a version is enough
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
