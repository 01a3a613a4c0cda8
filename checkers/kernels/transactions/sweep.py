"""Proves that dependencies and real time together have no cycle, or finds an order that all but a few edges follow.

*The sweep.*  Real time has quadratically many pairs, so the graph does not contain it.  The sweep follows the history.
An invoke unlocks its transaction.  An unlocked transaction is taken out as soon as all its predecessors are out.  If a
transaction completes and is not out, it waits for one that is not invoked yet, or for a cycle.  If all are out at the
end, the order in which they left is a strict serialization.  O(transactions + edges).

*Breaking.*  If the sweep is stuck, a walk from a waiting transaction to its predecessors proves a cycle.  The walk
returns to its beginning, or it meets a transaction that is not invoked yet.  By real time, the latter comes after the
transaction that completed.  The sweep removes one edge of this cycle and continues.  In the end all nodes have a rank.
Every edge except the broken ones leads to a higher rank, and so does real time.  So *every cycle contains a broken
edge*, and searches begin there.  Only transactions that are open at the same time wait for one another, so walks are
short.

Anti-dependencies are broken first, then wr, then ww.  Hence each cycle of ww and wr contains a broken edge of kind ww
or wr.  If no ww or wr edge is broken, there is no G0 and no G1c, nor a variant of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import OK, Transactions
from checkers.kernels.transactions.dependencies import PASS, RW, WR, Graph, Reverse


class Sweep(NamedTuple):
    """State of a sweep.

    rank: int32 per node, the order in which nodes were taken out, -1 before
    unlocked: per node
    incoming: int32 per node, number of edges from nodes that are not out
    event: int32 per position of the history; t if transaction t was invoked there, -1 - t if it completed there, or
        NO_EVENT
    """

    rank: Int32
    unlocked: Bools
    incoming: Int32
    event: Int32


NO_EVENT = -(2**31)


@kernel
def sweep(txns: Transactions, graph: Graph, incoming: Int32, happened: Bools, event_count: int) -> tuple[Sweep, int]:
    """Sweep until the first transaction is stuck.  Consumes `incoming`.

    Returns (sweep, position of the completion at which it is stuck).  The position is `event_count` if only
    transactions of unknown outcome remain, and -1 if none remains, which means that there is no cycle.
    """
    txn_count = txns.status.shape[0]
    node_count = incoming.shape[0]
    event = np.full(event_count, NO_EVENT, np.int32)
    for t in range(txn_count):
        if happened[t]:
            event[txns.invoked[t]] = t
            if txns.status[t] == OK:
                event[txns.completed[t]] = -1 - t
    rank = np.full(node_count, -1, np.int32)
    unlocked = np.zeros(node_count, np.bool_)
    unlocked[txn_count:] = True
    stack = np.empty(node_count, np.int32)
    nothing = np.zeros(0, np.bool_)
    state = Sweep(rank, unlocked, incoming, event)
    ranked = 0
    for node in range(txn_count, node_count):
        if incoming[node] == 0 and rank[node] < 0:
            ranked = _take_out(node, graph, state, nothing, stack, ranked)
    for e in range(event_count):
        t = event[e]
        if t >= 0:
            unlocked[t] = True
            if incoming[t] == 0:
                ranked = _take_out(t, graph, state, nothing, stack, ranked)
        elif t != NO_EVENT and rank[-1 - t] < 0:
            return state, e
    for t in range(txn_count):
        if happened[t] and rank[t] < 0:
            return state, event_count
    return state, -1


@inner_kernel
def _take_out(node: int, graph: Graph, state: Sweep, broken: Bools, stack: Int32, ranked: int) -> int:
    """Remove a node, and all nodes that waited only for it.  Returns the number of removed nodes."""
    rank, incoming, unlocked = state.rank, state.incoming, state.unlocked
    stack[0] = node
    size = 1
    rank[node] = ranked
    ranked += 1
    some_broken = broken.shape[0] > 0
    while size > 0:
        size -= 1
        n = stack[size]
        for e in range(graph.first[n], graph.first[n + 1]):
            if some_broken and broken[e]:
                continue
            other = graph.target[e]
            incoming[other] -= 1
            if incoming[other] == 0 and unlocked[other] and rank[other] < 0:
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
def sweep_on(
    txns: Transactions, graph: Graph, backward: Reverse, happened: Bools, state: Sweep, stuck_at: int
) -> Int64:
    """Continue to the end from where `sweep` is stuck.  Returns the removed edges, each of which lies on a cycle."""
    txn_count = txns.status.shape[0]
    node_count = state.rank.shape[0]
    broken = np.zeros(max(graph.target.shape[0], 1), np.bool_)
    edges = np.empty(16, np.int64)
    n = 0
    stack = np.empty(node_count, np.int32)
    walks = _Walks(
        backward.first[:node_count].copy(),
        np.empty(node_count, np.int32),
        np.empty(node_count, np.int32),
        np.empty(node_count, np.int32),
        np.zeros(node_count, np.int32),
    )
    ranked = int(state.rank.max()) + 1
    event_count = state.event.shape[0]
    for e in range(stuck_at, event_count + txn_count):
        t = state.event[e] if e < event_count else -1 - (e - event_count)
        if t >= 0:
            state.unlocked[t] = True
            if state.incoming[t] == 0:
                ranked = _take_out(t, graph, state, broken, stack, ranked)
            continue
        if t == NO_EVENT:
            continue
        t = -1 - t
        while state.rank[t] < 0 and happened[t]:
            edge = _edge_to_break(t, n + 1, txn_count, graph, backward, state, broken, walks)
            broken[edge] = True
            if n == edges.shape[0]:
                edges = np.concatenate((edges, np.empty(n, np.int64)))
            edges[n] = edge
            n += 1
            other = graph.target[edge]
            state.incoming[other] -= 1
            if state.incoming[other] == 0 and state.unlocked[other]:
                ranked = _take_out(other, graph, state, broken, stack, ranked)
    return edges[:n]


@inner_kernel
def _edge_to_break(
    t: int,
    number: int,
    txn_count: int,
    graph: Graph,
    backward: Reverse,
    state: Sweep,
    broken: Bools,
    walks: _Walks,
) -> int:
    """Walk from the waiting transaction t along predecessors to a cycle.  Returns the edge to remove."""
    walks.nodes[0] = t
    walks.place[t] = 0
    walks.number[t] = number
    n = 0
    while True:
        node = walks.nodes[n]
        at = walks.cursor[node]
        while state.rank[backward.source[at]] >= 0 or broken[backward.edge[at]]:
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

    An edge out of a group has the kind of the edge into the group before it, and is broken instead of it, because one
    edge out of a group may represent many edges.

    edges[begin:end + 1]: the walk; each edge leads to the source of the edge before it
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
