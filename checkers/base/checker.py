"""The interface of a checker, and the tasks that judge its parts.

A checker is a value: it names its needs, splits a run, judges parts, combines findings.

    run folder --split--> parts --judge (pure, in a Spark worker or in process)--> findings --combine--> Verdict

A part names files and the slice of the files to judge.  `judge` opens the files itself, so no row passes through the
JVM.  The same `judge` runs in process and on Spark, and its findings are equal bit for bit.  If a part needs more
memory than its budget allows, `judge` raises BeyondBudget.  If a part exceeds its budget of steps, its finding states
what is unknown.  The other parts are judged as usual.

*Tasks.*  A task is one part with everything that a worker needs to judge the part, in this process or on a Spark node.

Budgets count steps, so that a history has the same verdict on every machine.  A time limit protects only against errors
of the checkers themselves; a verdict that depends on it may differ between machines.  A task runs in a separate thread,
and after the time limit the caller abandons this thread.  Compiled kernels run without the interpreter's lock, so the
caller continues even if a kernel hangs.  An abandoned thread gets an exception at its next step in Python.  The thread
is a daemon, so it never delays the end of the process.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args

from checkers.base.history import MalformedHistory
from checkers.base.verdict import Verdict
from checkers.record.files import BrokenFile

if TYPE_CHECKING:  # stored_run imports pyarrow, which a check of a small text does not need
    from checkers.base.stored_run import StoredRun


Need = Literal[
    "history",
    "logs",
    "traces",
    "nodes",
    "model",
    "unique-values",
    "client-records",
    "kraft-records",
    "kraft-steps",
    "topic-logs",
    "two-implementations",
]
"""A need of a checker.

history: the operations of clients
logs, traces: files that the servers wrote
nodes: server processes on which faults act
model: the workload names this checker, because only this checker understands the workload's histories
unique-values: the workload writes no value twice to a key
client-records: the logs contain clients' writes, not only decisions of controllers
kraft-records: the logs contain metadata records of KRaft
topic-logs: copies of the logs of topics, with their checkpoint files
two-implementations: the subject compares the output or the reading of two implementations of one format
kraft-steps: logs and traces of the bundled KRaft, whose protocol has a cause for each record and each row
"""


Ground = Literal["times", "answerers"]
"""Facts besides its rows on which a violation may depend.

times: invocation and answer times of operations, compared with times in the servers' traces
answerers: the names of the servers that answered
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One unit of work: the files to open, and parameters.  It is small and picklable, and it holds no rows."""

    paths: tuple[str, ...]
    params: dict[str, Any] = field(default_factory=dict)


class BeyondBudget(Exception):
    """A part needs more memory than its budget allows, so the part is unknown.  The message names the data."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one part.

    steps: maximum number of steps
    size_bytes: maximum memory in bytes.  Both are counted and not measured, so that a history has the same verdict on
    every machine.
    wall_s: maximum duration in seconds.  A part that takes longer is unknown, which may depend on the machine.
    """

    steps: int = 200_000_000
    size_bytes: int = 2_000_000_000
    wall_s: float = 900.0

    def demand(self, size_bytes: int, what: str) -> None:
        """Raise BeyondBudget if some data needs more memory than the budget.

        what: the data, in the plural, for the message
        """
        if size_bytes > self.size_bytes:
            raise BeyondBudget(f"{what} are beyond the budget of {self.size_bytes} bytes")


@dataclass(frozen=True, slots=True)
class Checker:
    """One checker.

    name: its name in results.json
    title: its title in the report
    question: the question that the checker decides, one sentence for readers
    split: function of a run; returns its parts
    judge: function of a part and its budget; returns a finding
    combine: function of a run and its findings, in the order of the parts; returns the verdict
    needs: the checker does not judge a run that lacks one of these (`checkers.catalog.select`), nor a run without any
    logs or traces if the checker needs them (`stored_run.not_judged`); then `combine` is not called
    rests_on: facts on which its violations depend.  If a run refutes one of these facts, the violations become unknown.
    about_the_run: True if the checker judges the test itself; then it may be valid although all its counts are zero
    in_process: True if the checker's code is in a user's own file, which Spark workers do not have

    Raises ValueError for an unknown need.
    """

    name: str
    title: str
    question: str
    split: Callable[[StoredRun], Sequence[Part]]
    judge: Callable[[Part, Budget], Any]
    combine: Callable[[StoredRun, Sequence[Any]], Verdict]
    needs: frozenset[Need] = frozenset({"history"})
    rests_on: frozenset[Ground] = frozenset()
    about_the_run: bool = False
    in_process: bool = False

    def __post_init__(self) -> None:
        known = get_args(Need)
        if unknown := sorted(set(self.needs) - set(known)):
            words = f"(known: {', '.join(known)})"
            raise ValueError(f"checker {self.name} needs {unknown[0]!r}, which nothing offers {words}")


def checker_of_run(
    name: str,
    title: str,
    question: str,
    combine: Callable[[StoredRun, Sequence[Any]], Verdict],
    needs: frozenset[Need] = frozenset({"history"}),
    about_the_run: bool = True,
) -> Checker:
    """Return a checker without parts: its `combine` judges the run as a whole."""
    return Checker(name, title, question, no_parts, no_finding, combine, needs, about_the_run=about_the_run)


def no_parts(run: StoredRun) -> Sequence[Part]:
    return ()


def no_finding(part: Part, budget: Budget) -> None:
    """Never called, because there are no parts."""


R = TypeVar("R")


class OutOfTime(RuntimeError):
    """A task exceeded its time limit; the message contains the limit."""


def within(wall_s: float, work: Callable[[], R]) -> R:
    """Return the result of `work`, or raise its exception.  Raises OutOfTime after `wall_s` seconds."""
    running = _Running(work)
    thread = threading.Thread(target=running.run, daemon=True, name="judging")
    thread.start()
    thread.join(wall_s)
    if thread.is_alive():
        _raise_in(thread)
        raise OutOfTime(f"judging took longer than {wall_s:g} s, and no budget of steps ended it")
    if running.problem is not None:
        raise running.problem
    [result] = running.results
    return result


class _Running(Generic[R]):
    """The work of one thread, with its result or its exception."""

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
    """The result of a task.

    finding: the value of `judge`; None if `judge` failed
    failure: reason of the failure in one sentence, or ""
    seconds: duration in seconds
    """

    finding: Any
    failure: str
    seconds: float


class CannotJudge(RuntimeError):
    """Tasks cannot be judged in the requested place; the message gives the reason and the remedy."""


class TaskJudge(Protocol):
    """A place where tasks are judged (Spark).

    description: the place in words, for results.json
    """

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
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - a failed judge proves nothing, and stops no other judge
        return Judged(None, f"{named(task.part)}: {in_words(problem)}", time.perf_counter() - began)


def named(part: Part) -> str:
    """Return the beginning of a sentence about a part: the names of its files."""
    return ", ".join(Path(path).name for path in part.paths) or "a part without files"


def in_words(problem: BaseException) -> str:
    """Return a description of a failure in one clause, for readers who did not write the checker."""
    match problem:
        case MemoryError():
            return "out of memory"
        case FileNotFoundError() if problem.filename:
            return f"{problem.filename} is missing"
        case MalformedHistory() | BrokenFile() | FileNotFoundError() | OutOfTime() | BeyondBudget():
            return str(problem)
        case _:
            first_line = (str(problem).splitlines() or [""])[0]
            return f"{type(problem).__name__}: {first_line}" if first_line else type(problem).__name__
