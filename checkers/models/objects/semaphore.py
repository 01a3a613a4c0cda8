"""A semaphore with a number of permits: acquire one or several, release them.

It is decided in O(n log n) if every process releases what it holds.  Let each acquire take effect at its return, and
each release at its call.  Then at every moment as few permits are held as in any order.  So an order exists if and only
if there are never more of them than the semaphore has.

    acquire without an answer    need not have happened: it could only hold permits
    release without an answer    took effect at its call: it can only free permits

If a process releases more than it holds, the model is searched.  The model does not know owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from checkers.base.checker import Budget
from checkers.models.known_object import KnownObject, ObjectFinding, ObjectFunction, by_search
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.witnesses import Decided

ACQUIRE, RELEASE = "acquire", "release"
PERMITS_MAX = 1_000_000


def permits_of(operation: Operation) -> int:
    """Return the number of permits of an operation; nil is one.  Raises WrongOperation."""
    count = 1 if operation.input is None else operation.input
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise WrongOperation(f"index {operation.call}: {operation.f} needs a number of permits, not {count!r:.60}")
    return count


def same_number(invoked: Hashable, answered: Hashable) -> bool:
    """Return False if the answer is a number of permits that differs from the invoked one; nil invokes one permit."""
    return not isinstance(answered, int) or answered == (1 if invoked is None else invoked)


def semaphore(permits: int) -> Model:
    """Return the model of a semaphore; a state is how many permits are held."""

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, int)
        after = state + permits_of(operation) * (1 if operation.f == ACQUIRE else -1)
        return after if 0 <= after <= permits else REFUSED

    return Model(f"semaphore:{permits}", init=int, step=step, show=lambda state: f"{state} of {permits} held")


def semaphore_object(permits: int) -> KnownObject:
    """A semaphore with so many permits."""
    model = semaphore(permits)

    def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
        if not _each_releases_its_own(operations):
            return by_search(model, operations, budget)
        found = too_many(operations, permits)
        return ObjectFinding(() if found is None else (found,), steps=len(operations))

    question = f"Were never more than {permits} permits held at once?"
    functions = dict.fromkeys((ACQUIRE, RELEASE), ObjectFunction(same_number))
    return KnownObject(model.name, "Semaphore", question, judge, functions, "a semaphore")


def _each_releases_its_own(operations: Sequence[Operation]) -> bool:
    """Return whether each process holds what it releases.  operations: in order of call.  Raises WrongOperation."""
    held = Counter[int]()
    fits = True
    for operation in operations:
        count = permits_of(operation)
        if operation.f == ACQUIRE:
            held[operation.process] += count if operation.returned else 0
        else:
            held[operation.process] -= count
            fits = fits and held[operation.process] >= 0
    return fits


def too_many(operations: Sequence[Operation], permits: int) -> Decided | None:
    """Return the violation at the first acquire that cannot have got its permits; None if there is none."""
    moments: list[tuple[int, int, Operation]] = []
    for operation in operations:
        if operation.f == RELEASE:
            moments.append((operation.call, -permits_of(operation), operation))
        elif operation.ret is not None:
            moments.append((operation.ret, permits_of(operation), operation))
    moments.sort(key=lambda moment: moment[0])
    held, count = dict[int, list[Operation]](), 0
    for index, change, operation in moments:
        held.setdefault(operation.process, []).append(operation)
        count += change
        if not _holds(held[operation.process]):
            del held[operation.process]
        if count > permits:
            return _violation(index, operation, count, permits, held)
    return None


def _holds(operations: Sequence[Operation]) -> int:
    return sum(permits_of(o) * (1 if o.f == ACQUIRE else -1) for o in operations)


def _violation(index: int, culprit: Operation, count: int, permits: int, held: dict[int, list[Operation]]) -> Decided:
    holders = [f"process {process} holds {_holds(own)}" for process, own in sorted(held.items())]
    words = f"at index {index} the answer of process {culprit.process} leaves {count} of {permits} permits held"
    why = f"What was acquired is certainly held until its release is invoked: {', '.join(holders)}"
    right = "no answer before others had released their permits"
    operations = [o for own in held.values() for o in own]
    return Decided("too many held", words, operations, culprit, right, semaphore(permits), why=why)
