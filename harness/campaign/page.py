"""Files that a campaign leaves for its readers, written again after every run: a page, a table, and JUnit for a CI
system."""

from __future__ import annotations

import os
import statistics
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from checkers.base.verdict import HARNESS_FAILED
from harness.campaign.campaign_log import AS_EXPECTED, FOUND, CampaignLog, Ended
from harness.campaign.loop import Plan, title, what
from harness.plain_words import plural
from harness.report.junit import xml_text
from harness.report.render import environment, template_text

PAGE, SUMMARY, JUNIT = "index.html", "summary.md", "junit.xml"


@dataclass(frozen=True, slots=True)
class PageGroup:
    """All runs of one test with any seed, in order."""

    name: str
    bug: str
    runs: list[Ended]

    @property
    def good(self) -> int:
        return sum(run.code == AS_EXPECTED for run in self.runs)

    @property
    def words(self) -> str:
        """Return how often it ended as it should."""
        return f"{'found' if self.bug else 'as expected'} in {self.good} of {plural(len(self.runs), 'run')}"

    @property
    def found_s(self) -> list[float]:
        return [run.found_s for run in self.runs if run.found_s >= 0]


def groups_of(runs: Iterable[Ended]) -> list[PageGroup]:
    """The runs by what they ran; planted bugs behind all others."""
    groups: dict[str, PageGroup] = {}
    for run in runs:
        spec = run.test.spec
        groups.setdefault(what(spec), PageGroup(what(spec), spec.bug or "", [])).runs.append(run)
    return sorted(groups.values(), key=lambda group: (group.bug != "", group.name))


def write_all(plan: Plan, log: CampaignLog) -> Path:
    """Write PAGE, SUMMARY and JUNIT into the folder of the campaign; the path of the page."""
    (log.folder / SUMMARY).write_text(summary(plan, log), encoding="utf-8")
    (log.folder / JUNIT).write_bytes(junit(plan, log))
    html = environment().get_template("campaign.html.j2").render(
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
        style=Markup(template_text("styles/base.css")),
    )  # fmt: skip
    page = log.folder / PAGE
    page.write_text(html, encoding="utf-8", errors="replace")
    return page


def headline(plan: Plan, log: CampaignLog) -> str:
    """The campaign in one sentence."""
    runs, found = plural(len(log.tests), "run"), log.found()
    wrong = sum(run.code != AS_EXPECTED for run in log.tests)
    if not log.runs:
        return "No runs yet."
    if found or not plan.every_run:
        return f"{plural(len(found), 'finding')} in {runs}." if found else f"Nothing was found in {runs}."
    return f"{wrong} of {runs} did not end as expected." if wrong else f"{runs} ended as expected."


def _mark(plan: Plan, log: CampaignLog) -> str:
    codes = {run.code for run in log.tests}
    if not codes:
        return "none"
    good = codes == {AS_EXPECTED} if plan.every_run else AS_EXPECTED in codes
    return "invalid" if FOUND in codes else "valid" if good else "unknown"


def summary(plan: Plan, log: CampaignLog) -> str:
    """Markdown: the headline, the findings, and a table of how often each test ended as it should.

    Seconds are those of the main phase until a planted bug was found.
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
    """Return the seed, the command and the report of a run, with a link to the artifacts of a job of GitHub Actions."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, job = (os.environ.get(name, "") for name in names)
    artifacts = f" in the [artifacts of this job]({server}/{repository}/actions/runs/{job})" if job else ""
    lines = [f"  seed {run.test.spec.seed}: `{run.test.spec.rerun()}`  "]
    return lines + ([f"  report: `{run.folder}/report.html`{artifacts}"] if run.folder else [])


def junit(plan: Plan, log: CampaignLog) -> bytes:
    """One test case for each finding, which failed, and one for each test, which passed or is an error.

    A run that could not be made or judged, or that proved nothing, is no finding: it is an error of its test.
    """
    found, groups = log.found(), groups_of(log.tests)
    suite = ET.Element("testsuite", name=f"krucible {plan.name}")
    for one in found:
        first = one.runs[0]
        case = ET.SubElement(suite, "testcase", classname="findings", name=xml_text(one.symptom.words()))
        failure = ET.SubElement(case, "failure", type=xml_text(one.symptom.kind), message=xml_text(first.words))
        failure.text = xml_text(f"{one.words()}\nreport: {first.folder}/report.html\nagain: {first.test.spec.rerun()}")
    errors = 0
    for group in groups:
        time_s = f"{sum(run.seconds for run in group.runs):.1f}"
        case = ET.SubElement(suite, "testcase", classname="tests", name=xml_text(group.name), time=time_s)
        real = [run for run in group.runs if run.code in (AS_EXPECTED, FOUND)]
        short = [run for run in group.runs if run not in real and (plan.every_run or run.code == HARNESS_FAILED)]
        if short or not real:
            errors += 1
            worst = max(short or group.runs, key=lambda run: run.code)
            kind = "infrastructure" if worst.code == HARNESS_FAILED else "proved nothing"
            ET.SubElement(case, "error", type=kind, message=xml_text(worst.words))
        ET.SubElement(case, "system-out").text = xml_text(group.words)
    counts = {"tests": len(found) + len(groups), "failures": len(found), "errors": errors}
    suite.attrib |= {name: str(count) for name, count in counts.items()}
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))
