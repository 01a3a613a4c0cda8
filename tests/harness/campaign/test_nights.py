"""Nights: what is new, known, back and gone; what is tried again; what a night leaves; and the ledger of findings."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from facts_of_runs import T0, past
from journals import write_header
from rich.console import Console

from harness.campaign import loop, page
from harness.campaign.loop import AS_EXPECTED, FOUND, Ended, Plan, Planned
from harness.campaign.page import (
    KEPT_MAX,
    PASSES,
    Failure,
    after,
    bounded,
    due,
    keep,
    kept,
    write_badge,
    write_dashboard,
)
from harness.campaign.plans import Try, last_of, note, read_findings, take_over_tries, tries_in
from harness.cli.campaigns import _night
from harness.lake.past import Standing, SymptomStatus
from harness.spec import Spec

A = "0000000a"


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


NEW = Standing(A, "stale read <b>", SymptomStatus.NEW)


def test_the_dashboard_leads_to_the_report_of_each_run_and_escapes(tmp_path: Path) -> None:
    night = tmp_path / "night"
    night.mkdir()
    page = write_dashboard(night, "a night", [NEW], [past(1), past(2, A), past(3, test="kill")], tmp_path).read_text()
    assert re.findall(r'href="([^"]+)" class="(as|not)"', page)[:2] == [
        ("../run-1/report.html", "as"),
        ("../run-2/report.html", "not"),
    ]
    assert 'href="run-1/report.html"' in write_dashboard(night, "a night", [], [past(1)]).read_text()
    assert "kraft register under partition" in page and "1 of the last 2 runs ended as expected" in page
    assert "<b>" not in page and "stale read &lt;b&gt;" in page


def test_the_dashboard_shows_dates_durations_and_a_trend(tmp_path: Path) -> None:
    runs = [replace(past(day, good=day > 2), duration_s=60.0 + day) for day in range(1, 7)]
    page = write_dashboard(tmp_path, "a night", [], runs).read_text()
    assert "better: 1, then 3 of 3" in page and "64 s" in page
    assert "<time>2026-11-02</time><time>2026-11-07</time>" in page


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
        assert page.add_to_step_summary(text, environment)
    assert 900_000 < path.stat().st_size <= 1 << 20
    assert path.read_text().startswith("line 0 ") and "the rest is in summary.md" in path.read_text()
    assert not page.add_to_step_summary(text, {})
    assert bounded("short\n", 100) == "short\n"


def test_words_name_what_is_new_and_what_is_broken() -> None:
    runs = [past(1), past(2, A, test="kill")]
    text = "\n".join(page.words_of([NEW], runs, T0))
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


def run_of(results: Path, revision: str, dirty: bool = False) -> Path:
    run = results / "run"
    run.mkdir(parents=True, exist_ok=True)
    write_header(run, git={"revision": revision * 10, "dirty": dirty})
    (run / "results.json").write_text(json.dumps({"verdict": "unknown" if dirty else "invalid"}))
    return run


def test_a_try_is_noted_with_the_revision_of_its_run(tmp_path: Path) -> None:
    note(tmp_path, "redis", False, True, 31.26, run_of(tmp_path, "abcd"))
    note(tmp_path, "redis", True, False, 40.0, run_of(tmp_path, "abcd", dirty=True))
    assert tries_in(tmp_path) == [
        Try("redis", False, True, "invalid", 31.3, "abcdabc"),
        Try("redis", True, False, "unknown", 40.0, "abcdabc+"),
    ]
    assert tries_in(tmp_path / "elsewhere") == []


def test_only_the_last_revision_that_ran_a_finding_counts() -> None:
    old, new = (Try("redis", False, True, "invalid", 30.0, revision) for revision in ("aaaaaaa", "bbbbbbb"))
    other = Try("nats", False, True, "invalid", 20.0, "aaaaaaa")
    clean = Try("redis", True, True, "valid", 33.0, "aaaaaaa")
    assert last_of([old, old, other, clean, new, new]) == [new, new, other, clean]


def test_the_ledger_takes_each_try_over_once(tmp_path: Path) -> None:
    path = tmp_path / "findings.json"
    note(tmp_path, "redis", False, True, 31.0, run_of(tmp_path, "abcd"))
    assert len(take_over_tries(tmp_path, path)) == 1
    note(tmp_path, "redis", False, True, 35.0, run_of(tmp_path, "abcd"))
    assert len(take_over_tries(tmp_path, path)) == len(take_over_tries(tmp_path, path)) == len(read_findings(path)) == 2
