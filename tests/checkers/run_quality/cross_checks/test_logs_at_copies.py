"""A copy of a log holds no more than its node's trace had reported, but for one append on its way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, random_run

from checkers.run_quality.cross_checks.logs_at_copies import IN_FLIGHT, ahead_of_trace


@pytest.fixture
def evidence() -> Evidence:
    return random_run(4).evidence()


def early_and_later(evidence: Evidence) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """An early copy, and the appends of its node that were reported after it, before its log was ever cut."""
    for copy in evidence.copies:
        after = [row for row in evidence.traces[copy["node"]] if row["seq"] > copy["trace_seq"]]
        ends = [row for row in after if row["event"] in ("append", "truncate", "start")]
        cut = next((at for at, row in enumerate(ends) if row["event"] != "append"), len(ends))
        if cut > IN_FLIGHT + 1:
            return copy, ends[:cut]
    raise AssertionError("no early copy is followed by appends")


def test_the_copies_of_a_correct_run(evidence: Evidence, tmp_path: Path) -> None:
    assert evidence.copies
    assert ahead_of_trace(evidence.write(tmp_path)) == []


def test_one_append_may_be_on_its_way(evidence: Evidence, tmp_path: Path) -> None:
    copy, later = early_and_later(evidence)
    copy["log_end"] = later[IN_FLIGHT - 1]["offset"]
    assert ahead_of_trace(evidence.write(tmp_path)) == []


def test_a_later_copy_in_the_place_of_an_early_one(evidence: Evidence, tmp_path: Path) -> None:
    copy, later = early_and_later(evidence)
    copy["log_end"] = later[-1]["offset"]
    [clause] = ahead_of_trace(evidence.write(tmp_path))
    assert clause == (
        f"copy {copy['copy']} of {copy['node']} cannot be right: its log ends at {copy['log_end']}, "
        f"and its trace reported {len(later)} appends up to there only later"
    )


def test_a_copy_that_could_not_be_read_is_not_compared(evidence: Evidence, tmp_path: Path) -> None:
    copy, later = early_and_later(evidence)
    copy |= {"log_end": later[-1]["offset"], "error": "torn"}
    assert ahead_of_trace(evidence.write(tmp_path)) == []
