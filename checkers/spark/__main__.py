"""`python -m checkers.spark prepare`: compile the kernels and record the class-data archive, once per machine.

Whoever does not prepare pays later: the first verdict then waits for the compiler, and every Spark starts more slowly.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from checkers.cache_folder import cache_folder
from checkers.checker import Budget, Part
from checkers.spark.java import SparkUnavailable, find_java
from checkers.tasks import Task
from checkers.verdict import Validity

USAGE = "usage: python -m checkers.spark prepare"


def prepare() -> None:
    """Do what is not done yet.  Raises SparkUnavailable where Spark cannot run."""
    _say("kernels", _compile_kernels)
    _say("class-data archive", _record_archive)


def _compile_kernels() -> str:
    from checkers.warm import load_kernels, load_rare_kernels

    verdicts = [load_kernels()["linearizability"], *load_rare_kernels()]
    if any(verdict.validity is not Validity.INVALID for verdict in verdicts):
        raise SystemExit("the kernels do not find a planted stale read: do not trust this installation")
    kept = cache_folder() / "kernels"
    for folder in kept.iterdir():  # of sources long changed; what is still used is compiled again, and then is young
        if time.time() - folder.stat().st_mtime > 30 * 86_400:
            shutil.rmtree(folder, ignore_errors=True)
    return f"in {kept}"


def _record_archive() -> str:
    import pyspark

    from checkers.spark.session import SparkJudge

    archive = find_java().archive(pyspark.__version__)
    if archive.exists():
        return "there already"
    archive.parent.mkdir(parents=True, exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}")
    judge = SparkJudge(record_archive=partial)
    try:
        judge.judge([Task(_nothing, Part(()), Budget())])
    finally:
        judge.stop()
    if not partial.exists():
        return "this Java recorded none; Spark will start without"
    partial.replace(archive)
    _forget_older(archive)
    return f"{archive.stat().st_size / 1e6:.0f} MB"


def _nothing(part: Part, budget: Budget) -> None:
    """A judge for the one job that the archive is recorded from."""


def _forget_older(archive: Path) -> None:
    """Archives of other versions are of no use once this one stands, and large."""
    for other in archive.parent.glob("classes-*.jsa"):
        if other != archive and time.time() - other.stat().st_mtime > 7 * 86_400:
            other.unlink(missing_ok=True)


def _say(what: str, step: Callable[[], str]) -> None:
    began = time.monotonic()
    print(f"{what} ...", end=" ", flush=True)
    told = step()
    print(f"{told} ({time.monotonic() - began:.1f} s)")


if __name__ == "__main__":
    if sys.argv[1:] != ["prepare"]:
        raise SystemExit(USAGE)
    try:
        prepare()
    except SparkUnavailable as problem:
        raise SystemExit(f"cannot prepare Spark: {problem}") from None
