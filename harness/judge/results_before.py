"""The results of an earlier judging, while a stored run is judged again.

results.json belongs to the last judging.  If that one refuses the run, or is killed, an earlier *valid* must not stay:
a program that reads results.json would take it for the answer.  So the earlier results get other names first.  A
judging that ends removes them.  One that refuses leaves them, and results.json says why and where they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkers.base.json_file import read_object
from checkers.record.reading import BrokenFile
from harness.judge.harness_failed import record_failure

NAMES: Mapping[str, str] = {
    "results.json": "results.before.json",
    "report.html": "report.before.html",
    "junit.xml": "junit.before.xml",
}
"""Name of a result -> its name while the run is judged again."""

_BEFORE = "before"


def is_judged(root: Path) -> bool:
    """Whether the folder holds results of a judging."""
    return isinstance(_results(root).get("checkers"), dict)


def set_aside(root: Path) -> None:
    """Give the results of an earlier judging their other names.  Raises OSError if the folder cannot be written.

    If the last judging refused the run, its results are removed: those of the judging before it are set aside already.
    """
    refused = _BEFORE in _results(root)
    for name, other in NAMES.items():
        with contextlib.suppress(FileNotFoundError):
            (root / name).unlink() if refused else (root / name).replace(root / other)


def remove(root: Path) -> None:
    """Remove what was set aside: this judging has ended.  A folder of that name is no result, and stays."""
    for path in (root / other for other in NAMES.values()):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)


def refused(root: Path, reason: str, problem: BaseException | None = None) -> None:
    """Write results that say why this judging did not end.  A verdict that it has reached stands.

    problem: an unexpected exception.  Does nothing if the folder cannot be written: then nothing could be set aside.
    """
    before = NAMES["results.json"] if (root / NAMES["results.json"]).exists() else ""
    with contextlib.suppress(OSError):
        record_failure(root, reason, problem, with_plots=False, more={_BEFORE: before} if before else {})


def _results(root: Path) -> dict[str, Any]:
    try:
        return dict(read_object(root / "results.json"))
    except (BrokenFile, OSError):
        return {}
