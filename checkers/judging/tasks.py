"""Tasks: one part to judge, with all that a worker needs, in this process or on a node of Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from checkers.base.checker import Budget, Part
from checkers.base.history import MalformedHistory
from checkers.judging.wall_clock import OutOfTime, within
from checkers.record.files import BrokenFile


@dataclass(frozen=True, slots=True)
class Task:
    """One part to judge, with all that a worker needs; small and picklable."""

    judge: Callable[[Part, Budget], Any]
    part: Part
    budget: Budget


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a task.  finding: the value of `judge`, None if it failed; failure: why, in one sentence."""

    finding: Any
    failure: str
    seconds: float


class CannotJudge(RuntimeError):
    """No place to judge in is available; the message gives the reason and the remedy."""


class TaskJudge(Protocol):
    """A place where tasks are judged (Spark).  description: the place in words, for results.json."""

    @property
    def description(self) -> str: ...

    def judge(self, tasks: Sequence[Task], progress: Callable[[int, int], None] | None = None) -> list[Judged]:
        """Judge all tasks; the results have the same order.  Calls progress(done, total).  Raises CannotJudge."""
        ...


def judge_task(task: Task) -> Judged:
    """Judge one part in this process, which may be a Spark worker.  Never raises."""
    began = time.perf_counter()
    try:
        finding = within(task.budget.wall_s, lambda: task.judge(task.part, task.budget))
        return Judged(finding, "", time.perf_counter() - began)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - a judge that breaks proves nothing, and stops no other
        return Judged(None, f"{named(task.part)}: {in_words(problem)}", time.perf_counter() - began)


def named(part: Part) -> str:
    """The beginning of a sentence about a part: the names of its files."""
    return ", ".join(Path(path).name for path in part.paths) or "a part without files"


def in_words(problem: BaseException) -> str:
    """The failure in one sentence, for people who did not write the checker."""
    match problem:
        case MemoryError():
            return "out of memory"
        case FileNotFoundError() if problem.filename:
            return f"{problem.filename} is missing"
        case MalformedHistory() | BrokenFile() | FileNotFoundError() | OutOfTime():
            return str(problem)
        case _:
            first_line = (str(problem).splitlines() or [""])[0]
            return f"{type(problem).__name__}: {first_line}" if first_line else type(problem).__name__
