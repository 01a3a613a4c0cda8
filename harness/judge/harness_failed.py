"""A run that began and could not be judged: *harness failed* is its verdict, in results.json and on a page.

So `results/latest` never leads to a folder without a verdict, and never to the verdict of another run.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkers.base.json_file import read_object
from checkers.base.verdict import HARNESS_FAILED
from checkers.record.files import BrokenFile

VERDICT = "harness failed"
TRACEBACK = "failure.txt"


def record_failure(
    root: Path,
    reason: str,
    problem: BaseException | None = None,
    *,
    with_plots: bool = True,
    not_tested: bool = False,
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write results.json and report.html into a run folder; the content of results.json.

    A verdict that was reached before the failure stands; then only the reason and the exit code are added.
    problem: an unexpected exception; its traceback is kept in failure.txt.  with_plots: as in `render`.
    not_tested: no test took place, through no fault of the harness (`exceptions_for_users`).  more: is added to the
    results.  Never raises for a page that cannot be written: results.json alone must then do.  Raises OSError if not
    even that can be written.
    """
    results = _reached(root) or {"verdict": VERDICT, "checkers": {}}
    results |= dict(more or {})
    results |= {"exit_code": HARNESS_FAILED, "failure": reason, "reason": reason}
    results |= {"not_tested": True} if not_tested else {}
    results["summary"] = f"{'No test took place' if not_tested else 'The harness failed'}: {reason}"
    if problem is not None:
        (root / TRACEBACK).write_text("".join(traceback.format_exception(problem)))
    _write(root, results)
    try:
        from harness.report.render import render

        render(root, with_plots=with_plots)
    except Exception as wrong:  # noqa: BLE001 - the run has failed already, and its reason is what matters
        results["report_failure"] = f"the report could not be written: {type(wrong).__name__}: {wrong}"
        _write(root, results)
    return results


def _reached(root: Path) -> dict[str, Any] | None:
    try:
        reached = dict(read_object(root / "results.json"))
    except BrokenFile:
        return None
    return reached if isinstance(reached.get("checkers"), dict) else None


def _write(root: Path, results: dict[str, Any]) -> None:
    part = root / ".results.json.part"
    part.write_text(json.dumps(results, indent=1) + "\n")
    part.replace(root / "results.json")
