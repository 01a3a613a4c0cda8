"""Prepares a key of a register for the search: it numbers values, lays out events, and computes facts in advance.

Operations that cannot matter are left out: observers without an answer, and mutators without an answer whose value no
observer names.  It is always allowed to assume that such a mutator did not happen.  There is one exception: any other
value may explain a *mismatch*.  So these mutators are kept if a mismatch was observed.

The whole history is available, so two facts are computed in advance.  The first is the last place where each value is
observed.  The second concerns a value that only one operation ever produced: an order must *stay* at it until its last
mandatory observer is called.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, MISMATCH, OPEN, READ, WRITE
from checkers.kernels.registers.unique_values import Key


class KeyProblem(NamedTuple):
    """The relevant operations of one key, and their events.

    kind: int8 (READ, WRITE, CAS, MISMATCH).  seen: int32, number of the value read, written or expected.
    made: int32, number of the value a cas put there.  deadline: int32, place of the return, OPEN if there is none.
    event: int32 per place: an operation at its call, -1 - operation at its return.
    position: int32 per place: where that event stood in the key.
    called: int32 per operation, place of its call.
    first_made: int32[values], place of the first call of a producer of the value, -1 if the object may hold it at
    first, OPEN if nothing produces it.
    last_seen: int32[values], place of the last call that observes a value, -1 if none does.
    stay_until: int32[values], place of the last call of a *mandatory* observer of a value made only once, else -1.
    last_mismatch: place of the last call of a MISMATCH, or -1.
    values: the number of values.  starts: the object may hold any of the first `starts` values at first.
    slots: the largest number of operations open at once.
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
    """The kept operations, one row each: columns of Problem, and their position among those of the key (`source`)."""

    kind: Int8
    seen: Int32
    made: Int32
    source: Int32
    deadline: Int32
    called: Int32


@kernel
def prepare(key: Key, limit: int, starts: Int64) -> KeyProblem:
    """Prepare the first `limit` positions of a key; operations that had not returned by then are open.

    starts: int64, distinct values; the object may hold any of them at first.  O(operations + limit).
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
    """Return the number of a value in the table; a new value gets `fresh`."""
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
    """Drop mutators that never returned and whose value no observer names; returns how many operations remain."""
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

    Returns (event by place, position by place, the largest number of operations open at once).
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
    """Return (first_made, last_seen, stay_until, last_mismatch) of Problem."""
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
