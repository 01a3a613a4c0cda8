"""Exceptions whose message is one sentence for the user.  They are no bugs of the harness."""

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
    """Return the exceptions whose message is a sentence for the user.  A module that is not loaded cannot have raised
    one.
    """
    loaded = [getattr(sys.modules[module], name) for module, name in _SENTENCES if module in sys.modules]
    return (OSError, *loaded)


def sentences(problem: BaseException) -> list[str]:
    """Return the problem in sentences, one for each exception of a group; [] if it is a bug of the harness."""
    leaves = list(_leaves(problem))
    if all(isinstance(leaf, expected()) for leaf in leaves):
        return list(dict.fromkeys(map(_words, leaves)))
    return []


def mistakes_in(own_files: Collection[Path], problem: BaseException) -> list[str]:
    """Return one sentence for each exception that a line of these files raised, such as a user's workload; [] if
    another file raised one of them.
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
    """Return whether the system's file was wrong, or this machine lacks something: no test took place, and the harness
    worked as intended.
    """
    names = ("BrokenSystem", "CodeMistake", "BackendUnavailable")
    return all(type(leaf).__name__ in names for leaf in _leaves(problem))


def _leaves(problem: BaseException) -> Iterator[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        for inner in problem.exceptions:
            yield from _leaves(inner)
    else:
        yield problem
