"""Exceptions whose message is one sentence for the user, and which are not caused by a bug of the harness."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path

_SENTENCES = (
    ("checkers.base.history", "MalformedHistory"),
    ("checkers.record.files", "BrokenFile"),
    ("harness.spec", "WrongSpec"),
    ("harness.backends.backend", "BackendUnavailable"),
    ("nemesis.deck", "BadSchedule"),
    ("system_under_test.own.read_own_system", "BrokenSystem"),
)


def expected() -> tuple[type[Exception], ...]:
    """Return the types of exceptions whose message is a sentence for the user.  Types in modules that are not loaded
    are omitted, because they cannot have been raised.
    """
    loaded = [getattr(sys.modules[module], name) for module, name in _SENTENCES if module in sys.modules]
    return (OSError, *loaded)


def sentences(problem: BaseException) -> list[str]:
    """Return the message of an exception, or the messages of a group; [] if any of them is a bug of the harness."""
    leaves = list(_leaves(problem))
    if all(isinstance(leaf, expected()) for leaf in leaves):
        return list(dict.fromkeys(map(_words, leaves)))
    return []


def mistakes_in(own_files: Collection[Path], problem: BaseException) -> list[str]:
    """Return one sentence for each exception of a group, if a line of `own_files`, such as a user's workload, raised
    each of them; otherwise [].
    """
    found: list[str] = []
    for leaf in _leaves(problem):
        last = traceback.extract_tb(leaf.__traceback__)[-1:]
        paths = [path for path in own_files for frame in last if Path(frame.filename).resolve() == path.resolve()]
        if not paths:
            return []
        found.append(f"{paths[0].name} line {last[0].lineno}: {type(leaf).__name__}: {leaf}")
    return list(dict.fromkeys(found))


def _words(problem: BaseException) -> str:
    """Return an error of the operating system without its number, which users do not need."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    return str(problem)


def not_of_the_harness(problem: BaseException) -> bool:
    """Return True if a user's file is wrong or this machine lacks something, so that no test took place, although the
    harness worked as intended.
    """
    names = ("BrokenSystem", "CodeMistake", "BackendUnavailable")
    return all(type(leaf).__name__ in names for leaf in _leaves(problem))


def _leaves(problem: BaseException) -> Iterator[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        for inner in problem.exceptions:
            yield from _leaves(inner)
    else:
        yield problem
