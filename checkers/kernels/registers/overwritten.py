"""Values that had certainly been overwritten: answers that no order explains, found in one pass.

Theory.  Say an operation observes v.  In any order, what produced v for it, P, stands before it, and nothing between
the two leaves v.  So P cannot have served if P returned before X was called, X returned before the observer was called,
and X is in every order and cannot stand where the register holds v all the while: a write of another value, a read or
a cas of another one, any cas at all, a mismatch with v.  If that holds for every P called before the observer returned
then nothing explains the observer.

Of all X that had returned before the observer was called only the one called last matters, and of all P only the one
that returned last: they are kept while the events pass by.  What is found is certain; what is wrong need not be found.

O(operations + values).
"""

from __future__ import annotations

import numpy as np

from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, OPEN, WRITE
from checkers.kernels.registers.antichain_problem import Problem

_EVERY = -1  # the label of a cas: it leaves every value there is
_NEVER = -2


@kernel
def certainly_overwritten(problem: Problem) -> int:
    """Place of the first return of an observer whose value nothing can have produced for it; -1 if there is none."""
    needed_after = np.empty(problem.kind.shape[0], np.int32)  # per observer: its producer returned later than this
    last_ret = np.full(problem.values, _NEVER, np.int32)  # per value, of what produced it
    last_ret[: problem.starts] = -1
    mismatched = np.full(problem.values, -1, np.int32)  # per value, last call of a mismatch with it that returned
    best, best_label, second = -1, _EVERY, -1  # last calls of an X; the second best of another label
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
