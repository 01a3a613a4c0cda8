"""The model of a register with cas.  Runs are judged by kernels instead (`checkers/registers`).

Tests compare this model with the kernels, which describe the same object.  `check` judges by it the registers of a file
whose values are not all whole numbers of 64 bits: texts, keywords, fractions, collections.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from checkers.base.checker import Budget
from checkers.models.answers import near_miss
from checkers.models.known_object import KnownObject, ObjectFinding, by_search, searched
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, text_of
from checkers.models.witnesses import Decided


def step(state: State, operation: Operation) -> object:
    match operation.f:
        case "read":
            return state if not operation.returned or state == operation.output else REFUSED
        case "write":
            return operation.input
        case "cas":
            if not isinstance(operation.input, tuple) or len(operation.input) != 2:
                raise WrongOperation(f"a cas needs [expected new], not {operation.input!r:.40}")
            if state == operation.input[0]:
                return operation.input[1]
            return REFUSED if operation.returned else state
    raise WrongOperation(f"{operation.f} is not an operation of a register")


CAS_REGISTER = Model("cas-register", init=lambda: None, step=step, observers=frozenset({"read"}))


def from_nowhere(operations: Sequence[Operation]) -> Decided | None:
    """Return the violation of the first read of a value that nothing can have written; None if there is none."""
    written: dict[Hashable, int] = {None: -1}
    for operation in operations:
        if operation.f != "read" and isinstance(operation.input, tuple) and operation.f == "cas":
            written.setdefault(operation.input[1], operation.call)
        elif operation.f == "write":
            written.setdefault(operation.input, operation.call)
    for read in sorted((o for o in operations if o.f == "read" and o.returned), key=lambda o: o.ret or 0):
        if written.get(read.output, read.ret or 0) < (read.ret or 0):
            continue
        where = "" if read.key is None else f" of {read.key}"
        words = f"a read{where} answered {text_of(read.output)}, and no write of it can have happened before"
        words += near_miss(read.output, written)
        why = "A write that failed did not happen"
        return Decided(
            "value from nowhere", words, [read], read, "a value that had been written", CAS_REGISTER, why=why
        )
    return None


def judge(operations: Sequence[Operation], budget: Budget) -> ObjectFinding:
    """Name an impossible value before the search looks for an order.  Raises WrongOperation."""
    if (impossible := from_nowhere(operations)) is not None:
        return ObjectFinding((impossible,), steps=len(operations))
    return by_search(CAS_REGISTER, operations, budget)


def registers_of_any_values() -> KnownObject:
    """Return registers whose values the kernels cannot hold.  A search decides them."""
    question = "Does one order of all operations of a key explain every answer?"
    return replace(searched(CAS_REGISTER, "Registers of any values", question), judge=judge)
