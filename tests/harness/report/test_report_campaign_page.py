"""The page over many runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_runs import build

from harness.explanations import planted_bug_words as bugs
from harness.report.campaign_page import render_campaign
from system_under_test.subject import Bug


@pytest.fixture(autouse=True)
def knows_the_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = Bug("stale-read", "…", "linearizability", ("stale read",), "somewhere:decides")
    monkeypatch.setattr(bugs, "known_bug", lambda subject, name: bug if name == bug.name else None)


def test_a_found_bug_and_a_valid_run_are_as_expected(tmp_path: Path) -> None:
    runs = [build(tmp_path / "test-partition" / kind, kind) for kind in ("valid", "stale", "canary")]
    page = render_campaign(runs, tmp_path / "index.html").read_text()
    assert "All 3 runs ended as expected." in page
    assert "found in 1 of 1 run" in page and "valid in 1 of 1 run" in page
    for link in re.findall(r'<a href="([^"]+)"', page):
        assert (tmp_path / link).exists()


def test_what_is_not_as_expected_comes_first_with_its_command(tmp_path: Path) -> None:
    runs = [build(tmp_path / "test-partition" / kind, kind) for kind in ("valid", "logs", "interrupted")]
    page = render_campaign(runs, tmp_path).read_text()
    assert "2 of 3 runs did not end as expected." in page
    rows = page[page.index("Every run") :]
    assert rows.index("not as expected") < rows.index("Valid: 5 checkers")
    assert "make test-partition SEED=7" in rows


def test_no_runs_and_hostile_runs_are_fine(tmp_path: Path) -> None:
    assert "No runs yet." in render_campaign([], tmp_path / "none.html").read_text()
    folder = build(tmp_path / "t" / "nasty", "stale", nasty="</td><script>alert(1)</script>")
    page = render_campaign([folder], tmp_path / "index.html").read_text()
    assert "<script" not in page and "&lt;script" in page
