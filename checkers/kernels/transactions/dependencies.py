"""Builds dependency graphs of transactions: edges, the compressed graph and its reverse, and components.

Theory (Adya 1999; Alvaro & Kingsbury, VLDB 2020).  Transactions depend on one another:

    ww   the second overwrote what the first wrote          wr   the second read what the first wrote
    rw   the second overwrote what the first read (an anti-dependency)

A history is serializable iff this graph has no cycle, and strictly serializable iff the graph together with real time
has none.  (In real time, t precedes u if t completed before u was invoked.)  The kinds of the edges in a cycle
determine the anomaly.

*Groups* keep the size of the graph linear.  One node between two sets of transactions means that each transaction of
the first set precedes each transaction of the second.  An edge into a group has the kind; the edges out of it are PASS.
The numbers of groups follow those of transactions.

*Links.*  Collects dependencies while a kernel finds them one by one: direct edges, and the two sides of groups.

    links = new_links(...)    link_direct(links, ...)    stand_before(links, ...)    stand_after(links, ...)
    edges, groups = gathered(links)

The caller passes upper bounds for the sizes of the arrays.  Unused parts are never touched, so large bounds cost no
memory.

*Joined transactions.*  `joined_components` finds the transactions that are joined, directly or through others.

Two transactions are joined if they touch the same key, and, if sessions count, also if the same process ran both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.codes import grouped
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import Edges

WW, WR, RW, PROCESS, REALTIME, PASS = 1, 2, 4, 8, 16, 32


class Graph(NamedTuple):
    """Compressed rows: the edges of node n have the targets target[first[n]:first[n + 1]], and kinds likewise."""

    first: Int64
    target: Int32
    kind: Int8


class Reverse(NamedTuple):
    """Edges by target: the edges into node n are edge[first[n]:first[n + 1]], and sources likewise."""

    first: Int64
    edge: Int32
    source: Int32


@kernel
def link_groups(groups: Groups, group_count: int, node0: int) -> Edges:
    """Return edges from every transaction before a node of a group to every other transaction after this node.

    Node node0 + group stands between them.  A transaction on both sides must not precede itself, so its edges are
    direct.  Two such transactions already form a cycle, so if there are more, only two are linked to all others.
    """
    before, before_kind, after = groups.before, groups.before_kind, groups.after
    before_at, before_rows = _by_group(groups.before_group, groups.after_group, group_count)
    after_at, after_rows = _by_group(groups.after_group, groups.before_group, group_count)
    both_at = np.zeros(group_count + 1, np.int64)
    both = np.zeros(before.shape[0], np.bool_)
    node_count = node0
    side = np.full(node_count, -1, np.int32)
    room = 0
    for group in range(group_count):
        n_before, n_after = before_at[group + 1] - before_at[group], after_at[group + 1] - after_at[group]
        if n_before == 0 or n_after == 0:
            continue
        for i in range(after_at[group], after_at[group + 1]):
            side[after[after_rows[i]]] = group
        for i in range(before_at[group], before_at[group + 1]):
            if side[before[before_rows[i]]] == group:
                both[before_rows[i]] = True
                both_at[group] += 1
        room += n_before + n_after + min(both_at[group], 2) * n_after + 2 * both_at[group]
    source = np.empty(room, np.int32)
    target = np.empty(room, np.int32)
    kind = np.empty(room, np.int8)
    n = 0
    for group in range(group_count):
        if before_at[group] == before_at[group + 1] or after_at[group] == after_at[group + 1]:
            continue
        linked = 0
        one, two = -1, -1
        for i in range(before_at[group], before_at[group + 1]):
            row = before_rows[i]
            if not both[row]:
                source[n], target[n], kind[n] = before[row], node0 + group, before_kind[row]
                n += 1
            elif linked < 2:
                linked += 1
                one, two = before[row], one
                for j in range(after_at[group], after_at[group + 1]):
                    if after[after_rows[j]] != before[row]:
                        source[n], target[n], kind[n] = before[row], after[after_rows[j]], before_kind[row]
                        n += 1
            else:
                for other in (one, two):
                    source[n], target[n], kind[n] = before[row], other, before_kind[row]
                    n += 1
        if both_at[group] < before_at[group + 1] - before_at[group]:
            for j in range(after_at[group], after_at[group + 1]):
                source[n], target[n], kind[n] = node0 + group, after[after_rows[j]], PASS
                n += 1
    return Edges(source[:n], target[:n], kind[:n])


@kernel
def _by_group(group_of: Int32, other_side: Int32, group_count: int) -> tuple[Int64, Int32]:
    """Return the rows ordered by group: (where each group begins, rows).

    Rows of groups without a row on the other side are left out, because such groups link nothing.

    other_side: the groups of the rows on the other side
    """
    two_sided = np.zeros(group_count, np.bool_)
    two_sided[other_side] = True
    linked = group_of.copy()
    for row in range(group_of.shape[0]):
        if not two_sided[group_of[row]]:
            linked[row] = -1
    return grouped(linked, group_count)


@kernel
def build_graph(direct: Edges, grouped: Edges, node_count: int) -> tuple[Graph, Int32]:
    """Build one graph of both kinds of edges.  Returns (graph, number of edges into each node)."""
    # cursor of node n is at n + 1; at the end it equals the start of node n + 1
    cursor = np.zeros(node_count + 2, np.int64)
    incoming = np.zeros(node_count, np.int32)
    for edges in (direct, grouped):
        for e in range(edges.source.shape[0]):
            cursor[edges.source[e] + 2] += 1
            incoming[edges.target[e]] += 1
    for node in range(node_count):
        cursor[node + 2] += cursor[node + 1]
    target = np.empty(cursor[node_count + 1], np.int32)
    kind = np.empty(cursor[node_count + 1], np.int8)
    for edges in (direct, grouped):
        for e in range(edges.source.shape[0]):
            at = cursor[edges.source[e] + 1]
            cursor[edges.source[e] + 1] = at + 1
            target[at] = edges.target[e]
            kind[at] = edges.kind[e]
    return Graph(cursor[: node_count + 1], target, kind), incoming


@kernel
def reverse(graph: Graph) -> Reverse:
    node_count = graph.first.shape[0] - 1
    source = np.empty(graph.target.shape[0], np.int32)
    for node in range(node_count):
        source[graph.first[node] : graph.first[node + 1]] = node
    first, edge = grouped(graph.target, node_count)
    return Reverse(first, edge, source[edge])


@kernel
def components(graph: Graph, next_of_process: Int32) -> Int32:
    """Return the strongly connected component of each node (Tarjan 1972, without recursion).

    next_of_process: per node, the next node of its process, or -1; it counts as the target of an edge.  The array may
        be empty.
    """
    node_count = graph.first.shape[0] - 1
    component = np.full(node_count, -1, np.int32)
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
            other = np.int32(-1)
            if cursor[node] < graph.first[node + 1]:
                other = graph.target[cursor[node]]
                cursor[node] += 1
            elif cursor[node] == graph.first[node + 1] and node < next_of_process.shape[0]:
                cursor[node] += 1
                other = next_of_process[node]
                if other < 0:
                    continue
            if other >= 0:
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
                    if member == node:
                        break
                next_component += 1
    return component


class Groups(NamedTuple):
    """Groups: all transactions before a group precede all transactions after it.

    before, after: int32, transactions, at most once per group and side
    before_group, after_group: int32, the numbers of their groups, from 0
    before_kind: int8, the kind of the dependency
    """

    before: Int32
    before_group: Int32
    before_kind: Int8
    after: Int32
    after_group: Int32


class Links(NamedTuple):
    """Room for dependencies.  counts: int64[3], number of edges, of rows before groups, and of rows after them."""

    edges: Edges
    groups: Groups
    counts: Int64


@kernel
def new_links(edges: int, before: int, after: int) -> Links:
    """Return room for these numbers of edges and rows."""
    return Links(
        Edges(np.empty(edges, np.int32), np.empty(edges, np.int32), np.empty(edges, np.int8)),
        Groups(
            np.empty(before, np.int32),
            np.empty(before, np.int32),
            np.empty(before, np.int8),
            np.empty(after, np.int32),
            np.empty(after, np.int32),
        ),
        np.zeros(3, np.int64),
    )


@inner_kernel
def link_direct(links: Links, source: int, target: int, kind: int) -> None:
    """Add one edge between transactions."""
    n = links.counts[0]
    links.edges.source[n], links.edges.target[n], links.edges.kind[n] = source, target, kind
    links.counts[0] = n + 1


@inner_kernel
def stand_before(links: Links, t: int, group: int, kind: int) -> None:
    """Put transaction t before the group: it precedes all transactions after the group."""
    n = links.counts[1]
    links.groups.before[n], links.groups.before_group[n], links.groups.before_kind[n] = t, group, kind
    links.counts[1] = n + 1


@inner_kernel
def stand_after(links: Links, t: int, group: int) -> None:
    """Put transaction t after the group: it follows all transactions before the group."""
    n = links.counts[2]
    links.groups.after[n], links.groups.after_group[n] = t, group
    links.counts[2] = n + 1


@kernel
def gathered(links: Links) -> tuple[Edges, Groups]:
    """Return everything that was collected."""
    n, b, a = links.counts
    edges, groups = links.edges, links.groups
    return (
        Edges(edges.source[:n], edges.target[:n], edges.kind[:n]),
        Groups(
            groups.before[:b], groups.before_group[:b], groups.before_kind[:b], groups.after[:a], groups.after_group[:a]
        ),
    )


@kernel
def joined_components(first: Int64, key: Int32, key_count: int, process: Int32, process_count: int) -> Int32:
    """Return the component of each transaction (int32, from 0, in order of the components' first transactions).

    Cost: nearly linear (union by the smaller number, paths halved).

    first: int64[transactions + 1], rows of each transaction
    key: int32[rows]
    process: int32[transactions]
    process_count: 0 if sessions do not join
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
