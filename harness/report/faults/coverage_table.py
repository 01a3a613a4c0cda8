"""What the faults met, and what they never met: the table that the deck deals by (`nemesis.coverage`)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.plain_words import shorten
from harness.report.run_data.report_data import ReportData
from nemesis.coverage import PHASES, ROLES


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """kind, role: the fault and the role of a node that it hit.  looks: in each phase, how many looks met it."""

    kind: str
    role: str
    looks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SituationRow:
    """words: "met", "never", or that the system does not report it."""

    name: str
    words: str
    mark: str


@dataclass(frozen=True, slots=True)
class CoverageView:
    phases: tuple[str, ...]
    rows: list[CoverageRow]
    situations: list[SituationRow]
    summary: str


def view(data: ReportData) -> CoverageView | None:
    """None for a run that kept no such table, or broke nothing."""
    coverage = data.outcome.coverage
    if coverage is None or not coverage.cells:
        return None
    looks = {(kind, role, phase): count for kind, role, phase, count in coverage.cells}
    kinds = sorted({kind for kind, _, _ in looks})
    rows = [
        CoverageRow(shorten(kind, 40), role, tuple(looks.get((kind, role, phase), 0) for phase in PHASES))
        for kind in kinds
        for role in ROLES
    ]
    met = sum(count > 0 for row in rows for count in row.looks)
    situations = [_situation(name, count) for name, count in coverage.situations.items()]
    summary = f"{met} of {len(rows) * len(PHASES)} combinations were met."
    return CoverageView(PHASES, rows, situations, summary)


def _situation(name: str, count: int | None) -> SituationRow:
    if count is None:
        return SituationRow(shorten(name, 120), "not reported by this system", "none")
    return SituationRow(shorten(name, 120), "met" if count else "never", "valid" if count else "none")
