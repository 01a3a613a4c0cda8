"""A generator of ids: no id is handed out twice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from checkers.base.checker import Budget
from checkers.models.known_object import Decided, KnownObject, ObjectFinding
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation
from checkers.models.projection import Violation


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """The first id handed out twice, if there is one.  Raises WrongOperation."""
    first: dict[Hashable, Operation] = {}
    for operation in operations:
        if operation.f != "generate":
            raise WrongOperation(f"{operation.f} is not an operation of a generator of ids (generate)")
        if operation.returned and first.setdefault(operation.output, operation) is not operation:
            found = operation.output
            violation = Violation(
                "duplicate",
                f"the id {found!r} was handed out twice",
                [first[found], operation],
                operation,
                "an id that no answer had named before",
                ["Either of the two may have come first: the other one got the same id", "All other ids are left out"],
            )
            return ObjectFinding((Decided(violation, seen_through(found)),), steps=len(operations))
    return ObjectFinding(steps=len(operations))


def seen_through(value: Hashable) -> Model:
    """A generator of which only one id is looked at: whether it was given."""

    def step(state: State, operation: Operation) -> object:
        return REFUSED if state else True

    return Model("unique-ids", init=bool, step=step, show=lambda state: repr(value) if state else f"no {value!r}")


UNIQUE_IDS = KnownObject("unique-ids", "Unique ids", "Was no id handed out twice?", judge)
