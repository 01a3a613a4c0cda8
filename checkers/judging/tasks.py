"""Tasks: one part to judge, with all that a worker needs, in this process or on a node of Spark.

A task that does not end is given up.  Budgets count steps, so that a history has one verdict on every machine; the wall
clock is a backstop against errors of the checkers themselves, and lies outside that promise.  A task therefore runs in
a thread of its own, and the caller waits for it only a limited time.  Compiled kernels run without the interpreter's
lock, so the caller can give up even if a kernel hangs.  A thread that is given up gets an exception at its next step in
Python.  It is a daemon, so it never delays the end of the process.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from checkers.base.checker import Budget, Part
from checkers.base.history import MalformedHistory
from checkers.record.files import BrokenFile

R = TypeVar("R")


class OutOfTime(RuntimeError):
    """A task took longer than the wall clock allows; the message contains the limit."""


def within(wall_s: float, work: Callable[[], R]) -> R:
    """The result of `work`, or the exception it raised.  Raises OutOfTime after `wall_s` seconds."""
    running = _Running(work)
    thread = threading.Thread(target=running.run, daemon=True, name="judging")
    thread.start()
    thread.join(wall_s)
    if thread.is_alive():
        _raise_in(thread)
        raise OutOfTime(f"it took longer than {wall_s:g} s of wall clock, and no budget of steps ended it")
    if running.problem is not None:
        raise running.problem
    [result] = running.results
    return result


class _Running(Generic[R]):
    """The work of one thread, and how it ended."""

    def __init__(self, work: Callable[[], R]) -> None:
        self.work = work
        self.results: list[R] = []
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            self.results.append(self.work())
        except BaseException as problem:  # noqa: BLE001 - the caller's thread raises it again
            self.problem = problem


def _raise_in(thread: threading.Thread) -> None:
    """Raise OutOfTime in a thread, at its next step in Python."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(OutOfTime))


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
