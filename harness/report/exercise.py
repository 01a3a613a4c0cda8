"""Was it a real test?  The criteria of the `vacuity` checker as figures a reader takes in at a glance.

Nothing is counted here: the checker's own figures are shown, so that page and verdict can never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkers.base.json_file import mapping, number, sequence
from harness.explanations.next_steps import YES_OR_NO, figure
from harness.plain_words import amount, looked_at, shorten
from harness.report.evidence.report_data import ReportData

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
    details = mapping(data.checkers.get("vacuity", {}).get("details"))
    found = [_figure(mapping(c)) for c in sequence(details.get("criteria"))]
    return sorted(found, key=lambda f: {False: 0, True: 1, None: 2}[f.enough])


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """How often one function was invoked and how it ended.  latencies: (with or without faults, quantiles in words)."""

    f: str
    counts: str
    latencies: list[tuple[str, str]]


def functions(data: ReportData) -> list[FunctionRow]:
    """What the `statistics` checker counted of every f."""
    details = mapping(data.checkers.get("statistics", {}).get("details"))
    rows = []
    for f, entry in mapping(details.get("functions")).items():
        counts = {k: v for k, v in mapping(entry).items() if k != "latency_ms" and v}
        latency = mapping(mapping(entry).get("latency_ms"))
        quantiles = [(shorten(str(when), 40), _latency(mapping(at))) for when, at in latency.items()]
        rows.append(
            FunctionRow(shorten(str(f), 40), looked_at(counts), [(when, text) for when, text in quantiles if text])
        )
    return rows


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """fail, info: how many operations failed with it, and how many are of unknown outcome."""

    error: str
    fail: int
    info: int


def errors(data: ReportData) -> list[ErrorRow]:
    """The errors of clients, the most frequent first, as the `statistics` checker counted them."""
    details = mapping(data.checkers.get("statistics", {}).get("details"))
    rows = map(mapping, sequence(details.get("errors")))
    return [
        ErrorRow(shorten(str(row.get("error")), 160), number(row.get("fail"), 0), number(row.get("info"), 0))
        for row in rows
    ]


def _figure(criterion: Mapping[str, Any]) -> RunFigure:
    name = shorten(str(criterion.get("name") or "?"), 80)
    value, least = criterion.get("value"), criterion.get("least")
    demanded, met = bool(criterion.get("demanded", True)), bool(criterion.get("met"))
    yes_or_no = name in YES_OR_NO
    plain = ("yes" if value else "no") if yes_or_no else figure(name, value)
    wanted = "" if yes_or_no or not least else f"at least {figure(name, least)}"
    if not demanded:
        wanted = f"should be {wanted}" if wanted else ""
    return RunFigure(
        plain,
        name,
        wanted,
        shorten(str(criterion.get("words") or ""), _WORDS_MOST),
        met if demanded or not met else None,
    )


def _latency(at: Mapping[str, Any]) -> str:
    """{"count": 9, "p50": 4.2, ...} in words; "" where nothing was answered."""
    if not at.get("count"):
        return ""
    quantiles = [f"{k} {amount(float(v))} ms" for k, v in at.items() if k != "count" and isinstance(v, int | float)]
    return shorten(", ".join(quantiles))
