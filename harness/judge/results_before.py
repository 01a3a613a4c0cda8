"""The results of an earlier judging, while a stored run is judged again.

results.json belongs to the latest judging.  If that judging refuses the run or is killed, an earlier verdict *valid*
must not remain in results.json, because a program that reads the file would use it as the latest verdict.  So the
earlier results are renamed first.  A judging that finishes removes the earlier results.  A judging that refuses the run
keeps them, and writes the reason and their names to results.json.

If the disk is full, nothing is wrong with the run.  Then the earlier results get their old names again.

If a run began but could not be judged, its verdict is *harness failed*, in results.json and in the report.  So
`results/latest` never leads to a folder without a verdict, or to the verdict of another run.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from checkers.base.results import RESULTS, Results, RunVerdict, read_results, write_results
from checkers.base.verdict import HARNESS_FAILED
from checkers.record.files import BrokenFile

TRACEBACK = "failure.txt"


def record_failure(
    root: Path,
    reason: str,
    problem: BaseException | None = None,
    *,
    not_tested: bool = False,
    before: str = "",
) -> Results:
    """Write results.json and report.html of a failed run into its folder, and return the results.  If a verdict was
    reached before the failure, keep the verdict, and only add the reason and the exit code.

    problem: unexpected exception, whose traceback is stored in failure.txt
    not_tested: True if no test took place, without an error of the harness (`exceptions_for_users`)
    before: name of the file with the results of an earlier judging
    Raises OSError if results.json cannot be written, but not if the report cannot be written.
    """
    results = replace(
        _reached(root) or Results(RunVerdict.HARNESS_FAILED),
        exit_code=HARNESS_FAILED,
        summary=f"{'No test took place' if not_tested else 'The harness failed'}: {reason}",
        reason=reason,
        failure=reason,
    )
    results = replace(results, not_tested=results.not_tested or not_tested, before=before or results.before)
    if problem is not None:
        (root / TRACEBACK).write_text("".join(traceback.format_exception(problem)))
    write_results(root, results)
    try:
        from harness.report.render import render

        render(root)
    except Exception as wrong:  # noqa: BLE001 - the run has failed already, and its reason is what matters
        words = f"the report could not be written: {type(wrong).__name__}: {wrong}"
        results = replace(results, report_failure=words)
        write_results(root, results)
    return results


def _reached(root: Path) -> Results | None:
    try:
        return read_results(root)
    except BrokenFile:
        return None


NAMES: Mapping[str, str] = {
    RESULTS: "results.before.json",
    "report.html": "report.before.html",
    "junit.xml": "junit.before.xml",
}
"""Name of a file with results -> name of the file while the run is judged again."""

SOURCES = ("history.*", "trace/*", "nodes/*/data/**/*.log")
"""Patterns of the files from which judging makes buckets and tables of about the same size."""
FULL_BYTES = 500_000
REPORT_BYTES = 4_000_000
"""Estimated size of the report and results.json, in bytes."""


def is_judged(root: Path) -> bool:
    """Return True if the folder contains results of a judging."""
    return _results(root) is not None


def set_aside(root: Path) -> None:
    """Rename the results of an earlier judging.  Raises OSError if the folder cannot be written.

    If the latest judging refused the run, remove its results instead, because the earlier results are already renamed.
    """
    last = _results(root)
    refused = last is not None and last.before != ""
    for name, other in NAMES.items():
        with contextlib.suppress(FileNotFoundError):
            (root / name).unlink() if refused else (root / name).replace(root / other)


def remove(root: Path) -> None:
    """Remove the earlier results, because this judging has finished.  A folder with such a name is not removed."""
    for path in (root / other for other in NAMES.values()):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)


def restore(root: Path) -> None:
    """Remove the results of a judging that did not finish, and give the earlier results their old names."""
    for name, other in NAMES.items():
        (root / name).unlink(missing_ok=True)
        (root / f"{name}.partial").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (root / other).replace(root / name)


def disk_is_full(root: Path, problem: BaseException) -> bool:
    """Return True if a judging ended because the disk is full.  Some libraries drop the number of such an error, so the
    free space is checked too.
    """
    leaves = problem.exceptions if isinstance(problem, BaseExceptionGroup) else (problem,)
    errors = [one for one in leaves if isinstance(one, OSError)]
    numbers = {one.errno for one in errors}
    return bool(numbers & {errno.ENOSPC, errno.EDQUOT} or (errors and shutil.disk_usage(root).free < FULL_BYTES))


def full_disk(root: Path) -> str:
    """Return the message for a full disk, with the space that judging needs: it writes sorted copies of the history,
    logs and traces."""
    size_bytes = sum(path.stat().st_size for name in SOURCES for path in root.glob(name) if path.is_file())
    needed_mb = (size_bytes + REPORT_BYTES) / 1e6
    free_mb = shutil.disk_usage(root).free / 1e6
    words = f"the disk of {root} is full: judging needs about {needed_mb:.0f} MB, and {free_mb:.0f} MB are free"
    return f"{words}; the earlier results were not changed"


def refused(root: Path, reason: str, problem: BaseException | None = None) -> None:
    """Write results with the reason why this judging did not finish.  Keep a verdict that it has reached.

    problem: unexpected exception, or None
    Do nothing if the folder cannot be written, because then no earlier results were renamed.
    """
    before = NAMES[RESULTS] if (root / NAMES[RESULTS]).exists() else ""
    with contextlib.suppress(OSError):
        record_failure(root, reason, problem, before=before)


def _results(root: Path) -> Results | None:
    try:
        return read_results(root)
    except (BrokenFile, OSError):
        return None
