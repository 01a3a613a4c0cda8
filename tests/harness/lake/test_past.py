"""The past of symptoms and tests: what is new, known, back and gone, and what a run finds in the lake."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from facts_of_runs import T0, facts, past, violation, with_rows

from harness.lake.facts import RunFacts
from harness.lake.lake import Lake
from harness.lake.past import BACK_AFTER, PastRun, SymptomStatus, canary_age, past_runs, standing_of, standings, streaks
from harness.lake.tables import RUNS, VIOLATIONS

A, B = "0000000a", "0000000b"


NEW, KNOWN, BACK, GONE = SymptomStatus.NEW, SymptomStatus.KNOWN, SymptomStatus.BACK, SymptomStatus.GONE
RESTED = [past(2 + day) for day in range(BACK_AFTER)]
OF_ANOTHER_TEST = [past(2 + day, test="kill") for day in range(9)]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([past(1)], [past(9, A)], {A: NEW}),
        ([], [past(9, A, B)], {A: NEW, B: NEW}),
        ([past(1, A), *RESTED[1:]], [past(9, A)], {A: KNOWN}),
        ([past(1, A), *RESTED], [past(9, A)], {A: BACK}),
        ([past(1, A), *OF_ANOTHER_TEST], [past(9, A)], {A: KNOWN}),
        ([past(1, A)], [past(8), past(9)], {A: GONE}),
        ([past(1, A)], [past(9, test="kill")], {}),
        # A run that proved nothing does not show that it is gone.
        ([past(1, A)], [past(9, good=False)], {}),
        ([past(1, A, planted=True)], [past(9, B, planted=True)], {}),
    ],
)
def test_a_symptom_is_new_known_back_or_gone(
    before: list[PastRun], now: list[PastRun], expected: dict[str, SymptomStatus]
) -> None:
    assert {one.symptom: one.state for one in standings(before, now)} == expected


def test_what_is_back_has_its_first_time_and_the_runs_that_passed_since() -> None:
    [one] = standings([past(1, A), *RESTED], [past(9, A)])
    assert (one.shown[0].started, one.passed_since) == (T0 + timedelta(days=1), BACK_AFTER)


def test_a_streak_is_broken_by_every_run_that_did_not_end_well() -> None:
    runs = [past(1), past(2), past(3, A), past(4), past(5), past(6, test="kill", good=False)]
    assert streaks(runs) == {("kraft", "register", "partition", ""): 2, ("kraft", "register", "kill", ""): 0}


def test_the_age_of_the_canary_counts_from_its_last_find() -> None:
    canary = replace(past(1, A, planted=True, good=True), test=("canary", "register", "none", "stale"))
    assert canary_age([canary, past(5)], T0 + timedelta(days=3)) == 2.0
    assert canary_age([past(5)], T0) is None


def test_the_lake_knows_what_ran_and_what_it_showed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    bad = facts(2, verdict="invalid", symptom=A)
    started = bad.rows[RUNS]["started"][0].as_py()
    rows = with_rows(bad.run, started, "kraft", {VIOLATIONS: [violation(A), violation(A, place=1)]}).rows
    lake.append(RunFacts(bad.run, bad.date, "kraft", {**rows, RUNS: bad.rows[RUNS]}))
    lake.append(facts(1, bug="stale-read", bug_found=True, verdict="invalid"))
    lake.append(facts(3, bug="stale-read", bug_found=False, verdict="valid"))
    planted, seen, missed = past_runs(lake)
    assert (planted.good, planted.planted, missed.good) == (True, True, False)
    assert (seen.good, set(seen.symptoms)) == (False, {A})


def test_a_symptom_says_since_when_and_how_often_and_which_run_passed_last() -> None:
    runs = [past(1), past(2, A), past(3), past(4, A), past(5, test="kill")]
    one = standing_of(A, [replace(run, revision=f"abcdef{i}99") for i, run in enumerate(runs)], [past(9, A)])
    assert one is not None and one.passed is not None and one.passed.path == "run-3", "of its own test"
    assert one.seen() == (
        "Seen in 2 of 4 earlier runs, first on 2026-11-03 (revision abcdef1), last on 2026-11-05 (revision abcdef3)."
    )
    new = standing_of(B, runs, [past(9, B)])
    assert new is not None and new.seen() == "Not seen in the 4 earlier runs of its test."
    first = standing_of(B, [], [past(9, B)])
    assert first is not None and first.seen() == "This is the first run of its test."


def test_a_planted_bug_is_compared_with_a_run_without_it() -> None:
    bug = replace(past(9, A, planted=True), test=("kraft", "register", "partition", "stale-read"))
    one = standing_of(A, [past(1)], [bug])
    assert one is not None and one.passed is not None and one.passed.path == "run-1"
