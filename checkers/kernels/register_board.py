"""Keeps the open operations of a register in slots, applies events and steps to configurations, and prepares its key.

A set of slots is a row of words.  The board keeps such a set for each kind of operation and each value.  So a single
lookup finds, for example, all open reads of a value.

*Preparation.*  `prepare` prepares a key of a register for the search: it numbers values, lays out events, and computes
facts in advance.

Irrelevant operations are left out: observers without an answer, and mutators without an answer whose value no observer
names.  Such a mutator may always be assumed not to have happened.  There is one exception: any other value may explain
a *mismatch*.  So these mutators are kept if a mismatch was observed.

The full history is available, so two facts are computed in advance.  The first is the last place at which each value is
observed.  The second concerns a value that only one operation ever produced: an order must *stay* at this value until
its last mandatory observer is called.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.configurations import (
    ALL,
    NONE,
    ONE,
    Configurations,
    Hands,
    Words,
    take_slot,
    trailing_zeros,
)
from checkers.kernels.event_search import NOT_TRIED, Rules
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import CAS, MISMATCH, OPEN, READ, WRITE
from checkers.kernels.register_unique_values import Key


class Board(NamedTuple):
    """The open operations and their slots.  Masks are rows of words.

    slot: int32 per operation
    holder: int32 per slot, the operation in it
    free: mask of free slots
    write, mismatch: masks of writes, of mismatches
    crashed: mask of operations that never return
    observing: mask of operations that observe
    reads, mismatches, writes, takers: per value, masks of its open reads, its mismatches, its writes, and the cas that
        expect it
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


class BoardRegister(NamedTuple):
    """One key, and its open operations: the object to which the rules of a register apply."""

    problem: KeyProblem
    board: Board


@kernel
def new_board(problem: KeyProblem, words: int) -> Board:
    operations = problem.kind.shape[0]
    numbers = np.full(operations + words * 64, -1, np.int32)
    masks = np.zeros((5 + 4 * problem.values, words), np.uint64)
    values = problem.values
    return Board(
        numbers[:operations],
        numbers[operations:],
        masks[0],
        masks[1],
        masks[2],
        masks[3],
        masks[4],
        masks[5 : 5 + values],
        masks[5 + values : 5 + 2 * values],
        masks[5 + 2 * values : 5 + 3 * values],
        masks[5 + 3 * values :],
    )


@kernel
def clear(board: Board) -> None:
    """Free all slots.  `slot` keeps old numbers, because a search sets them before it reads them."""
    board.holder[:] = -1
    board.free[:] = ALL
    for mask in (board.write, board.mismatch, board.crashed, board.observing):
        mask[:] = NONE
    for masks in (board.reads, board.mismatches, board.writes, board.takers):
        masks[:] = NONE


@inner_kernel
def _begin(register: BoardRegister, op: int, last: int, now: Configurations, count: int) -> None:
    """Open an operation.  Configurations whose state already explains it do not owe it."""
    problem, board = register.problem, register.board
    kind, value = problem.kind[op], problem.seen[op]
    answered = problem.deadline[op] <= last
    if not answered and (kind == READ or kind == MISMATCH):
        return
    slot = give_slot(problem, board, op, last)
    w, bit = slot >> 6, ONE << np.uint64(slot & 63)
    for at in range(count):
        holds = now.state[at] == value
        if kind == WRITE or kind == CAS:
            now.avail[at, w] |= bit
        if answered and (kind == CAS or holds == (kind == MISMATCH)):
            now.need[at, w] |= bit


@inner_kernel
def give_slot(problem: KeyProblem, board: Board, op: int, last: int) -> int:
    """Give an operation a slot, and set the slot in every mask to which it belongs."""
    slot = take_slot(board.free)
    w, bit = slot >> 6, ONE << np.uint64(slot & 63)
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
    if problem.deadline[op] > last:
        board.crashed[w] |= bit
    return slot


@inner_kernel
def _end(register: BoardRegister, op: int) -> None:
    """Free the slot of an operation."""
    problem, board = register.problem, register.board
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
def _is_observer(register: BoardRegister, op: int) -> bool:
    kind = register.problem.kind[op]
    return bool(kind == READ or kind == MISMATCH)


@inner_kernel
def _may_linger(register: BoardRegister, op: int) -> bool:
    """Return True for a mutator.  A write that is no longer owed may still become visible."""
    return not _is_observer(register, op)


@inner_kernel
def _concerns_anyone(register: BoardRegister, op: int, place: int, now: Configurations, count: int) -> bool:
    """Return True if a configuration owes the returning operation, or can make it visible only now."""
    slot = register.board.slot[op]
    w = slot >> 6
    bit = ONE << np.uint64(slot & 63)
    shown = _may_be_seen(register, op, place)
    for at in range(count):
        if now.need[at, w] & bit or (shown and now.avail[at, w] & bit):
            return True
    return False


@inner_kernel
def _may_be_seen(register: BoardRegister, op: int, place: int) -> bool:
    """Return True if an open or later operation can observe the value of this write or cas."""
    problem, board = register.problem, register.board
    if problem.kind[op] != WRITE and problem.kind[op] != CAS:
        return False
    value = problem.seen[op] if problem.kind[op] == WRITE else problem.made[op]
    if problem.last_seen[value] > place or problem.last_mismatch > place:
        return True
    for w in range(board.observing.shape[0]):
        if board.observing[w] != NONE:
            return True
    return False


@inner_kernel
def _candidates(register: BoardRegister, state: int, avail: Words, w: int) -> Any:
    """Return the writes, and the cas that expect the value of the state."""
    return avail[w] & (register.board.write[w] | register.board.takers[state, w])


@inner_kernel
def _advance(register: BoardRegister, place: int, returning: int, step: int, state: int, hands: Hands) -> int:
    """Put an operation into the order, together with all operations that its state explains."""
    if step != returning and not _worth_trying(register.problem, register.board, step, state, hands):
        return NOT_TRIED
    return _apply(register.problem, register.board, step, hands)


@inner_kernel
def _worth_trying(problem: KeyProblem, board: Board, step: int, state: int, hands: Hands) -> bool:
    """Return True if an available operation may be useful as an intermediate step (see the theory in
    `register_antichain.py`)."""
    need, avail = hands.need, hands.avail
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
            hands.work[0] += 1
            other = w * 64 + trailing_zeros(alike)
            alike &= alike - ONE
            rival = board.holder[other]
            if other == step or not (is_write or problem.made[rival] == state_after):
                continue
            if not is_write and need[word] & bit and not need[w] & (ONE << np.uint64(other & 63)):
                continue  # this write must happen and the rival need not, so the rival cannot replace it
            sooner = problem.deadline[rival] - problem.deadline[op]
            if sooner < 0 or (sooner == 0 and other < step):
                return False
    if not is_write and need[word] & bit:
        return True
    for w in range(words):
        if (need[w] & board.mismatches[state, w]) != NONE:  # a mismatch needs any other value to be present
            return True
        takers = avail[w] & board.takers[state_after, w]
        if w == word:
            takers &= ~bit
        if (need[w] & board.reads[state_after, w]) != NONE or takers != NONE:
            return True
    return False


@inner_kernel
def _apply(problem: KeyProblem, board: Board, step: int, hands: Hands) -> int:
    """Fill `next_need` and `next_avail`.  Returns the state after the operation."""
    op = board.holder[step]
    is_write = problem.kind[op] == WRITE
    state = int(problem.seen[op] if is_write else problem.made[op])
    for w in range(hands.need.shape[0]):
        explained = board.reads[state, w] | board.writes[state, w] | (board.mismatch[w] & ~board.mismatches[state, w])
        if is_write:
            explained |= board.write[w]
        hands.next_need[w] = hands.need[w] & ~explained
        hands.next_avail[w] = hands.avail[w]
    bit = ONE << np.uint64(step & 63)
    hands.next_need[step >> 6] &= ~bit
    hands.next_avail[step >> 6] &= ~bit
    return state


RULES = Rules(
    begin=_begin,
    end=_end,
    is_observer=_is_observer,
    may_linger=_may_linger,
    concerns_anyone=_concerns_anyone,
    is_shown=_may_be_seen,
    candidates=_candidates,
    advance=_advance,
)


class KeyProblem(NamedTuple):
    """The relevant operations of one key, and their events.

    kind: int8 (READ, WRITE, CAS, MISMATCH)
    seen: int32, number of the value read, written or expected
    made: int32, number of the value that a cas produced
    deadline: int32, place of the return, OPEN if there is none
    event: int32 per place; an operation at its call, -1 - operation at its return
    position: int32 per place, position of the event in the key
    called: int32 per operation, place of its call
    first_made: int32[values], place of the first call of a producer of the value; -1 if it may be the initial value,
        OPEN if nothing produces it
    last_seen: int32[values], place of the last call that observes the value, -1 if none does
    stay_until: int32[values], place of the last call of a *mandatory* observer of a value made only once, else -1
    last_mismatch: place of the last call of a MISMATCH, or -1
    values: number of values
    starts: number of possible initial values, which have the numbers below `starts`
    slots: maximum number of operations open at once
    """

    kind: Int8
    seen: Int32
    made: Int32
    deadline: Int32
    event: Int32
    position: Int32
    called: Int32
    first_made: Int32
    last_seen: Int32
    stay_until: Int32
    last_mismatch: int
    values: int
    starts: int
    slots: int


class _Kept(NamedTuple):
    """The kept operations, one row each: columns of KeyProblem, and their row in the key (`source`)."""

    kind: Int8
    seen: Int32
    made: Int32
    source: Int32
    deadline: Int32
    called: Int32


@kernel
def prepare(key: Key, limit: int, starts: Int64) -> KeyProblem:
    """Prepare the first `limit` positions of a key.  Operations that had not returned by then count as open.

    O(operations + limit).

    starts: int64, the possible initial values of the object, all different
    """
    n = key.kind.shape[0]
    rows = np.empty((5, n), np.int32)
    kept = _Kept(np.empty(n, np.int8), rows[0], rows[1], rows[2], rows[3], rows[4])
    numbers, taken = _new_table(2 * n + starts.shape[0])
    values = 0
    for start in starts:
        values = max(values, _number(start, values, numbers, taken) + 1)
    count = 0
    mismatches = False
    for op in range(n):
        if key.call[op] >= limit:
            continue
        kind = key.kind[op]
        if key.ret[op] >= limit and (kind == READ or kind == MISMATCH):
            continue
        mismatches = mismatches or kind == MISMATCH
        kept.kind[count] = kind
        kept.seen[count] = _number(key.a[op], values, numbers, taken)
        values = max(values, kept.seen[count] + 1)
        kept.made[count] = -1
        if kind == CAS:
            kept.made[count] = _number(key.b[op], values, numbers, taken)
            values = max(values, kept.made[count] + 1)
        kept.source[count] = op
        count += 1
    if not mismatches:
        count = _drop_unobserved(kept, count, values, key, limit)
    first = _Kept(
        kept.kind[:count],
        kept.seen[:count],
        kept.made[:count],
        kept.source[:count],
        kept.deadline[:count],
        kept.called[:count],
    )
    return _laid_out(key, limit, first, values, starts.shape[0])


@kernel
def _new_table(entries: int) -> tuple[Int64, Int32]:
    size = 4
    while size < 2 * (entries + 1):
        size *= 2
    return np.empty(size, np.int64), np.full(size, -1, np.int32)


@kernel
def _number(value: int, fresh: int, numbers: Int64, taken: Int32) -> int:
    """Return the number of a value in the table.  A new value gets the number `fresh`."""
    mask = taken.shape[0] - 1
    mixed = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    at = np.int64(mixed >> np.uint64(32)) & mask
    while taken[at] >= 0:
        if numbers[at] == value:
            return int(taken[at])
        at = (at + 1) & mask
    numbers[at] = value
    taken[at] = fresh
    return fresh


@kernel
def _drop_unobserved(them: _Kept, count: int, values: int, key: Key, limit: int) -> int:
    """Drop mutators that never returned and whose value no observer names.  Returns the number of kept operations."""
    kind, seen, made, source = them.kind, them.seen, them.made, them.source
    observed = np.zeros(values, np.bool_)
    for op in range(count):
        if kind[op] != WRITE:
            observed[seen[op]] = True
    kept = 0
    for op in range(count):
        result = made[op] if kind[op] == CAS else seen[op]
        if key.ret[source[op]] >= limit and not observed[result]:
            continue
        kind[kept], seen[kept], made[kept], source[kept] = kind[op], seen[op], made[op], source[op]
        kept += 1
    return kept


@kernel
def _laid_out(key: Key, limit: int, them: _Kept, values: int, starts: int) -> KeyProblem:
    event, position, slots = _in_a_row(key, limit, them)
    first_made, last_seen, stay_until, last_mismatch = _what_to_expect(them, event, values, starts)
    return KeyProblem(
        them.kind,
        them.seen,
        them.made,
        them.deadline,
        event,
        position,
        them.called,
        first_made,
        last_seen,
        stay_until,
        last_mismatch,
        values,
        starts,
        slots,
    )


@kernel
def _in_a_row(key: Key, limit: int, them: _Kept) -> tuple[Int32, Int32, int]:
    """Lay out the events and fill in `deadline` and `called`.

    Returns (event by place, position by place, maximum number of operations open at once).
    """
    count = them.kind.shape[0]
    at_position = np.zeros(limit, np.int32)
    events = count
    for op in range(count):
        at_position[key.call[them.source[op]]] = op + 1
        if key.ret[them.source[op]] < limit:
            at_position[key.ret[them.source[op]]] = -1 - op
            events += 1
    event = np.empty(events, np.int32)
    position = np.empty(events, np.int32)
    them.deadline[:] = OPEN
    place = now_open = slots = 0
    for at in range(limit):
        if at_position[at] == 0:
            continue
        position[place] = at
        if at_position[at] < 0:
            event[place] = at_position[at]
            them.deadline[-1 - at_position[at]] = place
            now_open -= 1
        else:
            event[place] = at_position[at] - 1
            them.called[at_position[at] - 1] = place
            now_open += 1
            slots = max(slots, now_open)
        place += 1
    return event, position, slots


@kernel
def _what_to_expect(them: _Kept, event: Int32, values: int, starts: int) -> tuple[Int32, Int32, Int32, int]:
    """Return (first_made, last_seen, stay_until, last_mismatch) of KeyProblem."""
    kind, seen, made = them.kind, them.seen, them.made
    of_values = np.full((4, values), -1, np.int32)
    first_made, last_seen, stay_until, producers = of_values[0], of_values[1], of_values[2], of_values[3]
    first_made[starts:] = OPEN
    producers[:starts] = 1
    producers[starts:] = 0
    for op in range(kind.shape[0]):
        if kind[op] == WRITE:
            producers[seen[op]] += 1
        elif kind[op] == CAS:
            producers[made[op]] += 1
    last_mismatch = -1
    for place in range(event.shape[0]):
        op = event[place]
        if op < 0:
            continue
        if kind[op] == WRITE:
            first_made[seen[op]] = min(first_made[seen[op]], place)
        elif kind[op] == CAS:
            first_made[made[op]] = min(first_made[made[op]], place)
        if kind[op] == MISMATCH:
            last_mismatch = place
        elif kind[op] != WRITE:
            last_seen[seen[op]] = place
            if producers[seen[op]] == 1 and them.deadline[op] != OPEN:
                stay_until[seen[op]] = place
    return first_made, last_seen, stay_until, last_mismatch
