"""A model describes a small object in Python.  This file defines models, reads operations from events, and verifies
that completions agree with their invokes.

    init() -> state                    the first state of an object
    step(state, operation) -> state    the state after the operation, or REFUSED if that state does not allow the answer
    partition(operation) -> name       the object of the operation.  Objects are judged separately (Herlihy & Wing 1990:
                                       a history is linearizable iff the history of each object is).  Default: the key
    describe(operation) -> words       the operation in the words of a witness.  Default: `f(input) -> output`
    show(state) -> words               a state in the words of a witness.  Default: its `repr`, with sets in order
    canonical(operations)              gets all operations of one object, and returns a function from states to states.
                                       If no later answer can distinguish some states, this function maps all of them
                                       to one of them.  It maps states that no order reaches to REFUSED.  Default: every
                                       state is mapped to itself

States must be hashable, and `step` never changes a state in place.  An operation that never returned has no output
(`operation.returned` is False, `output` is None).  Its effect must depend only on its input and the state.

*Rules of a history.*  A history must obey these rules before a model judges it.

The grammar of a history is checked when a file is read or a run is sealed.  Two more rules depend on the meaning of
functions, so they are checked here:

 - Some functions fix the value of their answer: a write of 3 cannot be acknowledged as a write of 4.
 - Either all operations of clients have a key, or no operation has one.  Otherwise an operation without a key belongs
   to no object.

An answer without a value contradicts no invoke.  Two values are equal only if they have the same type: `true` differs
from 1, although these values are equal in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from operator import attrgetter
from typing import Any

from checkers.base.history import CREATE, NEMESIS, Event, MalformedHistory, Type, paired
from checkers.base.independent_search import REFUSED
from checkers.base.values import decode, in_words, with_article

__all__ = ["REFUSED", "Model", "Operation", "Rows", "State", "WrongOperation", "operations_of"]

State = Hashable

NEVER = 2**62
"""Value of `Operation.ends` for an operation that never returned."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    input: value of the invoke, with lists as tuples so that it can be hashed
    output: the answer (value of the `ok`, with lists as tuples), or None if the operation never returned
    call: index of the invoke; real time is the order of indices
    ret: index of the `ok`, or None if the operation never returned
    completed: index of the completion, which may also be an `info`; None if there is none
    time_ns: times of the invoke and of the `ok`, for display; the second is None if the operation never returned
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
"""A function from operations to their events, which are dicts with the columns of HISTORY, for witnesses."""


class WrongOperation(ValueError):
    """This kind of object does not support an operation.  The message names the operation."""


_LOOKS = frozenset({"read", "get", "dequeue", "pop", "extract-min"})
"""Functions for which an answer of nil means that the object is empty."""


def described(operation: Operation) -> str:
    """Return the operation as witnesses show it: `f(input) -> output`."""
    given = "" if operation.input is None else text_of(operation.input)
    if not operation.returned:
        return f"{operation.f}({given}), never answered"
    looked = operation.output is None and operation.f in _LOOKS
    answer = "" if operation.output == operation.input and not looked else f" -> {text_of(operation.output)}"
    return f"{operation.f}({given}){answer}"


def plain(state: State) -> str:
    """Return a `repr` that is equal in every process, with nil for None and with the elements of a set in order."""
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
    """The functions that the module's docstring describes, and properties of them.

    observers: names of the functions that never change the state; without an answer, such an operation is dropped
    process_matters: True if `step` reads the process; if False, operations with equal f, input and output are
        interchangeable for it
    times_matter: True if `step` reads the times; if False, operations that differ only in times are interchangeable
        for it
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

    Failed operations are left out, because they certainly did not happen.  Operations of set-up (CREATE) are left out
    unless `set_up` is True.  Operations that are open or that ended with `info` count as never returned.
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
    """Return a list of values in words; only the first four values are named."""
    first, rest = list(values)[:4], list(values)[4:]
    return ", ".join(map(text_of, first)) + ", …" * bool(rest)


def were(values: Sequence[Hashable]) -> str:
    """Return values as the beginning of a clause: "7 was", or "7, 8 were"."""
    return f"{named(values)} {'was' if len(values) == 1 else 'were'}"


def text_of(value: Hashable) -> str:
    """Return a value in words, shortened if it is long."""
    text = in_words(value)
    return text if len(text) <= 60 else text[:40] + "…" + text[-15:]


class WrongEvent(MalformedHistory):
    """An event contradicts another event or the model.

    index: index of the event
    words: description of the contradiction
    """

    def __init__(self, index: int, words: str) -> None:
        super().__init__(f"index {index}: {words}")
        self.index, self.words = index, words


class ForeignEvent(WrongEvent):
    """An event that this kind of object never has.  The history may be valid, and the chosen model wrong."""


Repeats = Callable[[Hashable, Hashable], bool]
"""A function (value of an invoke, value of the answer) -> True if the invoke allows the answer.

Every invoke must allow its own value as the answer."""


def the_same(invoked: Hashable, answered: Hashable) -> bool:
    return invoked == answered


def same_or_placed(invoked: Hashable, answered: Hashable) -> bool:
    """Return True if the answer is the invoked value, or a pair of the invoked value and its offset."""
    return answered == invoked or (isinstance(answered, tuple) and len(answered) == 2 and answered[0] == invoked)


class KeyedOrNot:
    """Remembers the first operation with a key and the first without one: a history may not contain both."""

    def __init__(self) -> None:
        self._keyed: Event | None = None
        self._keyless: Event | None = None

    def invoked(self, event: Event) -> None:
        """Record the next invoke of a client.  Raises WrongEvent if some operations have a key and others have none."""
        if event.key is not None:
            self._keyed = self._keyed or event
        else:
            self._keyless = self._keyless or event
        if self._keyed is not None and self._keyless is not None:
            keyless, at = self._keyless, self._keyed.index
            words = f"this {keyless.f} has no key, but the operation of index {at} has one"
            raise WrongEvent(keyless.index, words)


def demand_agreement(events: Iterable[Event], fixed: dict[str, Repeats]) -> None:
    """Check both rules of a history.  Raises WrongEvent for the first contradiction.

    events: events in index order
    fixed: the functions that fix the value of their answer
    """
    open_of: dict[int, Event] = {}
    keys = KeyedOrNot()
    for event in events:
        if event.process == NEMESIS or event.f == CREATE:
            continue
        if event.type is Type.INVOKE:
            open_of[event.process] = event
            keys.invoked(event)
            continue
        invoked = open_of.pop(event.process, None)
        if invoked is None or event.type is not Type.OK or event.f not in fixed or _same_text(invoked, event):
            continue
        given, answered = exact(value_of(invoked)), exact(value_of(event))
        if answered is not None and not fixed[event.f](given, answered):
            words = f"{event.f} of {text_of(given)} was acknowledged as {text_of(answered)}"
            raise WrongEvent(event.index, f"process {event.process}: {words}")


def demand_values(
    events: Iterable[Event], without_value: Container[int], given: Container[str], answered: Container[str]
) -> None:
    """Reject a history that lacks a value that the model needs, for example because the value has another name.

    without_value: indices of events without a value
    given: functions whose invoke needs a value
    answered: functions whose answer needs a value
    """
    for event in events:
        needed = given if event.type is Type.INVOKE else answered if event.type is Type.OK else ()
        if event.index in without_value and event.f in needed and event.process != NEMESIS:
            what = with_article(event.f) if event.type is Type.INVOKE else f"the answer of {with_article(event.f)}"
            words = f"{what} needs a :value, but has none; write :value nil if its value is nil"
            raise WrongEvent(event.index, words)


def _same_text(one: Event, other: Event) -> bool:
    """Return True if two events certainly have the same value.  This is cheaper than decoding both payloads."""
    return one.payload == other.payload and one.value == other.value and one.value2 == other.value2


@dataclass(frozen=True, slots=True)
class Exact:
    """A bool or float that is equal only to a value of the same type.  (In Python, `True`, 1 and 1.0 are equal.)"""

    value: bool | float | Decimal
    type_name: str

    def __repr__(self) -> str:
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)


def exact(value: Hashable) -> Hashable:
    """Return the value with every bool and fractional number inside replaced by an `Exact`."""
    if isinstance(value, bool | float | Decimal):
        return Exact(value, type(value).__name__)
    if isinstance(value, tuple):
        return type(value)(exact(each) for each in value)
    return value


def near_miss(value: Hashable, others: Iterable[Hashable]) -> str:
    """Return the end of a sentence about a value of another type that looks like this value; "" if there is none."""
    twin = next((other for other in others if other != value and _bare(other) == _bare(value)), None)
    return "" if twin is None else f"; {text_of(twin)} was, and that is a value of another kind"


def _bare(value: Hashable) -> object:
    text = text_of(value).strip('"')
    try:
        return Decimal(text)
    except ArithmeticError:
        return text.lstrip(":")


def with_exact_values(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations with `Exact` values in inputs and outputs, which equal only values of the same type."""
    return [
        o if _plain(o.input) and _plain(o.output) else replace(o, input=exact(o.input), output=exact(o.output))
        for o in operations
    ]


def _plain(value: Hashable) -> bool:
    return value is None or type(value) is int or type(value) is str
