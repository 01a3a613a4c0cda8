"""A generator of ids: no two answers have the same id."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from checkers.base.checker import Budget
from checkers.models.known_object import KnownObject, ObjectFinding, ObjectFunction
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, text_of
from checkers.models.witnesses import Decided


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Find the first id that was handed out twice.  Raises WrongOperation where another function comes before it."""
    first: dict[Hashable, Operation] = {}
    for operation in operations:
        if operation.f != "generate":
            raise WrongOperation(f"{operation.f} is not an operation of a generator of ids (generate)")
        if operation.returned and first.setdefault(operation.output, operation) is not operation:
            found = operation.output
            words, right = f"the id {text_of(found)} was handed out twice", "an id that no answer had named before"
            both = [first[found], operation]
            twice = Decided("duplicate", words, both, operation, right, seen_through(found), [found])
            return ObjectFinding((twice,), steps=len(operations))
    return ObjectFinding(steps=len(operations))


def seen_through(value: Hashable) -> Model:
    """Return the model of a generator that is reduced to one id.  The state is whether the id was handed out."""

    def step(state: State, operation: Operation) -> object:
        return REFUSED if state else True

    return Model(
        "unique-ids", init=bool, step=step, show=lambda state: text_of(value) if state else f"no {text_of(value)}"
    )


UNIQUE_IDS = KnownObject(
    "unique-ids",
    "Unique ids",
    "Was no id handed out twice?",
    judge,
    {"generate": ObjectFunction(answered=True)},
    odd_answer=lambda o: "a generator of ids answered nil, which is no id" if o.output is None else "",
)
