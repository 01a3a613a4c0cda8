"""Keeps the configurations of a just-in-time search as an antichain, and provides what all these searches share.

A configuration summarizes one possible order so far: the state of the object, and two sets of open operations.  *need*
contains the operations that the order still owes.  *avail* contains the operations that may still enter the order.  An
open operation has a slot, and a slot is a bit.  Both sets are rows of 64-bit words, so memory grows with the number of
open operations and not with the history.

    A dominates B  iff  both have the same state,  need(A) is a subset of need(B),  and avail(A) a superset of avail(B).

Each way to complete B also completes A, because A owes less and has more available.  So B is dropped.  For each
state, only configurations that no other one dominates are kept: an antichain.  (Lowe 2017 drops only equal ones.)

Work.  A new configuration is compared with all others of its state.  An antichain may contain millions of them, so the
number of visited configurations does not limit the time.  Therefore a search counts the words that it reads.

*Bits.*  Sets of slots are rows of 64-bit words.  Two functions provide bit instructions that Python does not have.

*Shared parts.*  The just-in-time searches of all objects share result codes, beams, rooms and slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import inner_kernel, instruction, kernel

Words = npt.NDArray[np.uint64]

FORGOTTEN = -1
"""The `state` of a dropped configuration, which a later configuration dominates."""


class Configurations(NamedTuple):
    """Room for configurations.  The caller counts the occupied places.

    state: int32[room]
    need, avail: uint64[room, words]
    after: int32[room], the next configuration with the same state, or -1
    head: int32[states], the first configuration with each state, or -1
    """

    state: Int32
    need: Words
    avail: Words
    after: Int32
    head: Int32


WORDS_PER_STEP = 64
"""Number of words that a search may read in one step of a budget (about 0.5 µs).  Visiting a configuration also costs
one step."""

STEPS_MAX = 1 << 56
"""Maximum budget.  A greater one is reduced to this, so that its words fit into 64 bits."""


class Hands(NamedTuple):
    """Working memory, so that a search allocates nothing: a configuration, its successor, and a tally.

    work: int64[2], number of words that the search has read so far, and its maximum
    """

    need: Words
    avail: Words
    next_need: Words
    next_avail: Words
    tally: Int32
    work: Int64


@kernel
def new_hands(words: int) -> Hands:
    rows = np.zeros((4, words), np.uint64)
    return Hands(rows[0], rows[1], rows[2], rows[3], np.empty(2 * 64 * words + 1, np.int32), np.zeros(2, np.int64))


@inner_kernel
def allow(hands: Hands, steps_max: int) -> None:
    """Set the work to zero, and its limit to a number of steps."""
    hands.work[0], hands.work[1] = 0, max(0, min(steps_max, STEPS_MAX)) * WORDS_PER_STEP


@inner_kernel
def is_spent(hands: Hands) -> bool:
    """Return True if the search has exceeded its work limit."""
    return bool(hands.work[0] > hands.work[1])


@inner_kernel
def steps_of(hands: Hands) -> int:
    """Return the work in steps, rounded up."""
    return int((hands.work[0] + WORDS_PER_STEP - 1) // WORDS_PER_STEP)


@kernel
def new_configurations(room: int, words: int, states: int) -> tuple[Configurations, Configurations, Configurations]:
    """Return three equal rooms from few allocations.  (Ten small allocations take longer than judging a key of fifty
    operations.)"""
    numbers = np.empty((6, room), np.int32)
    masks = np.empty((6, room, words), np.uint64)
    head = np.full((3, states), -1, np.int32)
    return (
        Configurations(numbers[0], masks[0], masks[1], numbers[1], head[0]),
        Configurations(numbers[2], masks[2], masks[3], numbers[3], head[1]),
        Configurations(numbers[4], masks[4], masks[5], numbers[5], head[2]),
    )


@kernel
def two_configurations(room: int, words: int, states: int) -> tuple[Configurations, Configurations]:
    """Return two equal rooms from one allocation per column."""
    numbers = np.empty((4, room), np.int32)
    masks = np.empty((4, room, words), np.uint64)
    head = np.full((2, states), -1, np.int32)
    return (
        Configurations(numbers[0], masks[0], masks[1], numbers[1], head[0]),
        Configurations(numbers[2], masks[2], masks[3], numbers[3], head[1]),
    )


@kernel
def size_bytes(room: int, words: int) -> int:
    return room * (8 + 16 * words)


@inner_kernel
def insert(them: Configurations, count: int, state: int, need: Words, avail: Words, work: Int64) -> int:
    """Add a configuration unless another one dominates it, and drop those that it dominates.

    Returns the new count.  There must be room for one more.

    need, avail: uint64[words]
    work: as in `Hands`
    """
    words = need.shape[0]
    work[0] += words
    before = -1
    at = them.head[state]
    while at >= 0:
        work[0] += words
        dominated = True
        dominates = True
        for w in range(words):
            if (them.need[at, w] & ~need[w]) | (avail[w] & ~them.avail[at, w]):
                dominated = False
            if (need[w] & ~them.need[at, w]) | (them.avail[at, w] & ~avail[w]):
                dominates = False
        if dominated:
            return count
        following = them.after[at]
        if dominates:
            them.state[at] = FORGOTTEN
            if before < 0:
                them.head[state] = following
            else:
                them.after[before] = following
        else:
            before = at
        at = following
    them.state[count] = state
    for w in range(words):
        them.need[count, w] = need[w]
        them.avail[count, w] = avail[w]
    them.after[count] = them.head[state]
    them.head[state] = count
    return count + 1


@inner_kernel
def _move(them: Configurations, at: int, to: int) -> None:
    them.state[to] = them.state[at]
    for w in range(them.need.shape[1]):
        them.need[to, w] = them.need[at, w]
        them.avail[to, w] = them.avail[at, w]


@inner_kernel
def settle(them: Configurations, count: int) -> int:
    """Close the gaps of dropped configurations, and empty `head`.  Returns the number of remaining configurations."""
    kept = 0
    for at in range(count):
        state = them.state[at]
        if state == FORGOTTEN:
            continue
        them.head[state] = -1
        if kept != at:
            _move(them, at, kept)
        kept += 1
    return kept


@inner_kernel
def keep_best(them: Configurations, count: int, beam: int, how_many: Int32) -> int:
    """Keep the `beam` most promising configurations, which owe least and have most available.  Their order stays.

    Call it after `settle`.  Returns `beam`.  `after` is used as scratch.

    how_many: int32[2 * slots + 1], used as scratch
    """
    words = them.need.shape[1]
    slots = words * 64
    how_many[:] = 0
    for at in range(count):
        score = slots
        for w in range(words):
            score += ones(them.need[at, w]) - ones(them.avail[at, w])
        them.after[at] = score
        how_many[score] += 1
    worst = 0
    certain = 0
    while certain + how_many[worst] <= beam:
        certain += how_many[worst]
        worst += 1
    of_the_worst = beam - certain
    kept = 0
    for at in range(count):
        if them.after[at] > worst or (them.after[at] == worst and of_the_worst == 0):
            continue
        if them.after[at] == worst:
            of_the_worst -= 1
        if kept != at:
            _move(them, at, kept)
        kept += 1
    return kept


ONE = np.uint64(1)
NONE = np.uint64(0)
ALL = ~np.uint64(0)


@instruction("cttz")
def trailing_zeros(word: np.uint64) -> int:
    """Return the index of the lowest set bit of a nonzero word."""
    return (int(word) & -int(word)).bit_length() - 1


@instruction("ctpop")
def ones(word: np.uint64) -> int:
    """Return the number of set bits of a word."""
    return int(word).bit_count()


LINEARIZABLE = 0
NO_ORDER = 1
OUT_OF_STEPS = 2
OUT_OF_BYTES = 3
TRUNCATED = 4
"""Result code: the kept configurations allow no order.  It proves nothing, so the search must keep more of them."""
NO_ROOM = 5
"""Result code: the caller must continue with more room."""

BEAMS = (16, 128, 1024, 0)
"""Number of configurations kept by each successive search; 0 keeps all."""

ROOM_FIRST = 256
"""Size of the first room, in configurations per word of slots.  One step of a search may add one configuration per
slot."""


class Rooms(NamedTuple):
    """Rooms for the configurations of a search.

    now: the present configurations
    following: the configurations after the current event
    queue: configurations that are yet to be extended
    """

    now: Configurations
    following: Configurations
    queue: Configurations
    hands: Hands


@kernel
def unknown_to_the_compiler(number: int) -> int:
    """Return the same number, but not as a constant, so that the compiler does not specialize a function for it."""
    return number + 0


@kernel
def new_rooms(words: int, states: int) -> Rooms:
    now, following, queue = new_configurations(ROOM_FIRST * words, words, states)
    return Rooms(now, following, queue, new_hands(words))


@kernel
def first_size_bytes(words: int) -> int:
    return 3 * size_bytes(ROOM_FIRST * words, words)


@kernel
def more_room(rooms: Rooms, count: int) -> int:
    """Return the size, in configurations, of the room that the search needs after NO_ROOM."""
    return 4 * int(max(count, rooms.following.state.shape[0], rooms.queue.state.shape[0]))


@kernel
def with_room(rooms: Rooms, room: int) -> Rooms:
    """Return rooms with the present configurations and two new, empty rooms of size `room`."""
    following, queue = two_configurations(room, rooms.hands.need.shape[0], rooms.now.head.shape[0])
    return Rooms(rooms.now, following, queue, rooms.hands)


@kernel
def with_room_size_bytes(rooms: Rooms, room: int) -> int:
    """Return the peak memory of `with_room`: all present rooms, and two new ones.

    Rooms are allocated two at a time.  So a room in use also keeps the memory of the other one.
    """
    words = rooms.hands.need.shape[0]
    present = rooms.now.state.shape[0] + max(rooms.following.state.shape[0], rooms.queue.state.shape[0])
    return 2 * size_bytes(present + room, words)


@kernel
def turned(rooms: Rooms) -> Rooms:
    """Return the rooms with `now` and `following` exchanged."""
    return Rooms(rooms.following, rooms.now, rooms.queue, rooms.hands)


@kernel
def empty(rooms: Rooms) -> None:
    """Prepare the rooms for another search, even if the previous one ended early."""
    rooms.now.head[:] = -1
    rooms.following.head[:] = -1
    rooms.queue.head[:] = -1
    rooms.hands.need[:] = NONE
    rooms.hands.avail[:] = NONE


@inner_kernel
def take_slot(free: Words) -> int:
    """Take the lowest free slot.  Returns its number."""
    w = 0
    while free[w] == NONE:
        w += 1
    number = trailing_zeros(free[w])
    free[w] &= ~(ONE << np.uint64(number))
    return w * 64 + number


@inner_kernel
def any_of(mask: Words) -> bool:
    for word in mask:
        if word != NONE:
            return True
    return False


@inner_kernel
def forget_queue(queue: Configurations, waiting: int) -> None:
    """Reset `head` of a queue for its next use."""
    for each in range(waiting):
        if queue.state[each] >= 0:
            queue.head[queue.state[each]] = -1
