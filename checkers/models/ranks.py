"""The rank check: one sweep decides linearizability if every operation's place in the order is known up to ties.

If all orders that explain the answers put operations of lower rank before those of higher rank, and any order inside a
rank will do, then the history is linearizable iff no operation returns before one of *lower* rank is called.  (If none
does, put them in order of rank, then of call: each stands after all that returned before it was called.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NEVER = 2**62
"""`ret` of what never returned."""


class Ranked(NamedTuple):
    """rank; call and ret as event indices; must_precede: False if something else of its rank already took its part."""

    rank: int
    call: int
    ret: int
    must_precede: bool = True


def out_of_order(operations: Sequence[Ranked]) -> tuple[int, int] | None:
    """The places of two operations: the first has the higher rank, and returned before the second was called.

    None if there are no such two.  Of several firsts, the one that returned earliest.  O(n log n).
    """
    if not operations:
        return None
    rank = np.array([o.rank for o in operations], np.int64)
    call = np.array([o.call if o.must_precede else -1 for o in operations], np.int64)
    ret = np.array([o.ret for o in operations], np.int64)
    order = np.argsort(rank, kind="stable")
    latest = np.maximum.accumulate(call[order])
    first_of_rank = np.searchsorted(rank[order], rank[order], side="left")
    lower = np.where(first_of_rank > 0, latest[np.maximum(first_of_rank - 1, 0)], -1)
    wrong = np.flatnonzero(ret[order] < lower)
    if not len(wrong):
        return None
    at = wrong[np.argmin(ret[order][wrong])]
    before = order[: first_of_rank[at]]
    return int(order[at]), int(before[np.argmax(call[before])])
