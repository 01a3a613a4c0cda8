"""The starts of searches for cycles: the edges that the sweep had to break, once for each kind they stand for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.transactions.dependencies import Graph, Reverse


class Starts(NamedTuple):
    """Broken edges, one row for each kind that an edge stands for; an edge from a group may stand for two kinds.

    edge, source: numbers in the graph.  kind: int8.  low, high: int32, bounds of the ranks that a search may visit.
    """

    edge: Int64
    source: Int32
    kind: Int8
    low: Int32
    high: Int32


@kernel
def starts_of(broken: Int64, graph: Graph, backward: Reverse, rank: Int32, txn_count: int) -> Starts:
    """Make a start for each broken edge and kind, with the bounds of the edge itself, in order of their span."""
    n = broken.shape[0]
    source = np.empty(2 * n, np.int32)
    edge = np.empty(2 * n, np.int64)
    kind = np.empty(2 * n, np.int8)
    reach = np.empty(2 * n, np.int32)
    count = 0
    for i in range(n):
        target = graph.target[broken[i]]
        by = np.int32(-1)
        for e in range(backward.first[target], backward.first[target + 1]):
            if backward.edge[e] == broken[i]:
                by = backward.source[e]
        kinds = 0
        if by < txn_count:
            kinds = graph.kind[broken[i]]
        else:
            for e in range(backward.first[by], backward.first[by + 1]):
                if rank[backward.source[e]] > rank[target]:
                    kinds |= graph.kind[backward.edge[e]]
        for bit in (1, 2, 4):
            if kinds & bit != 0:
                source[count], edge[count], kind[count] = by, broken[i], bit
                reach[count] = rank[by] - rank[target]
                count += 1
    order = np.argsort(reach[:count], kind="mergesort")
    low, high = np.empty(count, np.int32), np.empty(count, np.int32)
    for i in range(count):
        low[i] = rank[graph.target[edge[order[i]]]]
        high[i] = rank[source[order[i]]]
    return Starts(edge[order], source[order], kind[order], low, high)


@kernel
def next_of_process(process: Int32, process_count: int, happened: Bools) -> Int32:
    """Return int32 per transaction: the next one of its process that happened, or -1.  Processes count from 0."""
    following = np.full(process.shape[0], -1, np.int32)
    latest = np.full(process_count, -1, np.int32)
    for t in range(process.shape[0] - 1, -1, -1):
        if happened[t]:
            following[t] = latest[process[t]]
            latest[process[t]] = t
    return following
