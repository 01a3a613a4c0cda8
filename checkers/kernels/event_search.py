"""The just-in-time search for every kind of object: it updates the configurations at each event.

At a call the operation gets a slot.  At a return, the search extends each configuration that owes the operation.  It
adds available operations until no configuration owes the returning one.

The kind of object determines the effect of its operations.  It provides `Rules`, a tuple of compiled functions.  The
functions of this file are spliced into the kernels of that kind and are never compiled on their own.  So machine code
always belongs to the file that defines the rules.

*Tables.*  `judge` decides linearizability of any object with few states, given the object's table of transitions.

A row of the table is a *class* of operations with the same effect and answer.  A column is a state.  An
entry is the state after the operation, or -1 if this answer is impossible in the state.  The search is that of
`kernels/register_antichain.py` without the rules that are special to registers:

    observer   a class that never changes the state.  It is owed until a state accepts it, and enters the order there.
    mutator    owed and available; both end when it enters the order.  A mutator that never returned is never owed.

The search omits the following without losing an order.  Of mutators of one class, only the one with the earliest
deadline goes first, because they may swap in any order.  A state is abandoned if a later operation, or the returning
one, has an answer that no state reachable from there allows (`hopeless_before`, `allowed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32
from checkers.kernels.configurations import (
    ALL,
    BEAMS,
    FORGOTTEN,
    LINEARIZABLE,
    NO_ORDER,
    NO_ROOM,
    NONE,
    ONE,
    OUT_OF_BYTES,
    OUT_OF_STEPS,
    STEPS_MAX,
    TRUNCATED,
    WORDS_PER_STEP,
    Configurations,
    Hands,
    Rooms,
    Words,
    allow,
    any_of,
    first_size_bytes,
    forget_queue,
    insert,
    is_spent,
    keep_best,
    more_room,
    new_rooms,
    settle,
    steps_of,
    take_slot,
    trailing_zeros,
    turned,
    with_room,
    with_room_size_bytes,
)
from checkers.kernels.jit import inner_kernel, kernel, spliced_kernel
from checkers.kernels.operations import OPEN

NOT_TRIED = -1
"""Returned instead of a state if an operation would be useless as the next step."""


REACHED_PER_BEAM, WAITING_PER_BEAM = 8, 64
"""Maximum numbers of configurations added at one return, as multiples of the beam: of those that no longer owe the
returning operation, and of those that still owe it."""


class Rules(NamedTuple):
    """The functions that a kind of object provides for a search.  Each is an inner kernel.

    Their first argument is the object: its history and its open operations.

    begin(object, operation, last place, now, count): give a slot to an operation that is called.
    end(object, operation): free the slot of an operation that returned.
    is_observer(object, operation): return True if the operation changes no state.
    may_linger(object, operation): return True if configurations that no longer owe the operation may have it available.
    concerns_anyone(object, operation, place, now, count): return True if some configuration must be extended at the
        operation's return.
    is_shown(object, operation, place): return True if configurations that have the operation available but do not owe
        it must try it too.
    candidates(object, state, available, word): return the slots of one word that may be tried in a state.
    advance(object, place, slot that returns, slot, state, hands): put an operation into the order.  Reads `need` and
        `avail` of the hands and fills `next_need` and `next_avail`.  Returns the next state, or NOT_TRIED.  Adds the
        number of other operations that it examines to the work of the hands.
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

    event: int32 per place; an operation at its call, -1 - operation at its return
    slot: int32 per operation, -1 if it has none
    crashed: slots of operations that never return
    hopeless_before: int32 per state; an order that reaches the state before this place cannot be completed
    """

    event: Int32
    slot: Int32
    crashed: Words
    hopeless_before: Int32


class _Returning(NamedTuple):
    """The returning operation.  place: place of its return.  observer: True if it changes no state."""

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
    """Follow the events from place `first` to `last`.  Continue with more room whenever `follow` returns NO_ROOM.

    Returns (code, place of the event that decided the code or -1, steps, bytes of the last room, or 0 if the first
    sufficed).

    follow: an inner kernel that splices `follow_events`
    count: present number of configurations
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
    """Follow the events from `place` to `last`.  Allocates no array: the code NO_ROOM requests a larger room.

    Returns (code, place of the event that was reached, number of configurations there, True if any configuration or
    extension was dropped, True if `now` and `following` are exchanged).
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
        if slot < 0:  # an observer that was called before the window
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
    """Remove a slot from `avail` of every configuration.  Returns the number of configurations in `following`.

    Stops early if the work limit is exceeded.
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

    Returns (number of configurations in `following`, or minus the code of the failure; True if an extension was not
    tried).

    beam: if above 0, operations that never returned are used only as a last resort, and the number of extensions is
        limited to a multiple of the beam, the shortest extensions first
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

    Adds the results to `following` if they no longer owe the returning operation, else to `queue`.  Returns the new
    counts (reached, waiting).  Stops early if the work limit is exceeded.
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
    """Divide the configurations when an operation returns: those that contain it continue, the others are extended.

    Returns the sizes of both groups.  Stops early if the work limit is exceeded.

    shown: True if a configuration that has the operation available, but does not owe it, enters both groups
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


__all__ = ["LINEARIZABLE", "NO_ORDER", "OUT_OF_BYTES", "OUT_OF_STEPS", "EventSchedule", "Table", "judge"]


class Table(NamedTuple):
    """The transitions of an object.  Its initial state is the first one.

    after: int32[classes, states], the next state or -1
    observer: int8[classes], 1 if the class changes no state
    """

    after: Int32
    observer: Int8


class EventSchedule(NamedTuple):
    """The operations of a history by class, without observers that never returned.

    class_of: int32 per operation
    event: int32 per place; an operation at its call, -1 - operation at its return
    deadline: int32 per operation, place of its return, OPEN if it never returned
    slots: maximum number of operations open at once
    """

    class_of: Int32
    event: Int32
    deadline: Int32
    slots: int


class _OpenSlots(NamedTuple):
    """The open operations.

    slot: int32 per operation
    holder: int32 per slot, the operation in it
    free, observing, crashed: sets of slots
    """

    slot: Int32
    holder: Int32
    free: Words
    observing: Words
    crashed: Words


class _Play(NamedTuple):
    """An object, its history and its open operations: the object to which the rules below apply.

    allowed: uint64[states, words of classes], see `_allowed`
    hopeless_before: int32 per state, see `_hopeless_before`
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
    """Judge an object.  Returns (code, place at which it was certain that there is no order or -1, steps).

    look_ahead: True to abandon states because of later operations.  If False, the place is that of the first answer
        that no order explains, and the search takes longer.
    """
    allowed, steps = _allowed(table, steps_max)
    hopeless_before = _hopeless_before(allowed, schedule, look_ahead)
    for beam in BEAMS:
        code, place, taken = _search(table, schedule, allowed, hopeless_before, beam, steps_max - steps, bytes_max)
        steps += taken
        if code != TRUNCATED:
            return code, place, steps
    return OUT_OF_STEPS, -1, steps  # unreachable: the last search drops no operation


@kernel
def _allowed(table: Table, steps_max: int) -> tuple[Words, int]:
    """Return the classes that each state, or a state reachable from it, allows, and the number of steps taken.

    If this would take too many steps, every state allows every class: the search is longer, but its result is the same.
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
    """Search once.  Returns (code, place of the event that decided it or -1, steps).  The code may be TRUNCATED."""
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
    """Give an operation a slot.  Configurations whose state already explains it do not owe it."""
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
    """Return True if no available operation of the same class returns earlier."""
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
