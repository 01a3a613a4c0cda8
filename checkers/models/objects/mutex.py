"""A lock: acquire it, release it.  It is decided in O(n log n) if every release follows an acquire of its own process.

An acquire and its release form a block: no other operation may stand between them.  A register with unique values
demands the same of a write and a read of its value.  So each pair becomes a write and a read of the same new number,
and the register kernel decides (`kernels/register_unique_values.py`).

    acquire without an answer    need not have happened: it could only keep other processes from the lock
    release without an answer    happens at some later time, or never if no acquire follows
    acquire without a release    the lock is held for ever: its block ends after all events

If a process releases a lock that it did not acquire, or acquires it twice, the model is searched.  The model does not
know owners (like Jepsen's mutex).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.base.checker import Budget
from checkers.kernels import register_unique_values as register
from checkers.kernels.operations import NIL, OPEN, READ, WRITE
from checkers.kernels.register_unique_values import Key
from checkers.models.known_object import KnownObject, ObjectFinding, ObjectFunction, by_search
from checkers.models.model import REFUSED, Model, Operation, State
from checkers.models.witnesses import Decided


def step(state: State, operation: Operation) -> object:
    if operation.f == "acquire":
        return REFUSED if state == "held" else "held"
    return "free" if state == "held" else REFUSED


MUTEX = Model("mutex", init=lambda: "free", step=step, show=str)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge by pairs if every release follows its own acquire, else by the search."""
    matched = pairs(operations)
    if matched is None:
        return by_search(MUTEX, operations, budget)
    two = clash(matched)
    return ObjectFinding(() if two is None else (held_twice(two),), steps=len(operations))


Pair = tuple[Operation, Operation | None]


def pairs(operations: Sequence[Operation]) -> list[Pair] | None:
    """Return every answered acquire with its release; None if a process does not alternate between the two.

    operations: in order of call.
    """
    holding: dict[int, Operation] = {}
    found: list[Pair] = []
    for operation in operations:
        if operation.f == "acquire" and operation.process not in holding:
            if operation.returned:
                holding[operation.process] = operation
        elif operation.f == "release" and operation.process in holding:
            found.append((holding.pop(operation.process), operation))
        else:
            return None
    return found + [(acquire, None) for acquire in holding.values()]


def clash(matched: Sequence[Pair]) -> tuple[Pair, Pair] | None:
    """Two pairs that cannot both have held the lock; None if there are none."""
    points = sorted(
        {o.call for pair in matched for o in pair if o is not None}
        | {o.ret for pair in matched for o in pair if o is not None and o.ret is not None}
    )
    place = {index: at for at, index in enumerate(points)}
    count = len(matched)
    end = len(points)
    kind, value = np.tile(np.array([WRITE, READ], np.int8), count), np.repeat(np.arange(count, dtype=np.int64), 2)
    call, ret = np.empty(2 * count, np.int32), np.empty(2 * count, np.int32)
    open_ended = 0
    for n, (acquire, release) in enumerate(matched):
        assert acquire.ret is not None
        call[2 * n], ret[2 * n] = place[acquire.call], place[acquire.ret]
        if release is not None and release.ret is not None:
            call[2 * n + 1], ret[2 * n + 1] = place[release.call], place[release.ret]
        else:
            call[2 * n + 1] = place[release.call] if release is not None else end
            ret[2 * n + 1] = end + 1 + open_ended
            open_ended += 1
    limit = end + 1 + open_ended
    key = Key(kind, value, np.full(2 * count, NIL, np.int64), call, np.minimum(ret, OPEN - 1))
    code, left, right = register.judge_key(key, limit, register.new_scratch(2 * count, limit))
    if code < register.FIRST_INVALID:
        return None
    return matched[left // 2], matched[right // 2]


def held_twice(two: tuple[Pair, Pair]) -> Decided:
    """Return the violation of two pairs.  The other pairs can be left out: without them there are more orders, not
    fewer.
    """
    one, other = (acquire for acquire, _ in two)
    first, later = sorted((one, other), key=lambda o: o.ret or 0)
    lock = "the lock" if one.key is None else f"lock {one.key}"
    held = f"{_who(first)} held {lock} from {_when(first)} on, and {_who(later)} held it from {_when(later)} on"
    why = "Neither can come before the other: a lock is held from the answer of its acquire until a release is invoked"
    right = f"no answer before {_who(first)} had released the lock"
    return Decided("held twice", held, [o for pair in two for o in pair if o is not None], later, right, MUTEX, why=why)


def _who(operation: Operation) -> str:
    """Return the process, and the node through which it asked."""
    return f"process {operation.process}" + (f" (through {operation.node})" if operation.node else "")


def _when(acquire: Operation) -> str:
    """Return the time of its answer in words; a history without times has indices only."""
    answered_ns = acquire.time_ns[1]
    return f"{answered_ns / 1e9:.2f} s" if answered_ns else f"index {acquire.ret}"


_QUESTION = "Was the lock never held by two processes at once?"
MUTEX_OBJECT = KnownObject(
    "mutex", "Lock", _QUESTION, judge, dict.fromkeys(("acquire", "release"), ObjectFunction()), "a mutex"
)
