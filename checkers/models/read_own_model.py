"""Reads a user's model from a Python file (`docs/models.md` shows one).

The file defines `init` and `step`, and may define `observers`, `partition`, `describe`, `show`, `canonical` and
`process_matters`; `checkers/models/model.py` explains each.  Reading the file executes it.

If the user's code fails, while the file is read or later in one of its functions, a `BadModel` names the file and the
line.  A traceback through the code of Krucible would not help the user.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import sys
import textwrap
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache, wraps
from pathlib import Path
from types import FrameType
from typing import Any

from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, by_key, described, plain


class BadModel(ValueError):
    """A file is no model, or its code failed.  The message contains the reason, the file and, if known, the line."""


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
    """Read the model in a source text.  Raises BadModel.

    file: path of the file, for messages
    """
    found: dict[str, Any] = {"__name__": "krucible_model", "__file__": file}
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
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
    optional = {name: found[name] for name in ("partition", "describe", "show", "canonical") if found.get(name)}
    model = Model(
        Path(file).stem,
        found["init"],
        found["step"],
        frozenset(observers),
        process_matters=bool(found.get("process_matters", False)),
        **optional,
    )
    model = checked(model, file)
    model.init()
    return model


def checked(model: Model, source: str = "") -> Model:
    """Return the model with functions that raise BadModel, with file and line, if they fail.

    source: the file of all functions; "" if each function names its own file"""

    def file(function: Callable[..., Any]) -> str:
        code = getattr(function, "__code__", None)
        return source or (code.co_filename if code is not None else model.name)

    def shown(function: Callable[[Any], str], default: object, name: str) -> Callable[[Any], str]:
        return function if function is default else _words(function, file(function), name)

    own = model.partition is not by_key
    return replace(
        model,
        init=_states(model.init, file(model.init), "init", _nothing),
        step=_states(model.step, file(model.step), "step", forgets_to_refuse(model.step, model.init)),
        partition=_named(model.partition, file(model.partition), "partition") if own else by_key,
        describe=shown(model.describe, described, "describe"),
        show=shown(model.show, plain, "show"),
        canonical=model.canonical and _canonical(model.canonical, file(model.canonical)),
    )


def _states(function: Callable[..., Any], file: str, name: str, refuses: Refuses) -> Callable[..., Any]:
    """Wrap the function so that it raises BadModel if it fails or if its result is no state.

    refuses: a function that returns, from the result and the arguments, the reason why the result is no state; "" if
        the result may be a state
    """

    @wraps(function)
    def guarded(*arguments: Any) -> Any:
        try:
            state = function(*arguments)
        except WrongOperation:
            raise
        except Exception as problem:
            raise BadModel(_complaint(problem, file, f"{name} failed{_of(arguments)}")) from problem
        if state is not REFUSED and (words := no_state(state) or refuses(state, arguments)):
            raise BadModel(f"{_place(function, file)}: {name}{_of(arguments)} gave {words}")
        return state

    return guarded


Refuses = Callable[[Any, Sequence[Any]], str]


def no_state(state: object) -> str:
    """Return the reason why an object is no state of any model, as the end of a sentence; "" if it may be a state."""
    if inspect.iscoroutine(state):
        state.close()  # otherwise Python warns that the coroutine was never awaited
        return "a coroutine: it is an async function, and must be a plain one"
    if isinstance(state, Iterator | AsyncIterator):
        kind = "a generator" if inspect.isgenerator(state) or inspect.isasyncgen(state) else "an iterator"
        return f"{kind}: it must return a state and not yield"
    if state is NotImplemented or state is Ellipsis or callable(state) or isinstance(state, BaseException):
        return f"{state!r:.60}, which is no state; an answer that the state does not allow is refused by REFUSED"
    try:
        hash(state)
    except TypeError:
        words = f"the state {state!r:.60}, and states must be hashable"
        return f"{words}: a tuple or a frozenset is hashable, a list, a set or a dict is not"
    return ""


def _nothing(state: Any, arguments: Sequence[Any]) -> str:
    return ""


_REFUSE = "return REFUSED for an answer that the state does not allow, and the next state otherwise"


def forgets_to_refuse(function: Callable[..., Any], first: Callable[[], Any]) -> Refuses:
    """Return a rule that finds steps that return True or False for "allowed", or None, instead of a state.

    A path that ends without `return` gives None, and a comparison gives True or False.  As a state, such a value would
    explain every later answer.  So None or a boolean is accepted as a state only if the first state contains one, or if
    the input of the operation or the state before contains one.  It is never accepted if the operation's answer is a
    value that the state before does not contain.

    first: a function that returns the first state
    """

    def refuses(state: Any, arguments: Sequence[Any]) -> str:
        begins = first()
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], bool):
            pairs = isinstance(begins, tuple) and len(begins) == 2 and isinstance(begins[0], bool)
            return "" if pairs else f"the pair {state!r:.60}, as if it said whether the operation is allowed: {_REFUSE}"
        if len(arguments) != 2 or not (state is None or isinstance(state, bool)):
            return ""
        before, operation = arguments
        end = _end_of_call(function, arguments) if state is None else _End.EXPRESSION
        if end is _End.NO_RETURN:
            return f"None, because this path through it ends without a state: {_REFUSE}"
        brought = end is _End.EXPRESSION and _holds((operation.input, before), state)
        if state is None and operation.output is not None:
            brought = end is _End.EXPRESSION and before is None
        if brought:
            return ""
        if not _holds(begins, state):
            return f"{state}, which is no state of a model that begins with {begins!r:.40}: {_REFUSE}"
        answered = operation.output not in (None, operation.input)
        if answered and state != before and not _contains(before, operation.output):
            return f"{state} after an answer that the state {before!r:.40} does not hold: {_REFUSE}"
        return ""

    return refuses


def _holds(given: Any, wanted: bool | None) -> bool:
    """Return True if a value or one of its fields is None or, if `wanted` is a boolean, is a boolean."""
    if isinstance(given, tuple | frozenset):
        return any(_holds(each, wanted) for each in given)
    return given is None if wanted is None else isinstance(given, bool)


def _contains(given: Any, wanted: Any) -> bool:
    return bool(given == wanted) or (isinstance(given, tuple | frozenset) and any(_contains(g, wanted) for g in given))


class _End(Enum):
    """Ways in which a call returns None: by an expression, by `return None`, or without naming a value."""

    EXPRESSION = 0
    LITERAL = 1
    NO_RETURN = 2


def _end_of_call(function: Callable[..., Any], arguments: Sequence[Any]) -> _End:
    """Call a Python function again, and return the way in which it ended.

    Returns EXPRESSION for a callable that is no plain Python function.
    """
    code = getattr(function, "__code__", None)
    last = -1

    def note(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal last
        if frame.f_code is code and event == "return":
            last = frame.f_lasti
        return note

    tracer = sys.gettrace()
    sys.settrace(note)
    try:
        function(*arguments)
    finally:
        sys.settrace(tracer)
    if code is None or last < 0:
        return _End.EXPRESSION
    steps = [step for step in dis.get_instructions(code) if step.offset <= last]
    step = steps[-1] if steps[-1].opname == "RETURN_CONST" else steps[-2] if len(steps) > 1 else steps[-1]
    if step.argval is not None or step.opname not in ("LOAD_CONST", "RETURN_CONST"):
        return _End.EXPRESSION
    at = step.positions
    named = at is not None and (at.lineno, at.col_offset) in _named_results(function)
    return _End.LITERAL if named or code.co_name == "<lambda>" else _End.NO_RETURN


def _named_results(function: Callable[..., Any]) -> set[tuple[int, int]]:
    """Return the position (line, column) of every `return` with a value, and of every None in its expression."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return set()
    indent = len(lines[0]) - len(lines[0].lstrip())
    found: list[ast.Return | ast.Constant] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node)
            found += [each for each in ast.walk(node.value) if isinstance(each, ast.Constant) and each.value is None]
    return {(first + node.lineno - 1, node.col_offset + indent) for node in found}


def _place(function: Callable[..., Any], file: str) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return file if code is None else f"{file} line {code.co_firstlineno}"


def _named(function: Callable[[Any], Any], file: str, name: str) -> Callable[[Any], Any]:
    """Wrap a function of an operation or a state so that it raises BadModel if it fails or if its result is not
    hashable.
    """

    @wraps(function)
    def guarded(given: Any) -> Any:
        try:
            found = function(given)
            hash(found)
        except Exception as problem:
            raise BadModel(_complaint(problem, file, f"{name} failed{_of((given,))}")) from problem
        if words := no_state(found):
            raise BadModel(
                f"{_place(function, file)}: {name}{_of((given,))} gave {words.replace('a state', 'a value')}"
            )
        return found

    return guarded


def _words(function: Callable[[Any], Any], file: str, name: str) -> Callable[[Any], str]:
    described = _named(function, file, name)
    return lambda given: str(described(given))


def _lost_state(state: Any, arguments: Sequence[Any]) -> str:
    if state is None and arguments[0] is not None:
        return f"None for the state {arguments[0]!r:.40}: return the state that stands for it, or REFUSED"
    return ""


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
        return _states(one_of, file, "the function that canonical returned", _lost_state)

    return guarded


def _of(arguments: Sequence[Any]) -> str:
    """Return the end of a sentence that names the operation among the arguments; "" if there is none."""
    operation = next((a for a in arguments if isinstance(a, Operation)), None)
    return "" if operation is None else f" on {described(operation)} (index {operation.call})"


def _complaint(problem: BaseException, file: str, what: str) -> str:
    """Return one sentence about a failure.  The sentence names the last executed line of the user's file."""
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    at = f"{file} line {lines[-1]}" if lines else file
    first = (str(problem).splitlines() or [""])[0][:200]
    return f"{at}: {what}: {type(problem).__name__}{f': {first}' if first else ''}"
