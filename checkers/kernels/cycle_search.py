"""The shortest typed cycles through edges that the sweep had to break (`kernels/sweep.py`).

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

from checkers.kernels.dependencies import PASS, PROCESS, REALTIME, RW, Graph, Reverse
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import Int8, Int32, Int64
from checkers.kernels.transactions import NEVER, OK, Bools, Transactions

ANY, ONE_RW, NOT_ADJACENT = 0, 1, 2
"""What a cycle must satisfy besides its kinds of edges: nothing; one rw exactly; two or more, no two adjacent."""

STATES = {ANY: 1, ONE_RW: 2, NOT_ADJACENT: 6}
"""How many states the automaton of each rule has."""

BY_PROCESS, BY_REALTIME, ALONG = -1, -2, -3
"""How a place was reached, where by no edge: at the beginning of a step, or along the chain of a process."""

NONE, FOUND, UNFINISHED = 0, 1, 2


class Starts(NamedTuple):
    """Broken edges, one row each for every kind they stand for (those from groups may stand for two).

    edge, source: numbers.  kind: int8.  low, high: int32, bounds of the ranks a search may visit.
    """

    edge: Int64
    source: Int32
    kind: Int8
    low: Int32
    high: Int32


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
def starts_of(broken: Int64, graph: Graph, backward: Reverse, rank: Int32, txn_count: int) -> Starts:
    """A start for each broken edge and kind; bounds are those of the edge itself.  Ordered by how far they reach."""
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
    """int32 per transaction: the next one of its process that happened, or -1.  Processes number from 0."""
    following = np.full(process.shape[0], -1, np.int32)
    latest = np.full(process_count, -1, np.int32)
    for t in range(process.shape[0] - 1, -1, -1):
        if happened[t]:
            following[t] = latest[process[t]]
            latest[process[t]] = t
    return following


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
    place = int(_begin(rule, first_kind)) * places + int(home)
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
                    if room.marks[t] == target_stamp and _fulfils(rule, state, first_kind):
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
                then = _step(rule, state, kind)
                if then < 0:
                    continue
                other = then * places + base + target
                if visited[other] == stamp:
                    continue
                visited[other], came_by[other], came_from[other] = stamp, e, place
                if target < txn_count:
                    if room.marks[target] == target_stamp and _fulfils(rule, then, first_kind):
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
                    other = _step(rule, state, PROCESS) * places + base + node_count + following
                    if visited[other] != stamp:
                        visited[other], came_by[other], came_from[other] = stamp, BY_PROCESS, place
                        level[size] = other
                        size += 1
            elif jumps and not jumped and txns.completed[node] < horizon[state]:
                horizon[state] = txns.completed[node]
                holder[state] = place
        if jumps:
            for state in range(state_count):
                if pointer[state] == 0 or txns.invoked[pointer[state] - 1] <= horizon[state]:
                    continue
                then = _step(rule, state, REALTIME)
                base = (state_count + then) * places
                if _fulfils(rule, then, first_kind):
                    for i in range(target_count):
                        if txns.invoked[targets[i]] > horizon[state]:
                            other = base + targets[i]
                            came_by[other], came_from[other] = BY_REALTIME, holder[state]
                            return other, length + 1, steps
                t = pointer[state] - 1
                while t >= 0 and txns.invoked[t] > horizon[state]:
                    steps += 1
                    if next_size == places:
                        return -2, 0, steps
                    other = base + t
                    inside = t != home and rank[t] >= low and rank[t] <= high
                    if inside and visited[other] != stamp and (not only_ok or txns.status[t] == OK):
                        visited[other], came_by[other], came_from[other] = stamp, BY_REALTIME, holder[state]
                        next_level[next_size] = other
                        next_size += 1
                    t -= 1
                pointer[state] = t + 1
        if steps > steps_max:
            return -2, 0, steps
        level, next_level = next_level, level
        size = next_size
        length += 1
    return -1, 0, steps


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


# Automata.  ANY: one state.  ONE_RW: how many rw there were.  NOT_ADJACENT: 2 * how many there were, up to two, and one
# more if the last edge was one.  The broken edge itself counts first.


@inner_kernel
def _begin(rule: int, kind: int) -> int:
    if kind != RW or rule == ANY:
        return 0
    return 1 if rule == ONE_RW else 3


@inner_kernel
def _step(rule: int, state: int, kind: int) -> int:
    """The state after one more edge, or -1 where the rule forbids it."""
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
def _fulfils(rule: int, state: int, first_kind: int) -> bool:
    """Whether a path that came back to the broken edge in this state is a cycle under the rule."""
    if rule == ANY:
        return True
    if rule == ONE_RW:
        return state == 1
    return state >= 4 and (first_kind != RW or state % 2 == 0)
