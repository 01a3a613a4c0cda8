"""Compares answers with invokes, for functions whose answer must repeat the value of the invoke."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.jit import kernel

_INVOKE, _OK = int(Type.INVOKE), int(Type.OK)


class Values(NamedTuple):
    """The two values of each row, or of what each process invoked last, by its dense number: int64 each."""

    value: Int64
    value2: Int64


def nothing_invoked(count: int) -> Values:
    """Return the state before the first row, with room for `count` processes."""
    return Values(np.zeros(count, np.int64), np.zeros(count, np.int64))


def with_more(invoked: Values, count: int) -> Values:
    """Return the same state with room for `count` processes."""
    known, more = len(invoked.value), nothing_invoked(count)
    more.value[:known], more.value2[:known] = invoked
    return more


@kernel
def mark_contradictions(
    mine: Bools, process: Int32, type_: Int8, values: Values, invoked: Values, wrong: Bools
) -> None:
    """Set `wrong` at every ok whose values differ from those of its invoke.  O(rows).

    The columns hold consecutive rows of a history that follows the grammar.
    mine: rows of functions whose answer repeats the invoke, without answers that have no value: these contradict
    nothing.  process: dense.
    invoked: the function updates it, so a caller may pass a history piece by piece.
    """
    for i in range(mine.shape[0]):
        if not mine[i]:
            continue
        p = process[i]
        if type_[i] == _INVOKE:
            invoked.value[p], invoked.value2[p] = values.value[i], values.value2[i]
        elif type_[i] == _OK and (values.value[i] != invoked.value[p] or values.value2[i] != invoked.value2[p]):
            wrong[i] = True
