"""The verdict of a run in words: headline, planted bugs, kinds of fault that were never in force, notes, next steps.

The terminal, results.json and the head of the page show the headline.  The sentence of an invalid run is the summary of
its leading finding (`findings.py`); if elements of a set were lost, the sentence contains their number.  If a planted
bug was not found, the first sentence says so, because the run has missed its purpose.  The headline of a valid run
lists the kinds of fault that were never in force.  Every headline names the demands that were waived.

*Next steps* are commands to copy: after a violation, after an unknown verdict, after a pass.

    results.json + test.json ──next_steps──> commands, most useful first
                             ──shortfalls──> of an unknown run: required value, measured value, a run that meets it

Commands begin in the way this process was started (`harness/started.py`): with make, krucible, or python -m harness.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checkers.base.results import VACUITY, CheckerResult, Criterion, KindNeverInForce, Results, RunVerdict
from checkers.base.verdict import Validity
from checkers.models.objects.sets import LOST
from checkers.record.header_and_outcome import Header, RunOutcome
from checkers.run_quality.processor_time import busy_in_words, shares_between
from harness.plain_words import LONGEST, amount, listed, lower_first, plural, seconds, sentence, shorten
from harness.registry import BACKENDS
from harness.spec import LIMITS, Spec, WrongSpec, beside_of
from harness.started import by_make, program
from harness.story import findings as found_in
from harness.story.findings import Finding, ReportedViolation, cause_of, counted_by_checker, findings, title_of
from system_under_test.subject import Bug

LOST_WRITE = "lost write"
_STARTS_LOWER = ("A", "At", "The", "In", "No", "Every", "One", "Two")


def verdict_in_words(results: Results, header: Header | None) -> str:
    """Return one or two sentences: the result of the run."""
    bug = planted(results, header)
    head = headline(results, header)
    head = f"{head} {bug.words}" if bug and bug.words.lower() not in head.lower() else head
    names = [name for name, _ in waived_demands(results)]
    return f"{head} Waived: {listed(names)}." if names and results.verdict is not RunVerdict.VALID else head


def headline(results: Results, header: Header | None) -> str:
    """Return the verdict in one or two sentences; more if kinds of fault were never in force."""
    if results.contradiction:
        return sentence(shorten(results.contradiction, 2 * LONGEST))
    if failure := results.failure or (results.reason if results.verdict is RunVerdict.HARNESS_FAILED else ""):
        who = "No test took place" if results.not_tested else "The harness failed"
        return f"{who}: {lower_first(sentence(shorten(failure)))}"
    if results.verdict is RunVerdict.INVALID:
        return _invalid(results)
    if results.not_tested:
        return f"No test took place: {lower_first(sentence(shorten(results.reason)))}"
    bug = planted(results, header)
    if bug and not bug.found and results.verdict is not RunVerdict.NOT_JUDGED:
        return f"Unknown: {lower_first(bug.words)}"
    return _valid(results) if results.verdict is RunVerdict.VALID else _unknown(results)


def in_all(results: Results) -> str:
    """Return a sentence with the number of violations; "" if there is at most one.  The numbers of several checkers are
    not added, because they may blame the same operation.
    """
    by = counted_by_checker(results)
    if sum(by.values()) < 2:
        return ""
    counted = how_many(results)
    if len(by) == 1:
        return f"One checker found {counted}{'' if ' of ' in counted else ' in all'}."
    one = ", probably of one cause" if cause_of(findings(results)) is not None else ""
    return f"{len(by)} checkers found {counted}{one}."


def how_many(results: Results) -> str:
    """Return the number of violations and of their kinds; only the number of kinds if several checkers found them."""
    by = counted_by_checker(results)
    kinds = sum(len(group.kinds) for group in found_in.groups(results))
    if len(by) > 1:
        return f"{plural(kinds, 'kind')} of violations"
    return f"{sum(by.values()):,} violations" + (f" of {kinds} kinds" if kinds > 1 else "")


def _invalid(results: Results) -> str:
    """Return the effect on users, then its cause, then the number of violations."""
    found = findings(results)
    if not found:
        return "Invalid, but no checker kept its evidence."
    lead = found[0].lead
    first = _lost(lead, results.checkers[lead.checker]) or sentence(lead.summary)
    first = first[0].lower() + first[1:] if first.split(" ", 1)[0] in _STARTS_LOWER else first
    return " ".join(filter(None, [f"Invalid: {first}", results.lost_elements, first_step(found), in_all(results)]))


def first_step(found: Sequence[Finding]) -> str:
    """Return a sentence about the first wrong step behind the leading finding, with the time of the step if it is
    known; "" if no checker found such a step.
    """
    cause = cause_of(found)
    if cause is None:
        return ""
    timed = cause.lead.moment_ns >= 0 and not found_in.seen_in_a_copy(cause.lead)
    at = f", at {seconds(cause.lead.moment_ns)}" if timed else ""
    return f"First wrong step seen{at}: {sentence(cause.lead.summary)}"


def _lost(first: ReportedViolation, checker: CheckerResult) -> str:
    """Return a sentence with the number of lost elements or writes, which tells more than the first witness; "" if
    nothing was lost.
    """
    if first.kind == LOST_WRITE and (writes := checker.violations_by_kind.get(LOST_WRITE, 0)) > 1:
        return f"{writes:,} acknowledged writes were lost, such as this one: {lower_first(sentence(first.summary))}"
    missing, verbs, where = checker.figure("missing_from_last_read"), ("is", "are"), "missing from the last read"
    if missing <= 0 and first.kind == LOST:
        missing, verbs, where = checker.figure("never_taken"), ("was", "were"), "never taken out"
    if missing <= 0:
        return ""
    count = checker.figure("acknowledged") if "acknowledged" in checker.looked_at else missing
    return f"of {count:,} acknowledged elements, {missing:,} {verbs[missing > 1]} {where}."


def _valid(results: Results) -> str:
    judged = sum(checker.verdict is Validity.VALID for checker in results.checkers.values())
    looked = f"{plural(judged, 'checker')} looked and found nothing wrong{_of_what(results)}."
    kinds, waived = kinds_never_in_force(results), waived_demands(results)
    but = [f"{listed(kinds)} {'was' if len(kinds) == 1 else 'were'} never in force"] if kinds else []
    was = "was" if len(waived) == 1 else "were"
    but += [f"{listed([name for name, _ in waived])} {was} waived"] if waived else []
    head = f"Valid, but {' and '.join(but)}" if but else "Valid"
    short = [sentence(shorten(f"{words[0].upper()}{words[1:]}")) for _, words in waived if words]
    return " ".join([f"{head}: {looked}", *why_never_in_force(results), *short])


def waived_demands(results: Results) -> list[tuple[str, str]]:
    """Return (name of a demand that the user waived, its shortfall or "" if the run met the demand)."""
    silent = "; ".join(results.availability.waived)
    waived = results.vacuity.waived
    return [(each.name, silent if each.name == "availability" else each.shortfall) for each in waived]


def _unknown(results: Results) -> str:
    unknown = [(name, c) for name, c in results.checkers.items() if c.verdict is Validity.UNKNOWN]
    if not unknown:
        return f"Unknown: {lower_first(sentence(results.reason or 'this run has not been judged'))}"
    name, first = unknown[0]
    reason = sentence(first.reason or f"{title_of(name, first)} could not decide")
    more = f" {plural(len(unknown) - 1, 'more checker')} could not decide either." if len(unknown) > 1 else ""
    return f"Unknown: {lower_first(reason)}{more}"


def _of_what(results: Results) -> str:
    """Return the amount of evidence in words: the largest numbers of operations and keys that a checker reports."""
    looked_at = [checker.looked_at for checker in results.checkers.values()]
    operations, keys = (
        max((value for each in looked_at if isinstance(value := each.get(name), int)), default=None)
        for name in ("operations", "keys")
    )
    if operations is None:
        return ""
    return f" in {plural(operations, 'operation')}" + ("" if keys is None else f" on {plural(keys, 'key')}")


def kinds_never_in_force(results: Results) -> list[str]:
    """Return the names of the kinds, sorted.  Results of older versions contain none."""
    return [each.kind for each in results.vacuity.never_in_force]


def why_never_in_force(results: Results) -> list[str]:
    """Return one sentence about all kinds that were never dealt, and one sentence for each kind that was dealt but
    never in force.
    """
    found = results.vacuity.never_in_force
    never_dealt = [each.kind for each in found if not each.dealt]
    out = [f"The time was too short to deal {listed(never_dealt)}."] if never_dealt else []
    return out + [_why(each) for each in found if each.dealt]


def _why(found: KindNeverInForce) -> str:
    reasons = "; ".join(found.reasons) or "no reason is recorded"
    were = "was dealt and was not" if found.dealt == 1 else "were dealt and none was"
    return sentence(shorten(f"{plural(found.dealt, 'fault')} of kind {found.kind} {were} in force: {reasons}"))


@dataclass(frozen=True, slots=True)
class Planted:
    """A planted bug.

    found: True if a checker found the bug
    words: one or two sentences
    does: effect of the bug, as a clause; "" if it is unknown
    """

    name: str
    found: bool
    words: str
    does: str = ""


def planted(results: Results, header: Header | None) -> Planted | None:
    """Return the result for a planted bug; None if the system has no planted bug."""
    spec = header.spec if header is not None else {}
    decided = results.planted
    name = decided.bug if decided is not None else spec.get("bug")
    if not name:
        return None
    found = decided.found if decided is not None else results.verdict is RunVerdict.INVALID
    bug, shown = known_bug(str(spec.get("subject", "")), str(name)), shorten(str(name), 60)
    words = f"Planted bug {shown}: {'found' if found else 'not found'}{f' by {bug.found_by}' if bug else ''}."
    reason = decided.reason if decided is not None and not found else ""
    does = bug.summary if bug is not None else ""
    return Planted(shown, found, f"{words} {sentence(shorten(_capital(reason)))}" if reason else words, does)


def known_bug(subject: str, name: str) -> Bug | None:
    """Return the subject's declaration of its planted bug.

    Returns None if this version has no such subject or bug, or cannot load the subject, because the report on an old
    run must not fail.  Returns None for external subjects, too: they have no planted bugs, and a report must not
    execute their code.
    """
    from harness.registry import SUBJECTS, load_subject
    from harness.spec import WrongSpec

    if subject not in SUBJECTS:
        return None
    try:
        return load_subject(subject).bugs.get(name)
    except (WrongSpec, ImportError):
        return None


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if lower_first(text) == text else text


REFUSED_MIN = 10
"""Minimum number of operations for a note on operations with an unknown outcome despite a refused connection."""


def notes(results: Results, outcome: RunOutcome) -> list[str]:
    """Return notes next to the verdict, one sentence each; most of them tell whether the harness itself kept up."""
    out = []
    if outcome.set_up_failure:
        out.append(f"Set-up failed: {sentence(shorten(outcome.set_up_failure))}")
    if outcome.interrupted:
        out.append("The run was interrupted; everything recorded until then was judged.")
    if stopped := outcome.stopped:
        what, at = sentence(shorten(stopped.summary)), seconds(stopped.time_ns, 1)
        out.append(f"The run was stopped early, {at} after it began, by an online check of {stopped.checker}: {what}")
    if outcome.online is not None and (failure := outcome.online.failure):
        out.append(f"Online checks failed and were given up ({shorten(failure)}); the recorded run was judged in full.")
    # otherwise the headline contains it
    kinds = kinds_never_in_force(results) if results.verdict is not RunVerdict.VALID else []
    if kinds:
        were = "This kind of fault was" if len(kinds) == 1 else "These kinds of fault were"
        out.append(" ".join([f"{were} never in force: {listed(kinds)}.", *why_never_in_force(results)]))
    if unused := results.vacuity.never_invoked:
        them = "it" if len(unused) == 1 else "them"
        out.append(f"The workload states {listed(unused)}, but no client invoked {them}.")
    if (refused := results.statistics.refused_connections) >= REFUSED_MIN:
        out.append(
            f"{refused:,} operations have an unknown outcome although their connection was refused. Let the client "
            "connect in `open`; otherwise these operations may hide lost data."
        )
    shown = [e for name in results.invalid for w in results.checkers[name].witness for e in w.events]
    if outcome.declares.get("forwards") and any(event.get("node") for event in shown):
        out.append("Servers of this system forward requests, so a wrong answer may come from the leader of that time.")
    wanted, got = outcome.scheduled_rate_hz, outcome.achieved_rate_hz
    if got is not None and 0 < got < 0.8 * wanted:
        out.append(f"Outside of faults, clients reached {got:.0f} of the {wanted:.0f} scheduled operations per second.")
    if stalls := [int(stall.stall_ms) for stall in outcome.loop_stalls]:
        times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
        out.append(f"The harness’ own loop stalled {times}, for up to {max(stalls):,} ms.")
    if lost := [f"{n} {s:.1f} s" for n, s in sorted(outcome.steal_s.items()) if s > 0.5]:
        out.append(f"The machine took CPU time away from nodes: {listed(lost)}.")
    main = outcome.phase("main")
    span = (main.start_ns, main.end_ns) if main is not None and main.end_ns > main.start_ns else None
    if span is not None and (busy := busy_in_words(shares_between(outcome, *span))):
        out.append(
            f"The machine was busy: {'; '.join(busy)}. This slows a run down, but makes no right answer wrong. "
            "If the run tested too little for this reason, the verdict is unknown."
        )
    return out


# Next steps

_LENGTH_MOST = 600
_SAME_SEED = "Run the same seed again: it draws the same operations and faults, but later ones may differ."
_SAME_SEED_SAME_RUN = "Run the same seed again: on virtual time the run is byte for byte the same."

Change = Callable[[Spec], Spec]


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command to try next.

    words: purpose of the command
    command: the command, to copy
    short: name of the step in one word
    """

    words: str
    command: str
    short: str = "again"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One shortfall of a run. wanted, got: required and measured value in words; "" if a checker gives no number."""

    what: str
    wanted: str
    got: str
    words: str
    command: str


def next_steps(results: Results, header: Header | None, folder: str, *, logs: bool, valid: str = "") -> list[NextStep]:
    """Return the commands to try next, most useful first.

    folder: folder of the run, as its reader types it
    logs: True if the run kept logs in Kafka's format
    valid: folder of the last valid run of the same test; "" if there is none here
    """
    rerun = shorten(_rerun(header), _LENGTH_MOST)
    with_run = f"{program()} {{}} {shlex.quote(folder)}"
    spec = header.spec if header is not None else {}
    backend = BACKENDS.get(str(spec.get("backend", "")))
    out: list[NextStep] = []

    def step(words: str, command: str, short: str = "again") -> None:
        out.append(NextStep(words, command, short))

    if findings(results):
        if spec.get("nemesis") != "none":  # without faults there is nothing to replay or to shrink
            words = "Inject the same faults into the same roles (current leader, follower) five times."
            words += " This shows how often the violation recurs."
            step(words, f"{with_run.format('replay')} --times 5", "replay")
            step("Look for the smallest schedule of faults that still fails.", with_run.format("shrink"), "shrink")
        if valid:
            compare = f"{with_run.format('compare')} {shlex.quote(valid)}"
            step("Compare it with the last valid run of its test, up to the first difference.", compare, "compare")
        finds = re.search(r"(?<!\S)find(-\S*)?(?!\S)", rerun) is not None
        if rerun and not finds and backend is not None and not backend.not_kept:
            keep = f"{rerun} {'KEEP=' if rerun.startswith('make ') else '--keep '}on-violation"
            words = "Run it again, and leave the cluster up if it fails: enter the nodes, and release them afterwards"
            step(f"{words} with {program()} release.", keep, "enter")
        if logs:
            step("Compare the logs on the nodes' disks; this needs no client.", with_run.format("check-logs"), "logs")
    if rerun:
        step(_SAME_SEED_SAME_RUN if backend is not None and backend.virtual_time else _SAME_SEED, rerun)
        if (other := _another_seed(header)) and results.verdict is RunVerdict.VALID:
            step("Run the next seed: other operations and other faults.", other)
    step("Judge this run again, from its stored files.", with_run.format("analyze"), "judge")
    return out


def shortfalls(results: Results, header: Header | None, folder: str) -> list[Shortfall]:
    """Return the shortfalls of an unknown run; [] for a run with another verdict.  Also [] if the system never became
    ready: no other run makes up for this, and the first line says what is missing.
    """
    if results.verdict is not RunVerdict.UNKNOWN or results.not_tested:
        return []
    out = []
    for name, checker in results.checkers.items():
        if checker.verdict is not Validity.UNKNOWN:
            continue
        criteria = results.vacuity.criteria if name == VACUITY else ()
        missed = [criterion for criterion in criteria if criterion.demanded and not criterion.met]
        out += [_of_criterion(criterion, header) for criterion in missed]
        if not missed:
            again = f"{program()} analyze {shlex.quote(folder)}"
            reasons = (checker.reason or "it could not decide").split("; ")
            sentences = [sentence(shorten(reason.strip(), _LENGTH_MOST)) for reason in reasons]
            out += [Shortfall(title_of(name, checker), "", "", words, again) for words in sentences]
    if (bug := results.planted) is not None and not bug.found:
        what, words = f"planted bug {shorten(bug.bug, 40)}", "Another seed deals other faults."
        out.append(Shortfall(what, "found", "not found", words, _another_seed(header)))
    return out


def _of_criterion(criterion: Criterion, header: Header | None) -> Shortfall:
    name, value, least = shorten(criterion.name or "?", 80), criterion.value, criterion.least
    words = sentence(shorten(criterion.advice or criterion.words or name))
    remedy = _REMEDIES.get(name, _LONGER)
    if remedy is _SLOWER and "--time-limit" in criterion.advice:
        remedy = _LONGER  # nothing was measured in times without faults, so the rate need not be too high
    command = _changed(header, lambda spec: _scaled(spec, remedy))
    if least == 1 and value in (0, 1) and name in YES_OR_NO:
        return Shortfall(name, "yes", "yes" if value else "no", words, command)
    return Shortfall(name, f"at least {figure(name, least)}", figure(name, value), words, command)


YES_OR_NO = {"ran to its end", "harness kept up", "nodes had their CPU"}


def figure(name: str, value: float) -> str:
    """Return the value of a criterion for readers."""
    if name.startswith("share"):
        return f"{100 * value:.0f} %"
    return amount(int(value) if value.is_integer() else value)


_LONGER, _SLOWER, _FEWER_KEYS = {"time_limit_s": 2.0}, {"rate_hz": 0.5}, {"keys": 0.5}
_REMEDIES: Mapping[str, Mapping[str, float]] = {
    "ran to its end": {},
    "elections won under a fault": {"holds": 2.0, **_LONGER},
    "keys with concurrency": _FEWER_KEYS,
    "keys with enough ok writes": _FEWER_KEYS,
    "keys read at the end": {"recovery_limit_s": 2.0},
    "share of the scheduled rate": _SLOWER,
    "harness kept up": _SLOWER,
    "nodes had their CPU": _SLOWER,
    "nodes with a final log": {},
    "nodes with a trace": {},
}
"""Criterion -> factors of fields of the spec that would meet the criterion; all others need a run of twice the length.
"""


def _scaled(spec: Spec, factors: Mapping[str, float]) -> Spec:
    """Return a spec with some fields multiplied; each result is at least 1 and within the limits of a spec."""
    changes: dict[str, Any] = {}
    for name, factor in factors.items():
        before = getattr(spec, name) or 1.0
        most = LIMITS[name][1] if name in LIMITS else float("inf")
        changes[name] = type(before)(min(max(1, factor * before), most))
    return dataclasses.replace(spec, **changes)


def _changed(header: Header | None, change: Change) -> str:
    """Return the command that runs the test with a changed spec; "" if the run does not contain its spec."""
    if header is None or not header.spec:
        return _rerun(header)
    if (recorded := _spec_of(header)) is None:
        return ""
    spec = change(recorded)
    words = [*spec.words(), *beside_of(header.rerun)]
    by = spec.rerun() if header.rerun.startswith("make ") else f"{program()} {shlex.join(words)}"
    return shorten(by, _LENGTH_MOST)


def _another_seed(header: Header | None) -> str:
    return _changed(header, lambda spec: dataclasses.replace(spec, seed=spec.seed + 1))


def _rerun(header: Header | None) -> str:
    """Return the command that repeats the test, with the user's options, in the way this process was started."""
    recorded = header.rerun if header is not None else ""
    if recorded.startswith("make "):
        return recorded if by_make() else _changed(header, lambda spec: spec) or recorded
    start = re.search(r"\b(run|find) ", recorded)
    return recorded if start is None else f"{program()} {recorded[start.start() :]}"


def _spec_of(header: Header) -> Spec | None:
    """Return the spec of a run, with the requested backend; None if this version cannot build this spec."""
    given = {"seed": header.seed or 0, **header.spec}
    if "backend" not in header.rerun.lower():
        given.pop("backend", None)  # the run chose the backend, and the next run may choose again
    try:
        return Spec.from_json(given)
    except (WrongSpec, TypeError):
        return None
