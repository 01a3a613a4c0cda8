"""Finds answers whose value had certainly been overwritten, in one pass over the events.

Theory.  Let an operation observe v.  In any order, the producer P of this v stands before it, and nothing between the
two changes v.  P is impossible if there is an operation X such that

  * P returned before X was called, and X returned before the observer was called;
  * X is in every order, and cannot stand where the register keeps holding v: a write of another value, a read of
    another value, any cas, or a mismatch with v.

If every P that was called before the observer returned is impossible, then nothing explains the observer.

Of all X that returned before the observer was called, only the one called last matters.  Of all P, only the one that
returned last matters.  The pass keeps both.  Every finding is certain, but not every violation is found.

O(operations + values).
"""

from __future__ import annotations

import numpy as np

from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, OPEN, WRITE
from checkers.kernels.registers.antichain_problem import KeyProblem

_EVERY = -1  # the label of a cas: it changes every value
_NEVER = -2


@kernel
def certainly_overwritten(problem: KeyProblem) -> int:
    """Return the place of the first return of an observer whose value no producer explains, or -1."""
    needed_after = np.empty(problem.kind.shape[0], np.int32)  # per observer: its producer returns after this place
    last_ret = np.full(problem.values, _NEVER, np.int32)  # per value: the last return of a producer
    last_ret[: problem.starts] = -1
    mismatched = np.full(problem.values, -1, np.int32)  # per value: last call of a mismatch that has returned
    best, best_label, second = -1, _EVERY, -1  # the last calls of X; the second has another label
    for place in range(problem.event.shape[0]):
        event = problem.event[place]
        if event >= 0:
            op = event
            kind, value = problem.kind[op], problem.seen[op]
            if kind == WRITE:
                last_ret[value] = max(last_ret[value], problem.deadline[op])
                continue
            if kind == CAS:
                last_ret[problem.made[op]] = max(last_ret[problem.made[op]], problem.deadline[op])
            if kind != MISMATCH and problem.deadline[op] != OPEN:
                others = second if best_label == value else best
                needed_after[op] = max(others, mismatched[value])
            continue
        op = -1 - event
        kind, value, call = problem.kind[op], problem.seen[op], problem.called[op]
        if kind != MISMATCH and kind != WRITE and last_ret[value] < needed_after[op]:
            return place
        if kind == MISMATCH:
            mismatched[value] = max(mismatched[value], call)
            continue
        label = _EVERY if kind == CAS else value
        if call > best:
            if label != best_label:
                second = best
            best, best_label = call, label
        elif label != best_label:
            second = max(second, call)
    return -1
