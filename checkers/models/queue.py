"""A first-in-first-out queue: enqueue a value, dequeue the oldest (nil if there is none).

`conserved` asks less, in one pass over histories of any size (as Jepsen's total-queue does): was every value taken once
asked to be put there, none taken more often than put, and, where a `drain` emptied the queue after all else, is every
acknowledged one among those taken?  The order in which values come out is what the model asks.

A `drain` answers with a list of values: what that many dequeues, one after another, would have taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from checkers.models.model import REFUSED, Model, Operation, Rows, State, WrongOperation, facts_of
from checkers.verdict import Witness

_RIGHT = "a value that had been put there and not yet been taken, or nil"

PUT, TAKE, DRAIN = "enqueue", "dequeue", "drain"


def step(state: State, operation: Operation) -> object:
    assert isinstance(state, tuple)
    match operation.f:
        case "enqueue":
            return (*state, operation.input)
        case "dequeue" if not operation.returned:
            return state[1:]
        case "dequeue" if operation.output is None:
            return state if not state else REFUSED
        case "dequeue":
            return state[1:] if state and state[0] == operation.output else REFUSED
        case "drain" if not operation.returned:
            return ()
        case "drain":
            return () if state == (operation.output or ()) else REFUSED
    raise WrongOperation(f"{operation.f} is not an operation of a queue (enqueue, dequeue, drain)")


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    """No order puts a value there more often than it was asked to be."""
    asked = Counter(o.input for o in operations if o.f == PUT)

    def one_of(state: State) -> State:
        assert isinstance(state, tuple)
        held = Counter(state)
        return REFUSED if any(held[value] > asked[value] for value in held) else state

    return one_of


QUEUE = Model("queue", init=tuple, step=step, canonical=canonical)


def conserved(operations: Sequence[Operation], as_rows: Rows) -> list[Witness]:
    """Violations of conservation in one queue, at most one of each kind.  as_rows: events of operations."""
    puts: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        if operation.f == PUT:
            puts.setdefault(operation.input, []).append(operation)
    takes: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        for value in _taken(operation):
            takes.setdefault(value, []).append(operation)
    found: dict[str, Witness] = {}

    def report(kind: str, summary: str, involved: Sequence[Operation], culprit: Operation, right: str) -> None:
        facts = facts_of(involved, culprit, right)
        found.setdefault(kind, Witness(kind, summary, as_rows(involved), facts=facts))

    for value, taken in takes.items():
        first = min(taken, key=lambda o: o.ret or 0)
        asked = [o for o in puts.get(value, ()) if o.call < (first.ret or 0)]
        if not asked:
            report(
                "value from nowhere",
                f"{value!r} was taken, and nobody had asked to put it there",
                [first],
                first,
                _RIGHT,
            )
        elif len(taken) > len(puts[value]):
            times = f"{len(taken)} times, and put there {len(puts[value])} times at most"
            last = max(taken, key=lambda o: o.ret or 0)
            report("duplicate", f"{value!r} was taken {times}", [*puts[value], *taken], last, _RIGHT)
    last_drain = max((o for o in operations if o.f == DRAIN and o.returned), key=lambda o: o.call, default=None)
    if last_drain is not None and all(o.returned for o in operations if o.f != PUT):
        for value, asked in puts.items():
            certain = [o for o in asked if o.ret is not None and o.ret < last_drain.call]
            if len(certain) > len(takes.get(value, ())):
                words = f"{value!r} was acknowledged and never taken, though the queue was drained afterwards"
                right = f"that {value!r} comes out of the queue once, at the latest in the last drain"
                report("lost", words, [*certain, last_drain], last_drain, right)
    return list(found.values())


def _taken(operation: Operation) -> tuple[Hashable, ...]:
    if not operation.returned or operation.output is None:
        return ()
    if operation.f == TAKE:
        return (operation.output,)
    if operation.f == DRAIN and isinstance(operation.output, tuple):
        return operation.output
    return ()
