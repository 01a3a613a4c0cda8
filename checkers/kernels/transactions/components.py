"""Finds the connected components of transactions.

Two transactions are joined if they touch one key, and also, if sessions count, if one process ran both.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel


@kernel
def components(first: Int64, key: Int32, key_count: int, process: Int32, process_count: int) -> Int32:
    """Return for each transaction the number of its component (int32, from 0, in order of their first transactions).

    first: int64[transactions + 1], rows of each transaction.  key: int32[rows].  process: int32[transactions].
    process_count: 0 if sessions do not join.  Cost: nearly linear (union by the smaller number, paths halved).
    """
    count = len(first) - 1
    joined = np.arange(count).astype(np.int32)
    of_key = np.full(key_count, -1, np.int32)
    of_process = np.full(process_count, -1, np.int32)
    for t in range(count):
        if process_count:
            if of_process[process[t]] >= 0:
                _join(joined, of_process[process[t]], t)
            of_process[process[t]] = t
        for row in range(first[t], first[t + 1]):
            if of_key[key[row]] >= 0:
                _join(joined, of_key[key[row]], t)
            of_key[key[row]] = t
    numbers = np.empty(count, np.int32)
    found = 0
    for t in range(count):
        root = _root(joined, t)
        if root == t:
            numbers[t] = found
            found += 1
        else:
            numbers[t] = numbers[root]
    return numbers


@inner_kernel
def _root(joined: Int32, t: int) -> int:
    while joined[t] != t:
        joined[t] = joined[joined[t]]
        t = joined[t]
    return t


@inner_kernel
def _join(joined: Int32, a: int, b: int) -> None:
    a, b = _root(joined, a), _root(joined, b)
    if a < b:
        joined[b] = a
    else:
        joined[a] = b
