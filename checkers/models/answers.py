"""What every history must fulfil before a model judges it: completions agree with their invokes.

The grammar of histories is checked where a file is read or a run is sealed.  Two more rules depend on the meaning of
functions, so they stand here:

 - some functions fix the value of their answer: a write of 3 that was acknowledged as a write of 4 is no history;
 - either all operations of clients have a key, or none has: without its key an operation belongs to no object.

An answer without a value says nothing and contradicts nothing.  Values are equal only if they are of one type: `true`
is not 1, although Python calls them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from checkers.base.history import CREATE, NEMESIS, Event, MalformedHistory, Type
from checkers.models.model import Operation, value_in_words, value_of


class WrongEvent(MalformedHistory):
    """An event that contradicts another one or the model.  index: of that event."""

    def __init__(self, index: int, words: str) -> None:
        super().__init__(f"index {index}: {words}")
        self.index, self.words = index, words


class ForeignEvent(WrongEvent):
    """An event that such an object never has.  The history may be sound, and the model the wrong one."""


Repeats = Callable[[Hashable, Hashable], bool]
"""Whether an answer (second) is one that an invoke's value (first) allows."""


def the_same(invoked: Hashable, answered: Hashable) -> bool:
    return invoked == answered


def same_or_placed(invoked: Hashable, answered: Hashable) -> bool:
    """The value itself, or the value and its offset."""
    return answered == invoked or (isinstance(answered, tuple) and len(answered) == 2 and answered[0] == invoked)


def demand_agreement(events: Iterable[Event], fixed: dict[str, Repeats]) -> None:
    """fixed: the functions that fix the value of their answer.  Raises WrongEvent for the first contradiction."""
    open_of: dict[int, Event] = {}
    keyed: Event | None = None
    keyless: Event | None = None
    for event in events:
        if event.process == NEMESIS or event.f == CREATE:
            continue
        if event.type is Type.INVOKE:
            open_of[event.process] = event
            keyed, keyless = (event, keyless) if event.key is not None else (keyed, keyless or event)
            if keyed is not None and keyless is not None:
                words = f"a {keyless.f} without a key, in a history whose operations have keys (index {keyed.index})"
                raise WrongEvent(keyless.index, words)
            continue
        invoked = open_of.pop(event.process, None)
        if invoked is None or event.type is not Type.OK or event.f not in fixed:
            continue
        given, answered = exact(value_of(invoked)), exact(value_of(event))
        if answered is not None and not fixed[event.f](given, answered):
            words = f"{event.f} of {value_in_words(given)} was acknowledged as {value_in_words(answered)}"
            raise WrongEvent(event.index, f"process {event.process}: {words}")


@dataclass(frozen=True, slots=True)
class Exact:
    """A truth value or a fraction: equal only to one of its own type.  Python calls `True`, 1 and 1.0 equal."""

    value: bool | float
    type_name: str

    def __repr__(self) -> str:
        return repr(self.value).lower() if isinstance(self.value, bool) else repr(self.value)


def exact(value: Hashable) -> Hashable:
    """The value with every truth value and fraction in it replaced by an `Exact`."""
    if isinstance(value, bool | float):
        return Exact(value, type(value).__name__)
    if isinstance(value, tuple):
        return tuple(exact(each) for each in value)
    return value


def with_exact_values(operations: Sequence[Operation]) -> list[Operation]:
    """The operations with values that are equal only within their types."""
    return [
        o if _plain(o.input) and _plain(o.output) else replace(o, input=exact(o.input), output=exact(o.output))
        for o in operations
    ]


def _plain(value: Hashable) -> bool:
    return value is None or type(value) is int or type(value) is str
