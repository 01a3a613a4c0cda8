"""The independent search for an order that explains the operations.  It is slow and simple.

The search shares no code with the kernels.  Tests compare the kernels with the search, and the search judges every
witness again.

The method is that of Wing & Gong (1993).  A step linearizes one more operation: any operation that was invoked before
the first return of the operations not yet linearized.  As in Lowe (2017), the search remembers every pair of (set of
linearized operations, state), and explores no pair twice.

A `Model` describes a small object.  It is a function from a state and an operation to the next state, or to `REFUSED`
if the operation's answer is impossible in that state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class RegisterOperation:
    """One operation on a register that may have taken effect.

    value: the value that was read or written, or that a cas expected
    value2: the new value of a cas
    call: index of the invoke
    ret: index of the completion; None if the operation never returned.  Then it may take effect at any time after its
    call, or never.
    """

    f: str
    value: int | None
    value2: int | None
    call: int
    ret: int | None


State = Hashable
REFUSED: Final = object()
Model = Callable[[State, RegisterOperation], object]


class Disagreement(AssertionError):
    """A checker reports that no order explains some operations, but this search finds one.

    Then the checker must not report a violation.
    """


class SearchExhausted(RuntimeError):
    """The search exceeded its maximum number of configurations, so the verdict is unknown."""


def register(state: State, operation: RegisterOperation) -> object:
    """Apply an operation to a register with reads, writes and cas.

    The state None is nil.  Only successful cas are passed, so the expected value of a cas must equal the state.
    Raises ValueError for any other function.
    """
    match operation.f:
        case "read":
            return state if state == operation.value else REFUSED
        case "write":
            return operation.value
        case "cas":
            return operation.value2 if state == operation.value else REFUSED
    raise ValueError(f"a register has no operation {operation.f!r}")


def linearizable(
    operations: Sequence[RegisterOperation],
    states: Iterable[State] = (None,),
    model: Model = register,
    configurations_max: int = 1_000_000,
) -> bool:
    """Return True if some order that begins in one of the states explains all operations.  Raises SearchExhausted."""
    return bool(_explore(operations, states, model, configurations_max, stop_at_first=True))


def reachable_states(
    operations: Sequence[RegisterOperation],
    states: Iterable[State] = (None,),
    model: Model = register,
    configurations_max: int = 1_000_000,
) -> set[State]:
    """Return every state in which a legal order of all returned operations may end.  Raises SearchExhausted.

    The order may also contain operations that never returned.
    """
    return _explore(operations, states, model, configurations_max, stop_at_first=False)


def longest_order(
    operations: Sequence[RegisterOperation],
    states: Iterable[State] = (None,),
    model: Model = register,
    configurations_max: int = 60_000,
) -> tuple[State, tuple[int, ...]] | None:
    """Return the legal order that contains the most returned operations and begins in any of the states.

    Returns (first state of the order, indices of its operations), or None if there are too many orders.  The search
    tries the operation that returned first before all others.
    """
    best: tuple[int, State, tuple[int, ...]] = (-1, None, ())
    tried = 0
    for begins in states:
        seen: set[tuple[int, State]] = set()
        waiting: list[tuple[int, State, tuple[int, ...], int]] = [(0, begins, (), 0)]
        while waiting:
            done, state, order, placed = waiting.pop()
            if (tried := tried + 1) > configurations_max:
                return None
            if placed > best[0]:
                best = (placed, begins, order)
            for i in sorted(_candidates(operations, done), key=lambda i: -_returned_at(operations[i])):
                after = model(state, operations[i])
                if after is REFUSED or (done | 1 << i, after) in seen:
                    continue
                seen.add((done | 1 << i, after))
                waiting.append((done | 1 << i, after, (*order, i), placed + (operations[i].ret is not None)))
    return best[1], best[2]


def _returned_at(operation: RegisterOperation) -> float:
    return float("inf") if operation.ret is None else operation.ret


def _explore(
    operations: Sequence[RegisterOperation], states: Iterable[State], model: Model, limit: int, *, stop_at_first: bool
) -> set[State]:
    """Return the states of all configurations in which every returned operation is linearized.

    stop_at_first: True to return only the first such state
    """
    must = sum(1 << i for i, operation in enumerate(operations) if operation.ret is not None)
    pending: list[tuple[int, State]] = [(0, state) for state in states]
    seen = set(pending)
    ends: set[State] = set()
    while pending:
        done, state = pending.pop()
        if done & must == must:
            ends.add(state)
            if stop_at_first:
                return ends
        for i in _candidates(operations, done):
            after = model(state, operations[i])
            if after is REFUSED:
                continue
            configuration = (done | 1 << i, after)
            if configuration not in seen:
                if len(seen) >= limit:
                    raise SearchExhausted(f"more than {limit} configurations")
                seen.add(configuration)
                pending.append(configuration)
    return ends


def _candidates(operations: Sequence[RegisterOperation], done: int) -> list[int]:
    """Return the indices of the operations that may be linearized next.

    They were invoked before the first return of all operations that are not linearized yet.
    """
    waiting = [i for i in range(len(operations)) if not done >> i & 1]
    first_ret = min((ret for i in waiting if (ret := operations[i].ret) is not None), default=None)
    return [i for i in waiting if first_ret is None or operations[i].call < first_ret]
