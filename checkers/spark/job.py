"""Runs one Spark job in a thread of its own, so that Ctrl-C works, and abandons the job if no executor works on it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from checkers.spark.java import SparkUnavailable

T = TypeVar("T")
R = TypeVar("R")

POLL_S = 0.25
"""Seconds between two questions about the progress of a job; each one costs the virtual machine some milliseconds."""

TASKS_PER_CORE = 4
"""Maximum number of tasks for each core of this machine.  A cluster gets one for each part: its nodes may freeze."""

_groups = itertools.count()


class JobFailed(RuntimeError):
    """Spark gave the job up.  died: whether a task's worker died at each try; if not, the message gives the reason."""

    def __init__(self, problem: str) -> None:
        super().__init__(_last_python_line(problem))
        self.died = "Traceback" not in problem


def run_job(
    context: Any,
    function: Callable[[T], R],
    items: Sequence[T],
    progress: Callable[[int], None],
    *,
    alone_s_max: float,
    seconds_max: float | None = None,
) -> list[R]:
    """Run function(item) for every item.  Returns the results in the order of the items.

    On a cluster each item is a task.  Spark inside this process gets few tasks: each costs 20 ms of a processor.
    Items that stand side by side are often of one kind, so each task gets items from everywhere.

    Calls progress(number of items done) each time that this number grew.  Ctrl-C cancels the job and raises
    KeyboardInterrupt.  Raises JobFailed if Spark gave the job up.  Raises SparkUnavailable if the cluster had no
    executor for alone_s_max seconds or ended the session, or if the job took longer than seconds_max.
    """
    from pyspark import InheritableThread

    group = f"krucible-{next(_groups)}"
    tasks = len(items)
    if context._jsc.isLocal():
        tasks = min(tasks, TASKS_PER_CORE * context.defaultParallelism)
    order = [place for first in range(tasks) for place in range(first, len(items), tasks)]
    results: dict[int, R] = {}
    problems: list[str] = []

    def run() -> None:
        try:
            context.setJobGroup(group, "judging", interruptOnCancel=True)
            # otherwise each RDD is described in JSON for Spark's pages, and loading the writer takes long
            context.setLocalProperty("spark.rdd.scope.noOverride", "true")
            found = context.parallelize([items[place] for place in order], tasks).map(function).collect()
            results.update(zip(order, found, strict=True))
        except Exception as problem:  # noqa: BLE001 - Spark raises anything; it all means that the job was given up
            problems.append(str(problem))

    thread = InheritableThread(target=run, name=group, daemon=True)
    began = seen_at = time.monotonic()
    thread.start()
    reported = 0
    try:
        while thread.is_alive():
            thread.join(POLL_S)
            if not thread.is_alive():
                break
            now = time.monotonic()
            if (done := _done(context, group) * len(items) // tasks) > reported:
                reported = done
                progress(reported)
            if executors(context):
                seen_at = now
            if now - seen_at > alone_s_max:
                raise SparkUnavailable(f"no executor of {context.master} was left for {alone_s_max:.0f} s")
            if seconds_max is not None and now - began > seconds_max:
                raise SparkUnavailable(f"{context.master} did not answer within {seconds_max:.0f} s")
    except (KeyboardInterrupt, SparkUnavailable):
        _cancel(context, group)
        raise
    if problems:
        if stopped(context):
            raise SparkUnavailable(f"the cluster ended the session: {_first_line(problems[0])}")
        raise JobFailed(problems[0])
    progress(len(items))
    return [results[place] for place in range(len(items))]


def _cancel(context: Any, group: str) -> None:
    """Cancel a job.  It has ended already if the virtual machine is gone."""
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        context.cancelJobGroup(group)


def executors(context: Any) -> int:
    """Return how many executors there are: 1 if Spark runs inside this process, 0 if the cluster has ended the
    session."""
    if stopped(context):
        return 0
    known = int(context._jsc.sc().getExecutorMemoryStatus().size())
    return known if context._jsc.isLocal() else known - 1  # Spark includes the driver in the count


def stopped(context: Any) -> bool:
    """Return whether the session has ended, as it does when a cluster refuses it or goes away."""
    return bool(context._jsc.sc().isStopped())


def _done(context: Any, group: str) -> int:
    """Return how many tasks of a job group are done."""
    tracker = context.statusTracker()
    jobs = [job for number in tracker.getJobIdsForGroup(group) if (job := tracker.getJobInfo(number))]
    stages = [stage for job in jobs for number in job.stageIds if (stage := tracker.getStageInfo(number))]
    return sum(stage.numCompletedTasks for stage in stages)


def _last_python_line(problem: str) -> str:
    """Return the exception that a worker raised, found in Spark's message; else the first line of that message."""
    if "Traceback" not in problem:
        return _first_line(problem)
    inside = problem[problem.rindex("Traceback") :].split("\n\n")[0]
    return _first_line(inside.splitlines()[-1])


def _first_line(problem: str) -> str:
    """Py4J puts 'An error occurred while calling ...' first; the line after it names the exception."""
    lines = [line.strip(" :") for line in problem.splitlines() if line.strip() and "An error occurred" not in line]
    return (lines or ["Spark printed nothing"])[0][:300]
