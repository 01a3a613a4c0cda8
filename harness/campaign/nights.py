"""Nights: what is new, streaks with trends, a badge, GitHub's step summary, and the failures that a night keeps.

`harness/lake/past.py` knows how symptoms and tests stand.

A failure is kept with its spec and the schedule that was played.  Those that fail are tried first: the fastest first,
and of equally fast ones the oldest.  A failure counts as fixed after PASSES runs in a row that passed, each on another
revision; from then on it is a regression test of every night.  One that fails again counts as failing at once.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from checkers.base.json_file import read_objects
from checkers.base.verdict import HARNESS_FAILED, Validity
from harness.campaign.campaign_log import AS_EXPECTED, FOUND, Ended
from harness.lake.past import BACK_AFTER, PastRun, Standing, SymptomStatus, Test, canary_age, name_of, streaks
from harness.plain_words import plural
from harness.report.render import environment, template_text
from harness.spec import Spec
from harness.started import program

DASHBOARD, BADGE = "dashboard.html", "badge.svg"
RUNS_SHOWN = 60
TREND_LEAST = 3
"""Runs that each half of a trend has at least."""
STEP_SUMMARY_BYTES = 1_000_000
"""GitHub drops a summary of more than 1 MiB whole."""
_CUT = "\n\n… the rest is in summary.md of the kept artifacts.\n"
_COLOURS = {AS_EXPECTED: "#2da44e", FOUND: "#cf222e"}


def words_of(standing: Sequence[Standing], runs: Sequence[PastRun], now: datetime) -> list[str]:
    """Lines of Markdown: what is new, back, known and gone; the canary's age; the longest and the broken streaks."""
    lines = ["", "### Since the runs before", ""]
    for one in standing:
        lines.append(f"- **{one.state}** {one.line().partition(': ')[2]}")
        if one.run is not None and one.passed is not None:
            lines[-1] += f"  \n  `{program()} compare {one.run.path} {one.passed.path}`"
    lines += [] if standing else ["- nothing was seen or gone"]
    age = canary_age(runs, now)
    lines.append("- the canary was never found" if age is None else f"- the canary was found {age:.1f} days ago")
    long = streaks(runs)
    broken = sorted(test for test, streak in long.items() if streak == 0)
    lines.append(f"- {len(long) - len(broken)} of {plural(len(long), 'test')} end as they should")
    return lines + [f"- broken: {name_of(test)}" for test in broken[:20]]


@dataclass(frozen=True, slots=True)
class DashboardRow:
    """One test on the dashboard.

    shown: its last runs, each with the link to its report.
    count: of all its runs."""

    name: str
    streak: int
    shown: Sequence[tuple[PastRun, str]]
    count: int

    @property
    def median_s(self) -> float:
        """Median duration of the runs shown; 0 if none is recorded."""
        known = [run.duration_s for run, _ in self.shown if run.duration_s is not None]
        return statistics.median(known) if known else 0.0

    @property
    def trend(self) -> str:
        """Compare how many of the later half of the runs shown ended as expected with the earlier half."""
        half = len(self.shown) // 2
        if half < TREND_LEAST:
            return "too few runs"
        before, since = (
            sum(run.good for run, _ in some) for some in (self.shown[-2 * half : -half], self.shown[-half:])
        )
        return (
            "steady"
            if before == since
            else f"{'better' if since > before else 'worse'}: {before}, then {since} of {half}"
        )

    @property
    def good(self) -> int:
        """Return how many of the runs shown ended as they should."""
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
    wrong = f"the last run of {plural(broken, 'test')} did not end as expected"
    last = wrong if broken else "the last run of each test ended as expected"
    html = (
        environment()
        .get_template("dashboard.html.j2")
        .render(
            title=title,
            words=f"{plural(len(rows), 'test')}, {plural(len(runs), 'run')}; {last}.",
            mark=Validity.INVALID if any(one.state != SymptomStatus.GONE for one in standing) else Validity.VALID,
            standing=standing,
            back_after=BACK_AFTER,
            rows=rows,
            style=Markup(template_text("styles/base.css")),
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


FILE, SCHEDULES = "failures.json", "schedules"
PASSES = 3
KEPT_MAX = 50
"""More failing schedules than these would leave no time for anything else; the slowest are dropped."""


@dataclass(frozen=True, slots=True)
class Failure:
    """words: of its symptom.  seconds: of the run that found it.  found: when, in ISO 8601 (UTC).
    passes: runs in a row that passed since it failed last.  tried: the revision that was tried last."""

    spec: Spec
    words: str
    seconds: float
    found: str
    passes: int = 0
    tried: str = ""

    @property
    def fixed(self) -> bool:
        return self.passes >= PASSES

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"spec": self.spec.to_json()}

    @staticmethod
    def from_json(row: dict[str, Any]) -> Failure:
        """Raises KeyError, TypeError or WrongSpec for a row that is none."""
        return Failure(**{**row, "spec": Spec.from_json(row["spec"])})


def kept(folder: Path) -> list[Failure]:
    """The failures kept in the folder of a campaign.  Raises BrokenFile."""
    return [Failure.from_json(row) for row in read_objects(folder / FILE)]


def keep(folder: Path, failures: Sequence[Failure]) -> None:
    """The file is old or new, because a campaign may be killed at any moment."""
    part = folder / f".{FILE}.part"
    part.write_text(json.dumps([failure.to_json() for failure in failures], indent=1) + "\n")
    part.replace(folder / FILE)


def due(failures: Iterable[Failure], revision: str) -> list[Spec]:
    """Return what to try on this revision, before all other tests.

    revision: "" if it is not known, or files differ.
    """
    wanted = [one for one in failures if one.fixed or not revision or one.tried != revision]
    return [one.spec for one in sorted(wanted, key=lambda one: (one.fixed, one.seconds, one.found))]


def after(failures: Sequence[Failure], runs: Iterable[Ended], folder: Path, revision: str, now: str) -> list[Failure]:
    """The failures after a night: those that were tried again, and new ones, whose schedules are copied.

    folder: of the campaign.  now: in ISO 8601.
    """
    known = {one.spec: one for one in failures}
    for run in runs:
        spec = run.test.spec
        if run.test.replay or spec.bug or spec.finding:
            continue
        if spec in known:
            known[spec] = _tried(known[spec], run, revision)
        elif run.code == FOUND and run.symptom is not None and run.folder:
            one = Failure(_with_schedule(spec, folder, run), run.symptom.words(), run.seconds, now, 0, revision)
            known[one.spec] = one
    order = sorted(known.values(), key=lambda one: (one.fixed, one.seconds, one.found))
    return order[:KEPT_MAX]


def _tried(failure: Failure, run: Ended, revision: str) -> Failure:
    if run.code == FOUND:
        return replace(failure, passes=0, tried=revision, seconds=run.seconds)
    if run.code == AS_EXPECTED:
        again = failure.tried == revision and revision != ""
        return replace(failure, passes=failure.passes + (not again), tried=revision)
    return failure  # it proved nothing: it is due again


def _with_schedule(spec: Spec, folder: Path, run: Ended) -> Spec:
    """The spec with the schedule that was played, if the run kept one."""
    played = folder / run.folder / "schedule.json"
    if not played.exists():
        return spec
    copy = folder / SCHEDULES / f"{Path(run.folder).name}.json"
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(played, copy)
    return replace(spec, schedule=str(copy.resolve()))
