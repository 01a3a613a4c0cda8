"""Rules that a history must meet before a model judges it: completions agree with their invokes.

The grammar of a history is checked when a file is read or a run is sealed.  Two more rules depend on the meaning of
functions, so they are here:

 - Some functions fix the value of their answer: a write of 3 cannot be acknowledged as a write of 4.
 - Either all operations of clients have a key, or none has one.  An operation without a key belongs to no object.

An answer without a value contradicts nothing.  Two values are equal only if they have the same type: `true` differs
from 1, although they are equal in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from checkers.base.history import CREATE, NEMESIS, Event, MalformedHistory, Type
from checkers.base.values import with_article
from checkers.models.model import Operation, text_of, value_of


class WrongEvent(MalformedHistory):
    """An event contradicts another event or the model. index: of that event. words: description of the
    contradiction.
    """

    def __init__(self, index: int, words: str) -> None:
        super().__init__(f"index {index}: {words}")
        self.index, self.words = index, words


class ForeignEvent(WrongEvent):
    """An event that an object of this kind never has.  The history may be valid, and the model the wrong one."""


Repeats = Callable[[Hashable, Hashable], bool]
"""(value of an invoke, value of the answer) -> whether the invoke allows the answer.  Each allows its own value."""


def the_same(invoked: Hashable, answered: Hashable) -> bool:
    return invoked == answered


def same_or_placed(invoked: Hashable, answered: Hashable) -> bool:
    """Return whether the answer is the invoked value, or a pair of that value and its offset."""
    return answered == invoked or (isinstance(answered, tuple) and len(answered) == 2 and answered[0] == invoked)


class KeyedOrNot:
    """Remembers the first operation with a key and the first without one: a history may not contain both."""

    def __init__(self) -> None:
        self._keyed: Event | None = None
        self._keyless: Event | None = None

    def invoked(self, event: Event) -> None:
        """event: the next invoke of a client.  Raises WrongEvent if some operations have a key and others have none."""
        if event.key is not None:
            self._keyed = self._keyed or event
        else:
            self._keyless = self._keyless or event
        if self._keyed is not None and self._keyless is not None:
            keyless, at = self._keyless, self._keyed.index
            words = f"this {keyless.f} has no key, but the operation of index {at} has one"
            raise WrongEvent(keyless.index, words)


def demand_agreement(events: Iterable[Event], fixed: dict[str, Repeats]) -> None:
    """Check both rules.  Raises WrongEvent for the first contradiction.

    events: in index order.  fixed: the functions that fix the value of their answer.
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
    """Reject a history in which a value that the model needs is missing, or has another name.

    without_value: indices of events that state no value.
    given, answered: functions that need one in their invoke, and in their answer.
    """
    for event in events:
        needed = given if event.type is Type.INVOKE else answered if event.type is Type.OK else ()
        if event.index in without_value and event.f in needed and event.process != NEMESIS:
            what = with_article(event.f) if event.type is Type.INVOKE else f"the answer of {with_article(event.f)}"
            words = f"{what} needs a :value, and this one has none; write :value nil if that is its value"
            raise WrongEvent(event.index, words)


def _same_text(one: Event, other: Event) -> bool:
    """Return whether two events are certain to have the same value.  It is cheaper than to decode both payloads."""
    return one.payload == other.payload and one.value == other.value and one.value2 == other.value2


@dataclass(frozen=True, slots=True)
class Exact:
    """A bool or float that is equal only to a value of its own type.  (In Python, `True`, 1 and 1.0 are equal.)"""

    value: bool | float | Decimal
    type_name: str

    def __repr__(self) -> str:
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)


def exact(value: Hashable) -> Hashable:
    """Return the value, with every bool and fractional number in it replaced by an `Exact`."""
    if isinstance(value, bool | float | Decimal):
        return Exact(value, type(value).__name__)
    if isinstance(value, tuple):
        return type(value)(exact(each) for each in value)
    return value


def near_miss(value: Hashable, others: Iterable[Hashable]) -> str:
    """Return the end of a sentence about a value of another kind that looks like this one, or ""."""
    twin = next((other for other in others if other != value and _bare(other) == _bare(value)), None)
    return "" if twin is None else f"; {text_of(twin)} was, and that is a value of another kind"


def _bare(value: Hashable) -> object:
    text = text_of(value).strip('"')
    try:
        return Decimal(text)
    except ArithmeticError:
        return text.lstrip(":")


def with_exact_values(operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations, with inputs and outputs that equal only values of the same type."""
    return [
        o if _plain(o.input) and _plain(o.output) else replace(o, input=exact(o.input), output=exact(o.output))
        for o in operations
    ]


def _plain(value: Hashable) -> bool:
    return value is None or type(value) is int or type(value) is str
