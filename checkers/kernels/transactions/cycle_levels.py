"""Searches for the shortest cycles through edges that the sweep had to break (`sweep.py`).

One search begins at the target of each broken edge, and goes level by level until it meets the source of the edge.  A
level holds everything that is reached through the same number of transactions.  The rule for the kinds of edges is an
automaton.  The search visits each pair (state, node) once.  Such a pair is a *place*; its number is
state * nodes + node.  All searches share one memory.  Each marks the places it visits with its own stamp.

*Orders as edges.*  Nodes are numbered: first transactions, then groups, then those that stand for orders
(`with_orders`).  All but transactions have length zero.  An edge into such a node has a kind, and those out of it are
PASS.  The order of one process is a chain of nodes, one beside each transaction ("here or later").  Real time is a
chain of nodes, one for each completion: all that was invoked after it.

*Bounds.*  All edges except the broken ones rise in the order of the sweep.  So the transactions of a cycle lie inside
the ranks that its broken edges span.  If several such ranges overlap, the transactions lie inside their union: `low` to
`high` of a start.  A node of an order has a rank that nothing behind it is below.  Groups are not bounded, because a
group that waits for a late member may still connect early ones.

*Rules.*  A cycle must satisfy them besides its kinds of edges.  Each is an automaton that reads the edges in order.

The broken edge comes first.  The states are:

ANY            one state
ONE_RW         the number of rw so far: 0 or 1
NOT_ADJACENT   2 * the number of rw so far, up to two; plus one if the last edge was an rw

*Starts.*  The edges that the sweep had to break, once for each kind they stand for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import OK
from checkers.kernels.transactions.dependencies import PASS, RW, Graph


class CycleQuestion(NamedTuple):
    """The cycles that a search accepts.

    kinds: the kinds of their edges.  rule, state_count: the automaton.
    only_ok: whether transactions of unknown outcome are excluded.
    """

    kinds: int
    rule: int
    state_count: int
    only_ok: bool


class Ground(NamedTuple):
    """The graph that is searched, with nodes for orders, and the memory of the searches.

    status: of transactions.  rank: int32 per node, -1 of groups.
    visited (zero at first), came_by, came_from: int32 per place.  levels: int32, the places of two levels in turn.  A
    step touches at most 20 bytes, so most of this memory is never touched.  marks: per transaction, zero at first.
    """

    status: Int8
    graph: Graph
    rank: Int32
    visited: Int32
    came_by: Int32
    came_from: Int32
    levels: Int32
    marks: Int32


class Starts(NamedTuple):
    """Broken edges, one row for each kind that an edge stands for; an edge from a group may stand for two kinds.

    edge: its number in the graph of dependencies.  source, home: int32, its ends.  kind: int8.
    low, high: int32, bounds of the ranks that a search may visit.
    """

    edge: Int64
    source: Int32
    home: Int32
    kind: Int8
    low: Int32
    high: Int32


NOTHING, OUT_OF_BUDGET = -1, -2
"""Stand for the place that closes a cycle: there is none, or steps ran out."""


@inner_kernel
def _search(
    ground: Ground, question: CycleQuestion, starts: Starts, start: int, stamp: int, steps_max: int
) -> tuple[int, int, int]:
    """Return (place of the last transaction of a cycle, or NOTHING or OUT_OF_BUDGET; length of the cycle; steps)."""
    graph, rank, status = ground.graph, ground.rank, ground.status
    nodes, txn_count = rank.shape[0], status.shape[0]
    source, home, first_kind = starts.source[start], starts.home[start], starts.kind[start]
    low, high = starts.low[start], starts.high[start]
    if question.only_ok and status[home] != OK:
        return NOTHING, 0, 0
    place = begin(question.rule, first_kind) * nodes + home
    _visit(ground, place, -1, -1, stamp)
    ground.levels[0, 0] = place
    here, count, length, steps = 0, 1, 1, 0
    while count > 0:
        at = following = 0
        while at < count:
            place = int(ground.levels[here, at])
            at += 1
            node, state = place % nodes, place // nodes
            steps += graph.first[node + 1] - graph.first[node]
            for e in range(graph.first[node], graph.first[node + 1]):
                kind, target = graph.kind[e], graph.target[e]
                if kind & question.kinds == 0 or target == home or rank[target] > high:
                    continue
                if target == source >= txn_count and kind == first_kind and fulfils(question.rule, state, first_kind):
                    return place, length, steps
                is_txn = target < txn_count
                if is_txn and (rank[target] < low or (question.only_ok and status[target] != OK)):
                    continue
                then = step(question.rule, state, kind)
                other = then * nodes + target
                if then < 0 or not _visit(ground, other, e, place, stamp):
                    continue
                if not is_txn:
                    ground.levels[here, count] = other
                    count += 1
                    continue
                ground.levels[1 - here, following] = other
                following += 1
                if target == source and fulfils(question.rule, then, first_kind):
                    return other, length + 1, steps
        if steps > steps_max:
            return OUT_OF_BUDGET, 0, steps
        here, count, length = 1 - here, following, length + 1
    return NOTHING, 0, steps


@inner_kernel
def _visit(ground: Ground, place: int, edge: int, came_from: int, stamp: int) -> bool:
    """Note how a place was reached; returns False if the search has visited it before."""
    if ground.visited[place] == stamp:
        return False
    ground.visited[place], ground.came_by[place], ground.came_from[place] = stamp, edge, came_from
    return True


ANY, ONE_RW, NOT_ADJACENT = 0, 1, 2
"""The rules: no condition; exactly one rw; two or more rw, of which no two are adjacent."""

STATES = {ANY: 1, ONE_RW: 2, NOT_ADJACENT: 6}
"""The number of states of the automaton of each rule."""


@inner_kernel
def begin(rule: int, kind: int) -> int:
    """Return the state after the broken edge."""
    if kind != RW or rule == ANY:
        return 0
    return 1 if rule == ONE_RW else 3


@inner_kernel
def step(rule: int, state: int, kind: int) -> int:
    """Return the state after one more edge, or -1 if the rule forbids the edge."""
    if rule == ANY or kind == PASS:
        return state
    if rule == ONE_RW:
        if kind != RW:
            return state
        return 1 if state == 0 else -1
    if kind != RW:
        return state - state % 2
    if state % 2 == 1:
        return -1
    return 5 if state >= 2 else 3


@inner_kernel
def fulfils(rule: int, state: int, first_kind: int) -> bool:
    """Return whether a path that returns to the broken edge in this state is a cycle under the rule."""
    if rule == ANY:
        return True
    if rule == ONE_RW:
        return state == 1
    return state >= 4 and (first_kind != RW or state % 2 == 0)


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


NONE, FOUND, UNFINISHED = 0, 1, 2


class CycleWalk(NamedTuple):
    """The nodes of a cycle in order, from the target of its start on, and the edge by which each was reached."""

    start: int
    nodes: Int64
    edges: Int64


@kernel
def shortest_cycle(
    ground: Ground, starts: Starts, chosen: Int64, question: CycleQuestion, steps_max: int
) -> tuple[CycleWalk, Int8, Int32, int]:
    """Find the shortest cycle through any of the chosen starts.

    Returns (walk; NONE, FOUND or UNFINISHED per chosen start; the number of transactions of its cycle; steps).  Each
    start gets an even share of the remaining steps.
    """
    n = chosen.shape[0]
    outcome, lengths = np.zeros(n, np.int8), np.zeros(n, np.int32)
    best, best_length, steps = CycleWalk(-1, np.empty(0, np.int64), np.empty(0, np.int64)), 0, 0
    for i in range(n):
        share = (steps_max - steps) // (n - i)
        closed, length, spent = _search(ground, question, starts, chosen[i], i + 1, share)
        steps += spent
        if closed < 0:
            outcome[i] = NONE if closed == NOTHING else UNFINISHED
        elif _is_simple(closed, ground, i + 1):
            outcome[i], lengths[i] = FOUND, length
            if best_length == 0 or length < best_length:
                best, best_length = _walk_to(closed, chosen[i], ground), length
    return best, outcome, lengths, steps


@inner_kernel
def _is_simple(closed: int, ground: Ground, stamp: int) -> bool:
    """Return whether the walk visits no transaction twice.

    Under a rule, the shortest walk may visit one twice.  Then it consists of shorter cycles, and one of them has a
    worse class.  The searches for worse classes from the same start came before, so skipping this walk loses nothing.
    """
    at = np.int64(closed)
    while at >= 0:
        node = at % ground.rank.shape[0]
        if node < ground.status.shape[0]:
            if ground.marks[node] == stamp:
                return False
            ground.marks[node] = stamp
        at = ground.came_from[at]
    return True


@kernel
def _walk_to(closed: int, start: int, ground: Ground) -> CycleWalk:
    count = 0
    at = np.int64(closed)
    while at >= 0:
        count += 1
        at = ground.came_from[at]
    nodes, edges = np.empty(count, np.int64), np.empty(count, np.int64)
    at = np.int64(closed)
    while at >= 0:
        count -= 1
        nodes[count], edges[count] = at % ground.rank.shape[0], ground.came_by[at]
        at = ground.came_from[at]
    return CycleWalk(start, nodes, edges)
