"""The longest legal order of a witness' few operations: what a picture can step through until nothing fits.

This judges nothing.  The checker has already proved that no complete order exists.  Here a plain search over a window
of a few dozen operations finds how far an order can get, and at which operation it stops.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from checkers.base.history import Type

FOREVER = 1 << 62
MOST_OPERATIONS = 48
MOST_STEPS = 60_000

State = Hashable


@dataclass(frozen=True, slots=True)
class WindowOp:
    """One operation of a witness.  invoke, complete: history indices; complete is FOREVER while it is open.

    given, got: for a write `given` is the value, for a cas (expected, new) are (given, new); for a read `got`.
    Lists are tuples.
    """

    invoke: int
    complete: int
    process: int
    node: str
    f: str
    key: str | None
    type: Type
    given: State
    new: State
    got: State
    start_ns: int
    end_ns: int
    error: str | None

    @property
    def happened(self) -> bool:
        """It must have a place in every order: it was answered ok."""
        return self.type is Type.OK

    @property
    def may_happen(self) -> bool:
        """It may have a place: an unknown write or cas."""
        return self.type is Type.INFO and self.f != "read"


@dataclass(frozen=True, slots=True)
class Order:
    """steps: indices into the operations, in a legal order.  states[i]: what the object holds after step i - 1,
    states[0] before the first; of objects that are no registers their words.  stuck: index of the operation that must
    come next and cannot; None if all fit."""

    steps: tuple[int, ...]
    states: tuple[State, ...]
    stuck: int | None


def longest_order(ops: Sequence[WindowOp], before: Sequence[State]) -> Order | None:
    """The legal order that gets furthest, from any state of `before`; None for a window too large to search."""
    if len(ops) > MOST_OPERATIONS or any(op.f not in ("read", "write", "cas") for op in ops):
        return None
    placed = [i for i, op in enumerate(ops) if op.happened or op.may_happen]
    best: tuple[int, tuple[int, ...], State] = (-1, (), None)
    steps = 0
    for initial in before or [None]:
        seen: set[tuple[int, State]] = set()
        stack: list[tuple[int, State, tuple[int, ...], int]] = [(0, initial, (), 0)]
        while stack:
            mask, state, path, must = stack.pop()
            steps += 1
            if steps > MOST_STEPS:
                break
            if must > best[0]:
                best = (must, path, initial)
            left = [i for i in placed if not mask >> i & 1]
            deadline = min((ops[i].complete for i in left if ops[i].happened), default=FOREVER)
            # Later returns are pushed first, so that the search tries the earliest return first.
            for i in sorted(left, key=lambda i: -ops[i].complete):
                after = _apply(ops[i], state)
                if ops[i].invoke > deadline or after == _ILLEGAL or (mask | 1 << i, after) in seen:
                    continue
                seen.add((mask | 1 << i, after))
                stack.append((mask | 1 << i, after, (*path, i), must + ops[i].happened))
    return _order(ops, best[1], best[2])


def _order(ops: Sequence[WindowOp], path: tuple[int, ...], initial: State) -> Order:
    states = [initial]
    for i in path:
        states.append(_apply(ops[i], states[-1]))
    left = [i for i, op in enumerate(ops) if op.happened and i not in path]
    return Order(path, tuple(states), min(left, key=lambda i: ops[i].complete, default=None))


_ILLEGAL: State = -(1 << 65)


def _apply(op: WindowOp, state: State) -> State:
    if op.f == "read":
        return state if op.got == state else _ILLEGAL
    if op.f == "write":
        return op.given
    return op.new if op.given == state else _ILLEGAL
