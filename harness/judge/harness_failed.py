"""A run that began and could not be judged: *harness failed* is its verdict, in results.json and on a page.

So `results/latest` never leads to a folder without a verdict, and never to the verdict of another run.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path

from checkers.base.results import Results, RunVerdict, read_results, write_results
from checkers.base.verdict import HARNESS_FAILED
from checkers.record.files import BrokenFile

TRACEBACK = "failure.txt"


def record_failure(
    root: Path,
    reason: str,
    problem: BaseException | None = None,
    *,
    with_plots: bool = True,
    not_tested: bool = False,
    before: str = "",
) -> Results:
    """Write results.json and report.html into a run folder; the results.

    A verdict that was reached before the failure stands; then only the reason and the exit code are added.
    problem: an unexpected exception; its traceback is kept in failure.txt.  with_plots: as in `render`.
    not_tested: no test took place, through no fault of the harness (`exceptions_for_users`).  before: name of the file
    that keeps the results of an earlier judging.  Never raises for a page that cannot be written: results.json alone
    must then do.  Raises OSError if not even that can be written.
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

        render(root, with_plots=with_plots)
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
