"""A counter that begins at 0: add a number (`add`, also `inc` and `dec` of 1), read the sum.

There are two checks.  `bounds` is the check of Jepsen's counter, and takes one pass over a history of any size.  Every
read must lie between the minimum and the maximum sum that earlier and concurrent operations allow.  This is necessary,
but not sufficient: a second read may show less than the first although no operation subtracted.  The search (`COUNTER`)
is exact: it requires one order of all operations.  The search ends within its budget if few different sums can occur.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from checkers.base.checker import Budget
from checkers.models.known_object import CHANGES, SHOWS, KnownObject, ObjectFinding, by_search
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, text_of
from checkers.models.witnesses import Decided


def amount(operation: Operation) -> int:
    """Return the number that a mutator adds to the sum.  Raises WrongOperation."""
    given = 1 if operation.input is None else operation.input
    if not isinstance(given, int) or operation.f not in ("add", "inc", "dec"):
        raise WrongOperation(
            f"{operation.f} of {operation.input!r:.60} is not an operation of a counter"
            " (add, inc and dec of whole numbers, read)"
        )
    return -given if operation.f == "dec" else given


def step(state: State, operation: Operation) -> object:
    if operation.f == "read":
        return state if not operation.returned or state == operation.output else REFUSED
    assert isinstance(state, int)
    return state + amount(operation)


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    """Return a function that refuses sums below the sum of all negative, or above the sum of all positive amounts."""
    amounts = [amount(o) for o in operations if o.f != "read"]
    least, greatest = sum(a for a in amounts if a < 0), sum(a for a in amounts if a > 0)

    def one_of(state: State) -> State:
        assert isinstance(state, int)
        return state if least <= state <= greatest else REFUSED

    return one_of


COUNTER = Model("counter", init=int, step=step, observers=frozenset({"read"}), canonical=canonical)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Check the bounds first, and then search an order.  Raises WrongOperation."""
    if (wrong := bounds(operations)) is not None:
        return ObjectFinding((wrong,), steps=len(operations))
    finding = by_search(COUNTER, operations, budget)
    if not finding.reason:
        return finding
    words = "every read is within its bounds, but the order is not decided"
    return replace(finding, reason=f"{words}: {finding.reason}")


def bounds(operations: Sequence[Operation]) -> Decided | None:
    """Return the violation of the first read outside its bounds; None if there is none."""
    points: list[tuple[int, str, Operation]] = []
    for operation in operations:
        points.append((operation.call, "call", operation))
        if operation.ret is not None:
            points.append((operation.ret, "ret", operation))
    least = greatest = 0
    at_call: dict[int, tuple[int, int]] = {}
    for _, what, operation in sorted(points, key=lambda point: point[0]):
        if operation.f == "read":
            if what == "call":
                at_call[operation.call] = least, greatest
                continue
            meanwhile = _called_meanwhile(operations, operation)
            low, high = _widened(meanwhile, *at_call[operation.call])
            if not isinstance(operation.output, int) or not low <= operation.output <= high:
                return _impossible_sum(operation, meanwhile, at_call[operation.call], (low, high))
            continue
        change = amount(operation)
        if what == ("ret" if change > 0 else "call"):
            least += change
        if what == ("call" if change > 0 else "ret"):
            greatest += change
    return None


def _impossible_sum(
    read: Operation, meanwhile: Sequence[Operation], before: tuple[int, int], right: tuple[int, int]
) -> Decided:
    """Return the violation of a read.

    meanwhile: mutators that were called while the read was under way
    before: minimum and maximum sum when the read was invoked
    right: minimum and maximum right answer
    """
    low, high = right
    could = f"between {low} and {high}" if low < high else f"of {low}"
    words = f"a read answered {text_of(read.output)}; an answer {could} would have been right"
    few = before[1] - before[0] < SUMS_MAX
    smaller = COUNTER if few else replace(COUNTER, step=_within, show=_span)
    states = tuple(range(before[0], before[1] + 1)) if few else (before,)
    shown = [*meanwhile, read]
    return Decided("impossible sum", words, shown, read, f"an answer {could}", smaller, states=states)


SUMS_MAX = 50
"""Maximum number of possible sums before a read that a witness names; of more, it names minimum and maximum only."""


def _within(state: State, operation: Operation) -> object:
    """Return the state after an operation of a counter whose state is the minimum and the maximum possible sum."""
    assert isinstance(state, tuple)
    low, high = state
    if operation.f == "read":
        return state if isinstance(operation.output, int) and low <= operation.output <= high else REFUSED
    return low + amount(operation), high + amount(operation)


def _span(state: State) -> str:
    assert isinstance(state, tuple)
    return f"{state[0]} to {state[1]}"


def _widened(meanwhile: Sequence[Operation], low: int, high: int) -> tuple[int, int]:
    """Return the bounds at the call of a read, widened by the mutators that were called while it was under way."""
    for other in meanwhile:
        change = amount(other)
        low, high = min(low, low + change), max(high, high + change)
    return low, high


def _called_meanwhile(operations: Sequence[Operation], read: Operation) -> list[Operation]:
    """Return the mutators that were called while a read was under way.

    operations: operations in order of call
    """
    assert read.ret is not None
    first, last = (bisect_left(operations, at, key=lambda o: o.call) for at in (read.call, read.ret))
    return [o for o in operations[first:last] if o.f != "read"]


COUNTER_OBJECT = KnownObject(
    "counter",
    "Counter",
    "Is there one order of all additions that explains every read?",
    judge,
    {"add": CHANGES, "read": SHOWS},
)
