"""Linearizability of registers and cas-registers with any values: just-in-time search over an antichain.

Theory.  Follow the events in order and keep every way in which the operations so far may have been ordered.  Only at a
*return* something must be decided: the operation has to stand in the order now.  So nothing is put into the order
before some operation that returns needs it ("just in time", Lowe 2017; the search is Wing & Gong's, 1993, and deciding
it is NP-complete, Gibbons & Korach 1997).  What one way has come to is a configuration
(`kernels/search/configurations.py`):

    read, mismatch   owed until the state is (is not) its value once while it is open; then it is put there at once,
                     for it changes nothing.  A MISMATCH is a failed cas taken as an observation.
    write            owed and available.  No longer *owed* as soon as another write is put after it, or the state is its
                     value: it can stand just before that write, unseen, or where it changes nothing.  It stays
                     available until it returns: it may still become visible.
    cas              owed and available; both end when it is put into the order.
    never returned   available, never owed.

At a return, configurations that owe the operation are extended by available ones until they no longer do.  Others live
on without it.  A write that is not owed is also tried as visible, at its last chance, if some operation can still
observe it.

What is not tried, and why nothing is lost:

  * of operations that do the same, only the one with the earliest deadline goes first: in any order the two may swap.
    (Not where that one, in a window, need not happen, and the other, a cas, must: an order may hold only the other);
  * a step on the way that satisfies no open observer, enables no cas and is no answered cas: leave it out, a write that
    follows covers all it would have covered;
  * a write of the value already there, unless it covers owed writes before a cas;
  * leaving a value that cannot come back while somebody will certainly observe it (`Problem.stay_until`).

Few configurations usually suffice to find an order.  So the search first keeps the 16 most promising ones only and uses
what never returned only in need, then more, then all.  An order found is an order; "none" is believed only of a search
that dropped nothing.

Where there is no order, keeping all would often not end.  But to show that there is none, little is needed as a rule.
So where a search that dropped something comes to a dead end, two shorter proofs are tried there:

  * `overwritten.py`: an answer whose value had certainly been overwritten;
  * a *window* of the events up to the dead end, judged with everything kept.  The object may hold at first any value
    that may have been produced by then.  Operations under way then may happen, or have happened.  Those that return
    after the dead end need not happen.  Of any order of the history, the part inside the window is an order of the
    window: the values it begins with, the operations it must contain and those it may contain are all allowed there.
    So if the window has no order, the history has none.  Few operations are owed in a short window, and what no
    configuration owes is dominated early.  Windows are taken longer until one has no order, or has cost as many steps
    as the search before it.

Cost: a step is one event, or one configuration looked at.  Memory is what the configurations take.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel, spliced_kernel
from checkers.kernels.operations import CAS, WRITE, Operations
from checkers.kernels.registers.antichain_problem import Problem, prepare
from checkers.kernels.registers.board import RULES, Board, Register, clear, give_slot, new_board
from checkers.kernels.registers.overwritten import certainly_overwritten
from checkers.kernels.registers.unique_values import Key, key_of
from checkers.kernels.search.bits import ONE
from checkers.kernels.search.configurations import Configurations, Hands, insert, settle, size_bytes
from checkers.kernels.search.event_search import Course, follow_events, search_events
from checkers.kernels.search.just_in_time import (
    BEAMS,
    LINEARIZABLE,
    NO_ORDER,
    OUT_OF_BYTES,
    OUT_OF_STEPS,
    TRUNCATED,
    Rooms,
    empty,
    first_size_bytes,
    new_rooms,
    turned,
    unknown_to_the_compiler,
    with_room,
)

__all__ = [
    "LINEARIZABLE",
    "NO_ORDER",
    "OUT_OF_BYTES",
    "OUT_OF_STEPS",
    "judge_key",
    "judge_keys",
    "judge_window",
    "measure_key",
]

WINDOW_FIRST = 16
"""Events in the first window that is tried; each following one is WINDOW_TIMES as long."""

WINDOW_TIMES = 4

STEPS_OF_WINDOWS_LEAST = 4096


def judge_key(key: Key, limit: int, starts: Int64, steps_max: int, bytes_max: int) -> tuple[int, int, int]:
    """Judge the first `limit` positions of a key alone; what had not returned by then is open.

    starts: values (NIL for nil) the object may hold at first.  Returns (code, position, steps): LINEARIZABLE, NO_ORDER,
    OUT_OF_STEPS or OUT_OF_BYTES; for NO_ORDER a position up to which there may be an order, but none that goes on from
    there to the end; steps taken.
    """
    code, position, steps, _ = measure_key(key, limit, starts, steps_max, bytes_max)
    return code, position, steps


@kernel
def measure_key(key: Key, limit: int, starts: Int64, steps_max: int, bytes_max: int) -> tuple[int, int, int, int]:
    """As `judge_key`, and how many bytes the search took at most (what the budget counts)."""
    problem = prepare(key, limit, starts)
    words = max(1, (problem.slots + 63) // 64)
    fixed = words * 8 * (4 * problem.values + 64) + first_size_bytes(words)
    bytes_left = bytes_max - fixed
    if bytes_left < 0:
        return OUT_OF_BYTES, -1, 0, fixed
    board = new_board(problem, words)
    rooms = new_rooms(words, problem.values)
    first, last = unknown_to_the_compiler(0), problem.event.shape[0] - 1
    steps = most = 0
    asked_overwritten = False
    for beam in BEAMS:
        code, place, taken, size = _search(problem, board, rooms, first, last, beam, steps_max - steps, bytes_left)
        steps += taken
        most = max(most, size)
        if code != TRUNCATED:
            return code, problem.position[place] if place >= 0 else -1, steps, fixed + most
        if not asked_overwritten:
            asked_overwritten = True
            steps += last + 1
            if certainly_overwritten(problem) >= 0:
                return NO_ORDER, problem.position[place], steps, fixed + most
        allowed = min(steps_max - steps, max(STEPS_OF_WINDOWS_LEAST, taken))
        refuted, taken, size = _refute(problem, board, rooms, place, allowed, bytes_left)
        steps += taken
        most = max(most, size)
        if refuted:
            return NO_ORDER, problem.position[place], steps, fixed + most
    return OUT_OF_STEPS, -1, steps, fixed + most  # never reached: the last search drops nothing


@kernel
def judge_keys(
    ops: Operations, chosen: Int32, starts: Int64, steps_each: Int64, bytes_max: int
) -> tuple[Int8, Int32, Int64]:
    """Judge some keys, each with a budget of steps of its own.

    chosen: numbers of keys.  steps_each: int64 per chosen key.  Returns (code, position, steps) per chosen key, as
    `judge_key` does.
    """
    code = np.zeros(chosen.shape[0], np.int8)
    position = np.full(chosen.shape[0], -1, np.int32)
    steps = np.zeros(chosen.shape[0], np.int64)
    for i in range(chosen.shape[0]):
        k = chosen[i]
        key = key_of(ops, k)
        limit = 0 + int(ops.positions[k])  # of the type `measure_key` is called with elsewhere, or it is compiled twice
        code[i], position[i], steps[i], _ = measure_key(key, limit, starts, steps_each[i], bytes_max)
    return code, position, steps


@kernel
def judge_window(
    key: Key, limit: int, starts: Int64, first: int, last: int, steps_max: int, bytes_max: int
) -> tuple[int, int]:
    """Judge only the window from place `first` to place `last` of the events.  Returns (code, steps)."""
    problem = prepare(key, limit, starts)
    words = max(1, (problem.slots + 63) // 64)
    board = new_board(problem, words)
    rooms = new_rooms(words, problem.values)
    keep_all = unknown_to_the_compiler(0)
    code, _, steps, _ = _search(problem, board, rooms, first, last, keep_all, steps_max, bytes_max)
    return code, steps


@spliced_kernel
def _refute(
    problem: Problem, board: Board, rooms: Rooms, last: int, steps_max: int, bytes_left: int
) -> tuple[bool, int, int]:
    """Whether some window that ends with place `last` has no order, and the steps and bytes it took to ask."""
    steps = most = 0
    keep_all = unknown_to_the_compiler(0)
    length = WINDOW_FIRST
    while steps < steps_max:
        first = max(0, last + 1 - length)
        code, _, taken, size = _search(problem, board, rooms, first, last, keep_all, steps_max - steps, bytes_left)
        steps += taken
        most = max(most, size)
        if code == NO_ORDER:
            return True, steps, most
        if code != LINEARIZABLE or first == 0:
            break
        length *= WINDOW_TIMES
    return False, steps, most


@kernel
def _search(
    problem: Problem, board: Board, rooms: Rooms, first: int, last: int, beam: int, steps_max: int, bytes_left: int
) -> tuple[int, int, int, int]:
    """One search through places `first` to `last`.

    Returns (code, place of the event that decided it or -1, steps, bytes beyond the first rooms).  The code may be
    TRUNCATED.
    """
    size = 0
    words = board.free.shape[0]
    values = problem.starts if first == 0 else min(problem.values, 2 * (last + 1 - first + 64 * words) + 1)
    if values > rooms.now.state.shape[0]:
        size = 3 * size_bytes(values, words)
        if size > bytes_left:
            return OUT_OF_BYTES, first, 0, size
        rooms = with_room(turned(with_room(rooms, values)), values)
    empty(rooms)
    clear(board)
    count = _begin(problem, board, rooms, first, last)
    register = Register(problem, board)
    code, place, steps, more = search_events(_follow, register, rooms, count, first, last, beam, steps_max, bytes_left)
    return code, place, steps, max(size, more)


@kernel
def _begin(problem: Problem, board: Board, rooms: Rooms, first: int, last: int) -> int:
    """The configurations a window begins with, and slots for what was under way.  Returns how many there are."""
    now, hands = rooms.now, rooms.hands
    count = unknown_to_the_compiler(0)
    if first == 0:
        for start in range(problem.starts):
            count = insert(now, count, start, hands.need, hands.avail)
        return settle(now, count)
    for place in range(first, last + 1):
        if problem.event[place] < 0:
            board.slot[-1 - problem.event[place]] = -1
    for place in range(first):
        op = problem.event[place]
        if op >= 0 and problem.deadline[op] > first and problem.kind[op] in (WRITE, CAS):
            slot = give_slot(problem, board, op, last)
            hands.avail[slot >> 6] |= ONE << np.uint64(slot & 63)
    for op in board.holder:
        if op >= 0:
            count = _begin_with(problem, now, count, hands, first, op)
    for place in range(first, last + 1):
        if problem.event[place] >= 0:
            count = _begin_with(problem, now, count, hands, first, problem.event[place])
    for value in range(problem.values):  # any other value: one stands for all
        if now.head[value] < 0 and problem.first_made[value] < first:
            count = insert(now, count, value, hands.need, hands.avail)
            break
    return settle(now, count)


@inner_kernel
def _begin_with(problem: Problem, now: Configurations, count: int, hands: Hands, first: int, op: int) -> int:
    """Let the window begin with each value an operation names, if it may have been produced by then."""
    seen, made = problem.seen[op], problem.made[op]
    if problem.first_made[seen] < first and now.head[seen] < 0:
        count = insert(now, count, seen, hands.need, hands.avail)
    if made >= 0 and problem.first_made[made] < first and now.head[made] < 0:
        count = insert(now, count, made, hands.need, hands.avail)
    return count


@inner_kernel
def _follow(
    register: Register, rooms: Rooms, count: int, place: int, last: int, beam: int, steps_max: int
) -> tuple[int, int, int, int, bool, bool]:
    """As `follow_events`."""
    course = Course(register.problem.event, register.board.slot, register.board.crashed, register.problem.stay_until)
    return follow_events(RULES, register, course, rooms, count, place, last, beam, steps_max)
