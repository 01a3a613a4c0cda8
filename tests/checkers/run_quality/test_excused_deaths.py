"""A fault that may kill a server excuses its death and its last words, and no other complaint."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_health import death, evidence, failing_disk, up
from toy_quorum import Evidence, Row

from checkers.base.verdict import Validity
from checkers.run_quality.faults_installed import LAST_LINES

__all__ = ["evidence"]


def complaint(reason: str, pid: int, lines_before_end: int = 0) -> Row:
    return death("n2", time_ns=-1, status=0, reason=reason, pid=pid, lines_before_end=lines_before_end)


@pytest.mark.parametrize(
    ("complaints", "expected"),
    [
        ([complaint("panic: write: EIO", 7)], Validity.VALID),
        ([complaint("panic: write: EIO", 7), complaint("goroutine 1", 7)], Validity.VALID),
        ([complaint("panic: write: EIO", 7, LAST_LINES)], Validity.VALID),
        ([complaint("data corrupted", 7, LAST_LINES + 1)], Validity.INVALID),
        ([complaint("data corrupted", 6)], Validity.INVALID),
        ([complaint("panic: write: EIO", 7), complaint("data corrupted", 8)], Validity.INVALID),
        ([complaint("data corrupted", -1)], Validity.UNKNOWN),
    ],
)
def test_only_the_last_words_of_an_excused_death_are_excused(
    evidence: Evidence, tmp_path: Path, complaints: list[Row], expected: Validity
) -> None:
    evidence.faults[:] = [failing_disk("n2")]
    evidence.outcome["deaths"] = [death("n2", pid=7), death("n2", pid=8, ordered=True), *complaints]
    verdict = up(evidence, tmp_path)
    assert verdict.validity is expected
    if expected is Validity.INVALID:
        assert verdict.witnesses[0].summary == "n2 complained in its log: data corrupted"
    if expected is Validity.UNKNOWN:
        assert "data corrupted" in verdict.reason


@pytest.mark.parametrize(
    ("complaints", "expected"),
    [
        ([], Validity.UNKNOWN),
        ([complaint("panic: write: EIO", 7)], Validity.UNKNOWN),
        ([complaint("data corrupted", 7, LAST_LINES + 1)], Validity.INVALID),
        ([complaint("data corrupted", 6)], Validity.INVALID),
    ],
)
def test_a_fault_that_is_not_proven_leaves_open_whether_it_excuses_a_death(
    evidence: Evidence, tmp_path: Path, complaints: list[Row], expected: Validity
) -> None:
    """A measurement came too late on a loaded machine: the server died by right all the same, as far as is known."""
    evidence.faults[:] = [failing_disk("n2", measured=[])]
    evidence.outcome["deaths"] = [death("n2", pid=7), *complaints]
    verdict = up(evidence, tmp_path)
    assert verdict.validity is expected
    if expected is Validity.UNKNOWN:
        assert "it is not proven to have held" in verdict.reason
    else:
        assert verdict.witnesses[0].summary == "n2 complained in its log: data corrupted"


def test_a_complaint_of_an_unknown_process_is_a_violation_where_no_death_is_excused(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.outcome["deaths"] = [complaint("data corrupted", -1)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_another_node_s_excused_death_excuses_nothing(evidence: Evidence, tmp_path: Path) -> None:
    evidence.faults[:] = [failing_disk("n1")]
    evidence.outcome["deaths"] = [death("n1", pid=7), complaint("panic: write: EIO", 7)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_a_sentence_names_a_few_reasons_and_counts_the_others(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [complaint(f"corrupted: {words}", 7) for words in ("a", "b", "c", "d", "e")]
    summary = up(evidence, tmp_path).witnesses[0].summary
    assert summary == "n2 complained in its log: corrupted: a; corrupted: b; corrupted: c; and 2 more"
