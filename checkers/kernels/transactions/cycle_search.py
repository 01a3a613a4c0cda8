"""Finds the shortest typed cycles through edges that the sweep had to break (`sweep.py`).

One search by levels begins at each start (`cycle_levels.py`).  All searches share one memory.  Each search marks the
places it visits with its own stamp, so nothing is cleared between two searches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import OK
from checkers.kernels.transactions.cycle_levels import (
    NOTHING,
    CycleQuestion,
    Errand,
    Ground,
    Horizon,
    Room,
    Starts,
    search_by_levels,
)

NONE, FOUND, UNFINISHED = 0, 1, 2


class CycleWalk(NamedTuple):
    """The nodes of a cycle in order, from the target of its start on, and the way each was reached."""

    start: int
    nodes: Int64
    ways: Int64


@kernel
def shortest_cycle(
    ground: Ground, starts: Starts, chosen: Int64, question: CycleQuestion, steps_max: int
) -> tuple[CycleWalk, Int8, Int32, int]:
    """Find the shortest cycle through any of the chosen starts.

    Returns (walk; NONE, FOUND or UNFINISHED per chosen start; the number of transactions of its cycle; steps).  Each
    start gets an even share of the remaining steps.
    """
    n = chosen.shape[0]
    outcome = np.zeros(n, np.int8)
    lengths = np.zeros(n, np.int32)
    best = CycleWalk(-1, np.empty(0, np.int64), np.empty(0, np.int64))
    best_length = 0
    states = question.state_count
    horizon = Horizon(np.empty(states, np.int64), np.empty(states, np.int64), np.empty(states, np.int64))
    targets = np.empty(16, np.int32)
    steps = 0
    for i in range(n):
        start = chosen[i]
        targets, target_count = _targets(ground, starts, start, question.only_ok, targets, 2 * i + 1)
        if target_count == 0:
            continue
        errand = Errand(
            int(starts.low[start]),
            int(starts.high[start]),
            int(starts.kind[start]),
            int(ground.graph.target[starts.edge[start]]),
            targets,
            target_count,
            i + 1,
            2 * i + 1,
        )
        share = (steps_max - steps) // (n - i)
        closed, length, spent = search_by_levels(ground, question, errand, horizon, share)
        steps += spent
        if closed < 0:
            outcome[i] = NONE if closed == NOTHING else UNFINISHED
            continue
        if not _is_simple(closed, ground, 2 * i + 2):
            continue
        outcome[i] = FOUND
        lengths[i] = length
        if best_length == 0 or length < best_length:
            best_length = length
            best = _walk_to(closed, start, ground.room)
    return best, outcome, lengths, steps


@kernel
def _targets(
    ground: Ground, starts: Starts, start: int, only_ok: bool, targets: Int32, stamp: int
) -> tuple[Int32, int]:
    """Mark the transactions from which the start's edge comes with the stamp; returns (transactions, their number)."""
    status, backward, rank = ground.txns.status, ground.backward, ground.ranking.rank
    source, home = starts.source[start], ground.graph.target[starts.edge[start]]
    if only_ok and status[home] != OK:
        return targets, 0
    if source < status.shape[0]:
        targets[0] = source
        ground.room.marks[source] = stamp
        return targets, 0 if only_ok and status[source] != OK else 1
    if targets.shape[0] < backward.first[source + 1] - backward.first[source]:
        targets = np.empty(backward.first[source + 1] - backward.first[source], np.int32)
    count = 0
    for e in range(backward.first[source], backward.first[source + 1]):
        member = backward.source[e]
        if ground.graph.kind[backward.edge[e]] != starts.kind[start] or rank[member] <= rank[home]:
            continue
        if not only_ok or status[member] == OK:
            targets[count] = member
            ground.room.marks[member] = stamp
            count += 1
    return targets, count


@inner_kernel
def _is_simple(closed: int, ground: Ground, stamp: int) -> bool:
    """Return whether the walk visits no transaction twice.

    Under a rule, the shortest walk may visit one twice.  Then it consists of shorter cycles, and one of them has a
    worse class.  The searches for worse classes from the same start came before, so skipping this walk loses nothing.
    """
    room, places, txn_count = ground.room, len(ground.room.level), ground.txns.status.shape[0]
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
        nodes[count] = at % len(room.level)
        ways[count] = room.came_by[at]
        at = room.came_from[at]
    return CycleWalk(start, nodes, ways)
