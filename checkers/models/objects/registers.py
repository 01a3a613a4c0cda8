"""The model of a register with cas.  Runs are judged by kernels instead (`checkers/registers`).

Tests compare this model with the kernels, which describe the same object.
"""

from __future__ import annotations

from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation


def step(state: State, operation: Operation) -> object:
    match operation.f:
        case "read":
            return state if not operation.returned or state == operation.output else REFUSED
        case "write":
            return operation.input
        case "cas":
            assert isinstance(operation.input, tuple)
            if state == operation.input[0]:
                return operation.input[1]
            return REFUSED if operation.returned else state
    raise WrongOperation(f"{operation.f} is not an operation of a register")


CAS_REGISTER = Model("cas-register", init=lambda: None, step=step, observers=frozenset({"read"}))
