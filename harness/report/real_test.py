"""Was enough tested?  The criteria of the `vacuity` checker as figures a reader takes in at a glance.

Nothing is counted here: the checker's own figures are shown, so that page and verdict can never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from checkers.base.json_file import mapping
from checkers.base.results import Criterion, ErrorCount
from harness.plain_words import amount, looked_at, shorten
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

    @property
    def mark(self) -> str:
        return {True: "valid", False: "unknown", None: "none"}[self.enough]

    @property
    def mark_words(self) -> str:
        return {True: "enough", False: "too little", None: "for information"}[self.enough]


def figures(data: ReportData) -> list[RunFigure]:
    """Every criterion in the checker's order, what was demanded and missed first; [] for a run not judged by it."""
    found = [_figure(criterion, bool(data.outcome.stopped)) for criterion in data.results.vacuity.criteria]
    return sorted(found, key=lambda f: {False: 0, True: 1, None: 2}[f.enough])


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """Counts of how often one function was invoked and how it ended.  latencies: (with or without faults, quantiles in
    words)."""

    f: str
    counts: str
    latencies: list[tuple[str, str]]


def functions(data: ReportData) -> list[FunctionRow]:
    """Return what the `statistics` checker counted of every f."""
    rows = []
    for f, entry in data.results.statistics.functions.items():
        counts = {k: v for k, v in entry.items() if k != "latency_ms" and v}
        latency = mapping(entry.get("latency_ms"))
        quantiles = [(shorten(str(when), 40), _latency(mapping(at))) for when, at in latency.items()]
        rows.append(
            FunctionRow(shorten(str(f), 40), looked_at(counts), [(when, text) for when, text in quantiles if text])
        )
    return rows


def errors(data: ReportData) -> list[ErrorCount]:
    """The errors of clients, the most frequent first, as the `statistics` checker counted them."""
    return [replace(each, error=shorten(each.error, 160)) for each in data.results.statistics.errors]


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


def _latency(at: Mapping[str, Any]) -> str:
    """{"count": 9, "p50": 4.2, ...} in words; "" where nothing was answered."""
    if not at.get("count"):
        return ""
    quantiles = [f"{k} {amount(float(v))} ms" for k, v in at.items() if k != "count" and isinstance(v, int | float)]
    return shorten(", ".join(quantiles))
