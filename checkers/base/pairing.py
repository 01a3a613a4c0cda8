"""Pairs the invokes of a history with their completions on whole columns; `history.paired` does it row by row.

It stands apart from `columns.py`, which commands import that must begin without NumPy.
"""

from __future__ import annotations

import numpy as np

from checkers.base.history import Type


def paired_rows(index: np.ndarray, process: np.ndarray, type_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The columnar form of `history.paired`: (row of each invoke, row of its completion), in order of invocation.

    index, process, type_: columns of a history, of one length, in any order of rows.  A row is a position in them;
    -1 is the completion of an open operation.  Cost: a sort of the rows.
    """
    order = np.lexsort((index, process))
    invokes = np.flatnonzero(type_[order] == Type.INVOKE)
    following = np.minimum(invokes + 1, len(order) - 1)
    ends = (following > invokes) & (process[order[following]] == process[order[invokes]])
    ends &= type_[order[following]] != Type.INVOKE
    first = order[invokes]
    by_index = np.argsort(index[first], kind="stable")
    return first[by_index], np.where(ends, order[following], -1)[by_index]
