"""What a campaign found, held against all runs before it: new, known, back or gone; and how long each test has passed.

Theory.  A *test* is what runs have in common that differ in their seeds alone.  A symptom seen now is *new* if no
earlier run of any test showed it; *back* if the last BACK_AFTER runs of its test or more passed without it; else
*known*.  A symptom that earlier runs of a test showed is *gone* if this campaign ran that test and it passed without
it: then its last BACK_AFTER runs decide nothing yet, so the line says how many runs passed since.

No run is repeated until it passes: a streak is the number of runs in a row, up to the last, that ended as they should.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from harness.lake.lake import Lake
from harness.lake.tables import RUNS, SYSTEM, VIOLATIONS

BACK_AFTER = 3
Test = tuple[str, ...]


class SymptomStatus(StrEnum):
    NEW, BACK, KNOWN, GONE = "new", "back", "known", "gone"


@dataclass(frozen=True, slots=True)
class PastRun:
    """One run of the lake.  good: it ended as it should: valid, or with its planted bug found.  planted: it had a bug.
    symptoms: id -> words, of all its violations."""

    path: str
    started: datetime
    test: Test
    verdict: str
    good: bool
    planted: bool
    symptoms: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Standing:
    """first_seen: None for a new one.  passed_since: runs of its tests that passed since it was last seen."""

    symptom: str
    words: str
    state: SymptomStatus
    first_seen: datetime | None
    passed_since: int

    def line(self) -> str:
        """Such as: back: stale read … (6b96ad0f), first seen 2026-11-02, after 12 runs that passed."""
        parts = [f"{self.state}: {self.words} ({self.symptom})"]
        parts += [f"first seen {self.first_seen:%Y-%m-%d}"] if self.first_seen else []
        if self.state in (SymptomStatus.BACK, SymptomStatus.GONE):
            after = "after" if self.state is SymptomStatus.BACK else "not seen in"
            parts.append(f"{after} {self.passed_since} run{'s' * (self.passed_since != 1)} that passed")
        return ", ".join(parts)


def past_runs(lake: Lake) -> list[PastRun]:
    """All runs of the lake, the oldest first; those that did not say when they began are left out."""
    symptoms: dict[str, dict[str, str]] = {}
    for row in lake.read(VIOLATIONS, ["run", "symptom", "words"]).to_pylist():
        symptoms.setdefault(row["run"], {})[row["symptom"]] = row["words"]
    columns = ["run", "path", "started", SYSTEM, "workload", "kinds", "bug", "finding", "nodes", "verdict", "bug_found"]
    rows = [row for row in lake.read(RUNS, columns).to_pylist() if row["started"] is not None]
    return [_past(row, symptoms.get(row["run"], {})) for row in sorted(rows, key=lambda row: row["started"])]


def _past(row: Mapping[str, Any], symptoms: Mapping[str, str]) -> PastRun:
    planted = row["bug"] is not None or row["finding"] is not None
    good = row["bug_found"] is True if row["bug"] is not None else row["verdict"] == "valid"
    test = (row[SYSTEM], row["workload"], "+".join(row["kinds"] or ()) or "none", row["bug"] or row["finding"] or "")
    return PastRun(row["path"], row["started"], test, row["verdict"], good, planted, symptoms)


def standings(before: Sequence[PastRun], now: Sequence[PastRun]) -> list[Standing]:
    """Each symptom of clean systems: those seen now, new ones first, and those that are gone.

    before, now: the oldest first.
    """
    before, now = ([run for run in runs if not run.planted] for runs in (before, now))
    words = {one: text for run in (*before, *now) for one, text in run.symptoms.items()}
    seen_now = {one for run in now for one in run.symptoms}
    passed_now = {run.test for run in now if run.good}
    found = []
    for symptom in words:
        shown = [run for run in before if symptom in run.symptoms]
        tests = {run.test for run in (*shown, *now) if symptom in run.symptoms}
        if symptom in seen_now:
            since = _passed(before, tests, shown)
            state = (
                SymptomStatus.NEW if not shown else SymptomStatus.BACK if since >= BACK_AFTER else SymptomStatus.KNOWN
            )
        elif tests & passed_now:
            state, since = SymptomStatus.GONE, _passed([*before, *now], tests, shown)
        else:
            continue
        found.append(Standing(symptom, words[symptom], state, shown[0].started if shown else None, since))
    order = list(SymptomStatus)
    return sorted(found, key=lambda one: (order.index(one.state), one.symptom))


def _passed(runs: Iterable[PastRun], tests: set[Test], shown: Sequence[PastRun]) -> int:
    """Runs of these tests that passed after the last that showed the symptom."""
    last = shown[-1].started if shown else None
    return sum(run.good and run.test in tests and (last is None or run.started > last) for run in runs)


def streaks(runs: Iterable[PastRun]) -> dict[Test, int]:
    """Test -> how many runs in a row have ended as they should, up to the last one; 0 if that one did not."""
    found: dict[Test, int] = {}
    for run in runs:
        found[run.test] = found.get(run.test, 0) + 1 if run.good else 0
    return found


def canary_age(runs: Iterable[PastRun], now: datetime) -> float | None:
    """Days since the harness last proved that it can fail: a planted bug of the canary was found.  None: never."""
    found = [run.started for run in runs if run.test[0] == "canary" and run.planted and run.good]
    return (now - found[-1]).total_seconds() / 86_400 if found else None
