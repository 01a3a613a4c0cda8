"""Sorts rows by small numbers, by counting: the compressed rows of graphs, keys and operations."""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import kernel


@kernel
def grouped(group_of: Int32, count: int) -> tuple[Int64, Int32]:
    """Return (first, rows): the rows of group g, in order, are rows[first[g]:first[g + 1]].

    group_of: int32 per row, below `count`; rows of a negative group are left out.  O(rows + count).
    """
    first = np.zeros(count + 1, np.int64)
    for row in range(group_of.shape[0]):
        if group_of[row] >= 0:
            first[group_of[row] + 1] += 1
    for group in range(count):
        first[group + 1] += first[group]
    cursor = first[:count].copy()
    rows = np.empty(first[count], np.int32)
    for row in range(group_of.shape[0]):
        group = group_of[row]
        if group >= 0:
            rows[cursor[group]] = row
            cursor[group] += 1
    return first, rows


def members(first: Int64, chosen: Int64) -> tuple[Int64, Int64]:
    """Return (the members of some groups, one group after another; where each of these groups begins, and the end).

    first: where each group begins, and the end.  chosen: numbers of groups."""
    sizes = np.diff(first)[chosen]
    begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return np.repeat(first[:-1][chosen] - begins[:-1], sizes) + np.arange(begins[-1]), begins
