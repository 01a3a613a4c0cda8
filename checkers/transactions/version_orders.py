"""Orders versions of registers by time, under the model that the history is required to satisfy.

Reads alone show little of the order of a register's versions.  The required model shows more if it counts the order of
processes or real time: then some versions have the order in which transactions met them (`versions_in_time.py` explains
which, and why).  This order is certain *for that model only*.  A cycle built on it violates that model and every
stronger one, but proves nothing about weaker ones.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.transactions.columns import Transactions, Written
from checkers.kernels.transactions.dependencies import WW
from checkers.kernels.transactions.links import Groups
from checkers.kernels.transactions.versions_in_time import (
    ALL_AFTER_ALL,
    WRITES_AFTER_ALL,
    WRITES_AFTER_WRITES,
    Meetings,
    meetings_of,
    versions_in_time,
)
from checkers.transactions.anomalies import PLAIN, PROCESS, parts_of

_NOTHING = Groups(
    np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int8), np.empty(0, np.int32), np.empty(0, np.int32)
)

_RULES = {
    "read-uncommitted": WRITES_AFTER_WRITES,
    "read-committed": WRITES_AFTER_ALL,
    "read-atomic": WRITES_AFTER_ALL,  # a session may read a version, and then an earlier one
}


def orders_under(consistency: str, txns: Transactions, base: Int64, written: Written, orders: Groups) -> Groups | None:
    """Return `orders` with the additions that time allows under a consistency model; None if it counts no time."""
    model, variant = parts_of(consistency)
    if variant == PLAIN:
        return None
    if model == "read-uncommitted":
        orders = _NOTHING  # this model lets reads show anything, so they prove no order
    meetings = meetings_of(txns, base, written)
    order, first = _grouped(meetings, txns.process[meetings.txn] if variant == PROCESS else None)
    earlier, later = versions_in_time(meetings, order, first, _RULES.get(model, ALL_AFTER_ALL))
    by, then = written.writer[earlier], written.writer[later]
    others = by != then
    by, then, earlier = by[others], then[others], earlier[others]
    count = np.int64(len(txns.status))
    before = _missing(earlier * count + by, orders.before_group.astype(np.int64) * count + orders.before)
    after = _missing(earlier * count + then, orders.after_group.astype(np.int64) * count + orders.after)
    return Groups(
        _joined(orders.before, before % count),
        _joined(orders.before_group, before // count),
        np.concatenate([orders.before_kind, np.full(len(before), WW, np.int8)]),
        _joined(orders.after, after % count),
        _joined(orders.after_group, after // count),
    )


def _grouped(meetings: Meetings, process: Int32 | None) -> tuple[Int64, Int64]:
    """Group the meetings by key, and by process if given; returns (their order, where each group begins)."""
    keys = meetings.key if process is None else np.stack([process, meetings.key])
    order = np.argsort(keys, kind="stable") if process is None else np.lexsort(keys)
    changes: Bools = np.zeros(max(0, len(order) - 1), np.bool_)
    for column in (meetings.key, process):
        if column is not None:
            changes |= column[order][1:] != column[order][:-1]
    first = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(order)]]) if len(order) else np.zeros(1, np.int64)
    return order.astype(np.int64), first.astype(np.int64)


def _missing(found: Int64, known: Int64) -> Int64:
    return np.setdiff1d(found, known)


def _joined(known: Int32, added: Int64) -> Int32:
    return np.concatenate([known, added.astype(np.int32)])
