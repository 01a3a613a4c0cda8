"""Setting a machine up: all kernels compiled, the class-data archive recorded, so that no run and no check waits.

Whoever does not prepare pays later: the first verdict then waits for the compiler, and every Spark starts more slowly.
Two processes share the work; what takes longer than a moment says so when it begins and when it is done.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from checkers.checker import Budget, Part
from checkers.kernels.jit import kernels_folder
from checkers.spark.java import find_java
from checkers.tasks import Task
from checkers.warm import GROUPS, compile_group

PROCESSES = 2
QUIET_S = 2.0
"""What takes no longer is not worth a line."""

ARCHIVE = "Spark's class-data archive"
UNUSED_S_MAX = 30 * 86_400


def prepare() -> None:
    """Do what is not done yet.  Raises SparkUnavailable where Spark cannot run, WrongVerdict where kernels err."""
    began = time.monotonic()
    first, *others = GROUPS
    find_java()
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(compile_group, name): name for name in (first, *others)}
        announced = False
        while running:
            done, _ = wait(running, QUIET_S, FIRST_COMPLETED)
            if not done and not announced:
                announced = True
                print(f"preparing kernels, once per machine: {', '.join(GROUPS)}", flush=True)
            for future in done:
                name = running.pop(future)
                _tell(name, future)
                if name == first:  # Spark's workers load these kernels, and would compile them a second time
                    running[pool.submit(record_archive)] = ARCHIVE
    _forget_unused()
    print(f"prepared: kernels in {kernels_folder()}, {ARCHIVE} ({time.monotonic() - began:.1f} s)", flush=True)


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
    """Archives of other versions are of no use once this one stands, and large."""
    for other in archive.parent.glob("classes-*.jsa"):
        if other != archive and time.time() - other.stat().st_mtime > 7 * 86_400:
            other.unlink(missing_ok=True)


def _forget_unused() -> None:
    """Machine code of sources long changed; what is still used is compiled again, and then is young."""
    for folder in kernels_folder().iterdir():
        if time.time() - folder.stat().st_mtime > UNUSED_S_MAX:
            shutil.rmtree(folder, ignore_errors=True)
