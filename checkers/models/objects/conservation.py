"""Whether a container gives out only what was put there, whatever order it promises."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from checkers.models.known_object import Decided
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.projection import Violation


@dataclass(frozen=True, slots=True)
class Names:
    """The container, and the functions that put a value there and take one out."""

    container: str
    put: str
    take: str


def not_conserved(operations: Sequence[Operation], names: Names) -> tuple[Decided, ...]:
    """The violation of the first value that was taken more often than it can have been put there.

    Raises WrongOperation for another function.  No value is nil, because that looks like an empty container.
    """
    puts: dict[Hashable, list[int]] = {}
    takes: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        if operation.f not in (names.put, names.take):
            words = f"{operation.f} is not an operation of a {names.container} ({names.put}, {names.take})"
            raise WrongOperation(words)
        if operation.f == names.put:
            puts.setdefault(operation.input, []).append(operation.call)
        elif operation.returned and operation.output is not None:
            takes.setdefault(operation.output, []).append(operation)
    for value, taken in takes.items():
        in_time = sorted(taken, key=lambda o: o.ret or 0)
        for times, take in enumerate(in_time, 1):
            if times > bisect_left(puts.get(value, []), take.ret or 0):
                of_value = [o for o in operations if (o.input if o.f == names.put else o.output) == value]
                return (_decided(value, in_time[:times], of_value, names),)
    return ()


def _decided(value: Hashable, taken: Sequence[Operation], of_value: Sequence[Operation], names: Names) -> Decided:
    take = taken[-1]
    puts = [o for o in of_value if o.f == names.put and o.call < (take.ret or 0)]
    if puts:
        times = f"{len(puts)} time{'s' * (len(puts) > 1)} at most"
        kind, words = "duplicate", f"{value!r} was taken {len(taken)} times, and put there {times}"
        why = [f"Each {names.take} of {value!r} needs a {names.put} of its own"]
    else:
        kind = "value from nowhere"
        words = f"{value!r} was taken, and no {names.put} of it can have happened before"
        why = [f"No {names.put} of {value!r} that may have happened had been invoked at index {take.ret}"]
    why.append(f"What else the {names.container} holds is left out")
    right = "a value that had been put there and not yet been taken, or nil"
    return Decided(Violation(kind, words, [*puts, *taken], take, right, why), _of_one_value(value, names))


def _of_one_value(value: Hashable, names: Names) -> Model:
    """The container reduced to one value: how often it holds it."""

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, int)
        if operation.f == names.put:
            return state + (operation.input == value)
        if not operation.returned or operation.output != value:
            return state
        return state - 1 if state else REFUSED

    return Model(names.container, init=int, step=step)
