"""The past of a symptom and of a test (seen before, since when, how often, last passed), and lists of runs.

Runs that differ only in their seeds are runs of one *test*.  A symptom of a present run is *new* if no earlier run of
any test showed it; *back* if at least BACK_AFTER runs of its test have passed since it was last seen; else *known*.  A
symptom of earlier runs is *gone* if its test was run now and passed without the symptom; its line gives the number of
runs that have passed since it was last seen.  A streak of a test is the number of its latest runs in a row that ended
as expected.

*Lists.*  Runs of the lake that pass a filter, newest first, read with pyarrow and without a JVM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from harness.lake.lake import Lake, existing_lake
from harness.lake.tables import RUNS, SYSTEM, VIOLATIONS
from harness.plain_words import as_typed, in_columns, plural

BACK_AFTER = 3
Test = tuple[str, ...]


class SymptomStatus(StrEnum):
    NEW, BACK, KNOWN, GONE = "new", "back", "known", "gone"


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run of the lake.

    good: True if the run ended as expected: valid, or with its planted bug found
    planted: True if the run had a planted bug or was to reproduce a finding
    symptoms: id -> description, for all symptoms of the run's violations
    """

    path: str
    started: datetime
    test: Test
    verdict: str
    good: bool
    planted: bool
    symptoms: Mapping[str, str]
    duration_s: float | None = None
    revision: str = ""

    @property
    def when(self) -> str:
        """Return the day and the revision of the run, in words."""
        return f"{self.started:%Y-%m-%d}" + (f" (revision {self.revision[:7]})" if self.revision else "")


@dataclass(frozen=True, slots=True)
class Standing:
    """A symptom, compared with earlier runs.

    shown: earlier runs that showed the symptom, oldest first
    tried: number of earlier runs of the symptom's tests
    passed_since: number of runs of these tests that have passed since the symptom was last seen
    passed: last valid run of these tests without a planted bug
    run: a present run that shows the symptom
    """

    symptom: str
    words: str
    state: SymptomStatus
    shown: tuple[PastRun, ...] = ()
    tried: int = 0
    passed_since: int = 0
    passed: PastRun | None = None
    run: PastRun | None = None

    def seen(self) -> str:
        """Return a sentence that tells how often earlier runs showed the symptom, and when."""
        if not self.tried and not self.shown:
            return "This is the first run of its test."
        if not self.shown:
            return f"Not seen in the {plural(self.tried, 'earlier run')} of its test."
        often = f"Seen in {len(self.shown):,} of {plural(self.tried, 'earlier run')}"
        last = f", last on {self.shown[-1].when}" if len(self.shown) > 1 else ""
        return f"{often}, first on {self.shown[0].when}{last}."

    def line(self) -> str:
        """Return a line such as `back: stale read … (6b96ad0f). Seen in 2 of 9 earlier runs, … After 12 runs that
        passed.`"""
        parts = [f"{self.state}: {self.words} ({self.symptom}).", self.seen()]
        if self.state in (SymptomStatus.BACK, SymptomStatus.GONE):
            after = "After" if self.state is SymptomStatus.BACK else "Not seen in"
            parts.append(f"{after} {plural(self.passed_since, 'run')} that passed.")
        return " ".join(parts)


def past_runs(lake: Lake) -> list[PastRun]:
    """Return all runs of the lake that have a start time, oldest first."""
    symptoms: dict[str, dict[str, str]] = {}
    for row in lake.read(VIOLATIONS, ["run", "symptom", "words"]).to_pylist():
        symptoms.setdefault(row["run"], {})[row["symptom"]] = row["words"]
    rows = [row for row in lake.read(RUNS, _COLUMNS).to_pylist() if row["started"] is not None]
    return [_past(row, symptoms.get(row["run"], {})) for row in sorted(rows, key=lambda row: row["started"])]


_COLUMNS = (
    "run", "path", "started", SYSTEM, "workload", "kinds", "bug", "finding", "verdict", "bug_found", "duration_s",
    "revision",
)  # fmt: skip


def _past(row: Mapping[str, Any], symptoms: Mapping[str, str]) -> PastRun:
    planted = row["bug"] is not None or row["finding"] is not None
    good = row["bug_found"] is True if row["bug"] is not None else row["verdict"] == "valid"
    test = (row[SYSTEM], row["workload"], "+".join(row["kinds"] or ()) or "none", row["bug"] or row["finding"] or "")
    end = row["duration_s"], row["revision"] or ""
    return PastRun(row["path"], row["started"], test, row["verdict"], good, planted, symptoms, *end)


def standings(before: Sequence[PastRun], now: Sequence[PastRun]) -> list[Standing]:
    """Return the standing of each symptom in runs without a planted bug: new, back, known, then gone.

    before, now: earlier and present runs, oldest first
    """
    before, now = ([run for run in runs if not run.planted] for runs in (before, now))
    symptoms = dict.fromkeys(symptom for run in (*before, *now) for symptom in run.symptoms)
    found = [one for symptom in symptoms if (one := standing_of(symptom, before, now)) is not None]
    order = list(SymptomStatus)
    return sorted(found, key=lambda one: (order.index(one.state), one.symptom))


def standing_of(symptom: str, before: Sequence[PastRun], now: Sequence[PastRun]) -> Standing | None:
    """Return the standing of a symptom; None if no present run shows it, and no present run of its tests has passed."""
    shown = tuple(run for run in before if symptom in run.symptoms)
    run = next((run for run in now if symptom in run.symptoms), None)
    tests = {each.test for each in (*shown, *now) if symptom in each.symptoms}
    since = _passed(before, tests, shown)
    state = SymptomStatus.NEW if not shown else SymptomStatus.BACK if since >= BACK_AFTER else SymptomStatus.KNOWN
    if run is None:
        if not tests & {each.test for each in now if each.good}:
            return None
        state, since = SymptomStatus.GONE, _passed([*before, *now], tests, shown)
    words = (run or shown[-1]).symptoms[symptom]
    clean = {test[:-1] for test in tests}
    valid = [each for each in before if each.verdict == "valid" and not each.planted and each.test[:-1] in clean]
    tried = sum(each.test in tests for each in before)
    return Standing(symptom, words, state, shown, tried, since, valid[-1] if valid else None, run)


def standing_of_run(root: Path) -> tuple[Standing, str] | None:
    """Return the standing of a run's first symptom, and the folder of the last valid run of its test, or "" if that
    folder is not on this machine.  Return None if there is no lake, or if the run has no violation.

    root: folder of a judged run
    Raises BrokenFile."""
    from harness.lake.facts import symptom_of_run  # imported here, because a list of runs needs no NumPy

    base = existing_lake(root.parent)
    if base is None or (own := symptom_of_run(root)) is None:
        return None
    row, symptom = own
    run = _past(row, {symptom.id: symptom.words()})
    try:
        before = [each for each in past_runs(Lake(base)) if each.started < run.started]
    except (OSError, ValueError):
        return None
    standing = standing_of(symptom.id, before, [run])
    if standing is None:
        return None
    valid = base.parent / standing.passed.path if standing.passed is not None else None
    return standing, as_typed(valid) if valid is not None and valid.is_dir() else ""


def _passed(runs: Iterable[PastRun], tests: set[Test], shown: Sequence[PastRun]) -> int:
    """Return the number of runs of these tests that passed after the last run that showed the symptom.

    shown: runs that showed the symptom, oldest first"""
    last = shown[-1].started if shown else None
    return sum(run.good and run.test in tests and (last is None or run.started > last) for run in runs)


def streaks(runs: Iterable[PastRun]) -> dict[Test, int]:
    """Return test -> number of its latest runs in a row that ended as expected.

    runs: all runs, oldest first"""
    found: dict[Test, int] = {}
    for run in runs:
        found[run.test] = found.get(run.test, 0) + 1 if run.good else 0
    return found


def canary_age(runs: Iterable[PastRun], now: datetime) -> float | None:
    """Return the days since a run last found a planted bug of the canary, which proves that tests can fail; None if no
    run ever did.
    """
    found = [run.started for run in runs if run.test[0] == "canary" and run.planted and run.good]
    return (now - found[-1]).total_seconds() / 86_400 if found else None


def name_of(test: Test) -> str:
    system, workload, kinds, bug = test
    return f"{system} {workload} under {kinds}" + (f" with {bug}" if bug else "")


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of runs.  "" and None accept any value.

    kind: kind of fault that the run must have
    symptom: id of a symptom that the run must show
    revision: prefix of the revision
    since, until: earliest start, and time before which the run must start
    """

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
"""Columns of a list of runs."""


def runs(lake: Lake, wanted: Filter, most: int | None = None) -> list[dict[str, Any]]:
    """Return the runs that pass the filter, newest first, each with the columns COLUMNS.

    most: maximum number of runs; None for all"""
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
    """Parse an ISO date or time, in UTC unless the text names another zone.  Raises ValueError."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _scalar(at: datetime) -> pa.Scalar:
    return pa.scalar(at, pa.timestamp("ms", tz="UTC"))


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table for a terminal: one line for each run below a header."""
    titles = ("started", "verdict", "system", "workload", "faults", "bug", "operations", "symptom", "folder")
    rows = [
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
    return in_columns([titles, *rows])
