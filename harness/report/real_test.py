"""Was enough tested?  The criteria of the `vacuity` checker as figures a reader takes in at a glance.

Nothing is counted here: the checker's own figures are shown, so that page and verdict can never disagree.
"""

from __future__ import annotations

from dataclasses import dataclass

from checkers.base.results import Criterion
from harness.plain_words import shorten
from harness.report.run_data import ReportData
from harness.story.next_steps import YES_OR_NO, figure

RAN_TO_ITS_END = "ran to its end"
_WORDS_MOST = 10_000
"""Characters of a criterion's words: whole, unless somebody changed the results."""


@dataclass(frozen=True, slots=True)
class RunFigure:
    """enough: None where nothing is demanded.  least: what counts, in words, "" where nothing is demanded."""

    value: str
    name: str
    least: str
    words: str
    enough: bool | None


def figures(data: ReportData) -> list[RunFigure]:
    """Every criterion in the checker's order, what was demanded and missed first; [] for a run not judged by it."""
    found = [_figure(criterion, bool(data.outcome.stopped)) for criterion in data.results.vacuity.criteria]
    return sorted(found, key=lambda f: {False: 0, True: 1, None: 2}[f.enough])


def _figure(criterion: Criterion, stopped: bool) -> RunFigure:
    """stopped: a violation ended the run early, so it did not run to its end although nothing is wrong with that."""
    name, value, least = shorten(criterion.name or "?", 80), criterion.value, criterion.least
    demanded, met = criterion.demanded, criterion.met
    yes_or_no = name in YES_OR_NO
    plain = ("yes" if value else "no") if yes_or_no else figure(name, value)
    if stopped and name == RAN_TO_ITS_END:
        plain = "no, stopped early"
    wanted = "" if yes_or_no or not least else f"at least {figure(name, least)}"
    if not demanded:
        wanted = f"should be {wanted}" if wanted else ""
    return RunFigure(
        plain,
        name,
        wanted,
        shorten(criterion.words, _WORDS_MOST),
        met if demanded or not met else None,
    )
