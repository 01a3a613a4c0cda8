"""A key-value store of strings: get, put, append.  Every key begins with the empty string.

nil means no value, which is the same as the empty string.  Any other value that is no string is refused.

`kv_order.py` decides the order in near-linear time where it is certain what the gets show, as it is if no value is
written to a key twice.  Otherwise a search decides it.

Each append makes a new state, so a key has far too many states to enumerate.  But states are only compared with
answers.  If a string is not a prefix of any string that was read, no append makes it such a prefix again.  So all such
strings count as one state (`_BEYOND`) until a put replaces them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Final

from checkers.base.checker import Budget
from checkers.models.answers import the_same
from checkers.models.known_object import Decided, NoOrder, ObjectFinding, by_search, searched
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, value_in_words
from checkers.models.objects.kv_order import has_order
from checkers.models.projection import Violation
from checkers.models.search import cut_at

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


def demand_strings(operations: Sequence[Operation]) -> None:
    """Raises WrongOperation for a function that a store has not, or a value that is no string."""
    for operation in operations:
        if operation.f not in ("get", "put", "append"):
            raise WrongOperation(f"{operation.f} is not an operation of a key-value store (get, put, append)")
        if operation.f != "get":
            _string(operation, operation.input)


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    demand_strings(operations)  # the search may never reach a wrong value
    read = sorted({_string(o, o.output) for o in operations if o.f == "get" and o.returned})

    def one_of(state: State) -> State:
        if state == _BEYOND:
            return state
        at = bisect_left(read, str(state))
        return state if at < len(read) and read[at].startswith(str(state)) else _BEYOND

    return one_of


KV = Model("kv", init=str, step=step, observers=frozenset({"get"}), canonical=canonical)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Judge one key.  Raises WrongOperation."""
    demand_strings(operations)
    found = has_order(operations, KV)
    if found is None:
        finding = by_search(KV, operations, budget)
    else:
        violations = () if found else (NoOrder(KV, _first_wrong(operations)),)
        finding = ObjectFinding(violations, steps=len(operations))
    if finding.violations and (impossible := from_nowhere(operations)) is not None:
        return replace(finding, violations=(impossible,))
    return finding


LENGTH_MAX = 1_000_000
"""Sum of the lengths of strings in which impossible ones are looked for."""


def from_nowhere(operations: Sequence[Operation]) -> Decided | None:
    """Return the violation of the first get whose string no puts and appends can make; None if there is none."""
    writes = [o for o in operations if o.f != "get" and o.input]
    looked_at = 0
    for get in sorted((o for o in operations if o.f == "get" and o.output), key=lambda o: o.ret or 0):
        shown = str(get.output)
        if (looked_at := looked_at + len(shown)) > LENGTH_MAX:
            return None
        if _is_made_of(shown, [o for o in writes if o.call < (get.ret or 0)]):
            continue
        words = f"a get answered {value_in_words(shown)}, which no puts and appends can have made"
        why = ["No put that was invoked before the answer, with appends behind it, makes this string"]
        why.append("One that failed did not happen")
        right = "a string of values that had been written"
        violation = Violation("value from nowhere", words, [get], get, right, why)
        never = Model("kv", init=str, step=lambda state, operation: REFUSED)
        return Decided(violation, never)
    return None


def _is_made_of(text: str, writes: Sequence[Operation]) -> bool:
    """Return True if a put, or nothing, and then appends make the text."""
    ends = {0} | {len(str(o.input)) for o in writes if o.f == "put" and text.startswith(str(o.input))}
    appended = {str(o.input) for o in writes if o.f == "append"}
    lengths = {len(value) for value in appended}
    for at in range(len(text)):
        if at in ends:
            ends |= {at + length for length in lengths if text[at : at + length] in appended}
    return len(text) in ends


def _first_wrong(operations: Sequence[Operation]) -> int:
    """Index of the first answer up to which there certainly is no order.  operations: they have none."""
    answers = sorted(o.ret for o in operations if o.ret is not None)
    at = bisect_left(answers, True, key=lambda index: has_order(cut_at(operations, index), KV) is False)
    return answers[min(at, len(answers) - 1)]


def no_string(operation: Operation) -> str:
    """Return why the answer of a get shows no string, or ""."""
    if operation.f != "get" or isinstance(operation.output, str | None):
        return ""
    return f"a get of a key-value store answered {value_in_words(operation.output)}, which is no string"


KV_OBJECT = replace(
    searched(
        KV,
        "Key-value store",
        "Is there one order of all gets, puts and appends that explains every answer?",
        {"put": the_same, "append": the_same},
    ),
    judge=judge,
    given=frozenset({"put", "append"}),
    answered=frozenset({"get"}),
    odd_answer=no_string,
)
