"""Whether answers repeat what was invoked, for functions that fix the value of their answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.jit import kernel

_INVOKE, _OK = int(Type.INVOKE), int(Type.OK)


class Invoked(NamedTuple):
    """The values that each process invoked last, by its dense number: int64 each."""

    value: Int64
    value2: Int64


def nothing_invoked(count: int) -> Invoked:
    """The state before the first row, of so many processes."""
    return Invoked(np.zeros(count, np.int64), np.zeros(count, np.int64))


def with_more(invoked: Invoked, count: int) -> Invoked:
    """The same with room for so many processes."""
    known, more = len(invoked.value), nothing_invoked(count)
    more.value[:known], more.value2[:known] = invoked
    return more


@kernel
def mark_contradictions(
    mine: Bools, process: Int32, type_: Int8, value: Int64, value2: Int64, says: Bools, invoked: Invoked, wrong: Bools
) -> None:
    """Set `wrong` at every ok whose values are not those of its invoke.  O(rows).

    The columns hold consecutive rows of a history whose grammar holds.  mine: rows of functions that fix their answer.
    process: dense.  says: whether a row has any value; an answer without one contradicts nothing.
    invoked: brought up to date, so a history may be handed in piece by piece.
    """
    for i in range(mine.shape[0]):
        if not mine[i]:
            continue
        p = process[i]
        if type_[i] == _INVOKE:
            invoked.value[p], invoked.value2[p] = value[i], value2[i]
        elif type_[i] == _OK and says[i] and (value[i] != invoked.value[p] or value2[i] != invoked.value2[p]):
            wrong[i] = True
