"""A generator of ids: no id is handed out twice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from checkers.models.model import REFUSED, Model, Operation, Rows, State, WrongOperation
from checkers.models.projection import Violation, witness
from checkers.verdict import Witness


def judge(operations: Sequence[Operation], as_rows: Rows) -> list[Witness]:
    """The first id handed out twice, if there is one.  Raises WrongOperation, Disagreement."""
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
                "an id that nobody had been given",
                ["Whichever of the two came first took the id; what else was handed out is left out"],
            )
            return [witness(violation, seen_through(found), as_rows)]
    return []


def seen_through(value: Hashable) -> Model:
    """A generator of which only one id is looked at: whether it was given."""

    def step(state: State, operation: Operation) -> object:
        return REFUSED if state else True

    return Model("unique-ids", init=bool, step=step, show=lambda state: repr(value) if state else f"no {value!r}")
