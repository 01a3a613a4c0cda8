"""Figure 8: a leader's own mark covers an entry of its own epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.verdict import Validity, Verdict

NAME = "commit-own-epoch"


@pytest.fixture
def evidence() -> Evidence:
    """n1 writes three entries that it cannot commit; n2 takes them over, leads, and commits them with its own."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.replicate()
    for _ in range(3):
        quorum.write(replicate=False)
    quorum._fetch(quorum.nodes["n1"], quorum.nodes["n2"])
    assert quorum.elect("n2")
    quorum.write()
    quorum.read_all()
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


def first_mark(rows: list[Row]) -> Row:
    """The first high watermark that a node reported while it led."""
    office = next(i for i, row in enumerate(rows) if row["role"] == "leader")
    return next(row for row in rows[office:] if row["event"] == "high-watermark")


def test_older_entries_committed_with_one_of_the_leaders_own_are_no_violation(
    evidence: Evidence, tmp_path: Path
) -> None:
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    assert verdict.looked_at["leaders' high watermarks"] >= 2


@pytest.mark.parametrize("below", [0, 1])
def test_a_mark_that_covers_older_entries_only_is_found(evidence: Evidence, tmp_path: Path, below: int) -> None:
    rows = evidence.traces["n2"]
    office = next(row for row in rows if row["role"] == "leader")
    first_mark(rows)["offset"] = office["offset"] - below
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.INVALID
    [witness] = verdict.witnesses
    assert witness.kind == "mark without an entry of its epoch"
    assert (witness.facts["nodes"], witness.facts["epoch"]) == (["n2"], 2)
    assert [row["event"] for row in witness.rows] == ["role", "high-watermark"]


def test_a_leader_that_repeats_what_it_learned_as_a_follower_is_not_accused(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n2"]
    learned = next(row for row in rows if row["event"] == "high-watermark")
    mark = first_mark(rows)
    assert learned is not mark
    mark["offset"] = learned["offset"]
    assert judged(evidence, tmp_path).validity is Validity.VALID


def test_a_run_in_which_no_leader_reported_a_mark_is_unknown(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    assert judged(quorum.evidence(), tmp_path).validity is Validity.UNKNOWN
