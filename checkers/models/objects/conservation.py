"""Judges containers independently of the order that they promise: values are conserved, and equal values get names."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from checkers.base.checker import Budget
from checkers.base.values import with_article
from checkers.models.model import REFUSED, Model, Operation, State, text_of
from checkers.models.witnesses import Decided


@dataclass(frozen=True, slots=True)
class Names:
    """The names of a container, of the function that puts a value in, and of the functions that take values out."""

    container: str
    put: str
    take: str
    take_all: str = ""

    def taken_by(self, operation: Operation) -> tuple[Hashable, ...]:
        """Return the values that an operation took, as far as its answer shows them."""
        if not operation.returned or operation.output is None or operation.f == self.put:
            return ()
        if operation.f == self.take:
            return (operation.output,)
        return operation.output if isinstance(operation.output, tuple) else ()


def step_of(
    names: Names,
    put: Callable[[tuple[Any, ...], Any], tuple[Any, ...]] = lambda state, value: (*state, value),
    at_stake: Collection[Hashable] | None = None,
) -> Callable[[State, Operation], object]:
    """Return the step of a container whose state is a tuple with the next value to take first.

    put: a function that returns the state with one more value
    at_stake: the values to which the container is reduced; None for all values
    """

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, tuple)
        if operation.f == names.put:
            return put(state, operation.input) if at_stake is None or operation.input in at_stake else state
        if not operation.returned:  # a take of a value not `at_stake` counts here as an operation that never happened
            return () if operation.f == names.take_all else state[1:]
        taken = tuple(value for value in names.taken_by(operation) if at_stake is None or value in at_stake)
        all_taken = operation.f == names.take_all or operation.output is None
        return state[len(taken) :] if state[: len(taken)] == taken and not (all_taken and state != taken) else REFUSED

    return step


def by_value(operations: Sequence[Operation], names: Names) -> tuple[_ByValue, _ByValue]:
    """Return (value -> its puts, value -> the operations that took it).  An operation that took a value twice stands
    twice.
    """
    puts: _ByValue = {}
    takes: _ByValue = {}
    for operation in operations:
        if operation.f == names.put:
            puts.setdefault(operation.input, []).append(operation)
        for value in names.taken_by(operation):
            takes.setdefault(value, []).append(operation)
    return puts, takes


_ByValue = dict[Hashable, list[Operation]]


def no_more_than_were_put(put: str) -> Callable[[Sequence[Operation]], Callable[[State], State]]:
    """Return a `Model.canonical` that refuses a state that contains a value more often than it was put in."""

    def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
        invoked = Counter(o.input for o in operations if o.f == put)

        def one_of(state: State) -> State:
            assert isinstance(state, tuple)
            held: Counter[Hashable] = Counter(state)
            return REFUSED if any(held[value] > invoked[value] for value in held) else state

        return one_of

    return canonical


def not_conserved(
    operations: Sequence[Operation], names: Names, reduced: Callable[[Hashable], Model] | None = None
) -> tuple[Decided, ...]:
    """Return violations of conservation, one of each kind: values taken more often than they can have been put in.

    operations: no value is nil, because nil looks like an empty container
    reduced: a function that returns the container reduced to one value; by default the state is the number of times
        that the container contains the value
    """
    puts, takes = by_value(operations, names)
    found: dict[str, Decided] = {}
    for value, taken in takes.items():
        in_time = sorted(taken, key=lambda o: o.ret or 0)
        calls = [put.call for put in puts.get(value, ())]
        for times, take in enumerate(in_time, 1):
            if times > (invoked := bisect_left(calls, take.ret or 0)):
                model = _of_one_value(value, names) if reduced is None else reduced(value)
                wrong = _taken_too_often(value, puts.get(value, [])[:invoked], in_time[:times], names, model)
                found.setdefault(wrong.kind, wrong)
                break
    return tuple(found.values())


def _taken_too_often(
    value: Hashable, puts: Sequence[Operation], taken: Sequence[Operation], names: Names, model: Model
) -> Decided:
    """Return the violation of a value.

    puts: puts of the value that were invoked before the last of `taken` was answered
    """
    take, shown = taken[-1], text_of(value)
    kind, why = "value from nowhere", "A put that failed did not happen"
    words = f"{shown} was taken, and no {names.put} of it can have happened before"
    if puts:
        kind, why = "duplicate", f"Each {names.take} needs {with_article(names.put)} of its own"
        words = f"{shown} was taken {len(taken)} times, and put there {len(puts)} time{'s' * (len(puts) > 1)} at most"
    right = "a value that had been put there and not yet been taken, or nil"
    return Decided(kind, words, [*puts, *dict.fromkeys(taken)], take, right, model, [value], why)


def _of_one_value(value: Hashable, names: Names) -> Model:
    """Return the model of the container reduced to one value.  Its state is the number of copies of the value."""

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, int)
        if operation.f == names.put:
            return state + (operation.input == value)
        if not operation.returned or operation.output != value:
            return state
        return state - 1 if state else REFUSED

    return Model(names.container, init=int, step=step)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One of several equal values in a container.  Its `repr` is that of the value."""

    value: Hashable
    number: int

    def __repr__(self) -> str:
        return repr(self.value)


def told_apart(
    operations: Sequence[Operation], put: str, taken_by: Callable[[Operation], Sequence[Hashable]], last_first: bool
) -> Iterator[list[Operation]]:
    """Yield the operations with unique values: every put gets its own `Occurrence` of its value.

    An order of such operations is an order of the original ones.  Puts are matched with takes in two ways: both in
    order of call, and both in order of return.

    taken_by: a function that returns the values that an operation took
    last_first: True if a take gets the put that was invoked last before the take returned, instead of the first one
    """
    for returns_decide in (False, True):

        def moment(o: Operation, by_return: bool = returns_decide) -> tuple[int, int]:
            ends = o.ends
            return (ends, o.call) if by_return else (o.call, ends)

        free: dict[Hashable, list[tuple[Operation, Occurrence]]] = {}
        given: dict[int, Occurrence] = {}
        for number, o in enumerate(sorted((o for o in operations if o.f == put), key=moment)):
            given[o.call] = Occurrence(o.input, number)
            free.setdefault(o.input, []).append((o, given[o.call]))
        taken: dict[int, tuple[Occurrence, ...]] = {}
        for o in sorted((o for o in operations if taken_by(o)), key=moment):
            chosen: list[Occurrence] = []
            for value in taken_by(o):
                invoked = [at for at, (each, _) in enumerate(free.get(value, ())) if each.call < (o.ret or 0)]
                if not invoked:
                    break
                chosen.append(free[value].pop(invoked[-1 if last_first else 0])[1])
            if len(chosen) < len(taken_by(o)):
                break
            taken[o.call] = tuple(chosen)
        else:
            yield [_with_occurrences(o, given.get(o.call), taken.get(o.call, ())) for o in operations]


EXCHANGES_PER_OPERATION = 20
EXCHANGES_OPERATIONS = 400_000
"""Maximum number of exchanges of equal values per operation, and of operations that all exchanges inspect together."""

SETBACKS_SHARE = 0.03
"""Fraction of exchanges that are accepted although they leave more operations stuck, to leave local minima."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """Values that prevent an order.

    left: number of operations or values without a place, as a measure of progress
    """

    left: int
    values: Sequence[Hashable]


def is_told_apart_anew(
    operations: Sequence[Operation],
    names: Names,
    stuck_at: Callable[[Sequence[Operation]], Stuck | None],
    budget: Budget,
) -> bool:
    """Exchange the takes of equal values until an order exists; returns True if it does.

    False proves nothing, because other exchanges might lead to an order.

    operations: operations whose values are `Occurrence`s
    stuck_at: a function that returns the values that prevent an order, or None if the operations have an order
    """
    rng = Random(len(operations))
    found = stuck_at(operations)
    most = min(budget.steps, EXCHANGES_OPERATIONS) // len(operations)
    for _ in range(min(most, EXCHANGES_PER_OPERATION * len(operations))):
        if found is None:
            break
        other = _exchanged(operations, names, rng.choice(found.values), rng)
        after = found if other is operations else stuck_at(other)
        if after is None or after.left <= found.left or rng.random() < SETBACKS_SHARE:
            operations, found = other, after
    return found is None


def _exchanged(operations: Sequence[Operation], names: Names, one: Hashable, rng: Random) -> Sequence[Operation]:
    """Swap the operations that took two equal values; return `operations` itself if no such swap is possible."""
    put = {o.input: o for o in operations if o.f == names.put}
    taken = {value: o for o in operations for value in names.taken_by(o)}

    def fits(value: Hashable, by: Operation | None) -> bool:
        return by is None or put[value].call < (by.ret or 0)

    alike = [v for v in put if v != one and repr(v) == repr(one) and (one in taken or v in taken)]
    alike = [v for v in alike if fits(v, taken.get(one)) and fits(one, taken.get(v))]
    if not alike:
        return operations
    other = rng.choice(alike)
    new = {one: other, other: one}
    changed = {id(by) for value in new if (by := taken.get(value)) is not None}
    return [
        _with_occurrences(o, None, [new.get(value, value) for value in names.taken_by(o)]) if id(o) in changed else o
        for o in operations
    ]


def _with_occurrences(operation: Operation, given: Occurrence | None, taken: Sequence[Hashable]) -> Operation:
    if given is not None:
        return replace(operation, input=given, output=given if operation.returned else None)
    if not taken:
        return operation
    return replace(operation, output=tuple(taken) if isinstance(operation.output, tuple) else taken[0])


def are_interchangeable(
    operations: Sequence[Operation], put: str, taken_by: Callable[[Operation], Sequence[Hashable]]
) -> bool:
    """Return True if no operation runs inside an equal one, so that equal operations can be ordered by call.

    Proof: in any order of the history, two equal operations may change places, so that the one that was invoked first
    comes first.  Then the first put of each value belongs to the first take of this value, and so on.
    """
    latest: dict[object, int] = {}
    for o in sorted(operations, key=lambda o: o.call):
        ends = o.ends
        for alike in [(put, o.input)] if o.f == put else [("take", value) for value in taken_by(o)]:
            if latest.get(alike, -1) > ends:
                return False
            latest[alike] = ends
    return True


def fewest_that_fill(spans: Sequence[tuple[int, int]], low: int, high: int) -> list[int]:
    """Return the positions of the fewest spans that together cover every number from low to high.

    spans: (first, last), both inclusive; together they must cover these numbers"""
    order = sorted(range(len(spans)), key=lambda place: spans[place][0])
    chain: list[int] = []
    at, following = low, 0
    while at <= high:
        best = -1
        while following < len(order) and spans[order[following]][0] <= at:
            if best < 0 or spans[order[following]][1] > spans[best][1]:
                best = order[following]
            following += 1
        assert best >= 0 and spans[best][1] >= at, "the spans have no gap"
        chain.append(best)
        at = spans[best][1] + 1
    return chain


def repeats(operations: Sequence[Operation], put: str) -> bool:
    """Return True if some value was put in more than once."""
    return any(number > 1 for number in Counter(o.input for o in operations if o.f == put).values())
