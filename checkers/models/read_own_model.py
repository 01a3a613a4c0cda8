"""Reads a user's model from a Python file (`docs/models.md` shows one).

The file defines `init` and `step`, and may define `observers`, `partition`, `describe`, `show`, `canonical` and
`process_matters`; `checkers/models/model.py` explains each.  The file is code, and it is run.

If this code fails, now or later inside one of its functions, it raises a `BadModel` that names the file and the line.
The user wrote the code, so a traceback through our code would not help to correct it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, by_key, described, plain


class BadModel(ValueError):
    """A file is not a model, or its code failed.  The message has the reason, the file and, if known, the line."""


def load_model(path: Path) -> Model:
    """Read the model in a file.  Raises BadModel."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        words = problem.strerror if isinstance(problem, OSError) else "not UTF-8 text"
        raise BadModel(f"{path}: {words}") from problem
    return model_of(source, str(path))


@lru_cache(maxsize=8)
def model_of(source: str, file: str) -> Model:
    """Read the model in a source text.  file: its path, for messages.  Raises BadModel."""
    found: dict[str, Any] = {"__name__": "krucible_model", "__file__": file}
    try:
        exec(compile(source, file, "exec", dont_inherit=True), found)
    except SyntaxError as problem:
        raise BadModel(f"{file} line {problem.lineno}: {problem.msg}") from problem
    except (Exception, SystemExit) as problem:
        raise BadModel(_complaint(problem, file, "it cannot be run")) from problem
    for name in ("init", "step"):
        if not callable(found.get(name)):
            raise BadModel(f"{file}: defines no function {name}; docs/models.md shows what a model needs")
    for name in ("partition", "describe", "show", "canonical"):
        if found.get(name) is not None and not callable(found[name]):
            raise BadModel(f"{file}: {name} must be a function; docs/models.md shows what it is for")
    observers = found.get("observers", ())
    if not isinstance(observers, set | frozenset | list | tuple) or not all(isinstance(f, str) for f in observers):
        raise BadModel(f'{file}: observers must be a set of names, like {{"read"}}, not {observers!r:.40}')
    model = Model(
        name=Path(file).stem,
        init=_states(found["init"], file, "init"),
        step=_states(found["step"], file, "step"),
        observers=frozenset(observers),
        process_matters=bool(found.get("process_matters", False)),
        partition=_named(found["partition"], file, "partition") if found.get("partition") else by_key,
        describe=_words(found["describe"], file, "describe") if found.get("describe") else described,
        show=_words(found["show"], file, "show") if found.get("show") else plain,
        canonical=_canonical(found["canonical"], file) if found.get("canonical") else None,
    )
    model.init()
    return model


def checked(model: Model) -> Model:
    """The model of a user's own file, whose functions raise BadModel with file and line where they fail."""

    def file(function: Callable[..., Any]) -> str:
        code = getattr(function, "__code__", None)
        return code.co_filename if code is not None else model.name

    def named(function: Callable[[Any], Any], default: object, name: str) -> Any:
        return function if function is default else _named(function, file(function), name)

    return replace(
        model,
        init=_states(model.init, file(model.init), "init"),
        step=_states(model.step, file(model.step), "step"),
        partition=named(model.partition, by_key, "partition"),
        describe=named(model.describe, described, "describe"),
        show=named(model.show, plain, "show"),
        canonical=model.canonical and _canonical(model.canonical, file(model.canonical)),
    )


def _states(function: Callable[..., Any], file: str, name: str) -> Callable[..., Any]:
    """The function, but every failure and every state that cannot be hashed raises BadModel."""

    @wraps(function)
    def guarded(*arguments: Any) -> Any:
        try:
            state = function(*arguments)
        except WrongOperation:
            raise
        except Exception as problem:
            raise BadModel(_complaint(problem, file, f"{name} failed{_of(arguments)}")) from problem
        if state is not REFUSED:
            try:
                hash(state)
            except TypeError as problem:
                at = f"{file} line {function.__code__.co_firstlineno}" if hasattr(function, "__code__") else file
                words = f"{name} gave the state {state!r:.60}{_of(arguments)}, and states must be hashable"
                raise BadModel(
                    f"{at}: {words}: a tuple or a frozenset is hashable, a list, a set or a dict is not"
                ) from problem
        return state

    return guarded


def _named(function: Callable[[Any], Any], file: str, name: str) -> Callable[[Any], Any]:
    """The function of an operation or a state, but a failure or a result that cannot be hashed raises BadModel."""

    @wraps(function)
    def guarded(given: Any) -> Any:
        try:
            found = function(given)
            hash(found)
        except Exception as problem:
            raise BadModel(_complaint(problem, file, f"{name} failed{_of((given,))}")) from problem
        return found

    return guarded


def _words(function: Callable[[Any], Any], file: str, name: str) -> Callable[[Any], str]:
    described = _named(function, file, name)
    return lambda given: str(described(given))


def _canonical(
    function: Callable[[Sequence[Operation]], Any], file: str
) -> Callable[[Sequence[Operation]], Callable[[State], State]]:
    @wraps(function)
    def guarded(operations: Sequence[Operation]) -> Callable[[State], State]:
        try:
            one_of = function(operations)
        except Exception as problem:
            raise BadModel(_complaint(problem, file, "canonical failed")) from problem
        if not callable(one_of):
            raise BadModel(f"{file}: canonical must return a function from a state to a state, not {one_of!r:.40}")
        return _states(one_of, file, "the function that canonical returned")

    return guarded


def _of(arguments: Sequence[Any]) -> str:
    """The end of a sentence that names the operation among the arguments; "" if there is none."""
    operation = next((a for a in arguments if isinstance(a, Operation)), None)
    return "" if operation is None else f" on {described(operation)} (index {operation.call})"


def _complaint(problem: BaseException, file: str, what: str) -> str:
    """One sentence about a failure.  It names the last line of the user's file that was run."""
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    at = f"{file} line {lines[-1]}" if lines else file
    first = (str(problem).splitlines() or [""])[0][:200]
    return f"{at}: {what}: {type(problem).__name__}{f': {first}' if first else ''}"
