"""Decides whether an order of all events of a problem exists (`order_problem.py`), and finds one.

*On demand.*  Events are placed one by one, in a guessed order.  Before an event is placed, all events that must precede
it are placed.  A write waits until the readers of the version that it overwrites are placed.  Under snapshot isolation
a transaction locks the keys that it writes from its start to its commit.  If all events are placed, their order answers
the question.

*A circle.*  An event that waits is put on a stack, and the event for which it waits comes next.  If the latter is on
the stack already, the events from there on wait in a circle.  The circle rests on *assumptions* of the form "w was
placed before u, and both write one key": these are the reasons why its members wait.  So the circle proves that one of
the assumptions is wrong.

    no assumption    the circle consists of required order and of reads: there is no order at all
    one              its opposite, u before w, is certain.  The opposite becomes an edge
    several          one of the opposites is true: a *clause*.  Decide for one, and try the others if it fails

An edge *rests on* the decisions that its circle rests on; the newest of them is its level.  When a circle has no
assumption but rests on decisions, the newest of these was wrong.  The opposite of this decision rests on the other
decisions alone, and the next opposite of the clause is chosen.  The last opposite of a clause rests on the decisions of
its circle and on the decisions that refuted the other opposites.  So a contradiction is never blamed on unrelated
decisions.  A circle that rests on no assumption and no decision proves that there is no order.  So the search is
complete.  It is exponential at worst, since the question is NP-complete (Papadimitriou 1979), and therefore it has a
budget.

After a new edge, events are taken back from the end only as far as the edge's target.  The placed events are always
close to a prefix of the guess, so this is not far.  With a good guess no event is taken back, and the search takes
O(events + reads + writes).

*Real time* costs no edges.  Of the completed transactions that are not placed, the first to complete is *due*.  A
transaction invoked after this completion waits for it.

*Guess.*  The probable place of each event.

The search tries events in the guessed order, and a good guess needs no step back.  Any guess is sound.

A transaction probably commits when it completes.  A transaction of unknown outcome commits before the first reader of
its writes.  Under snapshot isolation a start is probably the invoke.  In a serial database the start is rather just
before the commit.  Time stamps of the system show both exactly (Chronos and Aion, ICDE 2025).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import NEVER, Transactions
from checkers.kernels.transactions.order_problem import OrderProblem

NO_ORDER, ORDER, UNDECIDED = 0, 1, 2
"""Outcomes of a search.  UNDECIDED: the budget of steps ran out."""

PLACED, NEXT, DUE, EDGES, ALTERNATIVES, LEVEL, STEPS, ROUNDS, LEARNED, DECISIONS, CONFLICTS, UNDONE = range(12)
"""Indices into `Search.at`.

NEXT: all events of lower ranks are placed
STEPS: number of examined events and of events taken back
LEARNED, DECISIONS, CONFLICTS: number of circles with one, several and no assumptions"""

_EDGES_PER_EVENT, _EDGES_MIN = 4, 1 << 16
_NOTHING = -1

_RESTS_MAX = 6
"""Maximum number of decisions stored for an edge that rests on them, newest first.

If there are more, the last entry is negative: the edge may rest on all decisions from that level down.  Storing more
decisions than those on which an edge rests is sound, but costs steps."""


class Time(NamedTuple):
    """Real time, if it is required; empty arrays otherwise.

    invoked: int64 per transaction
    by_end: transactions that completed, in order of completion
    end_rank: per transaction, its index in `by_end`, or -1
    ended: int64, the positions of their completions
    """

    invoked: Int64
    by_end: Int32
    end_rank: Int32
    ended: Int64


class Guess(NamedTuple):
    """The order in which events are tried: int32, the rank of each event, and the event of each rank.

    It ranks only events of transactions that happened; the rank of others is -1.
    """

    rank: Int32
    by_rank: Int32


class Search(NamedTuple):
    """The state of a search.  Event numbers: t if start and commit are one event, else 2 t and 2 t + 1.

    position: per event, its index in `order`, or -1
    order: the placed events
    unread, cursor: per version, number of its readers that are not placed, and where to look for one; both arrays are
        empty if no write waits for readers
    current: per key, its version after the placed events
    replaced: per version, the version that it overwrote
    holder: per key, the transaction that has locked it, or -1
    edge_*: the edges that were found, in this order
    edge_next, edge_head: chains of edges by target, latest first
    edge_rests: int32[edges, _RESTS_MAX], levels of the decisions that each edge rests on, newest first, then 0
    level_edges: per level, number of edges at its decision
    level_rests: int32[levels, _RESTS_MAX], the other decisions on which the clause of each decision rests
    rests: int32[_RESTS_MAX], the decisions on which the present circle rests
    clause_*: remaining alternatives: the level of their decision, and u and w of "u before w"
    stack: events that wait
    stack_edge: the edge for which each waits, or -1
    stack_w: the transaction w of the assumption, or -1
    seen: per event, the round in which it was put on the stack
    involved: per transaction, 1 if a circle contained it
    at: see the constants above
    """

    position: Int32
    order: Int32
    unread: Int32
    cursor: Int64
    current: Int32
    replaced: Int32
    holder: Int32
    edge_source: Int32
    edge_target: Int32
    edge_rests: Int32
    edge_next: Int32
    edge_head: Int32
    level_edges: Int64
    level_rests: Int32
    rests: Int32
    clause_level: Int32
    clause_u: Int32
    clause_w: Int32
    stack: Int32
    stack_edge: Int32
    stack_w: Int32
    seen: Int32
    involved: Int8
    at: Int64


@kernel
def find_order(problem: OrderProblem, time: Time, guess: Guess, snapshots: bool, steps_max: int) -> tuple[int, Search]:
    """Return (NO_ORDER, ORDER or UNDECIDED; the search).  If ORDER, `search.order` contains all events.  If NO_ORDER,
    `search.involved` marks the transactions on which the proof rests.

    snapshots: True for snapshot isolation, where start and commit are two events
    """
    search = _new_search(problem, guess, snapshots)
    while True:
        begin, end = _place_until_circle(problem, time, guess, search, snapshots)
        if begin == end:
            return ORDER, search
        edges = _conclude(search, begin, end, snapshots)
        if edges == 0:
            return NO_ORDER, search
        for edge in range(search.at[EDGES] - edges, search.at[EDGES]):
            _demand(problem, time, guess, search, edge, snapshots)
        if search.at[STEPS] > steps_max or not _has_room(search):
            return UNDECIDED, search


@kernel
def _new_search(problem: OrderProblem, guess: Guess, snapshots: bool) -> Search:
    m, events = problem.happened.shape[0], guess.rank.shape[0]
    writes, versions = problem.write_key.shape[0], problem.reader_first.shape[0] - 1
    keys = problem.version_txn.shape[0] - writes
    unread = np.empty(versions, np.int32)
    for v in range(versions):
        unread[v] = problem.reader_first[v + 1] - problem.reader_first[v]
    room = _EDGES_PER_EVENT * events + _EDGES_MIN
    return Search(
        np.full(events, -1, np.int32),
        np.empty(guess.by_rank.shape[0], np.int32),
        unread,
        problem.reader_first[:versions].copy(),
        (writes + np.arange(keys)).astype(np.int32),
        np.full(writes, -1, np.int32),
        np.full(keys, -1, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty((room, _RESTS_MAX), np.int32),
        np.empty(room, np.int32),
        np.full(events, -1, np.int32),
        np.zeros(room + 1, np.int64),
        np.empty((room + 1, _RESTS_MAX), np.int32),
        np.zeros(_RESTS_MAX, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(events + 1, np.int32),
        np.empty(events + 1, np.int32),
        np.empty(events + 1, np.int32),
        np.zeros(events, np.int32),
        np.zeros(m, np.int8),
        np.zeros(12, np.int64),
    )


@inner_kernel
def _has_room(search: Search) -> bool:
    """Return True if there is room for the two edges of a conflict and for the clause of a circle of maximum length."""
    room = search.edge_source.shape[0]
    return bool(search.at[EDGES] + 2 <= room and search.at[ALTERNATIVES] + search.seen.shape[0] <= room)


@inner_kernel
def _start(t: int, snapshots: bool) -> int:
    return int(2 * t if snapshots else t)


@inner_kernel
def _commit(t: int, snapshots: bool) -> int:
    return int(2 * t + 1 if snapshots else t)


# Placing events


@inner_kernel
def _place_until_circle(
    problem: OrderProblem, time: Time, guess: Guess, search: Search, snapshots: bool
) -> tuple[int, int]:
    """Place events on demand.  Returns (begin, end): the circle is stack[begin:end]; it is empty if all are placed."""
    search.at[ROUNDS] += 1
    number = np.int32(search.at[ROUNDS])
    size = 0
    rank, ranks = search.at[NEXT], guess.by_rank.shape[0]
    while True:
        if size == 0:
            while rank < ranks and search.position[guess.by_rank[rank]] >= 0:
                rank += 1
            search.at[NEXT] = rank
            if rank == ranks:
                return 0, 0
            search.stack[0] = guess.by_rank[rank]
            search.seen[guess.by_rank[rank]] = number
            size = 1
        event = int(search.stack[size - 1])
        search.at[STEPS] += 1
        if search.position[event] >= 0:
            size -= 1
            continue
        other, edge, w = _waits_for(problem, time, search, event, snapshots)
        if other == _NOTHING:
            _place(problem, search, event, snapshots)
            size -= 1
            continue
        search.stack_edge[size - 1], search.stack_w[size - 1] = edge, w
        if search.seen[other] == number:
            begin = size - 1
            while search.stack[begin] != other:
                begin -= 1
            return begin, size
        search.seen[other] = number
        search.stack[size] = other
        size += 1


@inner_kernel
def _waits_for(problem: OrderProblem, time: Time, search: Search, event: int, snapshots: bool) -> tuple[int, int, int]:
    """Return (an event that must precede this event or -1, the edge or -1, w of the assumption or -1)."""
    t = event // 2 if snapshots else event
    if snapshots and event % 2 == 1:
        if search.position[event - 1] < 0:
            return event - 1, -1, -1
    else:
        for z in range(problem.read_first[t], problem.read_first[t + 1]):
            writer = problem.version_txn[problem.read_version[z]]
            if writer >= 0 and search.position[_commit(writer, snapshots)] < 0:
                return _commit(writer, snapshots), -1, -1
        for i in range(problem.before.first[t], problem.before.first[t + 1]):
            other = _commit(problem.before.source[i], snapshots)
            if search.position[other] < 0:
                return other, -1, -1
        if time.invoked.shape[0] > 0:
            due = search.at[DUE]
            while due < time.by_end.shape[0] and search.position[_commit(time.by_end[due], snapshots)] >= 0:
                due += 1
            search.at[DUE] = due
            if due < time.by_end.shape[0] and time.invoked[t] > time.ended[due]:
                return _commit(time.by_end[due], snapshots), -1, -1
    edge = search.edge_head[event]
    while edge >= 0:
        if search.position[search.edge_source[edge]] < 0:
            return int(search.edge_source[edge]), int(edge), -1
        edge = search.edge_next[edge]
    if snapshots and event % 2 == 0:
        for v in range(problem.write_first[t], problem.write_first[t + 1]):
            holder = search.holder[problem.write_key[v]]
            if holder >= 0:
                return 2 * holder + 1, -1, int(holder)
        return _NOTHING, -1, -1
    for v in range(problem.write_first[t], problem.write_first[t + 1]):
        overwritten = search.current[problem.write_key[v]]
        if search.unread[overwritten] > 0:
            reader = _unplaced_reader(problem, search, overwritten, event, snapshots)
            if reader >= 0:
                return reader, -1, int(problem.version_txn[overwritten])
    return _NOTHING, -1, -1


@inner_kernel
def _unplaced_reader(problem: OrderProblem, search: Search, version: int, event: int, snapshots: bool) -> int:
    """Return the start of an unplaced reader of a version, other than this event itself; -1 if there is none."""
    i = search.cursor[version]
    while i < problem.reader_first[version + 1]:
        reader = _start(problem.reader[i], snapshots)
        if search.position[reader] < 0:
            if reader != event:
                return reader
            if search.unread[version] == 1:
                return -1
        elif i == search.cursor[version]:
            search.cursor[version] = i + 1
        i += 1
    return -1


@inner_kernel
def _place(problem: OrderProblem, search: Search, event: int, snapshots: bool) -> None:
    t = event // 2 if snapshots else event
    search.position[event] = search.at[PLACED]
    search.order[search.at[PLACED]] = event
    search.at[PLACED] += 1
    if not snapshots or event % 2 == 0:
        if search.unread.shape[0] > 0:
            for z in range(problem.read_first[t], problem.read_first[t + 1]):
                search.unread[problem.read_version[z]] -= 1
        if snapshots:
            for v in range(problem.write_first[t], problem.write_first[t + 1]):
                search.holder[problem.write_key[v]] = t
    if not snapshots or event % 2 == 1:
        for v in range(problem.write_first[t], problem.write_first[t + 1]):
            key = problem.write_key[v]
            search.replaced[v] = search.current[key]
            search.current[key] = v
            search.holder[key] = -1


# Taking events back


@inner_kernel
def _demand(problem: OrderProblem, time: Time, guess: Guess, search: Search, edge: int, snapshots: bool) -> None:
    """Take events back as far as a new edge needs, and require the edge from now on."""
    source, target = search.edge_source[edge], search.edge_target[edge]
    at = search.position[target]
    if at >= 0 and (search.position[source] < 0 or search.position[source] > at):
        while search.at[PLACED] > at:
            _take_back(problem, time, guess, search, snapshots)
    search.edge_next[edge], search.edge_head[target] = search.edge_head[target], edge


@inner_kernel
def _take_back(problem: OrderProblem, time: Time, guess: Guess, search: Search, snapshots: bool) -> None:
    """Take back the event that was placed last."""
    search.at[PLACED] -= 1
    search.at[STEPS] += 1
    search.at[UNDONE] += 1
    event = int(search.order[search.at[PLACED]])
    t = event // 2 if snapshots else event
    search.position[event] = -1
    search.at[NEXT] = min(search.at[NEXT], guess.rank[event])
    if not snapshots or event % 2 == 1:
        if time.invoked.shape[0] > 0 and time.end_rank[t] >= 0:
            search.at[DUE] = min(search.at[DUE], time.end_rank[t])
        for v in range(problem.write_first[t + 1] - 1, problem.write_first[t] - 1, -1):
            key = problem.write_key[v]
            search.current[key] = search.replaced[v]
            if snapshots:
                search.holder[key] = t
    if not snapshots or event % 2 == 0:
        if search.unread.shape[0] > 0:
            for z in range(problem.read_first[t], problem.read_first[t + 1]):
                version = problem.read_version[z]
                search.unread[version] += 1
                search.cursor[version] = problem.reader_first[version]
        if snapshots:
            for v in range(problem.write_first[t], problem.write_first[t + 1]):
                search.holder[problem.write_key[v]] = -1


# Conclusions


@inner_kernel
def _conclude(search: Search, begin: int, end: int, snapshots: bool) -> int:
    """Learn edges from a circle.  Returns the number of edges; 0 if there is no order."""
    first = search.at[ALTERNATIVES]
    _note_alternatives(search, begin, end, snapshots)
    count = search.at[ALTERNATIVES] - first
    if count == 0:
        return _conflict(search, snapshots)
    best = first
    if count == 1:
        search.at[LEARNED] += 1
        search.at[ALTERNATIVES] = first
    else:
        search.at[DECISIONS] += 1
        search.at[LEVEL] += 1
        level = int(search.at[LEVEL])
        search.level_edges[level] = search.at[EDGES]
        _copy(search.rests, search.level_rests[level])
        _rest_on(search.rests, level)
        best = _bring_best_to_end(search, first, level, snapshots)
    _note_edge(search, search.clause_u[best], search.clause_w[best], search.rests, snapshots)
    return 1


@inner_kernel
def _note_alternatives(search: Search, begin: int, end: int, snapshots: bool) -> None:
    """Store the opposites of a circle's assumptions as alternatives, and the circle's decisions in `search.rests`."""
    _rest_on(search.rests, 0)
    for i in range(begin, end):
        u, w = search.stack[i] // 2 if snapshots else search.stack[i], search.stack_w[i]
        search.involved[u] = 1
        if search.stack_edge[i] >= 0:
            _rest_also_on(search.rests, search.edge_rests[search.stack_edge[i]])
        if w >= 0 and w != u:
            search.involved[w] = 1
            n = search.at[ALTERNATIVES]
            search.clause_u[n], search.clause_w[n] = u, w
            search.at[ALTERNATIVES] = n + 1


@inner_kernel
def _rest_on(rests: Int32, level: int) -> None:
    """Set `rests` to one decision, or to none if the level is 0."""
    rests[0] = level
    for i in range(1, _RESTS_MAX):
        rests[i] = 0


@inner_kernel
def _copy(rests: Int32, into: Int32) -> None:
    for i in range(_RESTS_MAX):
        into[i] = rests[i]


@inner_kernel
def _rest_also_on(rests: Int32, others: Int32) -> None:
    """Add the decisions `others` to `rests`."""
    for j in range(_RESTS_MAX):
        level, and_below = abs(others[j]), others[j] < 0
        if level == 0:
            return
        i = 0
        while i < _RESTS_MAX and rests[i] > level:
            i += 1
        if i == _RESTS_MAX:
            rests[i - 1] = -rests[i - 1]
            return
        if rests[i] <= -level:
            return
        if and_below:
            rests[i] = -level
            for k in range(i + 1, _RESTS_MAX):
                rests[k] = 0
            return
        if rests[i] == level:
            continue
        crowded = rests[_RESTS_MAX - 1] != 0
        for k in range(_RESTS_MAX - 1, i, -1):
            rests[k] = rests[k - 1]
        rests[i] = level
        if crowded:
            rests[_RESTS_MAX - 1] = -abs(rests[_RESTS_MAX - 1])


@inner_kernel
def _drop_newest(rests: Int32) -> None:
    """Remove the newest decision from `rests`."""
    if rests[0] < 0:
        rests[0] += 1
        return
    for i in range(_RESTS_MAX - 1):
        rests[i] = rests[i + 1]
    rests[_RESTS_MAX - 1] = 0


@inner_kernel
def _bring_best_to_end(search: Search, first: int, level: int, snapshots: bool) -> int:
    """Move the alternative whose w was placed last to the end: it needs the fewest steps back.  Returns its index."""
    best = first
    for i in range(first, search.at[ALTERNATIVES]):
        search.clause_level[i] = level
        at, at_best = _start(search.clause_w[i], snapshots), _start(search.clause_w[best], snapshots)
        if search.position[at] > search.position[at_best]:
            best = i
    last = int(search.at[ALTERNATIVES]) - 1
    u, w = search.clause_u[best], search.clause_w[best]
    search.clause_u[best], search.clause_w[best] = search.clause_u[last], search.clause_w[last]
    search.clause_u[last], search.clause_w[last] = u, w
    return last


@inner_kernel
def _conflict(search: Search, snapshots: bool) -> int:
    """Undo the newest decision that the present circle rests on, because the circle has no assumption.

    Returns the number of new edges; 0 if the circle rests on no decision, so that no order exists.
    """
    search.at[CONFLICTS] += 1
    level = abs(int(search.rests[0]))
    if level == 0:
        return 0
    _drop_newest(search.rests)
    while search.at[ALTERNATIVES] > 0 and search.clause_level[search.at[ALTERNATIVES] - 1] > level:
        search.at[ALTERNATIVES] -= 1
    _forget_edges(search, level)
    last = search.at[ALTERNATIVES] - 1
    wrong_u, wrong_w = search.clause_u[last], search.clause_w[last]
    u, w = search.clause_u[last - 1], search.clause_w[last - 1]
    only_one_left = last < 2 or search.clause_level[last - 2] < level
    search.at[ALTERNATIVES] = last - 1 if only_one_left else last
    search.at[LEVEL] = level - 1 if only_one_left else level
    _note_edge(search, wrong_w, wrong_u, search.rests, snapshots)
    _rest_also_on(search.level_rests[level], search.rests)
    if only_one_left:
        _note_edge(search, u, w, search.level_rests[level], snapshots)
    else:
        _rest_on(search.rests, level)
        _note_edge(search, u, w, search.rests, snapshots)
    return 2


@inner_kernel
def _forget_edges(search: Search, level: int) -> None:
    """Drop the edges of this level and above.  All of them were found after the decision of this level."""
    first, end = search.level_edges[level], search.at[EDGES]
    for edge in range(end - 1, first - 1, -1):
        search.edge_head[search.edge_target[edge]] = search.edge_next[edge]
    kept = first
    for edge in range(first, end):
        if abs(search.edge_rests[edge, 0]) < level:
            source, target = search.edge_source[edge], search.edge_target[edge]
            search.edge_source[kept], search.edge_target[kept] = source, target
            _copy(search.edge_rests[edge], search.edge_rests[kept])
            search.edge_next[kept], search.edge_head[target] = search.edge_head[target], kept
            kept += 1
    search.at[EDGES] = kept
    search.at[STEPS] += (end - first) // 8


@inner_kernel
def _note_edge(search: Search, u: int, w: int, rests: Int32, snapshots: bool) -> None:
    """Store the edge "u must commit before w starts".  `_demand` applies it."""
    edge = search.at[EDGES]
    search.at[EDGES] = edge + 1
    search.edge_source[edge], search.edge_target[edge] = _commit(u, snapshots), _start(w, snapshots)
    _copy(rests, search.edge_rests[edge])


_ROUNDS = 3
"""Number of passes that improve the positions of unknown outcomes by those of their successors."""


def guess_of(
    txns: Transactions, problem: OrderProblem, *, snapshots: bool, starts_early: bool = True, begin: Int64 | None = None
) -> Guess:
    """Return the ranks of all events.

    starts_early: True if a start is the invoke, False if it is just before the commit
    begin: positions of the starts, if they are known better than from the invokes
    """
    end = _ends(txns, problem)
    if not snapshots:
        return ranked(end, problem.happened)
    moments = np.empty(2 * len(end), np.int64)
    moments[1::2] = 2 * end
    early = 2 * txns.invoked if begin is None else 2 * begin + 1
    moments[0::2] = np.minimum(early, moments[1::2] - 1) if starts_early else moments[1::2] - 1
    return ranked(moments, np.repeat(problem.happened, 2))


def ranked(moments: Int64, happened: Bools) -> Guess:
    """Rank events by these moments.  Events with equal moments keep their order."""
    by_rank = np.argsort(moments, kind="stable").astype(np.int32)
    by_rank = by_rank[happened[by_rank]]
    rank = np.full(len(moments), -1, np.int32)
    rank[by_rank] = np.arange(len(by_rank), dtype=np.int32)
    return Guess(rank, by_rank)


@kernel
def _ends(txns: Transactions, problem: OrderProblem) -> Int64:
    end = txns.completed.copy()
    for _ in range(_ROUNDS):
        for t in range(end.shape[0] - 1, -1, -1):
            if txns.completed[t] != NEVER or not problem.happened[t]:
                continue
            for v in range(problem.write_first[t], problem.write_first[t + 1]):
                for i in range(problem.reader_first[v], problem.reader_first[v + 1]):
                    end[t] = min(end[t], end[problem.reader[i]])
            for i in range(problem.after.first[t], problem.after.first[t + 1]):
                end[t] = min(end[t], end[problem.after.target[i]])
    for t in range(end.shape[0]):
        if end[t] == NEVER:
            end[t] = txns.invoked[t]
    return end


@kernel
def no_time() -> Time:
    return Time(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))


def real_time(txns: Transactions, problem: OrderProblem) -> Time:
    """Return the invokes and completions of transactions that happened."""
    by_end = np.flatnonzero(problem.happened & (txns.completed != NEVER)).astype(np.int32)
    by_end = by_end[np.argsort(txns.completed[by_end], kind="stable")]
    end_rank: Int32 = np.full(len(txns.completed), -1, np.int32)
    end_rank[by_end] = np.arange(len(by_end), dtype=np.int32)
    return Time(txns.invoked, by_end, end_rank, txns.completed[by_end])
