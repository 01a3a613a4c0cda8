"""What a night shows beside its own page: what is new, streaks with trends, a badge, GitHub's step summary."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from checkers.base.verdict import HARNESS_FAILED, Validity
from harness.campaign.campaign_log import AS_EXPECTED, FOUND
from harness.campaign.symptom_status import BACK_AFTER, PastRun, Standing, SymptomStatus, Test, canary_age, streaks
from harness.plain_words import plural
from harness.report.render import environment, template_text

DASHBOARD, BADGE = "dashboard.html", "badge.svg"
STYLES = ("styles/base.css", "styles/campaign.css")
RUNS_SHOWN = 60
STEP_SUMMARY_BYTES = 1_000_000
"""GitHub drops a summary of more than 1 MiB whole."""
_CUT = "\n\n… the rest is in summary.md of the kept artifacts.\n"
_COLOURS = {AS_EXPECTED: "#2da44e", FOUND: "#cf222e"}


def words_of(standing: Sequence[Standing], runs: Sequence[PastRun], now: datetime) -> list[str]:
    """Lines of Markdown: what is new, back, known and gone; the canary's age; the longest and the broken streaks."""
    lines = ["", "### Since the runs before", ""]
    lines += [f"- **{one.state}** {one.line().partition(': ')[2]}" for one in standing] or [
        "- nothing was seen or gone"
    ]
    age = canary_age(runs, now)
    lines.append("- the canary was never found" if age is None else f"- the canary was found {age:.1f} days ago")
    long = streaks(runs)
    broken = sorted(test for test, streak in long.items() if streak == 0)
    lines.append(f"- {len(long) - len(broken)} of {plural(len(long), 'test')} end as they should")
    return lines + [f"- broken: {name_of(test)}" for test in broken[:20]]


def name_of(test: Test) -> str:
    system, workload, kinds, bug = test
    return f"{system} {workload} under {kinds}" + (f" with {bug}" if bug else "")


@dataclass(frozen=True, slots=True)
class DashboardRow:
    """One test on the dashboard.  shown: its last runs, each with the link to its report.  count: of all its runs."""

    name: str
    streak: int
    shown: Sequence[tuple[PastRun, str]]
    count: int

    @property
    def good(self) -> int:
        """How many of the runs shown ended as they should."""
        return sum(run.good for run, _ in self.shown)


def write_dashboard(
    folder: Path, title: str, standing: Sequence[Standing], runs: Sequence[PastRun], results: Path | None = None
) -> Path:
    """The page of all nights: one row for each test, with its last runs and its streak.

    results: the folder that the paths of runs begin in; None: `folder` itself."""
    by_test: dict[Test, list[PastRun]] = {}
    for run in runs:
        by_test.setdefault(run.test, []).append(run)
    long = streaks(runs)
    up = os.path.relpath(results or folder, folder)

    def report(run: PastRun) -> str:
        return quote((Path(up) / run.path / "report.html").as_posix())

    rows = [
        DashboardRow(name_of(test), long[test], [(run, report(run)) for run in of_test[-RUNS_SHOWN:]], len(of_test))
        for test, of_test in sorted(by_test.items(), key=lambda pair: (long[pair[0]] > 0, pair[0]))
    ]
    broken = sum(row.streak == 0 for row in rows)
    words = f"{plural(len(rows), 'test')}, {plural(len(runs), 'run')}; the last run of {broken or 'no'} test"
    html = (
        environment()
        .get_template("dashboard.html.j2")
        .render(
            title=title,
            words=f"{words}{'s' if broken > 1 else ''} did not end as it should.",
            mark=Validity.INVALID if any(one.state != SymptomStatus.GONE for one in standing) else Validity.VALID,
            standing=standing,
            back_after=BACK_AFTER,
            rows=rows,
            style=Markup("\n".join(map(template_text, STYLES))),
        )
    )
    page = folder / DASHBOARD
    page.write_text(html, encoding="utf-8", errors="replace")
    return page


def write_badge(folder: Path, code: int, standing: Sequence[Standing]) -> Path:
    """A badge for a README: how the night ended."""
    new = sum(one.state in (SymptomStatus.NEW, SymptomStatus.BACK) for one in standing)
    words = {AS_EXPECTED: "as expected", FOUND: f"{new} new" if new else "known findings"}
    words[HARNESS_FAILED] = "infrastructure failed"
    text = words.get(code, "proved nothing")
    left, right = 58, 14 + 7 * len(text)
    colour = _COLOURS.get(code, "#9a6700")
    badge = folder / BADGE
    badge.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="krucible: {text}"><rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,sans-serif" font-size="11"><text x="6" y="14">krucible</text>'
        f'<text x="{left + 7}" y="14">{text}</text></g></svg>\n'
    )
    return badge


def add_to_step_summary(text: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Add the text to the summary of this step of GitHub Actions, cut so that GitHub shows it; False elsewhere."""
    path = environment.get("GITHUB_STEP_SUMMARY")
    if not path:
        return False
    summary = Path(path)
    held = summary.stat().st_size if summary.exists() else 0
    with summary.open("a", encoding="utf-8") as file:
        file.write(bounded(text, STEP_SUMMARY_BYTES - held))
    return True


def bounded(text: str, size_bytes: int) -> str:
    """The text, or as many of its lines as fit into so many bytes, with a line that says so."""
    if len(text.encode()) <= size_bytes:
        return text
    left = size_bytes - len(_CUT.encode())
    lines = []
    for line in text.splitlines(keepends=True):
        left -= len(line.encode())
        if left < 0:
            break
        lines.append(line)
    return "".join(lines) + _CUT if size_bytes >= len(_CUT.encode()) else ""
