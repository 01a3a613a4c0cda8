"""Writes `report.html` from a run folder: one self-contained file that never uses the network.

Also `junit.xml` for a CI system, with a test case per checker.  Invalid is a failure, unknown an error (a run that
proved nothing must not turn a build green), not applicable is skipped.  A run may prove nothing for a reason that no
checker shows: the harness failed, a planted bug was not found, or nothing was judged.  Then there is one more test
    case, which is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from checkers.base.results import CheckerResult, Criterion, RunVerdict
from checkers.base.verdict import Validity
from checkers.catalog import OF_CLIENTS
from checkers.record.header_and_outcome import Death
from checkers.record.run_record import JOURNAL, sequence
from harness import plain_words as words
from harness.lake.past import standing_of_run
from harness.plain_words import shorten
from harness.report import divergence, roles
from harness.report import environment as pages
from harness.report import fault_views as faults
from harness.report import timeline_view as timeline
from harness.report import violation_views as witness
from harness.report.element_fates import NAMES, fates_of, lost_in_words
from harness.report.logs_around import around
from harness.report.run_data import ReportData, load
from harness.story import headline as headlines
from harness.story.findings import (
    Finding,
    ReportedViolation,
    cause_of,
    findings,
    has_earlier_steps,
    loss_of,
    seen_in_a_copy,
    title_of,
)
from harness.story.kinds import LOOK_AT, LOOK_AT_LOSSES, LOOK_AT_READS, LOOK_AT_TRANSACTIONS, Stage, kind_of

_PARTS = ("page", "core", "lanes", "nodes", "operations", "controls", "details", "logs", "proof", "start")
SCRIPTS = tuple(f"scripts/{part}.js" for part in _PARTS)
RAW_FILES = ("test.json", "results.json", JOURNAL, "history.parquet", "history.arrows", "trace", "nodes", "junit.xml")
THE_RUN = "the run itself"
"""Name of the test case that stands for the run, not for a checker."""

_LATER_NS = 100_000_000
"""Minimum nanoseconds between two times that are both named."""


def render(run_folder: Path) -> Path:
    """Write junit.xml and report.html into a judged run folder; return the path of report.html.

    The page lists files that are missing in the folder.  Raises FileNotFoundError if there is no such folder.
    """
    data = load(run_folder)
    write_junit(data, run_folder / "junit.xml")
    page = run_folder / "report.html"
    page.write_text(_page(data), encoding="utf-8", errors="replace")
    return page


def prewarm() -> None:
    """Compile functions needed for rendering, while the test still runs."""
    for name in pages.environment().list_templates(extensions=["j2"]):
        pages.environment().get_template(name)


HERO_MOST = 4
"""Maximum number of operations of a witness that is drawn beside the headline."""

TITLE_MOST = 200
"""Maximum number of characters of a heading; longer text is moved below the heading."""

DIED = "node died"
"""Kind of violation whose witness contains the last words of the process after a colon."""

_IN_A_FILE = re.compile(r" \([\w./-]+, (?:seq|line) \d+\)")

AT_THE_END = "stopped by the harness at the end of the run"


def _page(data: ReportData) -> str:
    fault_views = faults.views(data)
    role_segments = roles.segments(data)
    deposed = roles.deposed(data, role_segments)
    ends = [(death, _ended_by(data, death, fault_views)) for death in data.outcome.deaths]
    died = [each for each in ends if each[1] != AT_THE_END]
    groups = witness.group_views(data, fault_views, role_segments)
    found = witness.in_order(groups)
    judged = data.results.verdict is not RunVerdict.NOT_JUDGED
    verdict = str(data.results.verdict if judged else RunVerdict.UNKNOWN)
    head = _head(data, verdict, groups, fault_views)
    shown = next((f for f in (*found[:1], head["step"], *found) if f is not None and f.moment_ns >= 0), None)
    moments = timeline.moments(found, shown)
    fates = fates_of(data)
    lines = timeline.view(data, fault_views, role_segments, deposed, moments, fates)
    here = words.as_typed(data.folder.resolve())
    standing = standing_of_run(data.folder.resolve()) if found else None
    seen, valid = (standing[0].seen(), standing[1]) if standing is not None else ("", "")
    script = "(async () => {\n'use strict';\n" + "\n".join(pages.template_text(name) for name in SCRIPTS) + "\n})();"
    return pages.environment().get_template("report.html.j2").render(
        data=data,
        verdict=verdict,
        head=head,
        planted=headlines.planted(data.results, data.header),
        story=data.results.finding,
        notes=headlines.notes(data.results, data.outcome),
        figures=figures(data),
        functions=data.results.statistics.functions,
        errors=data.results.statistics.errors,
        checkers=_checkers(data, found),
        timeline=lines,
        payload=pages.json_block(lines.data | {"steps": {f.number: f.steps for f in found}}),
        findings=found,
        hero_most=HERO_MOST,
        groups=groups,
        has_timeline=True,
        next_steps=headlines.next_steps(data.results, data.header, here, logs=bool(data.copies), valid=valid),
        seen=seen,
        shortfalls=headlines.shortfalls(data.results, data.header, here),
        logs=around(data, fault_views, shown.moment_ns, shown.violation.key, shown.violation) if shown else None,
        fates=fates,
        lost=lost_in_words(fates, data) if fates is not None else "",
        names_of_fates=NAMES,
        faults=fault_views,
        faults_words=faults.summary(fault_views),
        coverage=faults.coverage_of(data),
        attributed=faults.attributed(data),
        deposed=deposed,
        died=died,
        stopped=len(ends) - len(died),
        raw_files=[name for name in RAW_FILES if name == "junit.xml" or (data.folder / name).exists()],
        where=f"{data.folder.parent.name}/{data.folder.name}",
        style=Markup("\n".join(pages.template_text(name) for name in pages.STYLES)),
        script=Markup(script),
        script_hash=pages.script_hash(script),
    )  # fmt: skip


def _head(
    data: ReportData, verdict: str, groups: Sequence[witness.GroupView], faulty: Sequence[faults.FaultView]
) -> dict[str, Any]:
    """Return the values of the page's head: result, place and cause, and the sentences below.  A run that missed its
    planted bug, or in which the harness failed, is never shown in green.
    """
    found, bug = witness.in_order(groups), headlines.planted(data.results, data.header)
    missed = verdict == "valid" and ((bug is not None and not bug.found) or bool(data.results.failure))
    verdict = "unknown" if missed else verdict
    title = headlines.headline(data.results, data.header)
    below: list[str] = []
    where = means = cause = clients = look_at = ""
    step = None
    if found:
        first, findings_of = found[0], findings(data.results)
        more, lost = headlines.in_all(data.results), data.results.lost_elements
        cause, step = _cause(data, found)
        for part in (more, headlines.first_step(findings_of), lost):
            title = title.removesuffix(part).strip()
        title = _IN_A_FILE.sub("", title)  # the location within the file is shown below
        beginning, rest = words.opening(title)
        died, why = _last_words(first)
        if why and why in cause:
            title = f"Invalid: {died}."
        elif len(title) > TITLE_MOST:
            fits = bool(rest) and len(beginning) < TITLE_MOST
            title = f"{beginning}." if fits else f"Invalid: {first.kind}."
            below = [rest if fits else words.upper_first(first.summary)]
        at_node = "through" if data.outcome.declares.get("forwards") else "on"
        where = _where(data, first, findings_of[0].lead, at_node)
        clients = _clients(data, findings_of)
        loses = loss_of(findings_of[0].lead) is not None
        stale = bool(first.belief) and step is None and not loses
        look_at = LOOK_AT_READS if stale else _look_at(data, findings_of)
        means = next((kind.means for group in groups for kind in group.kinds if first in kind.findings), "")
        below += [each for each in (lost, more) if each]
        error = "no acknowledgement, or " if loses and first.violation.wrong else "an error, or " if stale else ""
        below += [f"Right would have been: {error}{words.lower_first(text)}" for text in first.violation.expected[:1]]
    elif len(title) > TITLE_MOST:
        title, _, rest = title.partition(": ")
        title, below = f"{title}.", [words.upper_first(rest)]
    if verdict == "valid" and faulty:
        below.append(faults.summary(faulty))
    if verdict == "unknown" and data.results.verdict is not RunVerdict.NOT_JUDGED:
        below.append("No checker found a violation, but the run does not show enough to count as a pass.")
    below = [words for words in below if words not in title]
    mark = verdict if verdict in ("valid", "invalid") else "unknown"
    return {
        "title": title, "below": below, "mark": mark, "where": where, "cause": cause, "step": step, "means": means,
        "look_at": look_at,
        "clients": clients,
        "counted": headlines.how_many(data.results), "checkers": len(data.results.invalid),
    }  # fmt: skip


def _last_words(first: witness.FindingView) -> tuple[str, str]:
    """Return what happened to the process, and the reason that the process gave; both are "" if no process died."""
    happened, _, why = first.summary.partition(": ")
    return (happened, why) if first.kind == DIED else ("", "")


def _cause(data: ReportData, found: Sequence[witness.FindingView]) -> tuple[str, witness.FindingView | None]:
    """Return the cause of the first violation in words, and the view of the first wrong step if a checker found one.

    If no checker found one, the cause is the wrong belief of the node that answered, or a note that no cause is known.
    """
    first, findings_of = found[0], findings(data.results)
    if (behind := cause_of(findings_of)) is not None:
        step = next((view for view in found if view.summary == words.sentence(behind.lead.summary)), None)
        cause = _IN_A_FILE.sub("", headlines.first_step(findings_of))
        if step is not None and step.circumstances and abs(step.moment_ns - first.moment_ns) > _LATER_NS:
            cause = f"{cause} {words.sentence(words.upper_first(step.circumstances))}"
        alike = data.checkers[behind.lead.checker].violations_by_kind.get(behind.lead.kind, 1)
        count = f"It is one of {alike:,} such steps." if alike > 1 else ""
        return " ".join(filter(None, [cause, divergence.never_fsynced(data, behind.lead), count])), step
    if first.belief:
        return first.belief, None
    if not has_earlier_steps(findings_of[0].lead):
        own = "This is the first wrong step itself: no checker saw one before it."
        return " ".join(filter(None, [own, divergence.never_fsynced(data, findings_of[0].lead)])), None
    if why := _last_words(first)[1]:
        return f"The process itself gave this reason: {words.sentence(why)}", None
    if data.declares["traces"]:
        return "Not known: no checker saw a wrong step before this violation.", None
    seen = "answers and logs" if data.declares["logs"] else "answers to clients"
    return f"Not known: this system writes no trace of its own steps, so only {seen} were judged.", None


def _look_at(data: ReportData, found: Sequence[Finding]) -> str:
    """Return the part of the system's code that probably contains the bug."""
    cause = (cause_of(found) or found[0]).lead
    if divergence.never_fsynced(data, cause):
        return LOOK_AT[Stage.LOSS]
    if "transactions" in cause.witness.facts:
        return LOOK_AT_TRANSACTIONS
    kind = kind_of(cause.kind)
    return kind.look_at or (LOOK_AT_LOSSES if kind.loss else LOOK_AT[kind.stage])


def _clients(data: ReportData, found: Sequence[Finding]) -> str:
    """Return a sentence that no client got a wrong answer; "" if a client did, or if no checker can tell."""
    if any(finding.lead.stage is Stage.ANSWER for finding in found):
        return ""
    judged = {name: c.verdict for name, c in data.results.checkers.items() if name in OF_CLIENTS}
    valid = [name for name, verdict in judged.items() if verdict is Validity.VALID]
    if not valid or {*judged.values()} - {Validity.VALID, Validity.NOT_APPLICABLE}:
        return ""
    return f"No client got a wrong answer: {words.listed(valid)} {'is' if len(valid) == 1 else 'are'} valid."


def _where(data: ReportData, first: witness.FindingView, lead: ReportedViolation, at_node: str) -> str:
    """Return time, nodes and fault of the first violation in words, and the time at which it showed if that was later.
    A loss is placed at the server that had acknowledged the element, unless its evidence is a copy of a log.

    at_node: "on", or "through" if servers forward requests to their leader
    """
    wrong, shown_ns, copied = first.violation.wrong, first.moment_ns, seen_in_a_copy(lead)
    since_ns = wrong[0][1] if len(wrong) == 1 else shown_ns
    if (lost := loss_of(lead)) is not None and not copied:
        since_ns = lost.acknowledged_ns
        wrong = ((words.shorten(lost.by, 24), since_ns),) if lost.by else ()
    around = first.loss or first.circumstances or ("" if data.faults else "no fault was injected")
    at = [f"{words.seconds(since_ns)} into the test"] if shown_ns >= 0 else []
    if copied and not wrong:
        at = [f"{divergence.copied_log(data, lead.witness.facts)}, which does not show since when"]
        around = _hits_of_disk(data, sequence(lead.witness.facts.get("nodes")))
    traced = [] if copied else [n for r in first.trace_rows[-1:] if (n := r.get("node"))]
    nodes = [node for node, _ in wrong] or traced
    at += [f"{at_node} {words.listed(list(dict.fromkeys(nodes)))}"] if nodes else []
    at += [f"key {first.violation.key}"] if first.violation.key else []
    parts = [", ".join(at), around]
    if since_ns + _LATER_NS < shown_ns:
        parts.append(f"{'the loss' if lost is not None else 'it'} showed at {words.seconds(shown_ns)}")
    return " ".join(words.sentence(words.upper_first(part)) for part in parts if part)


def _hits_of_disk(data: ReportData, nodes: Sequence[Any]) -> str:
    """Return the faults that hit the disk of the first of these nodes; "" if there were none."""
    hit = [f for f in data.faults if f.carried_out and (f.damages_data or f.wipes_disks or f.loses_unsynced)]
    here = [f for f in hit if nodes and nodes[0] in f.nodes]
    named = [f"fault {f.card.number} ({words.shorten(f.words or f.kind)})" for f in here]
    return f"its disk was hit by {words.listed(named)}" if named else ""


def _checkers(data: ReportData, found: Sequence[witness.FindingView]) -> list[dict[str, Any]]:
    """Return title, result and anchors of the witnesses of each checker; checkers that found violations come first."""
    rows = []
    for name, result in data.checkers.items():
        anchors = [f.anchor for f in found if name in (f.checker, *(other.checker for other, _ in f.also))]
        rows.append({"title": title_of(name, result), "result": result, "anchors": anchors})
    order = {Validity.INVALID: 0, Validity.UNKNOWN: 1}
    return sorted(rows, key=lambda row: order.get(row["result"].verdict, 2))


def _ended_by(data: ReportData, death: Death, faulty: Sequence[faults.FaultView]) -> str:
    """Return how a process ended: by itself, by a fault, or stopped by the harness, as at the end of every run."""
    if not death.ordered:
        return "ended by itself" if death.time_ns >= 0 else "complained in its log"
    fault = next((f for f in faulty if f.ended(death.node, death.time_ns)), None)
    if fault:
        return f"ended by fault {fault.number} ({fault.name})"
    main = data.outcome.phase("main")
    return AT_THE_END if death.time_ns >= (main.end_ns if main is not None else 0) else "stopped by the harness"


RAN_TO_ITS_END = "ran to its end"
_WORDS_MOST = 10_000
"""Maximum number of characters of a criterion's description; genuine ones are shorter."""


@dataclass(frozen=True, slots=True)
class RunFigure:
    """A criterion of a run.

    least: the minimum in words, "" if none is demanded
    enough: True if the run reached the minimum, None if none is demanded
    """

    value: str
    name: str
    least: str
    words: str
    enough: bool | None


def figures(data: ReportData) -> list[RunFigure]:
    """Return every criterion in the order of the checker, missed ones first; [] for a run without that checker."""
    found = [_figure(criterion, bool(data.outcome.stopped)) for criterion in data.results.vacuity.criteria]
    return sorted(found, key=lambda f: {False: 0, True: 1, None: 2}[f.enough])


def _figure(criterion: Criterion, stopped: bool) -> RunFigure:
    """Return one criterion. stopped: True if a violation ended the run early."""
    name, value, least = shorten(criterion.name or "?", 80), criterion.value, criterion.least
    demanded, met = criterion.demanded, criterion.met
    yes_or_no = name in headlines.YES_OR_NO
    plain = ("yes" if value else "no") if yes_or_no else headlines.figure(name, value)
    if stopped and name == RAN_TO_ITS_END:
        plain = "no, stopped early"
    wanted = (
        "" if yes_or_no or not least else f"{'' if demanded else 'should be '}at least {headlines.figure(name, least)}"
    )
    return RunFigure(plain, name, wanted, shorten(criterion.words, _WORDS_MOST), met if demanded or not met else None)


def write_junit(data: ReportData, path: Path) -> None:
    header = data.header
    test = (header.test if header is not None else "") or data.folder.parent.name
    facts = {"run": data.folder.name, "seed": data.seed, "rerun": header and header.rerun, **data.spec}
    cases = [_case(test, name, checker) for name, checker in {**data.checkers, **_of_the_run(data)}.items()]
    name, started = f"{test} seed {'?' if data.seed is None else data.seed}", header.started_utc if header else ""
    path.write_text(
        pages.junit_xml(name, cases, facts, headlines.verdict_in_words(data.results, header), started), encoding="utf-8"
    )


def _of_the_run(data: ReportData) -> dict[str, CheckerResult]:
    """Return a case for the run itself, if the run did not pass and no checker's case shows why."""
    passed = data.results.verdict is RunVerdict.VALID and not data.results.exit_code
    if passed or any(c.verdict in (Validity.INVALID, Validity.UNKNOWN) for c in data.checkers.values()):
        return {}
    return {THE_RUN: CheckerResult(Validity.UNKNOWN, reason=headlines.verdict_in_words(data.results, data.header))}


def _case(test: str, name: str, checker: CheckerResult) -> pages.JunitCase:
    about = (test, name, f"{title_of(name, checker)}: {words.looked_at(checker.looked_at)}", checker.seconds)
    match checker.verdict:
        case Validity.INVALID:
            summaries = [witness.summary for witness in checker.witness]
            kind = next((witness.kind for witness in checker.witness), "violation")
            return pages.JunitCase(*about, "failure", kind, (summaries or [checker.reason])[0], "\n".join(summaries))
        case Validity.NOT_APPLICABLE:
            return pages.JunitCase(*about, "skipped", message=checker.reason)
        case Validity.UNKNOWN:
            return pages.JunitCase(*about, "error", "unknown", checker.reason or "no verdict")
    return pages.JunitCase(*about)
