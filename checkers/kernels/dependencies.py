"""Dependency graphs of transactions: edges, the sweep that proves there is no cycle, components, and typed cycles.

Theory (Adya 1999; Alvaro & Kingsbury, VLDB 2020).  Transactions depend on one another:

    ww   the second overwrote what the first wrote          wr   the second read what the first wrote
    rw   the second overwrote what the first read (an anti-dependency)

A history is serializable iff this graph has no cycle, and strictly serializable iff it has none together with real
time: t before u where t completed before u was invoked.  The kinds of the edges in a cycle name the anomaly.

*The sweep.*  Real time holds quadratically many pairs, so it is not put into the graph: follow the history, let an
invoke unlock its transaction, and take out every unlocked transaction whose predecessors are all out.  If a
transaction completes and is not out, it waits for one that is not even invoked, or for a cycle; if all are out at the
end, the order in which they left is a strict serialization.  O(transactions + edges).

*Nodes without a meaning of their own* keep the graph linear: "every one of these before every one of those" is one
node between them, and real time, where cycles have to be found, is a chain of nodes, one for each completion.  An edge
into such a node carries the kind, the edges onwards are PASS.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from checkers.kernels.jit import kernel
from checkers.kernels.operations import Int8, Int32, Int64
from checkers.kernels.transactions import OK, Bools, Edges, Transactions

WW, WR, RW, PROCESS, REALTIME, PASS = 1, 2, 4, 8, 16, 32

ANY, NOT_ADJACENT, ADJACENT = 0, 1, 2
"""What a cycle must satisfy besides its kinds of edges: nothing; two rw or more, never adjacent; two that are."""

OUT_OF_STEPS = -1

_STATES = 4  # of the automata in `_step`: two bits
_LAST_WAS_RW, _GOAL = 1, 2


class Graph(NamedTuple):
    """Compressed rows: the edges of node n are target[first[n]:first[n + 1]], with their kinds beside them."""

    first: Int64
    target: Int32
    kind: Int8


@kernel
def link_groups(
    before: Int32, before_key: Int32, before_kind: Int8, after: Int32, after_key: Int32, key_count: int, node0: int
) -> Edges:
    """Edges from every transaction in `before` to every other in `after` that has the same key.

    Node node0 + key stands between them.  A transaction that is on both sides must not precede itself, so it is linked
    directly; of three and more such transactions (each pair already is a cycle) only two are linked to all.
    A transaction stands at most once per key and side.
    """
    before_at, before_rows = _by_key(before_key, key_count)
    after_at, after_rows = _by_key(after_key, key_count)
    both_at = np.zeros(key_count + 1, np.int64)
    both = np.zeros(before.shape[0], np.bool_)
    node_count = node0
    side = np.full(node_count, -1, np.int32)
    room = 0
    for key in range(key_count):
        n_before, n_after = before_at[key + 1] - before_at[key], after_at[key + 1] - after_at[key]
        if n_before == 0 or n_after == 0:
            continue
        for i in range(after_at[key], after_at[key + 1]):
            side[after[after_rows[i]]] = key
        for i in range(before_at[key], before_at[key + 1]):
            if side[before[before_rows[i]]] == key:
                both[before_rows[i]] = True
                both_at[key] += 1
        room += n_before + n_after + min(both_at[key], 2) * n_after + 2 * both_at[key]
    source = np.empty(room, np.int32)
    target = np.empty(room, np.int32)
    kind = np.empty(room, np.int8)
    n = 0
    for key in range(key_count):
        if before_at[key] == before_at[key + 1] or after_at[key] == after_at[key + 1]:
            continue
        linked = 0
        one, two = -1, -1
        for i in range(before_at[key], before_at[key + 1]):
            row = before_rows[i]
            if not both[row]:
                source[n], target[n], kind[n] = before[row], node0 + key, before_kind[row]
                n += 1
            elif linked < 2:
                linked += 1
                one, two = before[row], one
                for j in range(after_at[key], after_at[key + 1]):
                    if after[after_rows[j]] != before[row]:
                        source[n], target[n], kind[n] = before[row], after[after_rows[j]], before_kind[row]
                        n += 1
            else:
                for other in (one, two):
                    source[n], target[n], kind[n] = before[row], other, before_kind[row]
                    n += 1
        if both_at[key] < before_at[key + 1] - before_at[key]:
            for j in range(after_at[key], after_at[key + 1]):
                source[n], target[n], kind[n] = node0 + key, after[after_rows[j]], PASS
                n += 1
    return Edges(source[:n], target[:n], kind[:n])


@kernel
def _by_key(keys: Int32, key_count: int) -> tuple[Int64, Int64]:
    """Rows ordered by key: (where each key begins, rows)."""
    at = np.zeros(key_count + 1, np.int64)
    for row in range(keys.shape[0]):
        at[keys[row] + 1] += 1
    for key in range(key_count):
        at[key + 1] += at[key]
    cursor = at[:key_count].copy()
    rows = np.empty(keys.shape[0], np.int64)
    for row in range(keys.shape[0]):
        rows[cursor[keys[row]]] = row
        cursor[keys[row]] += 1
    return at, rows


@kernel
def build_graph(edges: Edges, node_count: int) -> tuple[Graph, Int32]:
    """(graph, how many edges come into each node)."""
    first = np.zeros(node_count + 1, np.int64)
    incoming = np.zeros(node_count, np.int32)
    for e in range(edges.source.shape[0]):
        first[edges.source[e] + 1] += 1
        incoming[edges.target[e]] += 1
    for node in range(node_count):
        first[node + 1] += first[node]
    target = np.empty(edges.source.shape[0], np.int32)
    kind = np.empty(edges.source.shape[0], np.int8)
    cursor = first[:node_count].copy()
    for e in range(edges.source.shape[0]):
        at = cursor[edges.source[e]]
        cursor[edges.source[e]] = at + 1
        target[at] = edges.target[e]
        kind[at] = edges.kind[e]
    return Graph(first, target, kind), incoming


@kernel
def sweep(txns: Transactions, graph: Graph, incoming: Int32, happened: Bools, event_count: int) -> tuple[Bools, bool]:
    """(out, serial): which nodes the sweep took out before it got stuck, and whether it never did.

    Consumes `incoming`.  Nodes from the number of transactions on have no time.
    """
    txn_count = txns.status.shape[0]
    node_count = incoming.shape[0]
    nobody = -(2**31)
    event = np.full(event_count, nobody, np.int32)
    for t in range(txn_count):
        if happened[t]:
            event[txns.invoked[t]] = t
            if txns.status[t] == OK:
                event[txns.completed[t]] = -1 - t
    out = np.zeros(node_count, np.bool_)
    unlocked = np.zeros(node_count, np.bool_)
    stack = np.empty(node_count, np.int32)
    unlocked[txn_count:] = True
    for node in range(txn_count, node_count):
        if incoming[node] == 0 and not out[node]:
            _take_out(node, graph, incoming, unlocked, out, stack)
    for e in range(event_count):
        t = event[e]
        if t >= 0:
            unlocked[t] = True
            if incoming[t] == 0:
                _take_out(t, graph, incoming, unlocked, out, stack)
        elif t != nobody and not out[-1 - t]:
            return out, False
    for t in range(txn_count):
        if happened[t] and not out[t]:
            return out, False
    return out, True


@kernel
def _take_out(node: int, graph: Graph, incoming: Int32, unlocked: Bools, out: Bools, stack: Int32) -> None:
    """Take out a node, and whatever waited only for it."""
    stack[0] = node
    size = 1
    out[node] = True
    while size > 0:
        size -= 1
        n = stack[size]
        for e in range(graph.first[n], graph.first[n + 1]):
            other = graph.target[e]
            incoming[other] -= 1
            if incoming[other] == 0 and unlocked[other] and not out[other]:
                out[other] = True
                stack[size] = other
                size += 1


@kernel
def components(graph: Graph, kinds: int) -> tuple[Int32, Int32]:
    """(component of each node, size of each component) over edges of these kinds; Tarjan 1972, without recursion."""
    node_count = graph.first.shape[0] - 1
    component = np.full(node_count, -1, np.int32)
    sizes = np.zeros(node_count, np.int32)
    number = np.full(node_count, -1, np.int32)
    low = np.zeros(node_count, np.int32)
    cursor = graph.first[:node_count].copy()
    path = np.empty(node_count, np.int32)
    waiting = np.empty(node_count, np.int32)
    next_number, next_component, n_waiting = 0, 0, 0
    for root in range(node_count):
        if number[root] >= 0:
            continue
        path[0] = root
        depth = 1
        number[root] = low[root] = next_number
        next_number += 1
        waiting[n_waiting] = root
        n_waiting += 1
        while depth > 0:
            node = path[depth - 1]
            if cursor[node] < graph.first[node + 1]:
                e = cursor[node]
                cursor[node] += 1
                if graph.kind[e] & kinds == 0:
                    continue
                other = graph.target[e]
                if number[other] < 0:
                    number[other] = low[other] = next_number
                    next_number += 1
                    waiting[n_waiting] = other
                    n_waiting += 1
                    path[depth] = other
                    depth += 1
                elif component[other] < 0:
                    low[node] = min(low[node], number[other])
                continue
            depth -= 1
            if depth > 0:
                low[path[depth - 1]] = min(low[path[depth - 1]], low[node])
            if low[node] == number[node]:
                while True:
                    n_waiting -= 1
                    member = waiting[n_waiting]
                    component[member] = next_component
                    sizes[next_component] += 1
                    if member == node:
                        break
                next_component += 1
    return component, sizes[:next_component]


@kernel
def topological_ranks(graph: Graph, kinds: int, time: Int64) -> Int32:
    """int32 per node, rising along edges of these kinds and else as `time` does; all 0 if the edges form a cycle."""
    node_count = graph.first.shape[0] - 1
    incoming = np.zeros(node_count, np.int32)
    for e in range(graph.target.shape[0]):
        if graph.kind[e] & kinds != 0:
            incoming[graph.target[e]] += 1
    ready = [(np.int64(0), np.int64(0)) for _ in range(0)]
    for node in range(node_count):
        if incoming[node] == 0:
            ready.append((time[node], np.int64(node)))
    heapq.heapify(ready)
    rank = np.zeros(node_count, np.int32)
    ranked = 0
    while len(ready) > 0:
        node = int(heapq.heappop(ready)[1])
        rank[node] = ranked
        ranked += 1
        for e in range(graph.first[node], graph.first[node + 1]):
            other = graph.target[e]
            if graph.kind[e] & kinds != 0:
                incoming[other] -= 1
                if incoming[other] == 0:
                    heapq.heappush(ready, (time[other], np.int64(other)))
    if ranked < node_count:
        rank[:] = 0
    return rank


@kernel
def shortest_cycle(
    graph: Graph,
    txn_nodes: int,
    component: Int32,
    rank: Int32,
    starts: Int64,
    sources: Int32,
    kinds: int,
    rule: int,
    steps_max: int,
) -> tuple[Int64, int]:
    """The shortest cycle that begins with one of the edges `starts` and goes on over edges of `kinds` under `rule`.

    Nodes below txn_nodes are transactions, and only they count for the length.  starts: edge numbers of the graph;
    sources: the node each comes from.  Never leaves the source's component, nor visits a node of higher rank.
    Returns (edge numbers of the cycle, steps): no edges where there is none; steps is OUT_OF_STEPS where the search
    ended before it had looked everywhere (what was found until then is still a cycle).
    """
    size = (graph.first.shape[0] - 1) * _STATES
    visited = np.full(size, -1, np.int32)
    came_by = np.empty(size, np.int64)
    came_from = np.empty(size, np.int64)
    depth = np.empty(size, np.int32)
    level = [np.int64(0)]
    deeper = [np.int64(0)]
    best = np.empty(0, np.int64)
    best_length = size + 2
    steps = 0
    for s in range(starts.shape[0]):
        home = sources[s]
        begin = np.int64(graph.target[starts[s]]) * _STATES
        if rule != ANY:
            begin += _LAST_WAS_RW
        visited[begin] = s
        came_by[begin] = starts[s]
        came_from[begin] = -1
        depth[begin] = 1
        level.clear()
        level.append(begin)
        length = 1  # transactions so far on a path to the nodes of this level, home included
        closed = np.int64(-1)
        while len(level) > 0 and closed < 0 and length < best_length:
            deeper.clear()
            while len(level) > 0 and closed < 0:
                at = level.pop()
                if depth[at] < length:
                    continue  # reached again on a shorter way, and done with
                node, state = int(at // _STATES), int(at % _STATES)
                if node == home:
                    if _fulfils(state, rule):
                        closed = at
                    continue
                further = 1 if node < txn_nodes else 0
                for e in range(graph.first[node], graph.first[node + 1]):
                    steps += 1
                    other = graph.target[e]
                    if graph.kind[e] & kinds == 0 or component[other] != component[home] or rank[other] > rank[home]:
                        continue
                    then = _step(state, graph.kind[e], rule)
                    if then < 0:
                        continue
                    reached = np.int64(other) * _STATES + then
                    if visited[reached] == s and depth[reached] <= length + further:
                        continue
                    visited[reached] = s
                    came_by[reached] = e
                    came_from[reached] = at
                    depth[reached] = length + further
                    if further == 1:
                        deeper.append(reached)
                    else:
                        level.append(reached)
            level, deeper = deeper, level
            length += 1
        if closed >= 0:
            best_length = depth[closed]
            edges = 0
            at = closed
            while at >= 0:
                edges += 1
                at = came_from[at]
            best = np.empty(edges, np.int64)
            at = closed
            while at >= 0:
                edges -= 1
                best[edges] = came_by[at]
                at = came_from[at]
        if best_length == 2:
            break
        if steps > steps_max:
            return best, OUT_OF_STEPS
    return best, steps


@kernel
def _fulfils(state: int, rule: int) -> bool:
    """Whether a path that came home in this state is a cycle under the rule."""
    if rule == NOT_ADJACENT:
        return state == _GOAL
    return rule == ANY or state != 0


@kernel
def _step(state: int, kind: int, rule: int) -> int:
    """The automaton of a rule: its state after one more edge, or -1 where the rule forbids the edge."""
    if rule == ANY or kind == PASS:
        return state
    if kind != RW:
        return state & _GOAL
    if state & _LAST_WAS_RW == 0:
        return state | _LAST_WAS_RW | (_GOAL if rule == NOT_ADJACENT else 0)
    return -1 if rule == NOT_ADJACENT else state | _GOAL
