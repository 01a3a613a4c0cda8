"""Which exceptions are sentences for the user, and which are mistakes of the harness."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness.spec import WrongSpec

_SENTENCES = (
    ("checkers.base.history", "MalformedHistory"),
    ("checkers.base.json_file", "BrokenFile"),
    ("harness.backends.backend", "BackendUnavailable"),
    ("nemesis.cards.schedule_files", "BadSchedule"),
    ("system_under_test.own.read_own_system", "BrokenSystem"),
)


def expected() -> tuple[type[Exception], ...]:
    """The exceptions whose message is a sentence for the user.  A module that is not loaded has raised none."""
    loaded = [getattr(sys.modules[module], name) for module, name in _SENTENCES if module in sys.modules]
    return (WrongSpec, OSError, *loaded)


def sentences(problem: BaseException) -> list[str]:
    """The problem in sentences, one for each exception of a group; [] if it is a mistake of the harness."""
    leaves = list(_leaves(problem))
    if all(isinstance(leaf, expected()) for leaf in leaves):
        return list(map(_words, leaves))
    return []


def _words(problem: BaseException) -> str:
    """An error of the operating system without its number, which says nothing to a user."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    return str(problem)


def not_of_the_harness(problem: BaseException) -> bool:
    """Whether the file of the system was wrong, or this machine lacks something: no test took place, and the harness
    did what it should."""
    return all(type(leaf).__name__ in ("BrokenSystem", "BackendUnavailable") for leaf in _leaves(problem))


def _leaves(problem: BaseException) -> Iterator[BaseException]:
    if isinstance(problem, BaseExceptionGroup):
        for inner in problem.exceptions:
            yield from _leaves(inner)
    else:
        yield problem
