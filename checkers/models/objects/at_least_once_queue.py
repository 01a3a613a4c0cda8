"""A queue that delivers each value at least once, in any order: to enqueue, to dequeue, to drain.

A broker delivers a value again if it did not learn that a consumer has processed it.  So a value may be dequeued more
often than it was enqueued, in any order, and a dequeue that finds nothing proves nothing: values held by a dead
consumer are hidden until its session ends.  Users rely on the remaining guarantees:

    nowhere   no value is taken before its enqueue was invoked
    lost      every value that was acknowledged before the last drain was invoked is taken at some time, if that drain
              was answered; each dequeue without an answer excuses one value

So a `drain` continues until the values held by dead consumers have been delivered again.  It is many dequeues, and may
miss values that are enqueued while it runs.  One pass over the history decides, whatever its size.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from checkers.base.checker import Budget
from checkers.models.known_object import EXCUSED, UNANSWERED, ObjectFinding
from checkers.models.model import REFUSED, Model, Operation, State, text_of
from checkers.models.objects import queue
from checkers.models.objects.conservation import by_value, not_conserved
from checkers.models.witnesses import Decided

NOWHERE = "value from nowhere"


def deliveries_of(values: Sequence[Hashable]) -> Model:
    """Return the model of a queue that is reduced to these values and drained once.

    State: (the enqueued values, those of them that were not dequeued, the oldest first).
    """
    at_stake = frozenset(values)

    def step(state: State, operation: Operation) -> object:
        assert isinstance(state, tuple)
        put, waiting = state
        if operation.f == queue.PUT:
            own = (operation.input,) if operation.input in at_stake else ()
            return put.union(own), waiting + own
        if not operation.returned:  # if it took another value, it counts as an operation that never happened
            return put, waiting[1:]
        taken = at_stake.intersection(queue.NAMES.taken_by(operation))
        left = tuple(value for value in waiting if value not in taken)
        return REFUSED if taken - put or (operation.f == queue.DRAIN and left) else (put, left)

    def show(state: State) -> str:
        assert isinstance(state, tuple)
        return f"[{', '.join(map(text_of, state[1]))}]"

    return Model("at-least-once-queue", init=lambda: (frozenset(), ()), step=step, show=show)


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find values from nowhere and lost values."""
    found = [
        replace(each, expected="a value whose enqueue had been invoked, or nil")
        for each in not_conserved(operations, queue.NAMES, lambda value: deliveries_of([value]))
        if each.kind == NOWHERE
    ]
    puts, takes = by_value(operations, queue.NAMES)
    missing, unanswered, lost = [], [o for o in operations if o.f == queue.TAKE and not o.returned], None
    if (drain := queue.last_drain(operations)) is not None:
        for value, of_value in puts.items():
            certain = [o for o in of_value if o.ret is not None and o.ret < drain.call]
            missing += [(value, certain)] if certain and value not in takes else []
        lost = queue.lost_for_certain(missing, takes, drain, queue.open_dequeues(operations, drain), deliveries_of)
    if lost is not None:
        lost = replace(lost, expected=lost.expected.replace("as often as put there", "at least once"))
    acknowledged = {value for value, of_value in puts.items() if any(o.returned for o in of_value)}
    counts = {
        "acknowledged": len(acknowledged),
        "delivered_again": sum(max(0, len(taken) - len(puts.get(value, ()))) for value, taken in takes.items()),
        "never_taken": len(acknowledged - takes.keys()),
        UNANSWERED: len(unanswered),
        EXCUSED: 0 if lost else len(missing),
    }
    violations: list[Decided] = [*found, *([lost] if lost else [])]
    return ObjectFinding(tuple(violations), steps=len(operations), counts=counts)


AT_LEAST_ONCE_QUEUE = replace(
    queue.QUEUE_OBJECT,
    name="at-least-once-queue",
    title="Queue, at least once",
    question="Does every acknowledged value come out at least once, and no other?",
    judge=judge,
    empty_shows=False,
)
