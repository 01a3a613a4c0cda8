"""Judge histories of any source, without a test.  Each file is one task, in this process or on Spark.  Both return the
same verdicts in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkers.base.checker import Budget, CannotJudge, Task, judge_task
from checkers.base.verdict import Verdict
from checkers.by_hand import COUNT, Ask, FileVerdict, joined_verdict, names, task_of, verdict_of
from checkers.formats.read_once import cobra_logs, history_in
from checkers.kernels.jit import load_compiler_for
from harness.report.judged_file import JudgedFile

if TYPE_CHECKING:
    from checkers.spark.session import SparkJudge

FILES_PER_JOB = 32
"""Maximum number of files that Spark judges in one job.  The lines of a job's files are printed together, in order."""


def check(history: str | Path, model: str | Path, *, budget: Budget | None = None, **how: Any) -> Verdict:
    """Judge a history in a file or a folder, and return the verdict.

    history: a file with Jepsen's EDN or log lines, lines of JSON, Krucible's Parquet or Arrow, or a format of another
        checker of transactions (`checkers/formats/session_files.py`), perhaps compressed by gzip or zstd; or a folder:
        Cobra's logs, a run, or a test in Jepsen's store
    model: a name such as "register" (`krucible check --help` lists them), or the path of a Python file with a model
    how: further fields of `Ask`, such as keyed=True
    If the history cannot be read or decided, the verdict is unknown, with the reason.  Raises FileNotFoundError for a
    missing history, BadModel or ValueError for an unknown model.

    >>> from pathlib import Path
    >>> history = Path(getfixture("tmp_path")) / "history.edn"
    >>> _ = history.write_text('''
    ...     {:process 0, :type :invoke, :f :write, :value 1}
    ...     {:process 0, :type :ok,     :f :write, :value 1}
    ...     {:process 1, :type :invoke, :f :read,  :value nil}
    ...     {:process 1, :type :ok,     :f :read,  :value 2}''')
    >>> verdict = check(history, "register")
    >>> str(verdict.validity), verdict.witnesses[0].kind
    ('invalid', 'value from nowhere')
    """
    path, name, source = Path(history), str(model), ""
    if not path.is_file() and not (path.is_dir() and (cobra_logs(path) or history_in(path))):
        raise FileNotFoundError(f"there is no history {path}")
    if name.endswith(".py"):
        from checkers.models.read_own_model import load_model

        load_model(Path(name))
        source = Path(name).read_text(encoding="utf-8")
    elif name not in names() and not name.startswith("semaphore:"):
        raise ValueError(f"there is no model {name!r}; there are {', '.join(names())}")
    (judged,) = judge_in_process([path], Ask(name, source, **how), budget or Budget())
    return judged.verdict


def judge_in_process(files: Sequence[Path], ask: Ask, budget: Budget) -> Iterator[JudgedFile]:
    """Judge one file after another.  Does not raise, whatever the content of the files."""
    load_compiler_for(sum(path.stat().st_size for path in files if path.is_file()))
    return (_judged(path, verdict_of(judge_task(task_of(path, ask, budget))), ask) for path in files)


def judge_on_spark(
    files: Sequence[Path], ask: Ask, budget: Budget, master: str, progress: Callable[[int], None]
) -> Iterator[JudgedFile]:
    """Judge many files at once.  If Spark cannot run, judge the files in this process, and report that on stderr.

    master: `local`, or the URL of a cluster whose workers can read the same paths
    progress: called with the number of files judged so far
    """
    from checkers.spark.session import SparkJudge

    spark = SparkJudge(None if master == "local" else master)
    done = 0
    try:
        spark.start_in_background()
        for first in range(0, len(files), FILES_PER_JOB):
            some = files[first : first + FILES_PER_JOB]
            tasks = [task_of(path.resolve(), replace(ask, group=COUNT), budget) for path in some]
            answers = spark.judge(tasks, lambda n, _: progress(done + n))  # noqa: B023 - called within this round
            for path, found in zip(some, _by_groups(spark, tasks, [verdict_of(a) for a in answers]), strict=True):
                yield _judged(path, found, ask)
                done += 1
    except CannotJudge as problem:
        print(f"krucible: judging in process: {problem}", file=sys.stderr)
        yield from judge_in_process(files[done:], ask, budget)
    finally:
        spark.stop()


def _by_groups(spark: SparkJudge, tasks: Sequence[Task], found: Sequence[FileVerdict]) -> list[FileVerdict]:
    """Judge files that are divided into groups in one job, each group as a task, and join the verdicts per file."""
    counts = [each.groups_to_judge for each in found]
    of_groups = [
        replace(task, part=replace(task.part, params={**task.part.params, "group": group}))
        for task, count in zip(tasks, counts, strict=True)
        for group in range(count)
    ]
    answers = iter(spark.judge(of_groups, lambda _done, _all: None) if of_groups else ())
    return [
        joined_verdict([verdict_of(next(answers)) for _ in range(count)]) if count else each
        for each, count in zip(found, counts, strict=True)
    ]


def _judged(path: Path, found: FileVerdict, ask: Ask) -> JudgedFile:
    return JudgedFile(str(path), found.verdict, found.error, ask.model or found.model)
