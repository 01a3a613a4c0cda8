"""A counter that begins at 0: add a number (`add`, also `inc` and `dec` of 1), read the sum.

Two questions.  `bounds` (as Jepsen's counter asks, one pass over any history): does every read lie between the least
and the greatest sum that the operations before and around it allow?  It is necessary and not enough: of two reads one
after another the second may go back.  The model asks for one order of all, exactly, where the sums that can occur are
few enough to enumerate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from checkers.models.model import REFUSED, Model, Operation, Rows, State, WrongOperation, facts_of
from checkers.verdict import Witness


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


def bounds(operations: Sequence[Operation], as_rows: Rows) -> list[Witness]:
    """The first read of one counter that no sum allows, if there is one."""
    points: list[tuple[int, str, Operation]] = []
    for operation in operations:
        points.append((operation.call, "call", operation))
        if operation.ret is not None:
            points.append((operation.ret, "ret", operation))
    least = greatest = 0
    least_at_call: dict[int, int] = {}
    greatest_at_call: dict[int, int] = {}
    for _, what, operation in sorted(points, key=lambda point: point[0]):
        if operation.f == "read":
            if what == "call":
                least_at_call[operation.call], greatest_at_call[operation.call] = least, greatest
                continue
            low, high = least_at_call[operation.call], greatest_at_call[operation.call]
            low, high = _widened(operations, operation, low, high)
            if not isinstance(operation.output, int) or not low <= operation.output <= high:
                right = f"between {low} and {high}" if low < high else f"{low}"
                words = f"a read answered {operation.output!r}; {right} would have been right"
                why = (
                    f"All that had been answered before the read makes at least {low} of the sum, "
                    f"and all that had been asked before its answer at most {high}"
                )
                facts = facts_of([operation], operation, f"an answer {'of ' * (low == high)}{right}", why)
                return [Witness("impossible sum", words, as_rows([operation]), facts=facts)]
            continue
        change = amount(operation)
        if what == ("ret" if change > 0 else "call"):
            least += change
        if what == ("call" if change > 0 else "ret"):
            greatest += change
    return []


def _widened(operations: Sequence[Operation], read: Operation, low: int, high: int) -> tuple[int, int]:
    """Bounds at the call of a read, widened by what was called while it was under way."""
    assert read.ret is not None
    for other in _called_between(operations, read.call, read.ret):
        if other.f != "read":
            change = amount(other)
            low, high = min(low, low + change), max(high, high + change)
    return low, high


def _called_between(operations: Sequence[Operation], start: int, end: int) -> Sequence[Operation]:
    """Operations, which are in order of call, that were called in that span."""
    from bisect import bisect_left

    return operations[
        bisect_left(operations, start, key=lambda o: o.call) : bisect_left(operations, end, key=lambda o: o.call)
    ]
