"""Searches for one cycle, level by level, from the target of a broken edge until it meets the source of the edge.

A level contains everything that is reached through the same number of transactions.  The rule for the kinds of edges is
an automaton.  The search visits each pair (state, node) once.  Such a pair is a *place*; its number is
state * places of one state + node.

Nodes are numbered: first transactions, then groups, then the chain if the order of processes counts.

*Bounds.*  All edges except the broken ones rise in the order of the sweep.  So the transactions of a cycle lie inside
the ranks that its broken edges span.  If several such ranges overlap, the transactions lie inside their union: `low` to
`high` of a start.  Groups are not bounded, because a group that waits for a late member may still connect early ones.

*Orders that are no edges.*  The order of one process is a chain of nodes of length zero, one beside each transaction
("here or later").  Real time needs no edges at all.  Of all transactions reached by one level, the one that completed
first precedes every transaction invoked after its completion.  One such step in a cycle is enough.  If a cycle has two,
one of them also reaches the target of the other, and closes a shorter cycle of the same class or a worse one.  Real
time includes the order of processes.

*Rules.*  A cycle must satisfy a rule besides its kinds of edges.  Each rule is an automaton that reads the edges in
order.

The broken edge comes first.  The states are:

ANY            one state
ONE_RW         the number of rw so far: 0 or 1
NOT_ADJACENT   2 * the number of rw so far, up to two; plus one if the last edge was an rw

*Starts.*  The edges that the sweep had to break, once for each kind that they represent.

*Shortest cycles.*  `shortest_cycle` finds the shortest typed cycle through edges that the sweep had to break
(`sweep.py`).

One search by levels begins at each start.  All searches share one memory.  Each search marks the places it visits with
its own stamp, so nothing is cleared between two searches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import NEVER, OK, Transactions
from checkers.kernels.transactions.dependencies import PASS, PROCESS, REALTIME, RW, Graph

BY_PROCESS, BY_REALTIME, ALONG = -1, -2, -3
"""Ways to reach a place without an edge: by the order of processes or real time at the beginning of a step, or along
the chain of a process."""

NOTHING, OUT_OF_BUDGET = -1, -2
"""Returned instead of the place that closes a cycle: there is none, or the steps ran out."""


class CycleQuestion(NamedTuple):
    """The cycles that a search accepts.

    kinds: the kinds of their edges
    rule, state_count: the automaton
    beyond: PROCESS or REALTIME, an order that counts besides the edges, or 0
    only_ok: True if transactions of unknown outcome are excluded
    """

    kinds: int
    rule: int
    beyond: int
    state_count: int
    only_ok: bool


class Ranking(NamedTuple):
    """The order of the sweep, and the order of processes.

    rank: int32 per node
    by_rank: node of each rank
    next_of_process: the next transaction of the same process, or -1
    """

    rank: Int32
    by_rank: Int32
    next_of_process: Int32


class Room(NamedTuple):
    """Memory of searches.  A step touches at most 20 bytes, so most of the memory is never touched.

    places: number of places of one state
    visited, came_by, came_from: per place; `visited` is zero at first
    levels: int32, the places of two levels in turn
    counts: int64, number of places in these levels
    marks: per node, zero at first
    """

    places: int
    visited: Int32
    came_by: Int32
    came_from: Int32
    levels: Int32
    counts: Int64
    marks: Int32


class Ground(NamedTuple):
    """The graph to search, and the memory of the search."""

    txns: Transactions
    graph: Graph
    ranking: Ranking
    room: Room


class Errand(NamedTuple):
    """One search.

    low, high: ranks that it may visit
    first_kind: kind of the broken edge
    source: source of the broken edge; if it is a group, an edge of `first_kind` into it ends the search
    home: target of the broken edge, where the search begins
    stamp: mark of the places that this search visited
    """

    low: int
    high: int
    first_kind: int
    source: int
    home: int
    stamp: int


class Horizon(NamedTuple):
    """Real time, by state.

    first_end: first completion among the transactions reached so far
    holder: place of the transaction that completed first
    pointer: lowest transaction that a step of real time has visited; all later ones have been visited, too
    """

    first_end: Int64
    holder: Int64
    pointer: Int64


class LevelSearch(NamedTuple):
    """The graph to search, the accepted cycles, and the places reached so far."""

    ground: Ground
    question: CycleQuestion
    errand: Errand
    horizon: Horizon


@inner_kernel
def search_by_levels(search: LevelSearch, steps_max: int) -> tuple[int, int, int]:
    """Return (place that closes the cycle or NOTHING or OUT_OF_BUDGET, length of the cycle, steps)."""
    ground, question, horizon = search.ground, search.question, search.horizon
    counts = ground.room.counts
    jumps = question.beyond == REALTIME
    if jumps:
        end = _end_of_window(ground.txns, ground.ranking, search.errand.high)
        for s in range(question.state_count):
            horizon.first_end[s], horizon.holder[s], horizon.pointer[s] = NEVER, -1, end
    home = int(begin(question.rule, search.errand.first_kind)) * ground.room.places + search.errand.home
    here, length, steps = 0, 1, 0
    counts[here] = 0
    _visit(search, home, 0, -1, here)
    while counts[here] > 0:
        counts[1 - here] = 0
        closed, taken, more = _leave_level(search, here)
        steps += taken
        if jumps and closed == NOTHING:
            closed, taken = _jump(search, 1 - here)
            steps, more = steps + taken, 1
        if closed != NOTHING:
            return closed, length + more, steps
        if steps > steps_max:
            return OUT_OF_BUDGET, 0, steps
        here = 1 - here
        length += 1
    return NOTHING, 0, steps


@inner_kernel
def _visit(search: LevelSearch, place: int, way: int, came_from: int, level: int) -> bool:
    """Add a place to a level.  Returns False if the search has visited the place before."""
    room, stamp = search.ground.room, search.errand.stamp
    if room.visited[place] == stamp:
        return False
    room.visited[place], room.came_by[place], room.came_from[place] = stamp, way, came_from
    room.levels[level, room.counts[level]] = place
    room.counts[level] += 1
    return True


@inner_kernel
def _closes(search: LevelSearch, t: int, state: int) -> bool:
    """Return True if a path that reaches transaction t in this state is a cycle."""
    return bool(t == search.errand.source and fulfils(search.question.rule, state, search.errand.first_kind))


@inner_kernel
def _leave_level(search: LevelSearch, level: int) -> tuple[int, int, int]:
    """Continue by edges and chains from the places of a level; groups and chains add further places to the same level.

    Returns (place that closes the cycle, or NOTHING; steps; 1 if that place is of the next level).
    """
    ground, question, horizon = search.ground, search.question, search.horizon
    places, room = ground.room.places, ground.room
    txn_count, node_count = ground.txns.status.shape[0], ground.graph.first.shape[0] - 1
    j = steps = 0
    while j < room.counts[level]:
        place = int(room.levels[level, j])
        j += 1
        node, state = place % places, place // places
        if node >= node_count:
            closed, looked_at = _along_chain(search, place, level)
        else:
            closed, looked_at = _by_edges(search, place, level)
        steps += looked_at
        if closed != NOTHING:
            return closed, steps, int(closed != place)
        if node >= txn_count:
            continue
        if question.beyond == PROCESS:
            _beside_next(search, place, node, step(question.rule, state, PROCESS), BY_PROCESS, level)
            continue
        ended = ground.txns.completed[node]
        if question.beyond == REALTIME and state < question.state_count and ended < horizon.first_end[state]:
            horizon.first_end[state], horizon.holder[state] = ended, place
    return NOTHING, steps, 0


@inner_kernel
def _by_edges(search: LevelSearch, place: int, level: int) -> tuple[int, int]:
    """Visit the targets of the edges of a transaction or group.  Returns (place that closes the cycle, edges seen)."""
    ground, question, errand = search.ground, search.question, search.errand
    graph, rank, places = ground.graph, ground.ranking.rank, ground.room.places
    txn_count = ground.txns.status.shape[0]
    node, state = place % places, place // places
    base = 0
    if state >= question.state_count:  # the path already contains a real-time edge
        base = question.state_count * places
        state -= question.state_count
    begins, ends = graph.first[node], graph.first[node + 1]
    for e in range(begins, ends):
        kind, target = graph.kind[e], graph.target[e]
        if kind & question.kinds == 0 or target == errand.home:
            continue
        joins = target == errand.source >= txn_count and kind == errand.first_kind
        if joins and fulfils(question.rule, state, errand.first_kind):
            return place, e + 1 - begins
        outside = rank[target] < errand.low or rank[target] > errand.high
        if target < txn_count and (outside or (question.only_ok and ground.txns.status[target] != OK)):
            continue
        then = step(question.rule, state, kind)
        if then < 0:
            continue
        other = then * places + base + target
        new = _visit(search, other, e, place, 1 - level if target < txn_count else level)
        if new and target < txn_count and _closes(search, target, then):
            return other, e + 1 - begins
    return NOTHING, ends - begins


@inner_kernel
def _along_chain(search: LevelSearch, place: int, level: int) -> tuple[int, int]:
    """Visit, from a node of a chain, its transaction and the next node.  Returns the same values as `_by_edges`."""
    places = search.ground.room.places
    state, t = place // places, place % places - (search.ground.graph.first.shape[0] - 1)
    other = state * places + t
    if _visit(search, other, ALONG, place, 1 - level) and _closes(search, t, state):
        return other, 0
    _beside_next(search, place, t, state, ALONG, level)
    return NOTHING, 1


@inner_kernel
def _beside_next(search: LevelSearch, place: int, t: int, then: int, way: int, level: int) -> None:
    """Visit the chain node of the next transaction of t's process, in state `then`."""
    ground = search.ground
    following = ground.ranking.next_of_process[t]
    if following < 0 or ground.ranking.rank[following] > search.errand.high:
        return
    if not search.question.only_ok or ground.txns.status[following] == OK:
        other = then * ground.room.places + ground.graph.first.shape[0] - 1 + following
        _visit(search, other, way, place, level)


@inner_kernel
def _jump(search: LevelSearch, level: int) -> tuple[int, int]:
    """Take one step of real time: visit the transactions invoked after the first completion reached so far.

    Returns (place that closes the cycle, steps).
    """
    ground, question, errand, horizon = search.ground, search.question, search.errand, search.horizon
    txns, rank, room = ground.txns, ground.ranking.rank, ground.room
    steps = 0
    for state in range(question.state_count):
        after, holder = horizon.first_end[state], horizon.holder[state]
        if horizon.pointer[state] == 0 or txns.invoked[horizon.pointer[state] - 1] <= after:
            continue
        then = step(question.rule, state, REALTIME)
        base = (question.state_count + then) * room.places
        t = int(horizon.pointer[state]) - 1
        while t >= 0 and txns.invoked[t] > after:
            steps += 1
            inside = t != errand.home and rank[t] >= errand.low and rank[t] <= errand.high
            allowed = inside and (not question.only_ok or txns.status[t] == OK)
            if allowed and _visit(search, base + t, BY_REALTIME, holder, level) and _closes(search, t, then):
                return base + t, steps
            t -= 1
        horizon.pointer[state] = t + 1
    return NOTHING, steps


@inner_kernel
def _end_of_window(txns: Transactions, ranking: Ranking, high: int) -> int:
    """Return a transaction such that it and all later ones rank above `high`.

    These were invoked after the completion of a transaction that ranks above `high`.
    """
    for r in range(high, ranking.by_rank.shape[0]):
        t = ranking.by_rank[r]
        if 0 <= t < txns.status.shape[0] and txns.status[t] == OK:
            return int(np.searchsorted(txns.invoked, txns.completed[t]))
    return len(txns.status)


ANY, ONE_RW, NOT_ADJACENT = 0, 1, 2
"""The rules: no condition; exactly one rw; at least two rw, of which no two are adjacent."""

STATES = {ANY: 1, ONE_RW: 2, NOT_ADJACENT: 6}
"""Number of states of each rule's automaton."""


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
    """Return True if a path that returns to the broken edge in this state is a cycle under the rule."""
    if rule == ANY:
        return True
    if rule == ONE_RW:
        return state == 1
    return state >= 4 and (first_kind != RW or state % 2 == 0)


class Starts(NamedTuple):
    """Broken edges, one row for each kind that an edge represents; an edge from a group may represent two kinds.

    edge, source: numbers in the graph
    kind: int8
    low, high: int32, bounds of the ranks that a search may visit
    """

    edge: Int64
    source: Int32
    kind: Int8
    low: Int32
    high: Int32


@kernel
def next_of_process(process: Int32, process_count: int, happened: Bools) -> Int32:
    """Return int32 per transaction: the next happened transaction of its process, or -1.  Processes count from 0."""
    following = np.full(process.shape[0], -1, np.int32)
    latest = np.full(process_count, -1, np.int32)
    for t in range(process.shape[0] - 1, -1, -1):
        if happened[t]:
            following[t] = latest[process[t]]
            latest[process[t]] = t
    return following


NONE, FOUND, UNFINISHED = 0, 1, 2


class CycleWalk(NamedTuple):
    """The nodes of a cycle in order, beginning with the target of its start, and the way by which each was reached."""

    start: int
    nodes: Int64
    ways: Int64


@kernel
def shortest_cycle(
    ground: Ground, starts: Starts, chosen: Int64, question: CycleQuestion, steps_max: int
) -> tuple[CycleWalk, Int8, Int32, int]:
    """Find the shortest cycle through any of the chosen starts.

    Returns (walk; NONE, FOUND or UNFINISHED per chosen start; number of transactions of its cycle per chosen start;
    steps).  Each start gets an even share of the remaining steps.
    """
    n, status = chosen.shape[0], ground.txns.status
    outcome = np.zeros(n, np.int8)
    lengths = np.zeros(n, np.int32)
    best = CycleWalk(-1, np.empty(0, np.int64), np.empty(0, np.int64))
    best_length = 0
    states = question.state_count
    horizon = Horizon(np.empty(states, np.int64), np.empty(states, np.int64), np.empty(states, np.int64))
    steps = 0
    for i in range(n):
        start = chosen[i]
        source, home = int(starts.source[start]), int(ground.graph.target[starts.edge[start]])
        ends = source < status.shape[0] and status[source] != OK
        if question.only_ok and (status[home] != OK or ends):
            continue
        low, high, kind = int(starts.low[start]), int(starts.high[start]), int(starts.kind[start])
        errand = Errand(low, high, kind, source, home, i + 1)
        share = (steps_max - steps) // (n - i)
        closed, length, spent = search_by_levels(LevelSearch(ground, question, errand, horizon), share)
        steps += spent
        if closed < 0:
            outcome[i] = NONE if closed == NOTHING else UNFINISHED
            continue
        if not _is_simple(closed, ground, i + 1):
            continue
        outcome[i] = FOUND
        lengths[i] = length
        if best_length == 0 or length < best_length:
            best_length = length
            best = _walk_to(closed, start, ground.room)
    return best, outcome, lengths, steps


@inner_kernel
def _is_simple(closed: int, ground: Ground, stamp: int) -> bool:
    """Return True if the walk visits no transaction twice.

    Under a rule, the shortest walk may visit a transaction twice.  Then it consists of shorter cycles, one of which has
    a worse class.  The searches for worse classes from the same start came before, so skipping this walk loses nothing.
    """
    room, places, txn_count = ground.room, ground.room.places, ground.txns.status.shape[0]
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
def _walk_to(closed: int, start: int, room: Room) -> CycleWalk:
    count = 0
    at = np.int64(closed)
    while at >= 0:
        count += 1
        at = room.came_from[at]
    nodes, ways = np.empty(count, np.int64), np.empty(count, np.int64)
    at = np.int64(closed)
    while at >= 0:
        count -= 1
        nodes[count] = at % room.places
        ways[count] = room.came_by[at]
        at = room.came_from[at]
    return CycleWalk(start, nodes, ways)
