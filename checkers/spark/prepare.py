"""Prepares a machine: compiles kernels and records the class-data archive, so that no run and no check waits for them.

A run needs the first group of kernels and the archive.  The other groups serve `check` and the project's own tests; a
process behind the first run compiles them at the lowest priority.  What is not compiled by then is compiled on its
first use.  Two processes share the work.  A step that takes longer than a moment is reported at its begin and its end.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import shutil
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from checkers.base.cache_folder import cache_folder
from checkers.base.checker import Budget, Part
from checkers.judging.tasks import Task
from checkers.kernels.jit import kernels_folder
from checkers.spark.java import find_java
from checkers.warm_up import GROUPS, compile_group

PROCESSES = 2
QUIET_S = 2.0
"""A shorter step is not reported."""

ARCHIVE = "Spark's class-data archive"
UNUSED_S_MAX = 30 * 86_400


def prepare(everything: bool = True, processes: int = PROCESSES) -> None:
    """Do the steps that are not done yet.  everything: also the kernels that no run needs.

    Raises SparkUnavailable where Spark cannot run, WrongVerdict where kernels err.
    """
    began = time.monotonic()
    first, *others = GROUPS if everything else list(GROUPS)[:1]
    find_java()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(compile_group, name): name for name in (first, *others)}
        announced = False
        while running:
            done, _ = wait(running, QUIET_S, FIRST_COMPLETED)
            if not done and not announced:
                announced = True
                print(f"preparing kernels, once per machine: {', '.join((first, *others))}", flush=True)
            for future in done:
                name = running.pop(future)
                _tell(name, future)
                if name == first:  # Spark's workers load these kernels, and would compile them a second time
                    running[pool.submit(record_archive)] = ARCHIVE
    _forget_unused()
    print(f"prepared: kernels in {kernels_folder()}, {ARCHIVE} ({time.monotonic() - began:.1f} s)", flush=True)


def prepare_behind() -> None:
    """Prepare everything at the lowest priority, unless another process of this user does; its output goes to a log."""
    with (cache_folder() / "prepare.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        with (cache_folder() / "prepare.log").open("w", buffering=1) as log, contextlib.redirect_stdout(log):
            prepare(processes=1)


def record_archive() -> float:
    """Record it if it is not there; how many seconds it took.  A Java that records none is no failure."""
    import pyspark

    from checkers.spark.session import SparkJudge

    began = time.monotonic()
    archive = find_java().archive(pyspark.__version__)
    if archive.exists():
        return 0.0
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}")
    judge = SparkJudge(record_archive=partial)
    try:
        judge.judge([Task(_nothing, Part(()), Budget())])
    finally:
        judge.stop()
    if partial.exists():
        partial.replace(archive)
        _forget_older(archive)
    return time.monotonic() - began


def _tell(name: str, future: Future[float]) -> None:
    if (seconds := future.result()) > QUIET_S:
        print(f"  {name}: {seconds:.1f} s", flush=True)


def _nothing(part: Part, budget: Budget) -> None:
    """A judge for the one job that the archive is recorded from."""


def _forget_older(archive: Path) -> None:
    """Remove archives of other versions: they are large, and of no use once this one exists."""
    for other in archive.parent.glob("classes-*.jsa"):
        if other != archive and time.time() - other.stat().st_mtime > 7 * 86_400:
            other.unlink(missing_ok=True)


def _forget_unused() -> None:
    """Remove machine code of old sources.  Kernels that are still used are compiled again, and then are young."""
    for folder in kernels_folder().iterdir():
        if time.time() - folder.stat().st_mtime > UNUSED_S_MAX:
            shutil.rmtree(folder, ignore_errors=True)
