"""The just-in-time search, the same for every kind of object: it updates the configurations at each event.

At a call the operation gets a slot.  At a return, the search extends each configuration that owes the operation.  It
adds available operations until no configuration owes the returning one.

The kind of object decides what operations do.  It provides `Rules`, a tuple of compiled functions.  The functions of
this file are spliced into the kernels of that kind and are never compiled on their own.  So machine code always
belongs to the file that names the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from checkers.base.arrays import Int32
from checkers.kernels.jit import inner_kernel, spliced_kernel
from checkers.kernels.search.bits import NONE, ONE, trailing_zeros
from checkers.kernels.search.configurations import (
    FORGOTTEN,
    WORDS_PER_STEP,
    Configurations,
    Hands,
    Words,
    allow,
    insert,
    is_spent,
    keep_best,
    settle,
    steps_of,
)
from checkers.kernels.search.just_in_time import (
    LINEARIZABLE,
    NO_ORDER,
    NO_ROOM,
    OUT_OF_BYTES,
    OUT_OF_STEPS,
    TRUNCATED,
    Rooms,
    any_of,
    forget_queue,
    more_room,
    turned,
    with_room,
    with_room_size_bytes,
)

NOT_TRIED = -1
"""Stands for a state: this operation is of no use as the next step."""


REACHED_PER_BEAM, WAITING_PER_BEAM = 8, 64
"""Limits of one return, per kept configuration: of those that no longer owe the operation, and of those that do."""


class Rules(NamedTuple):
    """The functions that a kind of object provides for a search.  Each is an inner kernel.

    Their first argument is the object: its history, and what is open now.

    begin(object, operation, last place, now, count): an operation is called; give it a slot.
    end(object, operation): the operation returned; free its slot.
    is_observer(object, operation): whether it changes no state.
    may_linger(object, operation): whether configurations that no longer owe it may still have it available.
    concerns_anyone(object, operation, place, now, count): whether some configuration must be extended at its return.
    is_shown(object, operation, place): whether configurations that do not owe it, but have it available, try it too.
    candidates(object, state, available, word): slots of one word that may be tried in a state.
    advance(object, place, slot that returns, slot, state, hands): put an operation into the order.  Reads `need` and
    `avail` of the hands and fills `next_need` and `next_avail`.  Returns the state after it, or NOT_TRIED.  If it looks
    at other operations, it adds their number to the work of the hands.
    """

    begin: Callable[..., None]
    end: Callable[..., None]
    is_observer: Callable[..., bool]
    may_linger: Callable[..., bool]
    concerns_anyone: Callable[..., bool]
    is_shown: Callable[..., bool]
    candidates: Callable[..., Any]
    advance: Callable[..., int]


class Course(NamedTuple):
    """The part of a history that the search itself reads.

    event: int32 per place, an operation at its call, -1 - operation at its return.  slot: int32 per operation, -1 if it
    has none.  crashed: slots of operations that never return.
    hopeless_before: int32 per state; an order that reaches the state before this place cannot be completed.
    """

    event: Int32
    slot: Int32
    crashed: Words
    hopeless_before: Int32


class _Returning(NamedTuple):
    """The operation that returns now.  place: of the event.  observer: whether it changes no state."""

    place: int
    slot: int
    observer: bool


@spliced_kernel
def search_events(
    follow: Callable[..., tuple[int, int, int, bool, bool]],
    object_: Any,
    rooms: Rooms,
    count: int,
    first: int,
    last: int,
    beam: int,
    steps_max: int,
    bytes_left: int,
) -> tuple[int, int, int, int]:
    """Follow the events from place `first` to `last`, with more room whenever `follow` returns NO_ROOM.

    follow: an inner kernel that splices `follow_events`.  count: the number of configurations now.
    Returns (code, place of the event that decided it or -1, steps, bytes of the last room, or 0 if the first sufficed).
    """
    place, size_bytes = first, 0
    dropped = False
    allow(rooms.hands, steps_max)
    while True:
        code, place, count, left_out, is_turned = follow(object_, rooms, count, place, last, beam)
        dropped = dropped or left_out
        if is_turned:
            rooms = turned(rooms)
        if code != NO_ROOM:
            break
        room = more_room(rooms, count)
        size_bytes = with_room_size_bytes(rooms, room)
        if size_bytes > bytes_left:
            code = OUT_OF_BYTES
            break
        rooms = with_room(rooms, room)
    if code == NO_ORDER and dropped:
        code = TRUNCATED
    return code, place, steps_of(rooms.hands), size_bytes


@spliced_kernel
def follow_events(
    rules: Rules,
    object_: Any,
    course: Course,
    rooms: Rooms,
    count: int,
    place: int,
    last: int,
    beam: int,
) -> tuple[int, int, int, bool, bool]:
    """Follow the events from a place on.  The function makes no array: the code NO_ROOM requests a larger room.

    Returns (code, place of the event it reached, configurations there, whether anything was dropped, whether `now` and
    `following` have changed places).
    """
    now, following, queue, hands = rooms.now, rooms.following, rooms.queue, rooms.hands
    is_turned, dropped = False, False
    for at in range(place, last + 1):
        hands.work[0] += count * WORDS_PER_STEP
        if is_spent(hands):
            return OUT_OF_STEPS, at, count, dropped, is_turned
        event = course.event[at]
        if event >= 0:
            rules.begin(object_, event, last, now, count)
            continue
        op = -1 - event
        slot = course.slot[op]
        if slot < 0:  # this observer was called before the window began
            continue
        if rules.concerns_anyone(object_, op, at, now, count):
            turn = Rooms(now, following, queue, hands)
            reached, left_out = linearize_in_time(rules, object_, course, op, at, turn, count, beam)
            dropped = dropped or left_out
            if reached < 0:
                return -reached, at, count, dropped, is_turned
            count = settle(following, reached)
            now, following = following, now
            is_turned = not is_turned
            if count == 0:
                return NO_ORDER, at, count, dropped, is_turned
        elif rules.may_linger(object_, op):
            if count == 1:
                now.avail[0, slot >> 6] &= ~(ONE << np.uint64(slot & 63))
            elif count > following.state.shape[0]:
                return NO_ROOM, at, count, dropped, is_turned
            else:
                count = _without(now, count, slot, following, hands)
                if is_spent(hands):
                    return OUT_OF_STEPS, at, count, dropped, not is_turned
                now, following = following, now
                is_turned = not is_turned
        if beam > 0 and count > beam:
            dropped = True
            count = keep_best(now, count, beam, hands.tally)
        rules.end(object_, op)
    return LINEARIZABLE, -1, count, dropped, is_turned


@inner_kernel
def _without(now: Configurations, count: int, slot: int, following: Configurations, hands: Hands) -> int:
    """Remove a slot from `avail` of every configuration; returns the number of configurations in `following`.

    It stops when the work is spent.
    """
    need, avail = hands.need, hands.avail
    word, bit = slot >> 6, ONE << np.uint64(slot & 63)
    left = 0
    for at in range(count):
        if is_spent(hands):
            break
        for w in range(need.shape[0]):
            need[w], avail[w] = now.need[at, w], now.avail[at, w]
        avail[word] &= ~bit
        left = insert(following, left, now.state[at], need, avail, hands.work)
    return settle(following, left)


@spliced_kernel
def linearize_in_time(
    rules: Rules,
    object_: Any,
    course: Course,
    op: int,
    place: int,
    rooms: Rooms,
    count: int,
    beam: int,
) -> tuple[int, bool]:
    """Extend all configurations until none owes the returning operation.

    beam: if above 0, use operations that never returned only if there is no other way, and try only as many extensions
    as a multiple of it: those of the fewest steps first.
    Returns (how many places of `following` are taken, or minus the code of the failure, whether anything was left
    untried).
    """
    following, queue, hands = rooms.following, rooms.queue, rooms.hands
    words = hands.need.shape[0]
    returning = _Returning(place, course.slot[op], rules.is_observer(object_, op))
    room = min(following.state.shape[0], queue.state.shape[0]) - words * 64
    if count > room:
        return -NO_ROOM, False
    shown = rules.is_shown(object_, op, place)
    reached, waiting = _divide(rooms.now, count, following, queue, hands, returning.slot, shown)
    at = 0
    sparing, untried = beam > 0, False
    reached_enough, waiting_enough = reached + REACHED_PER_BEAM * beam, waiting + WAITING_PER_BEAM * beam
    while True:
        if is_spent(hands):
            return -OUT_OF_STEPS, False
        if at == waiting:
            sparing = sparing and any_of(course.crashed)
            if not sparing or reached > 0:
                break
            sparing, at = False, 0
            continue
        if beam > 0 and (reached > reached_enough or waiting > waiting_enough):
            untried = True
            break
        state = queue.state[at]
        if state == FORGOTTEN or course.hopeless_before[state] > place:
            at += 1
            continue
        hands.work[0] += WORDS_PER_STEP
        if waiting > room or reached > room:
            return -NO_ROOM, False
        for w in range(words):
            hands.need[w], hands.avail[w] = queue.need[at, w], queue.avail[at, w]
        at += 1
        reached, waiting = _extend(rules, object_, course, returning, state, rooms, reached, waiting, sparing)
    forget_queue(queue, waiting)
    return reached, sparing or untried


@spliced_kernel
def _extend(
    rules: Rules,
    object_: Any,
    course: Course,
    returning: _Returning,
    state: int,
    rooms: Rooms,
    reached: int,
    waiting: int,
    sparing: bool,
) -> tuple[int, int]:
    """Extend the configuration in the hands by each operation that may be next.

    Enters the results in `following` if they no longer owe the returning operation, else in `queue`.  Returns the new
    counts (reached, waiting).  It stops when the work is spent.
    """
    following, queue, hands = rooms.following, rooms.queue, rooms.hands
    word, bit = returning.slot >> 6, ONE << np.uint64(returning.slot & 63)
    for w in range(hands.need.shape[0]):
        candidates = rules.candidates(object_, state, hands.avail, w)
        if sparing:
            candidates &= ~course.crashed[w]
        while candidates != NONE and not is_spent(hands):
            hands.work[0] += 1
            step = w * 64 + trailing_zeros(candidates)
            candidates &= candidates - ONE
            after = rules.advance(object_, returning.place, returning.slot, step, state, hands)
            if after == NOT_TRIED:
                continue
            if step == returning.slot or (returning.observer and not hands.next_need[word] & bit):
                hands.next_avail[word] &= ~bit
                reached = insert(following, reached, after, hands.next_need, hands.next_avail, hands.work)
            else:
                waiting = insert(queue, waiting, after, hands.next_need, hands.next_avail, hands.work)
    return reached, waiting


@inner_kernel
def _divide(
    now: Configurations,
    count: int,
    following: Configurations,
    queue: Configurations,
    hands: Hands,
    slot: int,
    shown: bool,
) -> tuple[int, int]:
    """Divide the configurations into those that go on without the operation and those to extend.

    shown: a configuration that has the operation available, but does not owe it, goes both ways.
    Returns (how many go on, how many wait).  It stops when the work is spent.
    """
    need, avail = hands.need, hands.avail
    word, bit = slot >> 6, ONE << np.uint64(slot & 63)
    reached, waiting = 0, 0
    for at in range(count):
        if is_spent(hands):
            break
        for w in range(need.shape[0]):
            need[w], avail[w] = now.need[at, w], now.avail[at, w]
        owed = need[word] & bit
        if owed or (shown and avail[word] & bit):
            waiting = insert(queue, waiting, now.state[at], need, avail, hands.work)
        if not owed:
            avail[word] &= ~bit
            reached = insert(following, reached, now.state[at], need, avail, hands.work)
    return reached, waiting
