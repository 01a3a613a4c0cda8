"""A model describes a small object in Python.  This file defines models, and reads operations from events.

    init() -> state                    the first state of an object
    step(state, operation) -> state    the state after the operation, or REFUSED if that state does not allow the answer
    partition(operation) -> name       the object of the operation.  Objects are judged separately (Herlihy & Wing 1990:
                                       a history is linearizable iff that of each object is).  Default: the event's key
    describe(operation) -> words       how a witness describes the operation.  Default: `f(input) -> output`
    show(state) -> words               how a witness describes a state.  Default: its `repr`, with sets in order
    canonical(operations)              gets all operations of one object, and returns a function from states to states.
                                       It maps states that no later answer can distinguish to one of them, and states
                                       that no order reaches to REFUSED.  Default: every state stands for itself

States must be hashable, and `step` never changes a state in place.  An operation that never returned has no output
(`operation.returned` is False, `output` None).  Its effect must depend only on its input and the state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from checkers.base.history import CREATE, NEMESIS, Event, Type, paired
from checkers.base.independent_search import REFUSED
from checkers.base.values import decode, in_words

__all__ = ["REFUSED", "Model", "Operation", "Rows", "State", "WrongOperation", "operations_of"]

State = Hashable

NEVER = 2**62
"""`ends` of an operation that never returned."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    input: the value of the invoke.  output: the answer (the value of the `ok`), None if the operation never returned.
    Lists are tuples, so that both can be hashed.
    call, ret: indices of the invoke and the `ok`.  ret is None if the operation never returned.  Indices decide order.
    completed: index of the completion, also of an `info`; None if there is none.
    time_ns: of the invoke and the `ok`, for display.  The second is None if the operation never returned.
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

    @property
    def ends(self) -> int:
        """Return the index of the `ok`; NEVER if there is none."""
        return NEVER if self.ret is None else self.ret


Rows = Callable[[Sequence[Operation]], tuple[dict[str, Any], ...]]
"""Operations -> their events, as dicts with the columns of HISTORY, for witnesses."""


class WrongOperation(ValueError):
    """An object of this kind does not have such an operation.  The message names the operation."""


_LOOKS = frozenset({"read", "get", "dequeue", "pop", "extract-min"})
"""Functions whose answer of nil means that the object is empty."""


def described(operation: Operation) -> str:
    """Return the operation as witnesses show it: `f(input) -> output`."""
    given = "" if operation.input is None else text_of(operation.input)
    if not operation.returned:
        return f"{operation.f}({given}), never answered"
    looked = operation.output is None and operation.f in _LOOKS
    answer = "" if operation.output == operation.input and not looked else f" -> {text_of(operation.output)}"
    return f"{operation.f}({given}){answer}"


def plain(state: State) -> str:
    """Return a `repr` with nil for None that is equal in every process: the `repr` of a set depends on hashes."""
    if state is None:
        return "nil"
    if isinstance(state, frozenset):
        return "{" + ", ".join(sorted(map(plain, state))) + "}"
    if type(state) is tuple:
        return "(" + ", ".join(map(plain, state)) + ",)"[len(state) != 1 :]
    return repr(state)


def by_key(operation: Operation) -> Hashable:
    return operation.key


@dataclass(frozen=True, slots=True)
class Model:
    """The functions of the module's docstring, and two facts about them.

    observers: names of the functions that change nothing.  Without an answer they have no meaning.
    process_matters: whether `step` reads the process.  If not, operations with equal f, input and output are the same
    to it.
    times_matter: whether `step` reads the times.  If not, operations at two times are the same to it.
    """

    name: str
    init: Callable[[], State]
    step: Callable[[State, Operation], object]
    observers: frozenset[str] = frozenset()
    process_matters: bool = False
    times_matter: bool = False
    partition: Callable[[Operation], Hashable] = by_key
    describe: Callable[[Operation], str] = described
    show: Callable[[State], str] = plain
    canonical: Callable[[Sequence[Operation]], Callable[[State], State]] | None = None


def operations_of(events: Iterable[Event], *, set_up: bool = False) -> list[Operation]:
    """Return the operations of clients, in order of call.

    Failed operations certainly did not happen, and are left out; so are operations of set-up (CREATE), unless `set_up`
    is true.  Operations that are open or ended with `info` never returned.
    """
    ours = (event for event in events if event.process != NEMESIS and (event.f != CREATE or set_up))
    operations = []
    for invoked, completion in paired(ours, attrgetter("type"), attrgetter("process")):
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
    """Return the value of an event: an integer or None, a pair of these, or its payload with lists as tuples."""
    if event.payload is not None:
        return decode(event.payload)
    if event.value2 is not None:
        return event.value, event.value2
    return event.value


def named(values: Iterable[Hashable]) -> str:
    """Return a list of values as sentences show it: the first four of them."""
    first, rest = list(values)[:4], list(values)[4:]
    return ", ".join(map(text_of, first)) + ", …" * bool(rest)


def were(values: Sequence[Hashable]) -> str:
    """Return values as the beginning of a clause: "7 was", or "7, 8 were"."""
    return f"{named(values)} {'was' if len(values) == 1 else 'were'}"


def text_of(value: Hashable) -> str:
    """Return a value as sentences show it, shortened if it is long."""
    text = in_words(value)
    return text if len(text) <= 60 else text[:40] + "…" + text[-15:]
