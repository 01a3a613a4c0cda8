"""The model of a register with cas.  Runs are judged by kernels instead (`checkers/registers`).

Tests compare this model with the kernels, which describe the same object.  `check` judges by it the registers of a file
whose values are not all whole numbers of 64 bits: texts, keywords, fractions, collections.
"""

from __future__ import annotations

from checkers.models.known_object import searched
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation


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

ANY_VALUES = searched(
    CAS_REGISTER, "Registers of any values", "Does one order of all operations of a key explain every answer?"
)
"""Registers whose values the kernels cannot hold.  A search decides them."""
