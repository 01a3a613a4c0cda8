"""Small listings of the lake's runs: which of them pass a filter, the newest first.  No JVM: pyarrow alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.lake.lake import Lake
from harness.lake.tables import RUNS, VIOLATIONS


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of runs; "" or None: any value fits.  kind: one of its kinds of fault.  symptom: id of any of its
    violations.  revision: how it begins.  since, until: when it started."""

    system: str = ""
    workload: str = ""
    kind: str = ""
    bug: str = ""
    verdict: str = ""
    symptom: str = ""
    revision: str = ""
    backend: str = ""
    since: datetime | None = None
    until: datetime | None = None


COLUMNS: Sequence[str] = (
    "run", "path", "started", "system", "workload", "kinds", "backend", "nodes", "seed", "bug", "bug_found", "revision",
    "dirty", "verdict", "exit_code", "symptom", "violations", "operations", "info", "p99_ms", "faults", "elections",
    "duration_s", "summary",
)  # fmt: skip
"""What a listing knows of a run."""


def runs(lake: Lake, wanted: Filter, most: int | None = None) -> list[dict[str, Any]]:
    """The runs that pass, the newest first, at most so many; each as {column: value} of COLUMNS."""
    table = lake.read(RUNS, COLUMNS)
    keep = pa.repeat(pa.scalar(True), len(table))
    for column in ("system", "workload", "bug", "verdict", "backend"):
        if text := str(getattr(wanted, column)):
            keep = pc.and_(keep, pc.fill_null(pc.equal(table[column], text), False))
    if wanted.revision:
        keep = pc.and_(keep, pc.fill_null(pc.starts_with(table["revision"], wanted.revision), False))
    if wanted.since is not None:
        keep = pc.and_(keep, pc.fill_null(pc.greater_equal(table["started"], _scalar(wanted.since)), False))
    if wanted.until is not None:
        keep = pc.and_(keep, pc.fill_null(pc.less(table["started"], _scalar(wanted.until)), False))
    if wanted.symptom:
        seen = lake.read(VIOLATIONS, ["run", "symptom"])
        with_it = seen.filter(pc.equal(seen["symptom"], wanted.symptom))["run"]
        keep = pc.and_(keep, pc.is_in(table["run"], with_it.combine_chunks()))
    table = table.filter(keep)
    if wanted.kind:
        has = [wanted.kind in kinds for kinds in table["kinds"].to_pylist()]
        table = table.filter(pa.array(has, pa.bool_()))
    order = pc.sort_indices(table, [("started", "descending"), ("run", "ascending")])
    found: list[dict[str, Any]] = table.take(order[:most] if most is not None else order).to_pylist()
    return found


def moment(text: str) -> datetime:
    """An ISO date or time; UTC unless it names another zone.  Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _scalar(at: datetime) -> pa.Scalar:
    return pa.scalar(at, pa.timestamp("ms", tz="UTC"))


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table for a terminal: one line for each run below a line of titles."""
    titles = ("started", "verdict", "system", "workload", "faults", "bug", "operations", "symptom", "folder")
    rows = [titles] + [
        (
            f"{run['started']:%Y-%m-%d %H:%M}" if run["started"] else "-",
            str(run["verdict"]),
            str(run["system"]),
            str(run["workload"]),
            ",".join(run["kinds"] or ()) or "none",
            str(run["bug"] or "-"),
            f"{run['operations'] or 0:,}",
            str(run["symptom"] or "-"),
            str(run["path"]),
        )
        for run in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
