"""A counter that begins at 0: add a number (`add`, also `inc` and `dec` of 1), read the sum.

Two questions.  `bounds` (that of Jepsen's counter, one pass over any history): does every read lie between the least
and the greatest sum that the operations before and around it allow?  It is necessary and not enough: of two reads one
after another the second may go back.  The model demands one order of all, exactly, where the sums that can occur are
few enough to enumerate.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from checkers.base.checker import Budget
from checkers.models.answers import the_same
from checkers.models.known_object import Decided, KnownObject, ObjectFinding, by_search
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.projection import Violation


def amount(operation: Operation) -> int:
    """What a mutator adds.  Raises WrongOperation."""
    given = 1 if operation.input is None else operation.input
    if not isinstance(given, int) or operation.f not in ("add", "inc", "dec"):
        raise WrongOperation(
            f"{operation.f} of {operation.input!r} is not an operation of a counter (add, inc, dec, read)"
        )
    return -given if operation.f == "dec" else given


def step(state: State, operation: Operation) -> object:
    if operation.f == "read":
        return state if not operation.returned or state == operation.output else REFUSED
    assert isinstance(state, int)
    return state + amount(operation)


def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
    """No order leads to a sum beyond what all operations of one sign make together."""
    amounts = [amount(o) for o in operations if o.f != "read"]
    least, greatest = sum(a for a in amounts if a < 0), sum(a for a in amounts if a > 0)

    def one_of(state: State) -> State:
        assert isinstance(state, int)
        return state if least <= state <= greatest else REFUSED

    return one_of


COUNTER = Model("counter", init=int, step=step, observers=frozenset({"read"}), canonical=canonical)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """The bounds first, then the search.  Raises WrongOperation."""
    if (wrong := bounds(operations)) is not None:
        return ObjectFinding((wrong,), steps=len(operations))
    finding = by_search(COUNTER, operations, budget)
    if not finding.reason:
        return finding
    words = "every read is within its bounds, but the order is not decided"
    return replace(finding, reason=f"{words}: {finding.reason}")


def bounds(operations: Sequence[Operation]) -> Decided | None:
    """The first read of one counter that no sum allows, if there is one."""
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
    """before: the least and greatest sum when the read was invoked.  right: those that it could answer."""
    low, high = right
    could = f"between {low} and {high}" if low < high else f"{low}"
    why = [
        f"All that had been answered before the read makes at least {low} of the sum, "
        f"and all that had been invoked before its answer at most {high}"
    ]
    violation = Violation(
        "impossible sum",
        f"a read answered {read.output!r}; {could} would have been right",
        [*meanwhile, read],
        read,
        f"an answer {'of ' * (low == high)}{could}",
        why,
    )
    few = before[1] - before[0] < SUMS_MAX
    smaller = COUNTER if few else replace(COUNTER, step=_within, show=_span)
    return Decided(violation, smaller, tuple(range(before[0], before[1] + 1)) if few else (before,))


SUMS_MAX = 50
"""If more sums may have been reached before a read, the witness names only the least and the greatest."""


def _within(state: State, operation: Operation) -> object:
    """The step of a counter of which only (the least, the greatest sum) are known."""
    assert isinstance(state, tuple)
    low, high = state
    if operation.f == "read":
        return state if isinstance(operation.output, int) and low <= operation.output <= high else REFUSED
    return low + amount(operation), high + amount(operation)


def _span(state: State) -> str:
    assert isinstance(state, tuple)
    return f"{state[0]} to {state[1]}"


def _widened(meanwhile: Sequence[Operation], low: int, high: int) -> tuple[int, int]:
    """Bounds at the call of a read, widened by what was called while it was under way."""
    for other in meanwhile:
        change = amount(other)
        low, high = min(low, low + change), max(high, high + change)
    return low, high


def _called_meanwhile(operations: Sequence[Operation], read: Operation) -> list[Operation]:
    """What changes the sum and was called while a read was under way.  operations: in order of call."""
    assert read.ret is not None
    first, last = (bisect_left(operations, at, key=lambda o: o.call) for at in (read.call, read.ret))
    return [o for o in operations[first:last] if o.f != "read"]


COUNTER_OBJECT = KnownObject(
    "counter",
    "Counter",
    "Is there one order of all additions that explains every read?",
    judge,
    fixed={"add": the_same},
)
