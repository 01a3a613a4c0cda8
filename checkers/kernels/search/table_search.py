"""Linearizability of any object with few states: just-in-time search over a table of what each operation does.

The object is a table: rows are *classes* of operations (everything that does and answers the same), columns states, an
entry the state after, or -1 where the operation could not have been answered like that.  The search is that of
`kernels/registers/antichain.py` without what is special to registers:

    observer   a class that never changes the state: owed until some state on the way accepts it, and then put there
    mutator    owed and available; both end when it is put into the order.  One that never returned is never owed.

What is not tried, and why nothing is lost: of mutators of one class only the one with the earliest deadline goes first
(they may swap in any order); and a state is given up if somebody still to be invoked will certainly be answered in a
way no state reachable from there allows (`hopeless_before`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import OPEN
from checkers.kernels.search.bits import ALL, NONE, ONE, trailing_zeros
from checkers.kernels.search.configurations import FORGOTTEN, Configurations, Hands, Words, insert, keep_best, settle
from checkers.kernels.search.just_in_time import (
    BEAMS,
    LINEARIZABLE,
    NO_ORDER,
    NO_ROOM,
    OUT_OF_BYTES,
    OUT_OF_STEPS,
    TRUNCATED,
    Rooms,
    any_of,
    first_size_bytes,
    forget_queue,
    more_room,
    new_rooms,
    take_slot,
    turned,
    with_room,
    with_room_size_bytes,
)

__all__ = ["LINEARIZABLE", "NO_ORDER", "OUT_OF_BYTES", "OUT_OF_STEPS", "Schedule", "Table", "judge"]


class Table(NamedTuple):
    """after: int32[classes, states], the state after or -1.  observer: int8[classes], 1 if it changes no state.

    The first state is the one the object begins in.
    """

    after: Int32
    observer: Int8


class Schedule(NamedTuple):
    """class_of: int32 per operation.  event: int32 per place, an operation at its call, -1 - operation at its return.

    deadline: int32 per operation, place of its return, OPEN if it never returned.  slots: most open at once.
    Observers that never returned are left out.
    """

    class_of: Int32
    event: Int32
    deadline: Int32
    slots: int


class _Open(NamedTuple):
    slot: Int32
    holder: Int32
    free: Words
    observing: Words
    crashed: Words


@kernel
def judge(table: Table, schedule: Schedule, steps_max: int, bytes_max: int) -> tuple[int, int, int]:
    """Returns (code, place at which there was certainly no order or -1, steps)."""
    hopeless_before = _hopeless_before(table, schedule)
    steps = 0
    for beam in BEAMS:
        code, place, taken = _search(table, schedule, hopeless_before, beam, steps_max - steps, bytes_max)
        steps += taken
        if code != TRUNCATED:
            return code, place, steps
    return OUT_OF_STEPS, -1, steps  # never reached: the last search drops nothing


@kernel
def _hopeless_before(table: Table, schedule: Schedule) -> Int32:
    """int32[states]: at an earlier place than this, an order that has come to the state cannot be completed."""
    classes, states = table.after.shape
    words = (classes + 63) // 64
    accepted = np.zeros((states, words), np.uint64)
    for c in range(classes):
        for s in range(states):
            if table.after[c, s] >= 0:
                accepted[s, c >> 6] |= ONE << np.uint64(c & 63)
    changed = True
    while changed:
        changed = False
        for backwards in range(states):
            s = states - 1 - backwards
            for c in range(classes):
                after = table.after[c, s]
                if after < 0 or after == s:
                    continue
                for w in range(words):
                    if accepted[after, w] & ~accepted[s, w]:
                        accepted[s, w] |= accepted[after, w]
                        changed = True
    last_call = np.full(classes, -1, np.int32)
    for place in range(schedule.event.shape[0]):
        op = schedule.event[place]
        if op >= 0 and schedule.deadline[op] != OPEN:
            last_call[schedule.class_of[op]] = place
    hopeless = np.zeros(states, np.int32)
    for s in range(states):
        for c in range(classes):
            if not accepted[s, c >> 6] & (ONE << np.uint64(c & 63)):
                hopeless[s] = max(hopeless[s], last_call[c])
    return hopeless


@kernel
def _search(
    table: Table, schedule: Schedule, hopeless_before: Int32, beam: int, steps_max: int, bytes_max: int
) -> tuple[int, int, int]:
    """One search; returns (code, place of the event that decided it or -1, steps).  The code may be TRUNCATED."""
    words = max(1, (schedule.slots + 63) // 64)
    bytes_left = bytes_max - first_size_bytes(words)
    if bytes_left < 0:
        return OUT_OF_BYTES, -1, 0
    rooms = new_rooms(words, table.after.shape[1])
    open_ = _Open(
        np.full(schedule.class_of.shape[0], -1, np.int32),
        np.full(words * 64, -1, np.int32),
        np.full(words, ALL, np.uint64),
        np.zeros(words, np.uint64),
        np.zeros(words, np.uint64),
    )
    count = settle(rooms.now, insert(rooms.now, 0, 0, rooms.hands.need, rooms.hands.avail))
    place = steps = 0
    dropped = False
    while True:
        code, place, count, taken, left_out, is_turned = _follow(
            table, schedule, open_, hopeless_before, rooms, count, place, beam, steps_max - steps
        )
        steps += taken
        dropped = dropped or left_out
        if is_turned:
            rooms = turned(rooms)
        if code != NO_ROOM:
            break
        room = more_room(rooms, count)
        if with_room_size_bytes(rooms, room) > bytes_left:
            return OUT_OF_BYTES, place, steps
        rooms = with_room(rooms, room)
    if code == NO_ORDER and dropped:
        code = TRUNCATED
    return code, place, steps


@inner_kernel
def _follow(
    table: Table,
    schedule: Schedule,
    open_: _Open,
    hopeless_before: Int32,
    rooms: Rooms,
    count: int,
    place: int,
    beam: int,
    steps_max: int,
) -> tuple[int, int, int, int, bool, bool]:
    """Follow the events from a place on; returns what `kernels/registers/antichain.py`'s function of this name does."""
    now, following, queue, hands = rooms.now, rooms.following, rooms.queue, rooms.hands
    is_turned = False
    dropped = False
    steps = 0
    while place < schedule.event.shape[0]:
        steps += count
        if steps > steps_max:
            return OUT_OF_STEPS, place, count, steps, dropped, is_turned
        event = schedule.event[place]
        if event >= 0:
            _call(table, schedule, open_, event, now, count)
            place += 1
            continue
        op = -1 - event
        slot = open_.slot[op]
        word, bit = slot >> 6, ONE << np.uint64(slot & 63)
        owed = False
        for at in range(count):
            owed = owed or (now.need[at, word] & bit) != NONE
        if owed:
            reached, taken, left_out = _linearize_in_time(
                table,
                schedule,
                open_,
                hopeless_before,
                op,
                place,
                now,
                count,
                following,
                queue,
                hands,
                beam > 0,
                steps_max - steps,
            )
            steps += taken
            dropped = dropped or left_out
            if reached < 0:
                return -reached, place, count, steps, dropped, is_turned
            count = settle(following, reached)
            now, following = following, now
            is_turned = not is_turned
            if count == 0:
                return NO_ORDER, place, count, steps, dropped, is_turned
        if beam > 0 and count > beam:
            dropped = True
            count = keep_best(now, count, beam, hands.tally)
        open_.free[word] |= bit
        open_.observing[word] &= ~bit
        place += 1
    return LINEARIZABLE, -1, count, steps, dropped, is_turned


@inner_kernel
def _call(table: Table, schedule: Schedule, open_: _Open, op: int, now: Configurations, count: int) -> None:
    """Give an operation a slot; what the state already explains is owed by nobody."""
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
def _linearize_in_time(
    table: Table,
    schedule: Schedule,
    open_: _Open,
    hopeless_before: Int32,
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
    """Extend all configurations until none owes the returning operation; see `kernels/registers/antichain.py`."""
    words = open_.free.shape[0]
    slot = open_.slot[op]
    word, bit = slot >> 6, ONE << np.uint64(slot & 63)
    need, avail, next_need, next_avail = hands.need, hands.avail, hands.next_need, hands.next_avail
    room = min(following.state.shape[0], queue.state.shape[0]) - words * 64
    if count > room:
        return -NO_ROOM, 0, False
    reached, waiting = 0, 0
    for at in range(count):
        for w in range(words):
            need[w], avail[w] = now.need[at, w], now.avail[at, w]
        if need[word] & bit:
            waiting = insert(queue, waiting, now.state[at], need, avail)
        else:
            reached = insert(following, reached, now.state[at], need, avail)
    sparing = sparing and any_of(open_.crashed)
    steps = 0
    at = 0
    while True:
        if at == waiting:
            if not sparing or reached > 0:
                break
            sparing, at = False, 0
            continue
        state = queue.state[at]
        if state == FORGOTTEN or hopeless_before[state] > place:
            at += 1
            continue
        steps += 1
        if steps > steps_max:
            return -OUT_OF_STEPS, steps, False
        if waiting > room or reached > room:
            return -NO_ROOM, steps, False
        for w in range(words):
            need[w], avail[w] = queue.need[at, w], queue.avail[at, w]
        at += 1
        for w in range(words):
            candidates = avail[w] & ~open_.crashed[w] if sparing else avail[w]
            while candidates != NONE:
                step = w * 64 + trailing_zeros(candidates)
                candidates &= candidates - ONE
                class_ = schedule.class_of[open_.holder[step]]
                state_after = table.after[class_, state]
                if state_after < 0 or hopeless_before[state_after] > place:
                    continue
                if not _first_of_its_class(schedule, open_, step, class_, avail):
                    continue
                for v in range(words):
                    next_need[v], next_avail[v] = need[v], avail[v]
                next_need[w] &= ~(ONE << np.uint64(step & 63))
                next_avail[w] &= ~(ONE << np.uint64(step & 63))
                _explain(table, schedule, open_, state_after, next_need)
                if next_need[word] & bit:
                    waiting = insert(queue, waiting, state_after, next_need, next_avail)
                else:
                    reached = insert(following, reached, state_after, next_need, next_avail)
    forget_queue(queue, waiting)
    return reached, steps, sparing


@inner_kernel
def _first_of_its_class(schedule: Schedule, open_: _Open, step: int, class_: int, avail: Words) -> bool:
    """Whether no available operation of the class has to return earlier."""
    mine = schedule.deadline[open_.holder[step]]
    for w in range(avail.shape[0]):
        others = avail[w]
        while others != NONE:
            other = w * 64 + trailing_zeros(others)
            others &= others - ONE
            rival = open_.holder[other]
            if schedule.class_of[rival] == class_:
                theirs = schedule.deadline[rival]
                if theirs < mine or (theirs == mine and other < step):
                    return False
    return True


@inner_kernel
def _explain(table: Table, schedule: Schedule, open_: _Open, state: int, need: Words) -> None:
    """Take from `need` every observer that the state explains."""
    for w in range(need.shape[0]):
        observers = need[w] & open_.observing[w]
        while observers != NONE:
            number = trailing_zeros(observers)
            observers &= observers - ONE
            if table.after[schedule.class_of[open_.holder[w * 64 + number]], state] >= 0:
                need[w] &= ~(ONE << np.uint64(number))
