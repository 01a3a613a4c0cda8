"""Proves that dependencies and real time together have no cycle, or finds an order that all but a few edges follow.

*The sweep.*  Real time has quadratically many pairs, so the graph does not contain it.  The sweep follows the history.
An invoke unlocks its transaction.  An unlocked transaction is taken out as soon as all its predecessors are out.  If a
transaction completes and is not out, it waits for one that is not invoked yet, or for a cycle.  If all are out at the
end, the order in which they left is a strict serialization.  O(transactions + edges).

*Breaking.*  If the sweep is stuck, a walk from a waiting transaction to its predecessors proves a cycle.  The walk
returns to its beginning, or it meets a transaction that is not invoked yet.  By real time, the latter comes after the
transaction that completed.  The sweep removes one edge of this cycle and continues.  In the end all nodes have a rank.
Every edge except the broken ones leads to a higher rank, and so does real time.  So *every cycle contains a broken
edge*, and searches begin there.  Only transactions that are open at one time wait for one another, so walks are short.

Anti-dependencies are broken first, then wr, then ww.  Hence each cycle of ww and wr contains a broken edge of such a
kind.  If no such edge is broken, there is no G0 and no G1c, nor a variant of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import OK, Transactions
from checkers.kernels.transactions.dependencies import PASS, RW, WR, Graph, Reverse, reverse


class _Sweep(NamedTuple):
    """State of a sweep.

    rank: int32 per node, the order in which they were taken out, -1 before.  unlocked: per node.
    incoming: int32 per node, edges from nodes that are not out.  broken: per edge, whether it was removed.
    stack: int32 per node, room.
    """

    rank: Int32
    unlocked: Bools
    incoming: Int32
    broken: Bools
    stack: Int32


NO_EVENT = -(2**31)


@kernel
def sweep(txns: Transactions, graph: Graph, incoming: Int32, happened: Bools, event_count: int) -> tuple[Int32, Int64]:
    """Return (the rank of each node, int32, -1 of what did not happen; the removed edges, each of which lies on a
    cycle).

    Consumes `incoming`.  If no edge was removed, there is no cycle.
    """
    txn_count, node_count = txns.status.shape[0], incoming.shape[0]
    event = np.full(event_count, NO_EVENT, np.int32)
    for t in range(txn_count):
        if happened[t]:
            event[txns.invoked[t]] = t
            if txns.status[t] == OK:
                event[txns.completed[t]] = -1 - t
    unlocked = np.zeros(node_count, np.bool_)
    unlocked[txn_count:] = True
    broken = np.zeros(graph.target.shape[0], np.bool_)
    state = _Sweep(np.full(node_count, -1, np.int32), unlocked, incoming, broken, np.empty(node_count, np.int32))
    ranked = 0
    for node in range(txn_count, node_count):
        if incoming[node] == 0 and state.rank[node] < 0:
            ranked = _take_out(node, graph, state, ranked)
    walks, backward, cycles = _no_walks(), Reverse(np.empty(0, np.int64), state.stack[:0], state.stack[:0]), 0
    for e in range(event_count + txn_count):
        t = event[e] if e < event_count else -1 - (e - event_count)
        if t >= 0:
            unlocked[t] = True
            if incoming[t] == 0:
                ranked = _take_out(t, graph, state, ranked)
            continue
        if t == NO_EVENT:
            continue
        t = -1 - t
        while state.rank[t] < 0 and happened[t]:
            if cycles == 0:
                backward = reverse(graph)
                walks = _new_walks(backward, node_count)
            cycles += 1
            edge = _edge_to_break(t, cycles, txn_count, graph, backward, state, walks)
            broken[edge] = True
            other = graph.target[edge]
            incoming[other] -= 1
            if incoming[other] == 0 and unlocked[other]:
                ranked = _take_out(other, graph, state, ranked)
    return state.rank, np.flatnonzero(broken)


@inner_kernel
def _take_out(node: int, graph: Graph, state: _Sweep, ranked: int) -> int:
    """Remove a node, and all nodes that waited only for it; return the number of removed nodes."""
    rank, incoming, stack = state.rank, state.incoming, state.stack
    stack[0] = node
    size = 1
    rank[node] = ranked
    ranked += 1
    while size > 0:
        size -= 1
        n = stack[size]
        for e in range(graph.first[n], graph.first[n + 1]):
            if state.broken[e]:
                continue
            other = graph.target[e]
            incoming[other] -= 1
            if incoming[other] == 0 and state.unlocked[other] and rank[other] < 0:
                rank[other] = ranked
                ranked += 1
                stack[size] = other
                size += 1
    return ranked


class _Walks(NamedTuple):
    """Arrays for walks to predecessors: nodes, edges between them, and the place of each node in the current walk."""

    cursor: Int64
    nodes: Int32
    edges: Int32
    place: Int32
    number: Int32


@kernel
def _no_walks() -> _Walks:
    nothing = np.empty(0, np.int32)
    return _Walks(np.empty(0, np.int64), nothing, nothing, nothing, nothing)


@kernel
def _new_walks(backward: Reverse, count: int) -> _Walks:
    rooms = np.zeros((4, count), np.int32)
    return _Walks(backward.first[:count].copy(), rooms[0], rooms[1], rooms[2], rooms[3])


@inner_kernel
def _edge_to_break(
    t: int,
    number: int,
    txn_count: int,
    graph: Graph,
    backward: Reverse,
    state: _Sweep,
    walks: _Walks,
) -> int:
    """Walk from the waiting transaction t along predecessors to a cycle; return the edge to remove."""
    walks.nodes[0] = t
    walks.place[t] = 0
    walks.number[t] = number
    n = 0
    while True:
        node = walks.nodes[n]
        at = walks.cursor[node]
        while state.rank[backward.source[at]] >= 0 or state.broken[backward.edge[at]]:
            at += 1
        walks.cursor[node] = at
        walks.edges[n] = backward.edge[at]
        source = backward.source[at]
        if walks.number[source] == number:
            return _best_broken(graph, walks.edges, walks.place[source], n, txn_count)
        if not state.unlocked[source]:
            return _best_broken(graph, walks.edges, 0, n, txn_count)
        n += 1
        walks.nodes[n] = source
        walks.place[source] = n
        walks.number[source] = number


@inner_kernel
def _best_broken(graph: Graph, edges: Int32, begin: int, end: int, txn_count: int) -> int:
    """Choose the edge of a closed walk to remove: an rw if there is one, else a wr.

    edges[begin:end + 1]: each leads to the source of the one before.  An outgoing edge of a group has the kind of its
    incoming edge and is broken instead of it.  One such edge may represent many.
    """
    best, best_kind = np.int64(edges[begin]), -1
    for i in range(begin, end + 1):
        edge = np.int64(edges[i])
        if graph.target[edge] >= txn_count:
            continue
        kind = graph.kind[edge]
        if kind == PASS:
            kind = graph.kind[edges[i + 1 if i < end else begin]]
        worth = 2 if kind == RW else 1 if kind == WR else 0
        if worth >= best_kind:
            best, best_kind = edge, worth
    return int(best)
