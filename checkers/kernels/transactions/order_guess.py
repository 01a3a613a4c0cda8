"""Guesses the order in which transactions took effect: where each event probably belongs.

A search for an order tries events by this guess, and a good guess needs no step back.  Any guess is sound.

A transaction probably commits when it completes.  One of unknown outcome commits before the first reader of its writes.
Under snapshot isolation a start is probably the invoke.  In a serial database it is rather just before the commit.
Time stamps of the system show both exactly (Chronos and Aion, ICDE 2025).
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.transactions.columns import NEVER, Transactions
from checkers.kernels.transactions.order_problem import OrderProblem
from checkers.kernels.transactions.order_search import Guess, Time

_ROUNDS = 3
"""How often the position of unknown outcomes is improved by that of their successors."""


def guess_of(
    txns: Transactions, problem: OrderProblem, *, snapshots: bool, starts_early: bool = True, begin: Int64 | None = None
) -> Guess:
    """Return the ranks of all events.

    starts_early: whether a start is the invoke, or just before the commit.  begin: positions of the starts, if they are
    known better than by the invokes.
    """
    end = _ends(txns, problem)
    if not snapshots:
        return ranked(end, problem.happened)
    moments = np.empty(2 * len(end), np.int64)
    moments[1::2] = 2 * end
    early = 2 * txns.invoked if begin is None else 2 * begin + 1
    moments[0::2] = np.minimum(early, moments[1::2] - 1) if starts_early else moments[1::2] - 1
    return ranked(moments, np.repeat(problem.happened, 2))


def ranked(moments: Int64, happened: Bools) -> Guess:
    """Return the ranks of events by these moments, those of equal ones in the order of the events."""
    by_rank = np.argsort(moments, kind="stable").astype(np.int32)
    by_rank = by_rank[happened[by_rank]]
    rank = np.full(len(moments), -1, np.int32)
    rank[by_rank] = np.arange(len(by_rank), dtype=np.int32)
    return Guess(rank, by_rank)


@kernel
def _ends(txns: Transactions, problem: OrderProblem) -> Int64:
    end = txns.completed.copy()
    for _ in range(_ROUNDS):
        for t in range(end.shape[0] - 1, -1, -1):
            if txns.completed[t] != NEVER or not problem.happened[t]:
                continue
            for v in range(problem.write_first[t], problem.write_first[t + 1]):
                for i in range(problem.reader_first[v], problem.reader_first[v + 1]):
                    end[t] = min(end[t], end[problem.reader[i]])
            for i in range(problem.after.first[t], problem.after.first[t + 1]):
                end[t] = min(end[t], end[problem.after.target[i]])
    for t in range(end.shape[0]):
        if end[t] == NEVER:
            end[t] = txns.invoked[t]
    return end


@kernel
def no_time() -> Time:
    return Time(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))


def real_time(txns: Transactions, problem: OrderProblem) -> Time:
    """Return the invokes and completions of transactions that happened."""
    by_end = np.flatnonzero(problem.happened & (txns.completed != NEVER)).astype(np.int32)
    by_end = by_end[np.argsort(txns.completed[by_end], kind="stable")]
    end_rank: Int32 = np.full(len(txns.completed), -1, np.int32)
    end_rank[by_end] = np.arange(len(by_end), dtype=np.int32)
    return Time(txns.invoked, by_end, end_rank, txns.completed[by_end])
