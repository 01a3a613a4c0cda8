"""Judging histories of any source, without a test: each file as one task, in this process or on Spark.

Both ways give the same verdicts in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from checkers.base.checker import Budget
from checkers.by_hand.judge_file import Ask, task_of, verdict_of
from checkers.judging.tasks import CannotJudge, Judged, judge_task
from harness.report.judged_file import JudgedFile

FILES_PER_JOB = 32
"""Files that Spark judges in one job.  The lines of a job are printed together, so that they come in order."""


def judge_in_process(files: Sequence[Path], ask: Ask, budget: Budget) -> Iterator[JudgedFile]:
    """Judge one file after another.  Never raises for what is in them."""
    return (_judged(path, judge_task(task_of(path, ask, budget)), ask) for path in files)


def judge_on_spark(
    files: Sequence[Path], ask: Ask, budget: Budget, master: str, progress: Callable[[int], None]
) -> Iterator[JudgedFile]:
    """Judge many files at once.  If Spark cannot run, the files are judged in process, and stderr says so.

    master: `local`, or the URL of a cluster whose workers read the same paths.
    progress: called with the number of files judged so far.
    """
    from checkers.spark.session import SparkJudge

    spark = SparkJudge(None if master == "local" else master)
    done = 0
    try:
        spark.start_in_background()
        for first in range(0, len(files), FILES_PER_JOB):
            some = files[first : first + FILES_PER_JOB]
            tasks = [task_of(path.resolve(), ask, budget) for path in some]
            answers = spark.judge(tasks, lambda n, _: progress(done + n))  # noqa: B023 - called within this round
            for path, answer in zip(some, answers, strict=True):
                yield _judged(path, answer, ask)
                done += 1
    except CannotJudge as problem:
        print(f"krucible: judging in process: {problem}", file=sys.stderr)
        yield from judge_in_process(files[done:], ask, budget)
    finally:
        spark.stop()


def _judged(path: Path, answer: Judged, ask: Ask) -> JudgedFile:
    found = verdict_of(answer)
    return JudgedFile(str(path), found.verdict, found.error, ask.model)
