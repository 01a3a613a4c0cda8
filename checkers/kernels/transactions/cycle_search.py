"""The shortest typed cycles through edges that the sweep had to break (`sweep.py`).

A search begins at the target of a broken edge and goes on by levels, a transaction more each, until it meets the edge's
source.  The rule for the kinds of edges is an automaton, and (state, node) is visited once.

*Bounds.*  All edges but the broken ones rise in the order of the sweep, so that the transactions of a cycle lie inside
the ranks its broken edges reach over; where those of several overlap, inside all of them together: `low` to `high` of a
start.  Groups do not count: one that waits for a late member stands between early ones all the same.

*Orders that are no edges.*  The order of one process is walked through as a chain of nodes of no length, one beside
each transaction ("here or later").  Real time needs no edges at all: of all transactions reached by one level, the one
that completed first precedes whatever was invoked after it.  One such step is enough: of a cycle with two, one of them
reaches to where the other one leads, and closes a shorter cycle of the same class or a worse one.  Real time contains
the order of processes.

Nodes: transactions, groups, then the chain, where it counts.  A place is state * nodes + node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import NEVER, OK, Transactions
from checkers.kernels.transactions.cycle_rules import begin, fulfils, step
from checkers.kernels.transactions.cycle_starts import Starts
from checkers.kernels.transactions.dependencies import PROCESS, REALTIME, Graph, Reverse

BY_PROCESS, BY_REALTIME, ALONG = -1, -2, -3
"""How a place was reached, where by no edge: at the beginning of a step, or along the chain of a process."""

NONE, FOUND, UNFINISHED = 0, 1, 2


class Orders(NamedTuple):
    """What is known besides edges: rank by node; node by rank; the next transaction of the same process, or -1."""

    rank: Int32
    by_rank: Int32
    next_of_process: Int32


class Room(NamedTuple):
    """Memory of searches, little of which is ever touched: 20 bytes for each step at most.

    visited (zero), came_by, came_from: of each place.  level, next_level: for the places of one state; a search that
    needs more is unfinished.  marks: zero, of each node.
    """

    visited: Int32
    came_by: Int32
    came_from: Int32
    level: Int32
    next_level: Int32
    marks: Int32


class Walk(NamedTuple):
    """The nodes of a cycle from the target of its start on, and how each was reached."""

    start: int
    nodes: Int64
    ways: Int64


@kernel
def shortest_cycle(
    txns: Transactions,
    graph: Graph,
    backward: Reverse,
    orders: Orders,
    starts: Starts,
    chosen: Int64,
    kinds: int,
    rule: int,
    beyond: int,
    state_count: int,
    only_ok: bool,
    room: Room,
    steps_max: int,
) -> tuple[Walk, Int8, Int32, int]:
    """The shortest cycle through any of the chosen starts, over edges of `kinds` under `rule`.

    beyond: PROCESS or REALTIME, an order that counts besides the edges, or 0.  only_ok: not through transactions of
    unknown outcome.
    Returns (walk, per chosen start NONE, FOUND or UNFINISHED, transactions of its cycle, steps).  Each start gets an
    even share of the steps that are left.
    """
    n = chosen.shape[0]
    outcome = np.zeros(n, np.int8)
    lengths = np.zeros(n, np.int32)
    best = Walk(-1, np.empty(0, np.int64), np.empty(0, np.int64))
    best_length = 0
    horizon = np.empty(state_count, np.int64)
    holder = np.empty(state_count, np.int64)
    pointer = np.empty(state_count, np.int64)
    targets = np.empty(16, np.int32)
    steps = 0
    places = len(room.level)
    for i in range(n):
        start = chosen[i]
        targets, target_count = _targets(
            txns, graph, backward, orders.rank, starts, start, only_ok, targets, room, 2 * i + 1
        )
        if target_count == 0:
            continue
        share = (steps_max - steps) // (n - i)
        closed, length, spent = _search(
            txns,
            graph,
            orders,
            starts.low[start],
            starts.high[start],
            starts.kind[start],
            graph.target[starts.edge[start]],
            targets,
            target_count,
            kinds,
            rule,
            beyond,
            state_count,
            only_ok,
            horizon,
            holder,
            pointer,
            room,
            i + 1,
            share,
        )
        steps += spent
        if closed < 0:
            outcome[i] = NONE if closed == -1 else UNFINISHED
            continue
        if not _is_simple(closed, places, orders, room, 2 * i + 2):
            continue
        outcome[i] = FOUND
        lengths[i] = length
        if best_length == 0 or length < best_length:
            best_length = length
            best = _walk_to(closed, places, start, room)
    return best, outcome, lengths, steps


@kernel
def _targets(
    txns: Transactions,
    graph: Graph,
    backward: Reverse,
    rank: Int32,
    starts: Starts,
    start: int,
    only_ok: bool,
    targets: Int32,
    room: Room,
    stamp: int,
) -> tuple[Int32, int]:
    """(transactions from which the start's edge comes, how many), which are marked with the stamp."""
    source, home = starts.source[start], graph.target[starts.edge[start]]
    if only_ok and txns.status[home] != OK:
        return targets, 0
    if source < txns.status.shape[0]:
        targets[0] = source
        room.marks[source] = stamp
        return targets, 0 if only_ok and txns.status[source] != OK else 1
    if targets.shape[0] < backward.first[source + 1] - backward.first[source]:
        targets = np.empty(backward.first[source + 1] - backward.first[source], np.int32)
    count = 0
    for e in range(backward.first[source], backward.first[source + 1]):
        member = backward.source[e]
        if graph.kind[backward.edge[e]] != starts.kind[start] or rank[member] <= rank[home]:
            continue
        if not only_ok or txns.status[member] == OK:
            targets[count] = member
            room.marks[member] = stamp
            count += 1
    return targets, count


@inner_kernel
def _search(
    txns: Transactions,
    graph: Graph,
    orders: Orders,
    low: int,
    high: int,
    first_kind: int,
    home: int,
    targets: Int32,
    target_count: int,
    kinds: int,
    rule: int,
    beyond: int,
    state_count: int,
    only_ok: bool,
    horizon: Int64,
    holder: Int64,
    pointer: Int64,
    room: Room,
    stamp: int,
    steps_max: int,
) -> tuple[int, int, int]:
    """(place that closes the cycle, its length, steps); for the place -1 where there is none, -2 out of steps."""
    txn_count = txns.status.shape[0]
    node_count = graph.first.shape[0] - 1
    places = len(room.level)
    rank, visited, came_by, came_from = orders.rank, room.visited, room.came_by, room.came_from
    target_stamp = 2 * stamp - 1
    level, next_level = room.level, room.next_level
    jumps = beyond == REALTIME
    if jumps:
        end = _end_of_window(txns, orders, high)
        for s in range(state_count):
            horizon[s], holder[s], pointer[s] = NEVER, -1, end
    place = int(begin(rule, first_kind)) * places + int(home)
    visited[place] = stamp
    came_by[place] = 0
    came_from[place] = -1
    level[0] = place
    size, length, steps = 1, 1, 0
    while size > 0:
        next_size = 0
        j = 0
        while j < size:
            if size == places or next_size == places:
                return -2, 0, steps
            place = int(level[j])
            j += 1
            node = place % places
            state = place // places
            jumped = state >= state_count
            base = state_count * places if jumped else 0
            if jumped:
                state -= state_count
            if node >= node_count:  # of the chain: enter its transaction, or go on along it
                t = node - node_count
                other = state * places + base + t
                if visited[other] != stamp:
                    visited[other], came_by[other], came_from[other] = stamp, ALONG, place
                    if room.marks[t] == target_stamp and fulfils(rule, state, first_kind):
                        return other, length + 1, steps
                    next_level[next_size] = other
                    next_size += 1
                following = orders.next_of_process[t]
                other = state * places + base + node_count + following
                steps += 1
                allowed = following >= 0 and rank[following] <= high
                if allowed and visited[other] != stamp and (not only_ok or txns.status[following] == OK):
                    visited[other], came_by[other], came_from[other] = stamp, ALONG, place
                    level[size] = other
                    size += 1
                continue
            for e in range(graph.first[node], graph.first[node + 1]):
                steps += 1
                kind = graph.kind[e]
                target = graph.target[e]
                if kind & kinds == 0 or target == home:
                    continue
                if size == places or next_size == places:
                    return -2, 0, steps
                outside = rank[target] < low or rank[target] > high
                if target < txn_count and (outside or (only_ok and txns.status[target] != OK)):
                    continue
                then = step(rule, state, kind)
                if then < 0:
                    continue
                other = then * places + base + target
                if visited[other] == stamp:
                    continue
                visited[other], came_by[other], came_from[other] = stamp, e, place
                if target < txn_count:
                    if room.marks[target] == target_stamp and fulfils(rule, then, first_kind):
                        return other, length + 1, steps
                    next_level[next_size] = other
                    next_size += 1
                else:
                    level[size] = other
                    size += 1
            if node >= txn_count:
                continue
            if size == places or next_size == places:
                return -2, 0, steps
            if beyond == PROCESS:
                following = orders.next_of_process[node]
                if following >= 0 and rank[following] <= high and (not only_ok or txns.status[following] == OK):
                    other = step(rule, state, PROCESS) * places + base + node_count + following
                    if visited[other] != stamp:
                        visited[other], came_by[other], came_from[other] = stamp, BY_PROCESS, place
                        level[size] = other
                        size += 1
            elif jumps and not jumped and txns.completed[node] < horizon[state]:
                horizon[state] = txns.completed[node]
                holder[state] = place
        if jumps:
            closed, next_size, looked_at = _jump(
                txns,
                orders,
                low,
                high,
                first_kind,
                home,
                targets,
                target_count,
                rule,
                state_count,
                only_ok,
                horizon,
                holder,
                pointer,
                room,
                next_level,
                next_size,
                stamp,
            )
            steps += looked_at
            if closed != -1:
                return closed, length + 1, steps
        if steps > steps_max:
            return -2, 0, steps
        level, next_level = next_level, level
        size = next_size
        length += 1
    return -1, 0, steps


@inner_kernel
def _jump(
    txns: Transactions,
    orders: Orders,
    low: int,
    high: int,
    first_kind: int,
    home: int,
    targets: Int32,
    target_count: int,
    rule: int,
    state_count: int,
    only_ok: bool,
    horizon: Int64,
    holder: Int64,
    pointer: Int64,
    room: Room,
    next_level: Int32,
    next_size: int,
    stamp: int,
) -> tuple[int, int, int]:
    """One step of real time: visit all that was invoked after the first completion of what was reached so far.

    horizon, holder: per state, that completion and its place.  pointer: per state, the first transaction visited so.
    Returns (place that closes the cycle, -1 where none does or -2 out of room; size of the next level; steps).
    """
    places = len(room.level)
    steps = 0
    for state in range(state_count):
        if pointer[state] == 0 or txns.invoked[pointer[state] - 1] <= horizon[state]:
            continue
        then = step(rule, state, REALTIME)
        base = (state_count + then) * places
        if fulfils(rule, then, first_kind):
            for i in range(target_count):
                if txns.invoked[targets[i]] > horizon[state]:
                    place = base + int(targets[i])
                    room.came_by[place], room.came_from[place] = BY_REALTIME, holder[state]
                    return place, next_size, steps
        t = int(pointer[state]) - 1
        while t >= 0 and txns.invoked[t] > horizon[state]:
            steps += 1
            if next_size == places:
                return -2, next_size, steps
            place = base + t
            inside = t != home and orders.rank[t] >= low and orders.rank[t] <= high
            if inside and room.visited[place] != stamp and (not only_ok or txns.status[t] == OK):
                room.visited[place], room.came_by[place], room.came_from[place] = stamp, BY_REALTIME, holder[state]
                next_level[next_size] = place
                next_size += 1
            t -= 1
        pointer[state] = t + 1
    return -1, next_size, steps


@inner_kernel
def _end_of_window(txns: Transactions, orders: Orders, high: int) -> int:
    """A transaction such that it and all later ones rank above `high`: invoked after one completed that does so."""
    for r in range(high, orders.by_rank.shape[0]):
        t = orders.by_rank[r]
        if 0 <= t < txns.status.shape[0] and txns.status[t] == OK:
            return int(np.searchsorted(txns.invoked, txns.completed[t]))
    return len(txns.status)


@inner_kernel
def _is_simple(closed: int, places: int, orders: Orders, room: Room, stamp: int) -> bool:
    """Whether the walk meets no transaction twice.

    Under a rule the shortest walk may.  Then it falls apart into cycles that are shorter, of which one is of a worse
    class: those were searched before from the same start, so that nothing is lost by passing it over.
    """
    txn_count = orders.next_of_process.shape[0]
    at = np.int64(closed)
    while at >= 0:
        node = at % places
        if node < txn_count:
            if room.marks[node] == stamp:
                return False
            room.marks[node] = stamp
        at = room.came_from[at]
    return True


@kernel
def _walk_to(closed: int, places: int, start: int, room: Room) -> Walk:
    count = 0
    at = np.int64(closed)
    while at >= 0:
        count += 1
        at = room.came_from[at]
    nodes, ways = np.empty(count, np.int64), np.empty(count, np.int64)
    at = np.int64(closed)
    while at >= 0:
        count -= 1
        nodes[count] = at % places
        ways[count] = room.came_by[at]
        at = room.came_from[at]
    return Walk(start, nodes, ways)
