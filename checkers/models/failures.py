"""Separates failures of a model's own functions from all other errors.

To find a right answer, a witness tries answers that the object never gave (`shrink_witness.py`).  A model need not
handle such an answer, and may raise any exception.  The exception proves nothing about the answer.  The witness reports
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from checkers.models.model import Model, Operation, State, described
from checkers.models.patience import OutOfPatience
from checkers.models.read_own_model import BadModel

_Answer = TypeVar("_Answer")


class ModelFailed(RuntimeError):
    """A function of the model raised an exception.  The message names the model, and for `step` also the operation."""


def reporting(model: Model) -> Model:
    """The same model, but its `step` and `canonical` raise only ModelFailed and OutOfPatience."""

    def step(state: State, operation: Operation) -> object:
        where = f" on {described(operation)} (index {operation.call})"
        return _guarded(model, lambda: model.step(state, operation), where)

    def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
        assert model.canonical is not None
        make = model.canonical
        one_of = _guarded(model, lambda: make(operations))
        return lambda state: _guarded(model, lambda: one_of(state))

    return replace(model, step=step, canonical=None if model.canonical is None else canonical)


def in_words(failures: Sequence[ModelFailed]) -> str:
    """One sentence about failures on answers that were tried.  failures: at least one."""
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"An answer{more} could not be tried in place of the wrong one: {failures[0]}"


def _guarded(model: Model, work: Callable[[], _Answer], where: str = "") -> _Answer:
    try:
        return work()
    except OutOfPatience:
        raise
    except BadModel as problem:  # names file, line and operation already
        raise ModelFailed(str(problem)) from problem
    except Exception as problem:
        first = (str(problem).splitlines() or [""])[0][:200]
        words = f"{type(problem).__name__}{f': {first}' if first else ''}"
        raise ModelFailed(f"the model {model.name} failed{where}: {words}") from problem
