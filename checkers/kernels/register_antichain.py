"""Linearizability of registers and cas-registers with any values: just-in-time search over an antichain.

Theory.  Follow the events, and keep every possible order of the operations so far.  A choice is needed only at a
*return*: the returning operation must be in the order by then.  So an operation enters the order only if a returning
operation needs it ("just in time", Lowe 2017).  The search is that of Wing & Gong 1993.  The problem is NP-complete
(Gibbons & Korach 1997).  A configuration summarizes one possible order (`kernels/configurations.py`):

    read, mismatch   owed until, while it is open, the state is (a mismatch: is not) its value.  Then it enters the
                     order at once, because it changes nothing.  A MISMATCH is a failed cas counted as an observation.
    write            owed and available.  It is no longer *owed* after a later write enters the order, or if the state
                     is its value: it can be placed unseen just before the later write, or where it changes nothing.  It
                     stays available until it returns, because it may still become visible.
    cas              owed and available; both end when it enters the order.
    never returned   available, never owed.

At a return, the search extends configurations that owe the operation by available operations until they no longer owe
it.  Other configurations continue without it.  A write that is not owed has its last chance to become visible at its
return.  The search tries this too if some operation can still observe the write.

The search omits the following, without loss:

  * Of two operations with the same effect, only the one with the earlier deadline goes first, because the two may swap
    in any order.  Exception: in a window, the first need not happen, and the second is a cas that must happen.
  * An intermediate step is omitted if it satisfies no open observer, enables no cas, and is no answered cas.  A later
    write covers everything that this step would have covered.
  * A write of the current value is omitted, unless it covers owed writes before a cas.
  * The search never leaves a value that cannot come back while a later operation certainly observes it
    (`Problem.stay_until`).

Few configurations usually suffice to find an order.  So the first search keeps only the 16 most promising
configurations.  It uses operations that never returned only if necessary.  Later searches keep more, and the last one
keeps all.  Any order that a search finds is a proof.  "No order" counts only if the search dropped nothing.

If there is no order, a search that keeps everything often does not end, but a short proof usually exists.  So when a
search that dropped configurations reaches a dead end, two shorter proofs are tried:

  * `certainly_overwritten` looks for an answer whose value had certainly been overwritten.
  * A *window* of the events up to the dead end is judged with every configuration kept.  The initial value of the
    object may be any value that may have been produced by then.  Operations open at the window's beginning may happen
    later, or may have happened already.  Operations that return after the dead end need not happen.  Take any order of
    the full history: its part inside the window is an allowed order of the window.  So if the window has no order, the
    history has none.  A short window owes few operations, so many configurations dominate each other.  Windows become
    longer until one has no order, or costs as many steps as the search before it.

Cost: a step is one visited configuration, or 64 words read when configurations are compared (WORDS_PER_STEP).  Memory
grows with the number of configurations.

*Overwritten values.*  `certainly_overwritten` finds such answers in one pass over the events.

Theory.  Let an operation observe v.  In any order, the producer P of this v precedes it, and nothing between the two
changes v.  P is impossible if there is an operation X such that

  * P returned before X was called, and X returned before the observer was called;
  * X is in every order, and cannot take effect while the register keeps the value v: a write of another value, a read
    of another value, any cas, or a mismatch with v.

If every P that was called before the observer returned is impossible, then nothing explains the observer.

Of all X that returned before the observer was called, only the one called last matters.  Of all P, only the one that
returned last matters.  The pass stores these two.  Every violation it finds is certain, but it does not find all.

O(operations + values).
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.configurations import (
    BEAMS,
    LINEARIZABLE,
    NO_ORDER,
    ONE,
    OUT_OF_BYTES,
    OUT_OF_STEPS,
    TRUNCATED,
    Configurations,
    Hands,
    Rooms,
    empty,
    first_size_bytes,
    insert,
    new_rooms,
    settle,
    size_bytes,
    turned,
    unknown_to_the_compiler,
    with_room,
)
from checkers.kernels.event_search import Course, follow_events, search_events
from checkers.kernels.jit import inner_kernel, kernel, spliced_kernel
from checkers.kernels.operations import CAS, MISMATCH, OPEN, WRITE, Operations
from checkers.kernels.register_board import (
    RULES,
    Board,
    BoardRegister,
    KeyProblem,
    clear,
    give_slot,
    new_board,
    prepare,
)
from checkers.kernels.register_unique_values import Key, key_of

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
"""Number of events in the first window.  Each further window is WINDOW_TIMES as long."""

WINDOW_TIMES = 4

STEPS_OF_WINDOWS_LEAST = 4096


def judge_key(key: Key, limit: int, starts: Int64, steps_max: int, bytes_max: int) -> tuple[int, int, int]:
    """Judge only the first `limit` positions of a key.  Operations that had not returned by then count as open.

    Returns (code, position, steps).  The code is LINEARIZABLE, NO_ORDER, OUT_OF_STEPS or OUT_OF_BYTES.  After NO_ORDER,
    an order may exist up to the position, but none continues from there to the end.

    starts: possible initial values of the object (NIL for nil)
    """
    code, position, steps, _ = measure_key(key, limit, starts, steps_max, bytes_max)
    return code, position, steps


@kernel
def measure_key(key: Key, limit: int, starts: Int64, steps_max: int, bytes_max: int) -> tuple[int, int, int, int]:
    """Judge like `judge_key`, and also return the peak number of bytes, as the budget counts them."""
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
    tried_overwritten = False
    for beam in BEAMS:
        code, place, taken, size = _search(problem, board, rooms, first, last, beam, steps_max - steps, bytes_left)
        steps += taken
        most = max(most, size)
        if code != TRUNCATED:
            return code, problem.position[place] if place >= 0 else -1, steps, fixed + most
        if not tried_overwritten:
            tried_overwritten = True
            steps += last + 1
            if certainly_overwritten(problem) >= 0:
                return NO_ORDER, problem.position[place], steps, fixed + most
        allowed = min(steps_max - steps, max(STEPS_OF_WINDOWS_LEAST, taken))
        refuted, taken, size = _refute(problem, board, rooms, place, allowed, bytes_left)
        steps += taken
        most = max(most, size)
        if refuted:
            return NO_ORDER, problem.position[place], steps, fixed + most
    return OUT_OF_STEPS, -1, steps, fixed + most  # unreachable: the last search drops no operation


@kernel
def judge_keys(
    ops: Operations, chosen: Int32, starts: Int64, steps_each: Int64, bytes_max: int
) -> tuple[Int8, Int32, Int64]:
    """Judge some keys, each with its own budget of steps.

    Returns columns of (code, position, steps) as of `judge_key`, one entry per chosen key.

    chosen: numbers of keys
    steps_each: int64 per chosen key
    """
    code = np.zeros(chosen.shape[0], np.int8)
    position = np.full(chosen.shape[0], -1, np.int32)
    steps = np.zeros(chosen.shape[0], np.int64)
    for i in range(chosen.shape[0]):
        k = chosen[i]
        key = key_of(ops, k)
        # same type as in the other calls of `measure_key`, so that it is compiled only once
        limit = 0 + int(ops.positions[k])
        code[i], position[i], steps[i], _ = measure_key(key, limit, starts, steps_each[i], bytes_max)
    return code, position, steps


@kernel
def judge_window(
    key: Key, limit: int, starts: Int64, first: int, last: int, steps_max: int, bytes_max: int
) -> tuple[int, int]:
    """Judge only the window from position `first` to position `last` of the events.  Returns (code, steps)."""
    problem = prepare(key, limit, starts)
    words = max(1, (problem.slots + 63) // 64)
    board = new_board(problem, words)
    rooms = new_rooms(words, problem.values)
    keep_all = unknown_to_the_compiler(0)
    code, _, steps, _ = _search(problem, board, rooms, first, last, keep_all, steps_max, bytes_max)
    return code, steps


@spliced_kernel
def _refute(
    problem: KeyProblem, board: Board, rooms: Rooms, last: int, steps_max: int, bytes_left: int
) -> tuple[bool, int, int]:
    """Return (True if a window that ends at position `last` has no order, steps used, bytes used)."""
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
    problem: KeyProblem, board: Board, rooms: Rooms, first: int, last: int, beam: int, steps_max: int, bytes_left: int
) -> tuple[int, int, int, int]:
    """Search once through positions `first` to `last`.

    Returns (code, place of the event that decided it or -1, steps, bytes beyond the first rooms).  The code may be
    TRUNCATED.
    """
    size = 0
    words = board.free.shape[0]
    values = problem.starts if first == 0 else min(problem.values, 2 * (last + 1 - first + 64 * words) + 1)
    if values > rooms.now.state.shape[0]:
        size = 4 * size_bytes(values, words)
        if size > bytes_left:
            return OUT_OF_BYTES, first, 0, size
        rooms = with_room(turned(with_room(rooms, values)), values)
    empty(rooms)
    clear(board)
    count = _begin(problem, board, rooms, first, last)
    register = BoardRegister(problem, board)
    code, place, steps, more = search_events(_follow, register, rooms, count, first, last, beam, steps_max, bytes_left)
    return code, place, steps, max(size, more)


@kernel
def _begin(problem: KeyProblem, board: Board, rooms: Rooms, first: int, last: int) -> int:
    """Create the first configurations of a window, and assign slots to open operations.

    Returns the number of configurations.
    """
    now, hands = rooms.now, rooms.hands
    count = unknown_to_the_compiler(0)
    if first == 0:
        for start in range(problem.starts):
            count = insert(now, count, start, hands.need, hands.avail, hands.work)
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
    for value in range(problem.values):  # one value represents all values that no operation of the window names
        if now.head[value] < 0 and problem.first_made[value] < first:
            count = insert(now, count, value, hands.need, hands.avail, hands.work)
            break
    return settle(now, count)


@inner_kernel
def _begin_with(problem: KeyProblem, now: Configurations, count: int, hands: Hands, first: int, op: int) -> int:
    """Begin the window with each value that the operation names, if the value may have been produced by then."""
    seen, made = problem.seen[op], problem.made[op]
    if problem.first_made[seen] < first and now.head[seen] < 0:
        count = insert(now, count, seen, hands.need, hands.avail, hands.work)
    if made >= 0 and problem.first_made[made] < first and now.head[made] < 0:
        count = insert(now, count, made, hands.need, hands.avail, hands.work)
    return count


@inner_kernel
def _follow(
    register: BoardRegister, rooms: Rooms, count: int, place: int, last: int, beam: int
) -> tuple[int, int, int, bool, bool]:
    """Apply `follow_events` to a register."""
    course = Course(register.problem.event, register.board.slot, register.board.crashed, register.problem.stay_until)
    return follow_events(RULES, register, course, rooms, count, place, last, beam)


_EVERY = -1  # the label of a cas: it changes every value
_NEVER = -2


@kernel
def certainly_overwritten(problem: KeyProblem) -> int:
    """Return the position of the first return of an observer whose value no producer explains, or -1."""
    needed_after = np.empty(problem.kind.shape[0], np.int32)  # per observer: its producer returns after this place
    last_ret = np.full(problem.values, _NEVER, np.int32)  # per value: the last return of a producer
    last_ret[: problem.starts] = -1
    mismatched = np.full(problem.values, -1, np.int32)  # per value: last call of a mismatch that has returned
    best, best_label, second = -1, _EVERY, -1  # the last calls of X; `second` has another label than `best`
    for place in range(problem.event.shape[0]):
        event = problem.event[place]
        if event >= 0:
            op = event
            kind, value = problem.kind[op], problem.seen[op]
            if kind == WRITE:
                last_ret[value] = max(last_ret[value], problem.deadline[op])
                continue
            if kind == CAS:
                last_ret[problem.made[op]] = max(last_ret[problem.made[op]], problem.deadline[op])
            if kind != MISMATCH and problem.deadline[op] != OPEN:
                others = second if best_label == value else best
                needed_after[op] = max(others, mismatched[value])
            continue
        op = -1 - event
        kind, value, call = problem.kind[op], problem.seen[op], problem.called[op]
        if kind != MISMATCH and kind != WRITE and last_ret[value] < needed_after[op]:
            return place
        if kind == MISMATCH:
            mismatched[value] = max(mismatched[value], call)
            continue
        label = _EVERY if kind == CAS else value
        if call > best:
            if label != best_label:
                second = best
            best, best_label = call, label
        elif label != best_label:
            second = max(second, call)
    return -1
