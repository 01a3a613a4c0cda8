"""One page over many runs: what ended as it should, what was found, where to read on.

It reads only the small JSON files of each run, so that it can be written again after every run of a long campaign.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from checkers.base.json_file import mapping
from harness import plain_words as words
from harness.explanations.headline import verdict_in_words
from harness.explanations.planted_bug_words import planted
from harness.report.render import environment, template_text
from harness.spec import Spec

STYLES = ("styles/base.css", "styles/campaign.css")


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run.  expected: a clean system valid, a planted bug found by its checker; link: relative to the page."""

    test: str
    subject: str
    workload: str
    backend: str
    bug: str
    seed: str
    started: str
    verdict: str
    mark: str
    expected: bool
    summary: str
    link: str
    rerun: str
    judging: str
    folder: str


@dataclass(frozen=True, slots=True)
class RunGroup:
    """All runs of one test of one subject, with or without one bug, oldest first."""

    title: str
    bug: str
    runs: list[RunRow]

    @property
    def good(self) -> int:
        return sum(r.expected for r in self.runs)

    @property
    def words(self) -> str:
        """How often it ended as it should."""
        what = "found" if self.bug else "valid"
        return f"{what} in {self.good} of {words.plural(len(self.runs), 'run')}"


def render_campaign(run_folders: Sequence[Path], out: Path) -> Path:
    """Write the page to `out` (a file, or a folder that gets `index.html`); the path of the page.

    A folder without a verdict is shown as unknown; an empty list gives a page that says so.
    """
    page = out / "index.html" if out.is_dir() else out
    rows = [_row(folder, page.parent) for folder in run_folders]
    groups: dict[tuple[str, str], list[RunRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda r: r.started):
        groups[f"{row.test} on {row.subject}{row.workload and f', {row.workload}'}", row.bug].append(row)
    shown = [
        RunGroup(title, bug, runs) for (title, bug), runs in sorted(groups.items(), key=lambda x: (x[0][1] != "", x[0]))
    ]
    html = environment().get_template("campaign.html.j2").render(
        groups=shown,
        rows=sorted(rows, key=lambda r: (r.expected, r.started)),
        title=_title(rows),
        mark="none" if not rows else "valid" if all(r.expected for r in rows) else _worst(rows),
        style=Markup("\n".join(template_text(name) for name in STYLES)),
    )  # fmt: skip
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(html, encoding="utf-8", errors="replace")
    return page


def _title(rows: Sequence[RunRow]) -> str:
    wrong = sum(not r.expected for r in rows)
    if not rows:
        return "No runs yet."
    if not wrong:
        return f"{'All ' if len(rows) > 1 else ''}{words.plural(len(rows), 'run')} ended as expected."
    return f"{wrong} of {words.plural(len(rows), 'run')} did not end as expected."


def _worst(rows: Sequence[RunRow]) -> str:
    return "invalid" if any(not r.expected and r.verdict == "invalid" and not r.bug for r in rows) else "unknown"


def _row(folder: Path, page_folder: Path) -> RunRow:
    test, results = _read(folder / "test.json"), _read(folder / "results.json")
    spec = mapping(test.get("spec"))
    bug = planted(results, test)
    verdict = str(results.get("verdict") or "unknown")
    report = folder / "report.html"
    judging = results.get("judging_s")
    return RunRow(
        test=words.shorten(str(test.get("test") or folder.parent.name), 60),
        subject=words.shorten(str(spec.get("subject") or "?"), 40),
        workload="" if spec.get("workload") == Spec().workload else words.shorten(str(spec.get("workload") or ""), 40),
        backend=words.shorten(str(spec.get("backend") or ""), 40),
        bug=words.shorten(str(spec.get("bug") or ""), 60),
        seed=words.shorten(str(test.get("seed", spec.get("seed", "?"))), 40),
        started=words.shorten(str(test.get("started_utc") or "").replace("T", " ")[:19], 40),
        verdict=words.shorten(verdict, 20),
        mark=verdict if verdict in ("valid", "invalid") else "unknown",
        expected=bug.found if bug else verdict == "valid",
        summary=verdict_in_words(results, test) if results else "This run was never judged.",
        link=Path(os.path.relpath(report if report.exists() else folder, page_folder)).as_posix(),
        rerun=words.shorten(str(test.get("rerun") or ""), 400),
        judging=f"{judging:.1f} s" if isinstance(judging, int | float) else "",
        folder=folder.name,
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
