"""Failures of a model's own functions, kept apart from all other errors.

A witness tries answers that the object never gave (`window.py`).  A model need not know what to do with such an answer,
and may raise any exception.  That is no proof of anything, but it is not hidden either: the witness reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from checkers.models.model import Model, Operation, State, described
from checkers.models.own import BadModel
from checkers.models.patience import OutOfPatience

_Answer = TypeVar("_Answer")


class ModelFailed(RuntimeError):
    """A function of the model raised an exception; the message names the model and, of `step`, the operation."""


def reporting(model: Model) -> Model:
    """The same model, whose `step` and `canonical` raise ModelFailed or OutOfPatience and nothing else."""

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
    """One sentence about failures on answers that were tried; there is at least one."""
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
