"""The results of an earlier judging, while a stored run is judged again.

results.json belongs to the last judging.  If that one refuses the run, or is killed, an earlier *valid* must not
remain, because a program that reads results.json would take it for the current result.  So the earlier results get
other names first.  A judging that finishes removes them.  One that refuses leaves them, and results.json gives the
reason and their names.

A full disk is no refusal, because nothing is wrong with the run.  Then the earlier results get their names back.

A run that began and could not be judged: its verdict is *harness failed*, in results.json and on a page.

So `results/latest` never leads to a folder without a verdict, and never to the verdict of another run.
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
    """Write results.json and report.html into a run folder; return the results.

    A verdict that was reached before the failure stands; then only the reason and the exit code are added.
    problem: an unexpected exception; its traceback is stored in failure.txt.
    not_tested: no test took place, through no fault of the harness (`exceptions_for_users`). before: name of the file
    with the results of an earlier judging.  Never raises for a page that cannot be written; results.json alone must
    suffice then.  Raises OSError if not even that can be written.
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
"""Name of a result -> its name while the run is judged again."""

SOURCES = ("history.*", "trace/*", "nodes/*/data/**/*.log")
"""Files that judging writes in addition, such as buckets and tables."""
FULL_BYTES = 500_000
REPORT_BYTES = 4_000_000
"""The report and results.json."""


def is_judged(root: Path) -> bool:
    """Return whether the folder holds results of a judging."""
    return _results(root) is not None


def set_aside(root: Path) -> None:
    """Rename the results of an earlier judging.  Raises OSError if the folder cannot be written.

    If the last judging refused the run, its results are removed, because the earlier ones are already set aside.
    """
    last = _results(root)
    refused = last is not None and last.before != ""
    for name, other in NAMES.items():
        with contextlib.suppress(FileNotFoundError):
            (root / name).unlink() if refused else (root / name).replace(root / other)


def remove(root: Path) -> None:
    """Remove the earlier results, because this judging has finished.  A folder of that name is no result, and
    remains.
    """
    for path in (root / other for other in NAMES.values()):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)


def restore(root: Path) -> None:
    """Rename the earlier results back; results of a judging that did not finish are removed."""
    for name, other in NAMES.items():
        (root / name).unlink(missing_ok=True)
        (root / f"{name}.partial").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (root / other).replace(root / name)


def disk_is_full(root: Path, problem: BaseException) -> bool:
    """Return whether a judging ended because the disk is full.  Libraries drop the number and the text of such an
    error, so the disk itself is checked, too.
    """
    leaves = problem.exceptions if isinstance(problem, BaseExceptionGroup) else (problem,)
    errors = [one for one in leaves if isinstance(one, OSError)]
    numbers = {one.errno for one in errors}
    return bool(numbers & {errno.ENOSPC, errno.EDQUOT} or (errors and shutil.disk_usage(root).free < FULL_BYTES))


def full_disk(root: Path) -> str:
    """Return the message for a full disk.  Judging writes the history, logs and traces of a run again, sorted."""
    size_bytes = sum(path.stat().st_size for name in SOURCES for path in root.glob(name) if path.is_file())
    needed_mb = (size_bytes + REPORT_BYTES) / 1e6
    free_mb = shutil.disk_usage(root).free / 1e6
    words = f"the disk of {root} is full: judging needs about {needed_mb:.0f} MB, and {free_mb:.0f} MB are free"
    return f"{words}; the results of before are as they were"


def refused(root: Path, reason: str, problem: BaseException | None = None) -> None:
    """Write results that say why this judging did not finish.  A verdict that it has reached remains.

    problem: an unexpected exception.  Does nothing if the folder cannot be written, because then nothing could be set
    aside.
    """
    before = NAMES[RESULTS] if (root / NAMES[RESULTS]).exists() else ""
    with contextlib.suppress(OSError):
        record_failure(root, reason, problem, before=before)


def _results(root: Path) -> Results | None:
    try:
        return read_results(root)
    except (BrokenFile, OSError):
        return None
