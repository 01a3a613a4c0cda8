"""Files of a campaign for readers, rewritten after every run: a page, a table, and JUnit for a CI system.

*Nights.*  News, streaks with trends, a badge, GitHub's step summary, and the stored failures.

`harness/lake/past.py` computes the state of symptoms and tests.

A failure is stored with its spec and the schedule that was executed.  Stored failures run before all other tests, the
fastest first, and the older one first if two are equally fast.  A failure counts as fixed after PASSES passing runs in
a row, each on another revision; from then on it is a regression test of every night.  If it fails again, it counts as
failing at once.
"""

from __future__ import annotations

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

from checkers.base.verdict import HARNESS_FAILED, Validity
from checkers.record.files import write_json_whole
from checkers.record.run_record import read_objects
from harness.campaign.loop import AS_EXPECTED, FOUND, CampaignLog, Ended, Plan, title, what
from harness.lake.past import BACK_AFTER, PastRun, Standing, SymptomStatus, Test, canary_age, name_of, streaks
from harness.plain_words import plural
from harness.report.environment import JunitCase, environment, junit_xml, template_text
from harness.spec import Spec
from harness.started import program

PAGE, SUMMARY, JUNIT = "index.html", "summary.md", "junit.xml"


@dataclass(frozen=True, slots=True)
class PageGroup:
    """All runs of one test with any seed, in the order of the campaign."""

    name: str
    bug: str
    runs: list[Ended]

    @property
    def good(self) -> int:
        return sum(run.code == AS_EXPECTED for run in self.runs)

    @property
    def words(self) -> str:
        """Return the number of runs that ended as expected, in words."""
        return f"{'found' if self.bug else 'as expected'} in {self.good} of {plural(len(self.runs), 'run')}"

    @property
    def found_s(self) -> list[float]:
        return [run.found_s for run in self.runs if run.found_s >= 0]


def groups_of(runs: Iterable[Ended]) -> list[PageGroup]:
    """Group the runs by test; tests of planted bugs come last."""
    groups: dict[str, PageGroup] = {}
    for run in runs:
        spec = run.test.spec
        groups.setdefault(what(spec), PageGroup(what(spec), spec.bug or "", [])).runs.append(run)
    return sorted(groups.values(), key=lambda group: (group.bug != "", group.name))


def write_all(plan: Plan, log: CampaignLog) -> Path:
    """Write PAGE, SUMMARY and JUNIT into the folder of the campaign; return the path of the page."""
    (log.folder / SUMMARY).write_text(summary(plan, log), encoding="utf-8")
    (log.folder / JUNIT).write_text(junit(plan, log), encoding="utf-8")
    return _write_page(
        log.folder / PAGE,
        "campaign.html.j2",
        name=plan.name,
        words=plan.words,
        unseen="" if plan.every_run else log.unseen(),
        title=headline(plan, log),
        mark=_mark(plan, log),
        found=log.found(),
        groups=groups_of(log.tests),
        runs=log.runs if not plan.every_run else sorted(log.runs, key=lambda run: run.code == AS_EXPECTED),
        every_run=plan.every_run,
        run_title=title,
        mark_of=lambda run: run.verdict if run.verdict in ("valid", "invalid") else "unknown",
    )


def headline(plan: Plan, log: CampaignLog) -> str:
    """Return the campaign's result in one sentence."""
    runs, found = plural(len(log.tests), "run"), log.found()
    wrong = sum(run.code != AS_EXPECTED for run in log.tests)
    if not log.runs:
        return "No runs yet."
    if found or not plan.every_run:
        return f"{plural(len(found), 'finding')} in {runs}." if found else f"Nothing was found in {runs}."
    return f"{wrong} of {runs} did not end as expected." if wrong else f"{runs} ended as expected."


def lines_of(plan: Plan, log: CampaignLog) -> list[str]:
    """Return the findings of a campaign as lines for a terminal."""
    lines = [headline(plan, log)]
    if plan.every_run:
        lines += [f"  {group.words}: {group.name}" for group in groups_of(log.tests) if group.good < len(group.runs)]
    for group in log.found():
        first = group.runs[0]
        lines += [f"found: {group.symptom.words()}", f"  {first.words}", f"  {group.words()}"]
        lines += [f"  report:  {log.folder / first.folder / 'report.html'}", f"  again:   {first.test.spec.rerun()}"]
        lines += [f"  smaller: {program()} shrink {log.folder / first.folder}"] if first.faults else []
    return lines if plan.every_run or not (unseen := log.unseen()) else [*lines, unseen]


def _mark(plan: Plan, log: CampaignLog) -> str:
    codes = {run.code for run in log.tests}
    if not codes:
        return "none"
    good = codes == {AS_EXPECTED} if plan.every_run else AS_EXPECTED in codes
    return "invalid" if FOUND in codes else "valid" if good else "unknown"


def summary(plan: Plan, log: CampaignLog) -> str:
    """Return Markdown: the headline, the findings, and for each test the number of runs that ended as expected.

    The column of seconds shows the seconds of the main phase until a planted bug was found.
    """
    lines = [f"## {plan.name}: {headline(plan, log)}", ""]
    for one in log.found():
        first = one.runs[0]
        lines += [f"- **{one.symptom.words()}**: {one.words()}  ", f"  {first.words}  ", *_to_see(first)]
    if not plan.every_run:
        lines += ["", log.unseen()]
    else:
        reported = {id(one.runs[0]) for one in log.found()}
        for run in log.tests:
            if run.code != AS_EXPECTED and id(run) not in reported:
                lines += [f"- **{title(run.test.spec)}**, {run.verdict}: {run.words}  ", *_to_see(run)]
    lines += ["", "| test | planted bug | as expected | median s | slowest s |", "| --- | --- | --- | --- | --- |"]
    for group in groups_of(log.tests):
        seconds = group.found_s
        times = f"{statistics.median(seconds):.0f} | {max(seconds):.0f}" if seconds else "- | -"
        bug = f"`{group.bug}`" if group.bug else ""
        lines.append(f"| {group.name} | {bug} | {group.good} of {len(group.runs)} | {times} |")
    return "\n".join(lines) + "\n"


def _to_see(run: Ended) -> list[str]:
    """Return the seed, the command and the report of a run; in GitHub Actions with a link to the artifacts of the
    job.
    """
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, job = (os.environ.get(name, "") for name in names)
    artifacts = f" in the [artifacts of this job]({server}/{repository}/actions/runs/{job})" if job else ""
    lines = [f"  seed {run.test.spec.seed}: `{run.test.spec.rerun()}`  "]
    return lines + ([f"  report: `{run.folder}/report.html`{artifacts}"] if run.folder else [])


def junit(plan: Plan, log: CampaignLog) -> str:
    """Return JUnit XML: a failed test case for each finding, and for each test a case that passed or is an error.

    A run that was not executed or judged, or that proved nothing, is not a finding but an error of its test.
    """
    cases = []
    for one in log.found():
        first, name = one.runs[0], one.symptom.words()
        text = f"{one.words()}\nreport: {first.folder}/report.html\nagain: {first.test.spec.rerun()}"
        cases.append(JunitCase("findings", name, "", 0.0, "failure", one.symptom.kind, first.words, text))
    for group in groups_of(log.tests):
        case = JunitCase("tests", group.name, group.words, sum(run.seconds for run in group.runs))
        real = [run for run in group.runs if run.code in (AS_EXPECTED, FOUND)]
        short = [run for run in group.runs if run not in real and (plan.every_run or run.code == HARNESS_FAILED)]
        if short or not real:
            worst = max(short or group.runs, key=lambda run: run.code)
            kind = "infrastructure" if worst.code == HARNESS_FAILED else "proved nothing"
            case = replace(case, outcome="error", kind=kind, message=worst.words)
        cases.append(case)
    return junit_xml(f"krucible {plan.name}", cases)


DASHBOARD, BADGE = "dashboard.html", "badge.svg"
RUNS_SHOWN = 60
TREND_LEAST = 3
"""Minimum number of runs in each half of a trend."""
STEP_SUMMARY_BYTES = 1_000_000
"""Maximum size of a summary in bytes.  GitHub discards a summary of more than 1 MiB entirely."""
_CUT = "\n\n… the rest is in summary.md of the kept artifacts.\n"
_COLOURS = {AS_EXPECTED: "#2da44e", FOUND: "#cf222e"}


def words_of(standing: Sequence[Standing], runs: Sequence[PastRun], now: datetime) -> list[str]:
    """Return lines of Markdown: new, recurring, known and vanished symptoms; days since the canary was found; the
    longest and the ended streaks.
    """
    lines = ["", "### Since the runs before", ""]
    for one in standing:
        lines.append(f"- **{one.state}** {one.line().partition(': ')[2]}")
        if one.run is not None and one.passed is not None:
            lines[-1] += f"  \n  `{program()} compare {one.run.path} {one.passed.path}`"
    lines += [] if standing else ["- no symptom appeared or vanished"]
    age = canary_age(runs, now)
    lines.append("- the canary was never found" if age is None else f"- the canary was found {age:.1f} days ago")
    long = streaks(runs)
    broken = sorted(test for test, streak in long.items() if streak == 0)
    lines.append(f"- {len(long) - len(broken)} of {plural(len(long), 'test')} end as expected")
    return lines + [f"- broken: {name_of(test)}" for test in broken[:20]]


@dataclass(frozen=True, slots=True)
class DashboardRow:
    """One test on the dashboard.

    shown: its last runs, each with the link to its report
    count: total number of its runs
    """

    name: str
    streak: int
    shown: Sequence[tuple[PastRun, str]]
    count: int

    @property
    def median_s(self) -> float:
        """Return the median duration of the shown runs in seconds; 0 if no duration is recorded."""
        known = [run.duration_s for run, _ in self.shown if run.duration_s is not None]
        return statistics.median(known) if known else 0.0

    @property
    def trend(self) -> str:
        """Compare the numbers of expected results in the earlier and in the later half of the shown runs."""
        half = len(self.shown) // 2
        if half < TREND_LEAST:
            return "too few runs"
        before, since = (
            sum(run.good for run, _ in some) for some in (self.shown[-2 * half : -half], self.shown[-half:])
        )
        change = "better" if since > before else "worse"
        return "steady" if before == since else f"{change}: {before}, then {since} of {half}"

    @property
    def good(self) -> int:
        """Return the number of shown runs that ended as expected."""
        return sum(run.good for run, _ in self.shown)


def write_dashboard(
    folder: Path, title: str, standing: Sequence[Standing], runs: Sequence[PastRun], results: Path | None = None
) -> Path:
    """Write the page of all nights: one row for each test, with its last runs and its streak.

    results: folder to which the paths of runs are relative; None for `folder` itself
    """
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
    return _write_page(
        folder / DASHBOARD,
        "dashboard.html.j2",
        title=title,
        words=f"{plural(len(rows), 'test')}, {plural(len(runs), 'run')}; {last}.",
        mark=Validity.INVALID if any(one.state != SymptomStatus.GONE for one in standing) else Validity.VALID,
        standing=standing,
        back_after=BACK_AFTER,
        rows=rows,
    )


def _write_page(page: Path, template: str, **values: Any) -> Path:
    style = Markup(template_text("styles/base.css"))
    html = environment().get_template(template).render(**values, style=style)
    page.write_text(html, encoding="utf-8", errors="replace")
    return page


def write_badge(folder: Path, code: int, standing: Sequence[Standing]) -> Path:
    """Write a badge for a README with the result of the night."""
    new = sum(one.state in (SymptomStatus.NEW, SymptomStatus.BACK) for one in standing)
    found = f"{new} new" if new else "known findings"
    words = {AS_EXPECTED: "as expected", FOUND: found, HARNESS_FAILED: "infrastructure failed"}
    text = words.get(code, "proved nothing")
    badge = folder / BADGE
    svg = environment().get_template("badge.svg.j2").render(text=text, colour=_COLOURS.get(code, "#9a6700"))
    badge.write_text(svg + "\n")
    return badge


def add_to_step_summary(text: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Append the text to the summary of this step of GitHub Actions, truncated to GitHub's limit; return False outside
    of GitHub Actions.
    """
    if not (path := environment.get("GITHUB_STEP_SUMMARY")):
        return False
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(bounded(text, STEP_SUMMARY_BYTES - file.tell()))
    return True


def bounded(text: str, size_bytes: int) -> str:
    """Return the text; if it is larger, as many of its lines as fit into `size_bytes`, and a line that says so."""
    if len(text.encode()) <= size_bytes:
        return text
    left = size_bytes - len(_CUT.encode())
    kept, newline, _ = text.encode()[: max(left, 0)].rpartition(b"\n")
    return (kept + newline).decode() + _CUT if left >= 0 else ""


FILE, SCHEDULES = "failures.json", "schedules"
PASSES = 3
KEPT_MAX = 50
"""Maximum number of stored failures, so that other tests get time as well; the slowest failures are dropped."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A stored failure.

    words: its symptom in words
    seconds: duration of the run that found it
    found: time in ISO 8601 (UTC)
    passes: number of passing runs in a row since its last failure
    tried: the last revision on which it was run
    """

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
        """Parse a stored row.  Raises KeyError, TypeError or WrongSpec if the row is invalid."""
        return Failure(**{**row, "spec": Spec.from_json(row["spec"])})


def kept(folder: Path) -> list[Failure]:
    """Return the failures stored in the folder of a campaign.  Raises BrokenFile."""
    return [Failure.from_json(row) for row in read_objects(folder / FILE)]


def keep(folder: Path, failures: Sequence[Failure]) -> None:
    """Write the file atomically, because a campaign may be killed at any moment."""
    write_json_whole(folder / FILE, [failure.to_json() for failure in failures])


def due(failures: Iterable[Failure], revision: str) -> list[Spec]:
    """Return the failures to run on this revision, before all other tests.

    revision: "" if it is unknown, or if files differ from it
    """
    wanted = [one for one in failures if one.fixed or not revision or one.tried != revision]
    return [one.spec for one in sorted(wanted, key=lambda one: (one.fixed, one.seconds, one.found))]


def after(failures: Sequence[Failure], runs: Iterable[Ended], folder: Path, revision: str, now: str) -> list[Failure]:
    """Return the stored failures after a night: the repeated ones, and new ones, whose schedules are copied.

    folder: folder of the campaign
    now: time in ISO 8601
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
    return failure  # the run proved nothing, so the failure stays due


def _with_schedule(spec: Spec, folder: Path, run: Ended) -> Spec:
    """Return the spec with the schedule that was executed, if the run stored one."""
    played = folder / run.folder / "schedule.json"
    if not played.exists():
        return spec
    copy = folder / SCHEDULES / f"{Path(run.folder).name}.json"
    copy.parent.mkdir(exist_ok=True)
    shutil.copyfile(played, copy)
    return replace(spec, schedule=str(copy.resolve()))
