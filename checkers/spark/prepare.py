"""Prepares a machine: compiles kernels and records the class-data archive, so that no run and no check waits for them.

    python -m checkers.spark.prepare [--all]

Without --all the command compiles only the kernels that a run needs.  With --all it compiles every kernel and records
the archive.

A run needs the first group of kernels.  `check`, `analyze` and the project's own tests need the other groups and the
archive.  A kernel that is not prepared is compiled on its first use; without the archive Spark only starts more slowly.
Two processes share the work.  A step that takes longer than QUIET_S is reported.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from checkers.base.checker import Budget, Part, Task, no_finding
from checkers.kernels.machine_code import kernels_folder
from checkers.spark.bundle import forget_unused
from checkers.spark.java import SparkUnavailable, find_java
from checkers.warm_up import GROUPS, WrongVerdict, compile_group

PROCESSES = 2
QUIET_S = 2.0
"""Minimum duration in seconds of a step that is reported."""

ARCHIVE = "Spark's class-data archive"
UNUSED_S_MAX = 30 * 86_400


def prepare(everything: bool) -> None:
    """Do the steps that are not done yet.

    everything: True to also record the archive and compile the kernels that no run needs
    Raises SparkUnavailable if Spark cannot run, WrongVerdict if a kernel gives a wrong verdict.
    """
    began = time.monotonic()
    first, *others = GROUPS if everything else list(GROUPS)[:1]
    find_java()
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(compile_group, name): name for name in (first, *others)}
        announced = False
        while running:
            done, _ = wait(running, QUIET_S, FIRST_COMPLETED)
            if not done and not announced:
                announced = True
                print(f"preparing kernels, once per machine: {', '.join((first, *others))}", flush=True)
            for future in done:
                name = running.pop(future)
                if (seconds := future.result()) > QUIET_S:
                    print(f"  {name}: {seconds:.1f} s", flush=True)
                # Spark's workers load the first group of kernels; started earlier, they would compile it a second time.
                if everything and name == first:
                    running[pool.submit(record_archive)] = ARCHIVE
    forget_unused(kernels_folder(), UNUSED_S_MAX, "*")  # mostly kernels of old sources; needed ones are compiled again
    archive = f", {ARCHIVE}" if everything else ""
    print(f"prepared: kernels in {kernels_folder()}{archive} ({time.monotonic() - began:.1f} s)", flush=True)


def record_archive() -> float:
    """Record the archive if it does not exist.  Returns the duration in seconds.

    Some versions of Java do not record an archive.  This is no failure.
    """
    import pyspark

    from checkers.spark.session import SparkJudge

    began = time.monotonic()
    archive = find_java().archive(pyspark)
    if archive.exists():
        return 0.0
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}")
    judge = SparkJudge(record_archive=partial)
    try:
        judge.judge([Task(no_finding, Part(()), Budget())])
    finally:
        judge.stop()
    if partial.exists():
        partial.replace(archive)
        forget_unused(archive.parent, 7 * 86_400, "classes-*.jsa")  # archives of other versions are large
    return time.monotonic() - began


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--all"]):
        raise SystemExit("usage: python -m checkers.spark.prepare [--all]")
    try:
        prepare(everything="--all" in sys.argv)
    except SparkUnavailable as problem:
        raise SystemExit(f"cannot prepare Spark: {problem}") from None
    except WrongVerdict as problem:
        raise SystemExit(f"do not trust this installation: {problem}") from None
