"""The ledger of findings."""

from __future__ import annotations

import json
from pathlib import Path

from journals import write_header

from harness.campaign.ledgers import Try, last_of, note, read_findings, take_over_tries, tries_in


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
