"""Shared parts of the just-in-time searches of all objects: result codes, beams, rooms and slots."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.search.bits import NONE, ONE, trailing_zeros
from checkers.kernels.search.configurations import (
    Configurations,
    Hands,
    Words,
    new_configurations,
    new_hands,
    size_bytes,
    two_configurations,
)

LINEARIZABLE = 0
NO_ORDER = 1
OUT_OF_STEPS = 2
OUT_OF_BYTES = 3
TRUNCATED = 4
"""The kept configurations allow no order.  This is no result, but a reason to keep more."""
NO_ROOM = 5
"""The caller must continue with more room."""

BEAMS = (16, 128, 1024, 0)
"""The numbers of configurations kept by one attempt after another; 0 keeps all."""

ROOM_FIRST = 256
"""The first room, in configurations per word of slots.  One step of a search may add as many configurations as there
are slots."""


class Rooms(NamedTuple):
    """now: the present configurations.  following: those after the event.  queue: those that wait for extension."""

    now: Configurations
    following: Configurations
    queue: Configurations
    hands: Hands


@kernel
def unknown_to_the_compiler(number: int) -> int:
    """Return the same number.  Without this call, the compiler compiles a function again for each constant argument."""
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
    """Return the size of the next room after NO_ROOM, in configurations."""
    return 4 * int(max(count, rooms.following.state.shape[0], rooms.queue.state.shape[0]))


@kernel
def with_room(rooms: Rooms, room: int) -> Rooms:
    """Return rooms with the same present configurations, and with new empty room for those that follow."""
    following, queue = two_configurations(room, rooms.hands.need.shape[0], rooms.now.head.shape[0])
    return Rooms(rooms.now, following, queue, rooms.hands)


@kernel
def with_room_size_bytes(rooms: Rooms, room: int) -> int:
    """Return the memory while `with_room` copies nothing and frees nothing yet: all present rooms, and two new ones.

    Rooms are allocated two at a time.  So a present room keeps the memory of its twin, even if the twin is not used.
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
    """Prepare the rooms for another search, also after a search that ended early."""
    rooms.now.head[:] = -1
    rooms.following.head[:] = -1
    rooms.queue.head[:] = -1
    rooms.hands.need[:] = NONE
    rooms.hands.avail[:] = NONE


@inner_kernel
def take_slot(free: Words) -> int:
    """Take the lowest free slot; returns its number."""
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
    """Empty `head` of a queue for its next use."""
    for each in range(waiting):
        if queue.state[each] >= 0:
            queue.head[queue.state[each]] = -1
