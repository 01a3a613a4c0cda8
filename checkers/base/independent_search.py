"""The independent search: is there any order at all?  It is slow and plain, and shares nothing with the kernels.

It judges the judges: tests compare the kernels with it, and it judges every witness again.  The method is that of Wing
& Gong (1993).  Linearize, one after another, any operation that was invoked before the first return still to come.
Lowe's (2017) memory avoids repetition: it holds pairs of the linearized operations and the state.

A `Model` describes a small object: a function from a state and an operation to the next state, or `REFUSED` if that
state does not allow the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from checkers.base.history import Event, Type


@dataclass(frozen=True, slots=True)
class RegisterOperation:
    """One operation as it would have to take effect.

    call, ret: event indices; ret is None for an operation that never returned: it may take effect at any time after
    its call, or never.  value: what was read or written, or what a cas expected; value2: what a cas put there.
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
    """A checker calls a window impossible and this search finds an order: nothing may be claimed."""


class SearchExhausted(RuntimeError):
    """More configurations than allowed; the verdict is unknown."""


def register(state: State, operation: RegisterOperation) -> object:
    """A register with reads, writes and cas; None is nil.  A cas given to it did match."""
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
    """Whether some order explains the history, starting in one of the states.  Raises SearchExhausted."""
    return bool(_explore(operations, states, model, configurations_max, stop_at_first=True))


def reachable_states(
    operations: Sequence[RegisterOperation],
    states: Iterable[State] = (None,),
    model: Model = register,
    configurations_max: int = 1_000_000,
) -> set[State]:
    """Every state in which some order may end, after all returned operations took effect.  Raises SearchExhausted."""
    return _explore(operations, states, model, configurations_max, stop_at_first=False)


def operations_of(events: Iterable[Event]) -> list[RegisterOperation]:
    """The operations of one key of a register history, in order of call.

    Operations that cannot matter are left out: reads without an answer, and failed ones (they did not happen).
    """
    open_of: dict[int, Event] = {}
    completed: list[tuple[Event, Event | None]] = []
    for event in events:
        if event.type is Type.INVOKE:
            open_of[event.process] = event
        else:
            completed.append((open_of.pop(event.process), event))
    completed += [(invoked, None) for invoked in open_of.values()]
    operations = []
    for invoked, completion in completed:
        answered = completion if completion is not None and completion.type is Type.OK else None
        if completion is not None and completion.type is Type.FAIL:
            continue
        if invoked.f == "read":
            if answered is not None:
                operations.append(RegisterOperation("read", answered.value, None, invoked.index, answered.index))
        else:
            ret = answered.index if answered is not None else None
            operations.append(RegisterOperation(invoked.f, invoked.value, invoked.value2, invoked.index, ret))
    return sorted(operations, key=lambda operation: operation.call)


def _explore(
    operations: Sequence[RegisterOperation], states: Iterable[State], model: Model, limit: int, *, stop_at_first: bool
) -> set[State]:
    """States of the configurations in which every returned operation is linearized."""
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
    """Operations that may be linearized next: those invoked before the first return still to come."""
    waiting = [i for i in range(len(operations)) if not done >> i & 1]
    first_ret = min((ret for i in waiting if (ret := operations[i].ret) is not None), default=None)
    return [i for i in waiting if first_ret is None or operations[i].call < first_ret]
