"""What a model is: a small object described in Python, and how operations are read from events.

    init() -> state                    the state an object begins in
    step(state, operation) -> state    the state after the operation, or REFUSED if that state does not allow the answer
    partition(operation) -> name       which object it is about; objects are judged apart (Herlihy & Wing 1990: a
                                       history is linearizable iff each object's is).  Without it: the event's key
    describe(operation) -> words       how a witness describes it.  Without it: `f(input) -> output`
    show(state) -> words               how a witness describes a state.  Without it: its `repr`, sets in order
    canonical(operations)              given all operations of one object, a function that maps states to one of them if
                                       no later answer can distinguish them.  Without it: every state stands for itself

States must be hashable and are never changed in place.  `step` is a function: the effect of an operation that never
returned (`operation.returned` is False, `output` None) must follow from its input and the state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from checkers.base.history import CREATE, NEMESIS, Event, Type
from checkers.base.independent_search import REFUSED

__all__ = ["REFUSED", "Model", "Operation", "Rows", "State", "WrongOperation", "operations_of"]

State = Hashable


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    input: the value of the invoke.  output: the answer (the value of the `ok`), None if it never returned.  Lists are
    tuples, so that both can be hashed.  call, ret: index of its events, ret None if it never returned; index decides
    order.  time_ns: of its events, for display, the second None if it never returned.  completed: index of its
    completion, an `info` too; None if there is none.
    """

    f: str
    input: Hashable
    output: Hashable
    key: str | None
    process: int
    node: str
    call: int
    ret: int | None
    completed: int | None = None
    time_ns: tuple[int, int | None] = (0, None)

    @property
    def returned(self) -> bool:
        return self.ret is not None


Rows = Callable[[Sequence[Operation]], tuple[dict[str, Any], ...]]
"""From operations to the events they stand for, as dicts with the columns of HISTORY, for witnesses."""


class WrongOperation(ValueError):
    """An operation that such an object does not have; the message names it."""


def described(operation: Operation) -> str:
    """The operation as sentences show it: `f(input) -> output`."""
    given = "" if operation.input is None else value_in_words(operation.input)
    if not operation.returned:
        return f"{operation.f}({given}), never answered"
    answer = "" if operation.output == operation.input else f" -> {value_in_words(operation.output)}"
    return f"{operation.f}({given}){answer}"


def plain(state: State) -> str:
    """The `repr` of a state, but the same in every process: that of a set follows the hashes of its elements."""
    if isinstance(state, frozenset):
        return "{" + ", ".join(sorted(map(plain, state))) + "}"
    if type(state) is tuple:
        return "(" + ", ".join(map(plain, state)) + ",)"[len(state) != 1 :]
    return repr(state)


def by_key(operation: Operation) -> Hashable:
    return operation.key


@dataclass(frozen=True, slots=True)
class Model:
    """See the module.

    observers: the f that change nothing; without an answer they say nothing.
    process_matters: whether `step` looks at the process; if not, operations with equal input and output are alike.
    """

    name: str
    init: Callable[[], State]
    step: Callable[[State, Operation], object]
    observers: frozenset[str] = frozenset()
    process_matters: bool = False
    partition: Callable[[Operation], Hashable] = by_key
    describe: Callable[[Operation], str] = described
    show: Callable[[State], str] = plain
    canonical: Callable[[Sequence[Operation]], Callable[[State], State]] | None = None


def letter(place: int) -> str:
    """A to Z, then AA, AB, ...: how the words of a witness name its operations."""
    letters = ""
    place += 1
    while place:
        place, digit = divmod(place - 1, 26)
        letters = chr(ord("A") + digit) + letters
    return letters


def operations_of(events: Iterable[Event]) -> list[Operation]:
    """The operations of clients, in order of call.

    Operations that failed (they certainly did not happen) and those of set-up are left out.  Open and `info` operations
    never returned.
    """
    open_of: dict[int, Event] = {}
    pairs: list[tuple[Event, Event | None]] = []
    for event in events:
        if event.process == NEMESIS or event.f == CREATE:
            continue
        if event.type is Type.INVOKE:
            open_of[event.process] = event
        elif event.process in open_of:
            pairs.append((open_of.pop(event.process), event))
    pairs += [(invoked, None) for invoked in open_of.values()]
    operations = []
    for invoked, completion in pairs:
        if completion is not None and completion.type is Type.FAIL:
            continue
        answered = completion if completion is not None and completion.type is Type.OK else None
        operations.append(
            Operation(
                invoked.f,
                value_of(invoked),
                None if answered is None else value_of(answered),
                invoked.key,
                invoked.process,
                invoked.node if answered is None else answered.node,
                invoked.index,
                None if answered is None else answered.index,
                None if completion is None else completion.index,
                (invoked.time_ns, None if answered is None else answered.time_ns),
            )
        )
    return sorted(operations, key=lambda operation: operation.call)


def value_of(event: Event) -> Hashable:
    """The value of an event: an integer, a pair of them, or what its payload says, lists as tuples."""
    if event.payload is not None:
        return frozen(json.loads(event.payload))
    if event.value2 is not None:
        return event.value, event.value2
    return event.value


def frozen(value: Any) -> Hashable:
    """JSON that can be hashed: lists as tuples, objects as sorted pairs."""
    if isinstance(value, list):
        return tuple(frozen(each) for each in value)
    if isinstance(value, dict):
        return tuple(sorted((str(k), frozen(v)) for k, v in value.items()))
    result: Hashable = value
    return result


def value_in_words(value: Hashable) -> str:
    """A value as sentences show it, shortened where it is long."""
    if value is None:
        return "nil"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:40] + "…" + text[-15:]
