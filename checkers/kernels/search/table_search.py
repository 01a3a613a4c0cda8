"""Decides linearizability of any object with few states, by a just-in-time search over its table of transitions.

The object is a table.  A row is a *class* of operations with the same effect and answer.  A column is a state.  An
entry is the state after the operation, or -1 if this answer is impossible in the state.  The search is that of
`kernels/registers/antichain.py` without the rules that are special to registers:

    observer   a class that never changes the state.  It is owed until a state accepts it, and enters the order there.
    mutator    owed and available; both end when it enters the order.  One that never returned is never owed.

The search leaves out the following, and loses nothing.  Of mutators of one class, only the one with the earliest
deadline goes first, because they may swap in any order.  A state is abandoned if some later operation, or the one that
returns now, has an answer that no state reachable from there allows (`hopeless_before`, `allowed`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import OPEN
from checkers.kernels.search.bits import ALL, NONE, ONE, trailing_zeros
from checkers.kernels.search.configurations import (
    STEPS_MAX,
    WORDS_PER_STEP,
    Configurations,
    Hands,
    Words,
    insert,
    settle,
)
from checkers.kernels.search.event_search import NOT_TRIED, Course, Rules, follow_events, search_events
from checkers.kernels.search.just_in_time import (
    BEAMS,
    LINEARIZABLE,
    NO_ORDER,
    OUT_OF_BYTES,
    OUT_OF_STEPS,
    TRUNCATED,
    Rooms,
    first_size_bytes,
    new_rooms,
    take_slot,
)

__all__ = ["LINEARIZABLE", "NO_ORDER", "OUT_OF_BYTES", "OUT_OF_STEPS", "EventSchedule", "Table", "judge"]


class Table(NamedTuple):
    """after: int32[classes, states], the state after or -1.  observer: int8[classes], 1 if it changes no state.

    The first state is the one the object begins in.
    """

    after: Int32
    observer: Int8


class EventSchedule(NamedTuple):
    """class_of: int32 per operation.  event: int32 per place, an operation at its call, -1 - operation at its return.

    deadline: int32 per operation, place of its return, OPEN if it never returned.
    slots: the largest number of operations open at once.
    Observers that never returned are left out.
    """

    class_of: Int32
    event: Int32
    deadline: Int32
    slots: int


class _OpenSlots(NamedTuple):
    """The open operations.  slot: int32 per operation.  holder: int32 per slot.  free, observing, crashed: slots."""

    slot: Int32
    holder: Int32
    free: Words
    observing: Words
    crashed: Words


class _Play(NamedTuple):
    """An object, its history and its open operations: the object to which the rules below apply.

    allowed: uint64[states, words of classes], see `_allowed`.  hopeless_before: int32 per state, see
    `_hopeless_before`.
    """

    table: Table
    schedule: EventSchedule
    open_: _OpenSlots
    allowed: Words
    hopeless_before: Int32


@kernel
def judge(
    table: Table, schedule: EventSchedule, steps_max: int, bytes_max: int, look_ahead: bool
) -> tuple[int, int, int]:
    """Returns (code, place at which there was certainly no order or -1, steps).

    look_ahead: whether to abandon states by what happens later.  Without it, the place is that of the first answer that
    no order explains, and the search takes longer.
    """
    allowed, steps = _allowed(table, steps_max)
    hopeless_before = _hopeless_before(allowed, schedule, look_ahead)
    for beam in BEAMS:
        code, place, taken = _search(table, schedule, allowed, hopeless_before, beam, steps_max - steps, bytes_max)
        steps += taken
        if code != TRUNCATED:
            return code, place, steps
    return OUT_OF_STEPS, -1, steps  # never reached: the last search drops nothing


@kernel
def _allowed(table: Table, steps_max: int) -> tuple[Words, int]:
    """Return (for each state, the classes that it or a state reachable from it allows, steps).

    If this would take too many steps, every state allows every class: the search is longer and the answer the same.
    """
    classes, states = table.after.shape
    words = (classes + 63) // 64
    allowed = np.zeros((states, words), np.uint64)
    for c in range(classes):
        for s in range(states):
            if table.after[c, s] >= 0:
                allowed[s, c >> 6] |= ONE << np.uint64(c & 63)
    read, words_max = classes * states, min(steps_max, STEPS_MAX) // 2 * WORDS_PER_STEP
    changed = True
    while changed:
        changed = False
        for backwards in range(states):
            s = states - 1 - backwards
            read += classes
            if read > words_max:
                allowed[:] = ALL
                return allowed, read // WORDS_PER_STEP
            for c in range(classes):
                after = table.after[c, s]
                if after < 0 or after == s:
                    continue
                read += words
                for w in range(words):
                    if allowed[after, w] & ~allowed[s, w]:
                        allowed[s, w] |= allowed[after, w]
                        changed = True
    return allowed, read // WORDS_PER_STEP


@kernel
def _hopeless_before(allowed: Words, schedule: EventSchedule, look_ahead: bool) -> Int32:
    """Return int32[states]: an order that reaches the state before this place cannot be completed."""
    states, words = allowed.shape
    last_call = np.full(64 * words, -1, np.int32)
    for place in range(schedule.event.shape[0] if look_ahead else 0):
        op = schedule.event[place]
        if op >= 0 and schedule.deadline[op] != OPEN:
            last_call[schedule.class_of[op]] = place
    hopeless = np.zeros(states, np.int32)
    for s in range(states):
        for c in range(64 * words):
            if not allowed[s, c >> 6] & (ONE << np.uint64(c & 63)):
                hopeless[s] = max(hopeless[s], last_call[c])
    return hopeless


@kernel
def _search(
    table: Table,
    schedule: EventSchedule,
    allowed: Words,
    hopeless_before: Int32,
    beam: int,
    steps_max: int,
    bytes_max: int,
) -> tuple[int, int, int]:
    """Search once; returns (code, place of the event that decided it or -1, steps).  The code may be TRUNCATED."""
    words = max(1, (schedule.slots + 63) // 64)
    bytes_left = bytes_max - first_size_bytes(words)
    if bytes_left < 0:
        return OUT_OF_BYTES, -1, 0
    rooms = new_rooms(words, table.after.shape[1])
    open_ = _OpenSlots(
        np.full(schedule.class_of.shape[0], -1, np.int32),
        np.full(words * 64, -1, np.int32),
        np.full(words, ALL, np.uint64),
        np.zeros(words, np.uint64),
        np.zeros(words, np.uint64),
    )
    count = settle(rooms.now, insert(rooms.now, 0, 0, rooms.hands.need, rooms.hands.avail, rooms.hands.work))
    play = _Play(table, schedule, open_, allowed, hopeless_before)
    last = schedule.event.shape[0] - 1
    code, place, steps, _ = search_events(_follow, play, rooms, count, 0, last, beam, steps_max, bytes_left)
    return code, place, steps


@inner_kernel
def _follow(
    play: _Play, rooms: Rooms, count: int, place: int, last: int, beam: int
) -> tuple[int, int, int, bool, bool]:
    """Apply `follow_events` to an object with few states."""
    course = Course(play.schedule.event, play.open_.slot, play.open_.crashed, play.hopeless_before)
    return follow_events(_RULES, play, course, rooms, count, place, last, beam)


@inner_kernel
def _begin(play: _Play, op: int, last: int, now: Configurations, count: int) -> None:
    """Give an operation a slot.  A configuration does not owe it if the state already explains it."""
    table, schedule, open_ = play.table, play.schedule, play.open_
    slot = take_slot(open_.free)
    w, bit = slot >> 6, ONE << np.uint64(slot & 63)
    open_.slot[op] = slot
    open_.holder[slot] = op
    class_ = schedule.class_of[op]
    if table.observer[class_]:
        open_.observing[w] |= bit
        for at in range(count):
            if table.after[class_, now.state[at]] < 0:
                now.need[at, w] |= bit
        return
    if schedule.deadline[op] == OPEN:
        open_.crashed[w] |= bit
    for at in range(count):
        now.avail[at, w] |= bit
        if schedule.deadline[op] != OPEN:
            now.need[at, w] |= bit


@inner_kernel
def _end(play: _Play, op: int) -> None:
    slot = play.open_.slot[op]
    word, bit = slot >> 6, ONE << np.uint64(slot & 63)
    play.open_.free[word] |= bit
    play.open_.observing[word] &= ~bit


@inner_kernel
def _is_observer(play: _Play, op: int) -> bool:
    return bool(play.table.observer[play.schedule.class_of[op]])


@inner_kernel
def _never_lingers(play: _Play, op: int) -> bool:
    """Return False: a mutator is available only while it is owed."""
    return False


@inner_kernel
def _is_owed(play: _Play, op: int, place: int, now: Configurations, count: int) -> bool:
    slot = play.open_.slot[op]
    word, bit = slot >> 6, ONE << np.uint64(slot & 63)
    for at in range(count):
        if (now.need[at, word] & bit) != NONE:
            return True
    return False


@inner_kernel
def _never_shown(play: _Play, op: int, place: int) -> bool:
    return False


@inner_kernel
def _candidates(play: _Play, state: int, avail: Words, w: int) -> Any:
    return avail[w]


@inner_kernel
def _advance(play: _Play, place: int, returning: int, step: int, state: int, hands: Hands) -> int:
    """Put an operation into the order, together with all operations that its state explains."""
    class_ = play.schedule.class_of[play.open_.holder[step]]
    after = play.table.after[class_, state]
    if after < 0 or play.hopeless_before[after] > place:
        return NOT_TRIED
    if not _first_of_its_class(play.schedule, play.open_, step, class_, hands):
        return NOT_TRIED
    for w in range(hands.need.shape[0]):
        hands.next_need[w], hands.next_avail[w] = hands.need[w], hands.avail[w]
    bit = ONE << np.uint64(step & 63)
    hands.next_need[step >> 6] &= ~bit
    hands.next_avail[step >> 6] &= ~bit
    _explain(play.table, play.schedule, play.open_, after, hands)
    word, bit = returning >> 6, ONE << np.uint64(returning & 63)
    if (hands.next_need[word] & bit) != NONE:
        owed = play.schedule.class_of[play.open_.holder[returning]]
        if not play.allowed[after, owed >> 6] & (ONE << np.uint64(owed & 63)):
            return NOT_TRIED
    return int(after)


@inner_kernel
def _first_of_its_class(schedule: EventSchedule, open_: _OpenSlots, step: int, class_: int, hands: Hands) -> bool:
    """Return whether no available operation of the class returns earlier."""
    avail = hands.avail
    mine = schedule.deadline[open_.holder[step]]
    for w in range(avail.shape[0]):
        others = avail[w]
        while others != NONE:
            hands.work[0] += 1
            other = w * 64 + trailing_zeros(others)
            others &= others - ONE
            rival = open_.holder[other]
            if schedule.class_of[rival] == class_:
                theirs = schedule.deadline[rival]
                if theirs < mine or (theirs == mine and other < step):
                    return False
    return True


@inner_kernel
def _explain(table: Table, schedule: EventSchedule, open_: _OpenSlots, state: int, hands: Hands) -> None:
    """Remove from `next_need` every observer that the state explains."""
    need = hands.next_need
    for w in range(need.shape[0]):
        observers = need[w] & open_.observing[w]
        while observers != NONE:
            hands.work[0] += 1
            number = trailing_zeros(observers)
            observers &= observers - ONE
            if table.after[schedule.class_of[open_.holder[w * 64 + number]], state] >= 0:
                need[w] &= ~(ONE << np.uint64(number))


_RULES = Rules(
    begin=_begin,
    end=_end,
    is_observer=_is_observer,
    may_linger=_never_lingers,
    concerns_anyone=_is_owed,
    is_shown=_never_shown,
    candidates=_candidates,
    advance=_advance,
)
