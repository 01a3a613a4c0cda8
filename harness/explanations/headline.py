"""The verdict of a run in one or two sentences, for the terminal, results.json and the head of the page.

The sentence of an invalid run is the summary of its first violation in the order of causes; of wrong answers it is the
one that explains most (`violations_by_cause.py`).
If that is a violation of a set that lost elements, the sentence says how many.
A planted bug that was not found makes the first sentence of the run, because then the run has not shown what it was
made for.  A valid run in which a kind of fault was never in force says so, too, and every run what was waived.
"""

from __future__ import annotations

from collections.abc import Sequence

from checkers.base.results import CheckerResult, Results, RunVerdict
from checkers.base.verdict import Validity
from checkers.models.objects.sets import LOST
from checkers.record.header import Header
from harness.explanations.kinds_never_in_force import kinds_never_in_force, why_never_in_force
from harness.explanations.planted_bug_words import planted
from harness.explanations.violations_by_cause import (
    ReportedViolation,
    counted_by_checker,
    title_of,
    violations_by_cause,
)
from harness.plain_words import LONGEST, listed, lower_first, plural, sentence, shorten

_STARTS_LOWER = ("At", "The", "In", "No", "Every", "One", "Two")


def verdict_in_words(results: Results, header: Header | None) -> str:
    """One or two sentences: what the run showed."""
    bug = planted(results, header)
    head = headline(results, header)
    head = f"{head} {bug.words}" if bug and bug.words not in head else head
    names = [name for name, _ in waived_demands(results)]
    return f"{head} Waived: {listed(names)}." if names and results.verdict is not RunVerdict.VALID else head


def headline(results: Results, header: Header | None) -> str:
    """The verdict as one sentence or two; more where kinds of fault were never in force."""
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
    """How many violations each checker found, if there are more than one: a sentence, or "".  They are not added up,
    because several checkers may blame one operation."""
    by = counted_by_checker(results)
    if sum(by.values()) < 2:
        return ""
    if len(by) == 1:
        return f"One checker found {sum(by.values()):,} violations in all."
    counts = listed([f"{lower_first(title)} {count:,}" for title, count in by.items()])
    return f"{len(by)} checkers found violations, often in the same operations{f': {counts}' if len(by) < 4 else ''}."


def _invalid(results: Results) -> str:
    found = violations_by_cause(results)
    if not found:
        return "Invalid, but no checker kept its evidence."
    first = _lost(found[0], results.checkers[found[0].checker]) or sentence(found[0].summary)
    first = lower_first(first) if first.split(" ", 1)[0] in _STARTS_LOWER else first
    return " ".join(filter(None, [f"Invalid: {first}", results.lost_elements, in_all(results)]))


def _lost(first: ReportedViolation, checker: CheckerResult) -> str:
    """How many elements were lost, which tells more than the first witness; "" if none was lost."""
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
    but += [f"{_named_demands(waived)} waived"] if waived else []
    head = f"Valid, but {' and '.join(but)}" if but else "Valid"
    short = [sentence(shorten(f"{words[0].upper()}{words[1:]}")) for _, words in waived if words]
    return " ".join([f"{head}: {looked}", *why_never_in_force(results), *short])


def waived_demands(results: Results) -> list[tuple[str, str]]:
    """(name of a demand that the user waived, what fell short of it, "" where it was met)."""
    silent = "; ".join(results.availability.waived)
    waived = results.vacuity.waived
    return [(each.name, silent if each.name == "availability" else each.shortfall) for each in waived]


def _named_demands(waived: Sequence[tuple[str, str]]) -> str:
    return f"{listed([name for name, _ in waived])} {'was' if len(waived) == 1 else 'were'}"


def _unknown(results: Results) -> str:
    unknown = [(name, c) for name, c in results.checkers.items() if c.verdict is Validity.UNKNOWN]
    if not unknown:
        return f"Unknown: {lower_first(sentence(results.reason or 'this run has not been judged'))}"
    name, first = unknown[0]
    reason = sentence(first.reason or f"{title_of(name, first)} could not decide")
    more = f" {plural(len(unknown) - 1, 'more checker')} could not decide either." if len(unknown) > 1 else ""
    return f"Unknown: {lower_first(reason)}{more}"


def _of_what(results: Results) -> str:
    """How much was looked at, from the largest figures named operations and keys."""
    seen: dict[str, int] = {}
    for checker in results.checkers.values():
        for name in ("operations", "keys"):
            value = checker.looked_at.get(name)
            if isinstance(value, int):
                seen[name] = max(seen.get(name, 0), value)
    if "operations" not in seen:
        return ""
    keys = f" on {plural(seen['keys'], 'key')}" if "keys" in seen else ""
    return f" in {plural(seen['operations'], 'operation')}{keys}"
