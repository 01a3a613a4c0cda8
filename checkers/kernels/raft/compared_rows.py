"""Compares rows of logs, traces and histories: pure functions over columns, in process and on Spark alike.

Each function answers one question.  Do two rows disagree that must agree?  Does one order respect another?  How far is
a log durable after each row of its trace?
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int64
from checkers.kernels.jit import kernel

NOWHERE = -1
"""Stands for a row, position or offset that does not exist."""


@kernel
def lowest(begins: Int64, values: Int64) -> Int64:
    """Return the position of the lowest value of each group; the first one if several are equal.

    Group i begins at begins[i] and ends where the next one begins.
    """
    found = np.empty(begins.shape[0], np.int64)
    for group in range(begins.shape[0]):
        stop = begins[group + 1] if group + 1 < begins.shape[0] else values.shape[0]
        best = begins[group]
        for i in range(begins[group] + 1, stop):
            if values[i] < values[best]:
                best = i
        found[group] = best
    return found


def disagreements(keys: Int64, values: Int64) -> tuple[Int64, Int64]:
    """Find rows with equal keys and different values.

    Returns (rows, other rows), in order of the key: for each such key its first row, and the first row with another
    value.
    """
    if len(keys) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    begins = np.concatenate(([True], sorted_keys[1:] != sorted_keys[:-1]))
    first_row = order[np.flatnonzero(begins)][np.cumsum(begins) - 1]
    differs = np.flatnonzero(values[order] != values[first_row])
    _, one_per_key = np.unique(sorted_keys[differs], return_index=True)
    picked = differs[one_per_key]
    return first_row[picked].astype(np.int64), order[picked].astype(np.int64)


def out_of_order(invoked: Int64, completed: Int64) -> tuple[int, int] | None:
    """Return positions (earlier, later) in the log such that the later one completed before the earlier was invoked.

    invoked, completed: of operations in log order; `completed` is beyond every index for an open operation.
    Returns None if the order respects real time.
    """
    if len(invoked) < 2:
        return None
    latest_call = np.maximum.accumulate(invoked)[:-1]
    wrong = np.flatnonzero(completed[1:] < latest_call)
    if len(wrong) == 0:
        return None
    later = int(wrong[0]) + 1
    return int(np.argmax(invoked[:later])), later


APPEND, FLUSH, TRUNCATE, START, OTHER = 1, 2, 3, 4, 5
"""Trace events as numbers; OTHER: any event that changes no log."""


@kernel
def durable_ends(events: Int64, offsets: Int64) -> Int64:
    """Return the log end that is certainly durable after each row of a trace, in seq order.

    events: as numbered above; offsets: -1 where null.
    """
    durable = np.empty(events.shape[0], np.int64)
    flushed = np.int64(0)
    for i in range(events.shape[0]):
        if events[i] == FLUSH:
            flushed = offsets[i]
        elif events[i] == TRUNCATE or events[i] == START:
            flushed = min(flushed, offsets[i])
        durable[i] = flushed
    return durable
