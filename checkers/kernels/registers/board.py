"""Keeps the open operations of a register in slots, and applies events and steps to configurations.

A set of slots is a row of words.  The board keeps such a set for each kind of operation and each value.  So one look
finds, for example, all open reads of a value.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from checkers.base.arrays import Int32
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import CAS, MISMATCH, READ, WRITE
from checkers.kernels.registers.antichain_problem import KeyProblem
from checkers.kernels.search.bits import ALL, NONE, ONE, trailing_zeros
from checkers.kernels.search.configurations import Configurations, Hands, Words
from checkers.kernels.search.event_search import NOT_TRIED, Rules
from checkers.kernels.search.just_in_time import take_slot


class Board(NamedTuple):
    """The open operations and their slots.  Masks are rows of words.

    slot: int32 per operation.  holder: int32 per slot, the operation in it.
    free: free slots.  write, mismatch: slots of writes, of mismatches.  crashed: slots of operations that never return.
    observing: slots of operations that observe.
    reads, mismatches, writes, takers: per value, slots of open reads of it, mismatches with it, writes of it, and cas
    that expect it.
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
    """Free all slots.  `slot` keeps old numbers; a search reads them only after it has set them."""
    board.holder[:] = -1
    board.free[:] = ALL
    for mask in (board.write, board.mismatch, board.crashed, board.observing):
        mask[:] = NONE
    for masks in (board.reads, board.mismatches, board.writes, board.takers):
        masks[:] = NONE


@inner_kernel
def _begin(register: BoardRegister, op: int, last: int, now: Configurations, count: int) -> None:
    """Open an operation.  A configuration does not owe it if the state already explains it."""
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
    """Give an operation a slot, and enter the slot in every mask that it belongs to."""
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
    """Return whether it is a mutator: a write that stands unseen in the order is not owed, but may become visible
    instead."""
    return not _is_observer(register, op)


@inner_kernel
def _concerns_anyone(register: BoardRegister, op: int, place: int, now: Configurations, count: int) -> bool:
    """Return whether some configuration owes the returning operation, or has its last chance to make it visible."""
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
    """Return whether an open or later operation can observe the value of this write or cas."""
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
    """Return writes, and cas that expect the value of the state."""
    return avail[w] & (register.board.write[w] | register.board.takers[state, w])


@inner_kernel
def _advance(register: BoardRegister, place: int, returning: int, step: int, state: int, hands: Hands) -> int:
    """Put an operation into the order, together with all operations that its state explains."""
    if step != returning and not _worth_trying(register.problem, register.board, step, state, hands):
        return NOT_TRIED
    return _apply(register.problem, register.board, step, hands)


@inner_kernel
def _worth_trying(problem: KeyProblem, board: Board, step: int, state: int, hands: Hands) -> bool:
    """Return whether an available operation may be useful as an intermediate step (see the theory in
    `antichain.py`)."""
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
                continue  # this one must happen and the rival need not, so the rival cannot replace it
            sooner = problem.deadline[rival] - problem.deadline[op]
            if sooner < 0 or (sooner == 0 and other < step):
                return False
    if not is_write and need[word] & bit:
        return True
    for w in range(words):
        if (need[w] & board.mismatches[state, w]) != NONE:  # a mismatch waits for any other value
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
