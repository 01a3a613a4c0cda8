"""Nights: what is new, known, back and gone; what is tried again; and what a night leaves for its readers."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from facts_of_runs import facts, violation, with_rows
from rich.console import Console

from harness.campaign import loop, nights
from harness.campaign.campaign_log import AS_EXPECTED, FOUND, Ended, Planned
from harness.campaign.loop import Plan
from harness.campaign.nights import (
    BACK_AFTER,
    KEPT_MAX,
    PASSES,
    Failure,
    PastRun,
    Standing,
    SymptomStatus,
    after,
    bounded,
    canary_age,
    due,
    keep,
    kept,
    past_runs,
    standings,
    streaks,
    write_badge,
    write_dashboard,
)
from harness.cli.campaigns import _night
from harness.lake.facts import RunFacts
from harness.lake.lake import Lake
from harness.lake.tables import RUNS, VIOLATIONS
from harness.spec import Spec

T0 = datetime(2026, 11, 1, tzinfo=UTC)
A, B = "0000000a", "0000000b"


def past(day: int, *symptoms: str, test: str = "partition", good: bool | None = None, planted: bool = False) -> PastRun:
    bad = bool(symptoms) if good is None else not good
    verdict = "invalid" if bad else "valid"
    named = {one: f"words of {one}" for one in symptoms}
    of = ("kraft", "register", test, "")
    return PastRun(f"run-{day}", T0 + timedelta(days=day), of, verdict, not bad, planted, named)


def states(before: list[PastRun], now: list[PastRun]) -> dict[str, SymptomStatus]:
    return {one.symptom: one.state for one in standings(before, now)}


def test_what_no_run_showed_before_is_new() -> None:
    assert states([past(1)], [past(9, A)]) == {A: SymptomStatus.NEW}
    assert states([], [past(9, A, B)]) == {A: SymptomStatus.NEW, B: SymptomStatus.NEW}


def test_what_was_seen_and_did_not_rest_is_known() -> None:
    resting = [past(2 + day) for day in range(BACK_AFTER - 1)]
    assert states([past(1, A), *resting], [past(9, A)]) == {A: SymptomStatus.KNOWN}


def test_what_comes_again_after_runs_that_passed_is_back() -> None:
    resting = [past(2 + day) for day in range(BACK_AFTER)]
    [one] = standings([past(1, A), *resting], [past(9, A)])
    assert (one.state, one.first_seen, one.passed_since) == (SymptomStatus.BACK, T0 + timedelta(days=1), BACK_AFTER)
    other = [past(2 + day, test="kill") for day in range(9)]
    assert states([past(1, A), *other], [past(9, A)]) == {A: SymptomStatus.KNOWN}, "runs of another test prove nothing"


def test_what_its_own_test_no_longer_shows_is_gone() -> None:
    [one] = standings([past(1, A)], [past(8), past(9)])
    assert (one.state, one.passed_since) == (SymptomStatus.GONE, 2)
    assert standings([past(1, A)], [past(9, test="kill")]) == []
    assert standings([past(1, A)], [past(9, good=False)]) == [], (
        "a run that proved nothing does not show that it is gone"
    )


def test_planted_bugs_are_no_findings() -> None:
    assert standings([past(1, A, planted=True)], [past(9, B, planted=True)]) == []


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


CLEAN = Spec(backend="namespaces")


def failure(seconds: float = 9.0, found: str = "2026-11-01", seed: int = 1, **fields: object) -> Failure:
    return Failure(replace(CLEAN, seed=seed), "stale read", seconds, found, **fields)  # type: ignore[arg-type]


def ended(spec: Spec, code: int, folder: str = "runs/a") -> Ended:
    violations = (("linearizability", "stale read"),) if code == FOUND else ()
    return Ended(
        Planned(0, spec), code, "invalid" if code == FOUND else "valid", "", 7.0, violations, ("kill",), -1, folder
    )


def test_failures_come_first_the_fastest_and_oldest_before_regressions() -> None:
    slow, fast, old = failure(20, seed=1), failure(5, seed=2), failure(5, "2026-10-01", seed=3)
    fixed = failure(1, seed=4, passes=PASSES, tried="r")
    assert [spec.seed for spec in due([slow, fixed, fast, old], "r")] == [3, 2, 1, 4]
    assert due([replace(slow, tried="r")], "r") == [], "it was tried on this revision"
    assert len(due([replace(slow, tried="r")], "")) == 1, "files differ, so it is another revision"


def test_a_failure_is_kept_with_the_schedule_that_was_played(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "schedule.json").write_text("[]")
    [one] = after([], [ended(CLEAN, FOUND)], tmp_path, "r", "2026-11-25")
    assert one.spec.schedule is not None and Path(one.spec.schedule).read_text() == "[]"
    assert (one.passes, one.tried, one.seconds) == (0, "r", 7.0) and "stale read" in one.words
    keep(tmp_path, [one])
    assert kept(tmp_path) == [one] and kept(tmp_path / "nowhere") == []


def test_a_failure_is_fixed_after_some_revisions_that_pass_and_fails_at_once(tmp_path: Path) -> None:
    one = failure()
    for revision in range(PASSES):
        assert not one.fixed
        [one] = after([one], [ended(one.spec, AS_EXPECTED)], tmp_path, str(revision), "now")
    assert one.fixed
    [same] = after([failure(tried="r")], [ended(failure().spec, AS_EXPECTED)] * 9, tmp_path, "r", "now")
    assert same.passes == 0, "luck on one revision is no mend"
    [vacuous] = after([one], [ended(one.spec, 2)], tmp_path, "new", "now")
    assert vacuous == one
    [again] = after([one], [ended(one.spec, FOUND)], tmp_path, "new", "now")
    assert not again.fixed and again.tried == "new"


def test_planted_bugs_and_replays_are_not_kept_and_their_number_is_limited(tmp_path: Path) -> None:
    bug = ended(replace(CLEAN, bug="stale-read"), FOUND)
    replay = replace(ended(CLEAN, FOUND), test=Planned(0, CLEAN, 1))
    assert after([], [bug, replay], tmp_path, "r", "now") == []
    many = [ended(replace(CLEAN, seed=seed), FOUND) for seed in range(KEPT_MAX + 9)]
    assert len(after([], many, tmp_path, "r", "now")) == KEPT_MAX


NEW = Standing(A, "stale read <b>", SymptomStatus.NEW, None, 0)


def test_the_dashboard_leads_to_the_report_of_each_run(tmp_path: Path) -> None:
    night = tmp_path / "night"
    night.mkdir()
    page = write_dashboard(night, "a night", [], [past(1), past(2, A)], tmp_path).read_text()
    assert re.findall(r'href="([^"]+)" class="(as|not)"', page) == [
        ("../run-1/report.html", "as"),
        ("../run-2/report.html", "not"),
    ]
    assert 'href="run-1/report.html"' in write_dashboard(night, "a night", [], [past(1)]).read_text()


def test_the_dashboard_shows_dates_durations_and_a_trend(tmp_path: Path) -> None:
    runs = [replace(past(day, good=day > 2), duration_s=60.0 + day) for day in range(1, 7)]
    page = write_dashboard(tmp_path, "a night", [], runs).read_text()
    assert "better: 1, then 3 of 3" in page and "64 s" in page
    assert "<time>2026-11-02</time><time>2026-11-07</time>" in page
    assert "1 test, 6 runs; the last run of each test ended as expected." in page


def test_the_dashboard_shows_each_test_and_escapes(tmp_path: Path) -> None:
    page = write_dashboard(tmp_path, "a night", [NEW], [past(1), past(2, A), past(3, test="kill")]).read_text()
    assert "kraft register under partition" in page and "1 of the last 2 runs ended as they should" in page
    assert "<b>" not in page and "stale read &lt;b&gt;" in page


@pytest.mark.parametrize(
    ("code", "standing", "words"),
    [
        (0, [], "as expected"),
        (1, [NEW], "1 new"),
        (1, [replace(NEW, state=SymptomStatus.KNOWN)], "known findings"),
        (2, [], "proved nothing"),
        (3, [], "infrastructure failed"),
    ],
)
def test_a_badge_says_how_the_night_ended(tmp_path: Path, code: int, standing: list[Standing], words: str) -> None:
    badge = ET.fromstring(write_badge(tmp_path, code, standing).read_text())
    assert badge.get("aria-label") == f"krucible: {words}"


def test_a_step_summary_stays_below_the_limit_of_github(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    text = "".join(f"line {number} ünïcode\n" for number in range(100_000))
    environment = {"GITHUB_STEP_SUMMARY": str(path)}
    for _ in range(2):
        assert nights.add_to_step_summary(text, environment)
    assert 900_000 < path.stat().st_size <= 1 << 20
    assert path.read_text().startswith("line 0 ") and "the rest is in summary.md" in path.read_text()
    assert not nights.add_to_step_summary(text, {})
    assert bounded("short\n", 100) == "short\n"


def test_words_name_what_is_new_and_what_is_broken() -> None:
    runs = [past(1), past(2, A, test="kill")]
    text = "\n".join(nights.words_of([NEW], runs, T0))
    assert "**new** stale read" in text and "broken: kraft register under kill" in text and "never found" in text
    assert json.dumps(text)


def test_a_night_that_is_interrupted_leaves_its_summary_and_its_dashboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "campaign", interrupted)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    plan = Plan("nightly", "A night.", [Spec(seed=1)], goes_on=False)
    with pytest.raises(KeyboardInterrupt):
        _night(plan, tmp_path / "night", Console(file=io.StringIO()))
    for name in ("summary.md", "dashboard.html", "badge.svg", "junit.xml", "failures.json"):
        assert (tmp_path / "night" / name).exists(), name
    assert "canary" in (tmp_path / "step.md").read_text()
