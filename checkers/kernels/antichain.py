"""Linearizability of registers and cas-registers whatever values they hold: just-in-time search over an antichain.

Theory.  Follow the events in order and keep every way in which the operations so far may have been ordered.  Only at a
*return* something must be decided: the operation has to stand in the order now.  So nothing is put into the order
before some operation that returns needs it ("just in time", Lowe 2017; the search is Wing & Gong's, 1993, and deciding
it is NP-complete, Gibbons & Korach 1997).  What one way has come to is a configuration (`configurations.py`):

    read, mismatch   owed until the state is (is not) its value once while it is open; then it is put there at once,
                     for it changes nothing.  A MISMATCH is a failed cas taken as an observation.
    write            owed and available.  No longer *owed* as soon as another write is put after it, or the state is its
                     value: it can stand just before that write, unseen, or where it changes nothing.  It stays
                     available until it returns: it may still become visible.
    cas              owed and available; both end when it is put into the order.
    never returned   available, never owed.

At a return, configurations that owe the operation are extended by available ones until they no longer do.  Others live
on without it; a write that is not owed is also tried as visible, at its last chance, if anybody can still observe it.

What is not tried, and why nothing is lost:

  * of operations that do the same, only the one with the earliest deadline goes first: in any order the two may swap;
  * a step on the way that satisfies no open observer, enables no cas and is no answered cas: leave it out, a write that
    follows covers all it would have covered;
  * a write of the value already there, unless it covers owed writes before a cas;
  * leaving a value that cannot come back while somebody will certainly observe it (`Problem.stay_until`).

Few configurations usually suffice to find an order.  So the search first keeps the 16 most promising ones only and uses
what never returned only in need, then 128, then all.  An order found is an order; "none" is believed only of a search
that dropped nothing.

Cost: a step is one event, or one configuration looked at.  Memory is what the configurations take.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.kernels import configurations as antichains
from checkers.kernels.antichain_problem import Problem, prepare
from checkers.kernels.bits import ALL, NONE, ONE, trailing_zeros
from checkers.kernels.configurations import (
    CAPACITY_FIRST,
    FORGOTTEN,
    Configurations,
    Hands,
    Words,
    insert,
    keep_best,
    new_configurations,
    new_hands,
    settle,
    with_room,
)
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import CAS, MISMATCH, OPEN, READ, WRITE, Int8, Int32, Int64, Operations
from checkers.kernels.register import Key, key_of

LINEARIZABLE = 0
NO_ORDER = 1
OUT_OF_STEPS = 2
OUT_OF_BYTES = 3

BEAMS = (16, 128, 0)
"""How many configurations are kept, one attempt after another; 0 keeps all."""

_TRUNCATED = 4  # no order among those that were kept
_NO_ROOM = 5  # to be asked again with more room


class Board(NamedTuple):
    """Which operations are open, and in which slots.  Masks are rows of words.

    slot: int32 per operation.  holder: int32 per slot, the operation in it.
    free, write, mismatch, crashed, observing: slots that are free, hold a write, a mismatch, something that never
    returns, anything that observes.  reads, mismatches, writes, takers: per value, slots of open reads of it,
    mismatches with it, writes of it, cas that expect it.
    """

    slot: Int32
    holder: Int32
    free: Words
    write: Words
    mismatch: Words
    crashed: Words
    observing: Words
    reads: Words
    mismatches: Words
    writes: Words
    takers: Words


@kernel
def judge_key(key: Key, limit: int, starts: Int64, steps_max: int, bytes_max: int) -> tuple[int, int, int]:
    """Judge the first `limit` positions of a key alone; what had not returned by then is open.

    starts: values (NIL for nil) the object may hold at first.  Returns (code, position, steps): one of the constants
    above; for NO_ORDER a position at which it was certain; steps taken.
    """
    problem = prepare(key, limit, starts)
    steps = 0
    for beam in BEAMS:
        code, place, taken = _search(problem, beam, steps_max - steps, bytes_max)
        steps += taken
        if code != _TRUNCATED:
            position = problem.position[place] if place >= 0 else -1
            return code, position, steps
    return OUT_OF_STEPS, -1, steps  # never reached: the last search drops nothing


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
        limit = 0 + int(ops.positions[k])  # of the type `judge_key` is called with elsewhere, or it is compiled twice
        code[i], position[i], steps[i] = judge_key(key, limit, starts, steps_each[i], bytes_max)
    return code, position, steps


@kernel
def _search(problem: Problem, beam: int, steps_max: int, bytes_max: int) -> tuple[int, int, int]:
    """One search; returns (code, place of the event that decided it or -1, steps)."""
    words = max(1, (problem.slots + 63) // 64)
    bytes_left = bytes_max - words * 8 * (4 * problem.values + 64)
    if 3 * antichains.size_bytes(CAPACITY_FIRST * words, words) > bytes_left:
        return OUT_OF_BYTES, -1, 0
    board = _new_board(problem, words)
    now = new_configurations(CAPACITY_FIRST * words, words, problem.values)
    following = new_configurations(CAPACITY_FIRST * words, words, problem.values)
    queue = new_configurations(CAPACITY_FIRST * words, words, problem.values)
    hands = new_hands(words)
    now = with_room(now, 0, problem.starts)
    count = 0
    for start in range(problem.starts):
        count = insert(now, count, start, hands.need, hands.avail)
    count = settle(now, count)
    events, kinds, slots = problem.event, problem.kind, board.slot
    steps = 0
    dropped = False
    for place in range(events.shape[0]):
        steps += count
        if steps > steps_max:
            return OUT_OF_STEPS, place, steps
        event = events[place]
        if event >= 0:
            _call(problem, board, event, now, count)
            continue
        op = -1 - event
        slot = slots[op]
        if _concerns_anyone(problem, board, op, place, now, count):
            reached, taken, left_out = -_NO_ROOM, 0, False
            while reached == -_NO_ROOM:
                reached, taken, left_out = _linearize_in_time(
                    problem, board, op, place, now, count, following, queue, hands, beam > 0, steps_max - steps
                )
                steps += taken
                if reached == -_NO_ROOM:
                    room = 4 * max(count, following.state.shape[0])
                    if 2 * antichains.size_bytes(room, words) > bytes_left:
                        return OUT_OF_BYTES, place, steps
                    following = new_configurations(room, words, problem.values)
                    queue = new_configurations(room, words, problem.values)
            dropped = dropped or left_out
            if reached < 0:
                return -reached, place, steps
            count = settle(following, reached)
            now, following = following, now
            if count == 0:
                return _TRUNCATED if dropped else NO_ORDER, place, steps
        elif kinds[op] == WRITE or kinds[op] == CAS:
            following = with_room(following, 0, count)
            count = _without(now, count, slot, following, hands)
            now, following = following, now
        if beam > 0 and count > beam:
            dropped = True
            count = keep_best(now, count, beam)
        _return(problem, board, op)
    return LINEARIZABLE, -1, steps


@kernel
def _new_board(problem: Problem, words: int) -> Board:
    free = np.full(words, ALL, np.uint64)
    masks = np.zeros((4, words), np.uint64)
    per_value = np.zeros((4, problem.values, words), np.uint64)
    return Board(
        np.full(problem.kind.shape[0], -1, np.int32),
        np.full(words * 64, -1, np.int32),
        free,
        masks[0],
        masks[1],
        masks[2],
        masks[3],
        per_value[0],
        per_value[1],
        per_value[2],
        per_value[3],
    )


@inner_kernel
def _call(problem: Problem, board: Board, op: int, now: Configurations, count: int) -> None:
    """Give an operation a slot; what the state already explains is owed by nobody."""
    w = 0
    while board.free[w] == NONE:
        w += 1
    bit_number = trailing_zeros(board.free[w])
    bit = ONE << np.uint64(bit_number)
    slot = w * 64 + bit_number
    board.free[w] &= ~bit
    board.slot[op] = slot
    board.holder[slot] = op
    kind, value = problem.kind[op], problem.seen[op]
    if kind == READ:
        board.reads[value, w] |= bit
    elif kind == MISMATCH:
        board.mismatches[value, w] |= bit
        board.mismatch[w] |= bit
    elif kind == WRITE:
        board.writes[value, w] |= bit
        board.write[w] |= bit
    else:
        board.takers[value, w] |= bit
    if kind != WRITE:
        board.observing[w] |= bit
    answered = problem.deadline[op] != OPEN
    if not answered:
        board.crashed[w] |= bit
    for at in range(count):
        holds = now.state[at] == value
        if kind == WRITE or kind == CAS:
            now.avail[at, w] |= bit
        if answered and (kind == CAS or holds == (kind == MISMATCH)):
            now.need[at, w] |= bit


@inner_kernel
def _return(problem: Problem, board: Board, op: int) -> None:
    """Free the slot of an operation."""
    slot = board.slot[op]
    w = slot >> 6
    bit = ONE << np.uint64(slot & 63)
    value = problem.seen[op]
    board.free[w] |= bit
    board.write[w] &= ~bit
    board.mismatch[w] &= ~bit
    board.observing[w] &= ~bit
    board.reads[value, w] &= ~bit
    board.mismatches[value, w] &= ~bit
    board.writes[value, w] &= ~bit
    board.takers[value, w] &= ~bit


@inner_kernel
def _concerns_anyone(problem: Problem, board: Board, op: int, place: int, now: Configurations, count: int) -> bool:
    """Whether some configuration owes the returning operation, or must be given its last chance to show it."""
    slot = board.slot[op]
    w = slot >> 6
    bit = ONE << np.uint64(slot & 63)
    showing = _may_be_seen(problem, board, op, place)
    for at in range(count):
        if now.need[at, w] & bit or (showing and now.avail[at, w] & bit):
            return True
    return False


@inner_kernel
def _may_be_seen(problem: Problem, board: Board, op: int, place: int) -> bool:
    """Whether anybody open or still to come can observe what a write put there."""
    if problem.kind[op] != WRITE:
        return False
    if problem.last_seen[problem.seen[op]] > place or problem.last_mismatch > place:
        return True
    for w in range(board.observing.shape[0]):
        if board.observing[w] != NONE:
            return True
    return False


@inner_kernel
def _without(now: Configurations, count: int, slot: int, following: Configurations, hands: Hands) -> int:
    """Take a slot from what is available everywhere; returns how many configurations of `following` that leaves."""
    need, avail = hands.need, hands.avail
    word, bit = slot >> 6, ONE << np.uint64(slot & 63)
    left = 0
    for at in range(count):
        for w in range(need.shape[0]):
            need[w], avail[w] = now.need[at, w], now.avail[at, w]
        avail[word] &= ~bit
        left = insert(following, left, now.state[at], need, avail)
    return settle(following, left)


@inner_kernel
def _linearize_in_time(
    problem: Problem,
    board: Board,
    op: int,
    place: int,
    now: Configurations,
    count: int,
    following: Configurations,
    queue: Configurations,
    hands: Hands,
    sparing: bool,
    steps_max: int,
) -> tuple[int, int, bool]:
    """Extend all configurations until none owes the returning operation.

    sparing: use what never returned only if there is no other way.  Returns (how many places of `following` are taken,
    or minus the code why it was given up, steps, whether anything was left untried).
    """
    words = board.free.shape[0]
    slot = board.slot[op]
    word, bit = slot >> 6, ONE << np.uint64(slot & 63)
    observer = problem.kind[op] == READ or problem.kind[op] == MISMATCH
    showing = _may_be_seen(problem, board, op, place)
    need, avail, next_need, next_avail = hands.need, hands.avail, hands.next_need, hands.next_avail
    room = min(following.state.shape[0], queue.state.shape[0]) - words * 64
    if count > room:
        return -_NO_ROOM, 0, False
    reached, waiting = 0, 0
    for at in range(count):
        for w in range(words):
            need[w], avail[w] = now.need[at, w], now.avail[at, w]
        owed = need[word] & bit
        if owed or (showing and avail[word] & bit):
            waiting = insert(queue, waiting, now.state[at], need, avail)
        if not owed:
            avail[word] &= ~bit
            reached = insert(following, reached, now.state[at], need, avail)

    steps = 0
    at = 0
    while True:
        if at == waiting:
            if not sparing or not _any(board.crashed):
                sparing = False
                break
            if reached > 0:
                break
            sparing, at = False, 0
            continue
        state = queue.state[at]
        if state == FORGOTTEN or problem.stay_until[state] > place:
            at += 1
            continue
        steps += 1
        if steps > steps_max:
            return -OUT_OF_STEPS, steps, False
        if waiting > room or reached > room:
            return -_NO_ROOM, steps, False
        for w in range(words):
            need[w], avail[w] = queue.need[at, w], queue.avail[at, w]
        at += 1
        leave = False
        for w in range(words):
            leave = leave or (need[w] & board.mismatches[state, w]) != NONE
        for w in range(words):
            candidates = avail[w] & (board.write[w] | board.takers[state, w])
            if sparing:
                candidates &= ~board.crashed[w]
            while candidates != NONE:
                number = trailing_zeros(candidates)
                candidates &= candidates - ONE
                step = w * 64 + number
                if step != slot and not _worth_trying(problem, board, step, state, need, avail, leave):
                    continue
                state_after = _apply(problem, board, step, need, avail, next_need, next_avail)
                if step == slot or (observer and not next_need[word] & bit):
                    next_avail[word] &= ~bit
                    reached = insert(following, reached, state_after, next_need, next_avail)
                else:
                    waiting = insert(queue, waiting, state_after, next_need, next_avail)
    for each in range(waiting):
        if queue.state[each] != FORGOTTEN:
            queue.head[queue.state[each]] = -1
    return reached, steps, sparing


@inner_kernel
def _any(mask: Words) -> bool:
    for word in mask:
        if word != NONE:
            return True
    return False


@inner_kernel
def _worth_trying(
    problem: Problem, board: Board, step: int, state: int, need: Words, avail: Words, leave: bool
) -> bool:
    """Whether an available operation may be of use as a step on the way (see the theory).  leave: a mismatch waits."""
    op = board.holder[step]
    is_write = problem.kind[op] == WRITE
    state_after = problem.seen[op] if is_write else problem.made[op]
    word, bit = step >> 6, ONE << np.uint64(step & 63)
    words = need.shape[0]
    if is_write and state_after == state:
        covers = False
        for w in range(words):
            owed = need[w] & board.write[w]
            if w == word:
                owed &= ~bit
            covers = covers or owed != NONE
        if not covers:
            return False
    for w in range(words):
        alike = avail[w] & (board.writes[state_after, w] if is_write else board.takers[state, w])
        while alike != NONE:
            other = w * 64 + trailing_zeros(alike)
            alike &= alike - ONE
            rival = board.holder[other]
            if other != step and (is_write or problem.made[rival] == state_after):
                sooner = problem.deadline[rival] - problem.deadline[op]
                if sooner < 0 or (sooner == 0 and other < step):
                    return False
    if leave or (not is_write and problem.deadline[op] != OPEN):
        return True
    for w in range(words):
        takers = avail[w] & board.takers[state_after, w]
        if w == word:
            takers &= ~bit
        if (need[w] & board.reads[state_after, w]) != NONE or takers != NONE:
            return True
    return False


@inner_kernel
def _apply(
    problem: Problem, board: Board, step: int, need: Words, avail: Words, next_need: Words, next_avail: Words
) -> int:
    """Put an operation into the order, and with it all that its state explains.  Returns the state after it."""
    op = board.holder[step]
    is_write = problem.kind[op] == WRITE
    state = int(problem.seen[op] if is_write else problem.made[op])
    for w in range(need.shape[0]):
        explained = board.reads[state, w] | board.writes[state, w] | (board.mismatch[w] & ~board.mismatches[state, w])
        if is_write:
            explained |= board.write[w]
        next_need[w] = need[w] & ~explained
        next_avail[w] = avail[w]
    bit = ONE << np.uint64(step & 63)
    next_need[step >> 6] &= ~bit
    next_avail[step >> 6] &= ~bit
    return state
