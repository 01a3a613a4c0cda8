"""A key-value store of strings: get, put, append.  Every key begins with the empty string.

nil means no value, which is the same as the empty string.  Any other value that is no string is refused.

Each append makes a new state, so a key has far too many states to enumerate.  But states are only compared with
answers.  If a string is not a prefix of any string that was read, no append makes it such a prefix again.  So all such
strings count as one state (`_BEYOND`) until a put replaces them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from checkers.models.answers import the_same
from checkers.models.known_object import searched
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation

_BEYOND: Final = ("no prefix of anything read",)


def step(state: State, operation: Operation) -> object:
    match operation.f:
        case "get":
            return state if not operation.returned or state == _string(operation, operation.output) else REFUSED
        case "put":
            return _string(operation, operation.input)
        case "append":
            given = _string(operation, operation.input)
            return _BEYOND if state == _BEYOND else str(state) + given
    raise WrongOperation(f"{operation.f} is not an operation of a key-value store (get, put, append)")


def _string(operation: Operation, value: Hashable) -> str:
    """A value of an operation; "" for nil.  Raises WrongOperation if it is no string."""
    if value is None:
        return ""
    if not isinstance(value, str):
        words = f"index {operation.call}: {operation.f} of a key-value store has the value {value!r:.60}"
        raise WrongOperation(f"{words}, which is no string")
    return value


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    for operation in operations:  # the search may never reach a wrong value
        _string(operation, operation.output)
        if operation.f != "get":
            _string(operation, operation.input)
    read = sorted({_string(o, o.output) for o in operations if o.f == "get" and o.returned})

    def one_of(state: State) -> State:
        if state == _BEYOND:
            return state
        at = bisect_left(read, str(state))
        return state if at < len(read) and read[at].startswith(str(state)) else _BEYOND

    return one_of


KV = Model("kv", init=str, step=step, observers=frozenset({"get"}), canonical=canonical)

KV_OBJECT = searched(
    KV,
    "Key-value store",
    "Is there one order of all gets, puts and appends that explains every answer?",
    {"put": the_same, "append": the_same},
)
