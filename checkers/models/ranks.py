"""The rank check: one sweep decides linearizability if the order of the operations is known, except for ties.

Suppose that every order which explains the answers puts lower ranks before higher ranks, and that any order inside a
rank explains them.  Then the history is linearizable iff no operation returns before one of *lower* rank is called.
(Proof: put the operations in order of rank, and then of call.  Each stands after all that returned before its call.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Ranked(NamedTuple):
    """One operation.

    rank: its rank, of any size.  call, ret: event indices; ret is `model.NEVER` if it never returned.
    must_precede: whether higher ranks must follow this operation.  False if another of its rank does its part already.
    """

    rank: int
    call: int
    ret: int
    must_precede: bool = True


def out_of_order(operations: Sequence[Ranked]) -> tuple[int, int] | None:
    """The places of two operations: the first has the higher rank, and returned before the second was called.

    Returns None if there is no such pair.  Of several pairs, returns one whose first operation returned earliest.
    O(n log n).
    """
    if not operations:
        return None
    place_of = {rank: place for place, rank in enumerate(sorted({o.rank for o in operations}))}
    rank = np.array([place_of[o.rank] for o in operations], np.int64)
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
