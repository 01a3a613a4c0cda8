"""Finds what every answer to a problem of orders has in common, by reachability, to a fixpoint.

A search decides for one order of two writers of a key, and learns from circles what was wrong.  If nothing is known of
when transactions ran, it learns the same things again and again.  Much is certain before any decision:

    a writer comes before the readers of its version; readers of the initial state come before all writers of the key
    of two writers of a key, b cannot come first if a leads to b, or to a reader of b's version
    then a comes first, and so do all readers of a's version

What is certain makes a graph.  Each round finds what leads to what, and adds what follows; it ends when nothing does
(the saturation of Cobra, OSDI 2020, and of Biswas & Enea, OOPSLA 2019).  It is no decision: an order may still not
exist.  For events that are transactions, so not for snapshots.

One bit for each pair of transactions, and O(dependencies x transactions / 64) a round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import Edges
from checkers.kernels.transactions.dependencies import WW, Graph, build_graph, reverse
from checkers.kernels.transactions.order_problem import OrderProblem

_ONE, _NONE = np.uint64(1), np.uint64(0)
_WORDS_PER_STEP = 32
"""A step of the search takes as long as so many words."""

_EDGES_MAX = 20_000_000


class Forced(NamedTuple):
    """edges: the source commits before the target starts in every answer; a circle of them proves that there is none.

    place: int64 per transaction, how many come before it less how many come after it: a guess of its place.
    steps: what it cost, in steps of the search.
    """

    edges: Edges
    place: Int64
    steps: int


@kernel
def forced_order(problem: OrderProblem, steps_max: int) -> Forced:
    """Return what is forced; less of it if the steps run out.  problem: with readers."""
    m, writes = problem.happened.shape[0], problem.write_key.shape[0]
    keys = problem.version_txn.shape[0] - writes
    key_first, by_key = _writes_by_key(problem.write_key, keys)
    nothing = Edges(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int8))
    place = np.zeros(m, np.int64)
    steps = _known_at_most(problem, key_first)
    if steps > min(steps_max, _EDGES_MAX):
        return Forced(nothing, place, 0)
    pairs, n = _known(problem, key_first, by_key, steps)
    while True:
        edges = Edges(pairs[0, :n], pairs[1, :n], np.full(n, WW, np.int8))
        graph, incoming = build_graph(edges, nothing, m)
        order = _topological(graph, incoming)
        steps += 2 * (n + m) * (m // 64 + 1) // _WORDS_PER_STEP
        if order.shape[0] < m or steps > steps_max:
            return Forced(edges, place, steps)
        after = _reachable(graph.first, graph.target, order[::-1])
        known = n
        for key in range(keys):
            for i in range(key_first[key], key_first[key + 1]):
                if steps > steps_max or n > _EDGES_MAX:
                    return Forced(edges, place, steps)
                for j in range(key_first[key], key_first[key + 1]):
                    a, b = by_key[i], by_key[j]
                    steps += 1
                    if i == j or not _comes_first(problem, after, a, b):
                        continue
                    room = problem.reader_first[a + 1] - problem.reader_first[a] + 1
                    if n + room > pairs.shape[1]:
                        pairs = np.concatenate((pairs, np.empty((2, n + room), np.int32)), axis=1)
                    n = _force(problem, after, a, b, pairs, n)
        if n == known:
            backward = reverse(graph)
            before = _reachable(backward.first, backward.source, order)
            for t in range(m):
                place[t] = _count(before, t) - _count(after, t)
            return Forced(edges, place, steps)


@kernel
def _writes_by_key(write_key: Int32, keys: int) -> tuple[Int64, Int32]:
    first = np.zeros(keys + 1, np.int64)
    for v in range(write_key.shape[0]):
        first[write_key[v] + 1] += 1
    for key in range(keys):
        first[key + 1] += first[key]
    cursor = first[:-1].copy()
    versions = np.empty(write_key.shape[0], np.int32)
    for v in range(write_key.shape[0]):
        versions[cursor[write_key[v]]] = v
        cursor[write_key[v]] += 1
    return first, versions


@kernel
def _known_at_most(problem: OrderProblem, key_first: Int64) -> int:
    """Return how many edges `_known` finds at most."""
    writes = problem.write_key.shape[0]
    count = problem.after.target.shape[0] + problem.reader.shape[0]
    for v in range(writes, problem.version_txn.shape[0]):
        readers = problem.reader_first[v + 1] - problem.reader_first[v]
        count += readers * (key_first[v - writes + 1] - key_first[v - writes])
    return int(count)


@kernel
def _known(problem: OrderProblem, key_first: Int64, by_key: Int32, room: int) -> tuple[Int32, int]:
    """Return the demanded order, and what a read alone shows: int32[2, room], sources and targets, and their number.

    Readers of an initial state come before the first writers of the key, which are not known yet: before all of them.
    """
    writes, versions = problem.write_key.shape[0], problem.version_txn.shape[0]
    pairs = np.empty((2, room), np.int32)
    n = 0
    for t in range(problem.happened.shape[0]):
        for e in range(problem.after.first[t], problem.after.first[t + 1]):
            pairs[0, n], pairs[1, n] = t, problem.after.target[e]
            n += 1
    for v in range(versions):
        for i in range(problem.reader_first[v], problem.reader_first[v + 1]):
            reader = problem.reader[i]
            if v < writes:
                if problem.version_txn[v] != reader:
                    pairs[0, n], pairs[1, n] = problem.version_txn[v], reader
                    n += 1
                continue
            for j in range(key_first[v - writes], key_first[v - writes + 1]):
                if problem.version_txn[by_key[j]] != reader:
                    pairs[0, n], pairs[1, n] = reader, problem.version_txn[by_key[j]]
                    n += 1
    return pairs, n


@kernel
def _topological(graph: Graph, incoming: Int32) -> Int32:
    """Return the nodes in an order of the edges; fewer than all if there is a circle.  Consumes `incoming`."""
    m = incoming.shape[0]
    order = np.empty(m, np.int32)
    n = 0
    for node in range(m):
        if incoming[node] == 0:
            order[n] = node
            n += 1
    at = 0
    while at < n:
        for e in range(graph.first[order[at]], graph.first[order[at] + 1]):
            other = graph.target[e]
            incoming[other] -= 1
            if incoming[other] == 0:
                order[n] = other
                n += 1
        at += 1
    return order[:n]


Words = npt.NDArray[Any]
"""uint64[nodes, words]: bit u of row t is set if t leads to u, and for t itself."""


@kernel
def _reachable(first: Int64, target: Int32, order: Int32) -> Words:
    """Return what each node leads to.  order: the nodes, each after those that it has edges to."""
    m = order.shape[0]
    words = np.zeros((m, m // 64 + 1), np.uint64)
    for node in order:
        words[node, node >> 6] |= _ONE << np.uint64(node & 63)
        for e in range(first[node], first[node + 1]):
            for i in range(words.shape[1]):
                words[node, i] |= words[target[e], i]
    return words


@inner_kernel
def _leads(after: Words, t: int, u: int) -> bool:
    return bool((after[t, u >> 6] >> np.uint64(u & 63)) & _ONE)


@kernel
def _count(words: Words, t: int) -> int:
    total = 0
    for i in range(words.shape[1]):
        word = words[t, i]
        while word != _NONE:
            word &= word - _ONE
            total += 1
    return total


@inner_kernel
def _comes_first(problem: OrderProblem, after: Words, a: int, b: int) -> bool:
    """Return whether version a certainly comes before version b of the same key: a leads to b, or to a reader of b."""
    by = problem.version_txn[a]
    if _leads(after, by, problem.version_txn[b]):
        return True
    for i in range(problem.reader_first[b], problem.reader_first[b + 1]):
        if problem.reader[i] != by and _leads(after, by, problem.reader[i]):
            return True
    return False


@inner_kernel
def _force(problem: OrderProblem, after: Words, a: int, b: int, pairs: Int32, n: int) -> int:
    """Add that version a and its readers come before version b, where it is new; returns the number of edges."""
    by, then = problem.version_txn[a], problem.version_txn[b]
    if not _leads(after, by, then):
        pairs[0, n], pairs[1, n] = by, then
        n += 1
    for i in range(problem.reader_first[a], problem.reader_first[a + 1]):
        reader = problem.reader[i]
        if reader != then and not _leads(after, reader, then):
            pairs[0, n], pairs[1, n] = reader, then
            n += 1
    return n
