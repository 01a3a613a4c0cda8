"""A voter's own reports of its quorum-state: a vote must stand there until the next epoch."""

from __future__ import annotations

from pathlib import Path

import pytest
from injected_violations import correct_run, invalid, only, rows_of
from trace_rows import followed


def test_a_vote_that_is_gone_when_the_voter_comes_to_follow(tmp_path: Path) -> None:
    evidence = correct_run()
    rows_of(evidence.traces["n3"], event="quorum-state")[-1]["peer"] = None
    witness = only(invalid(evidence, tmp_path), "vote-once", "vote not kept")
    assert [row["event"] for row in witness.rows] == ["vote", "quorum-state"]
    assert witness.facts["nodes"] == ["n3", "n2"]


def test_another_vote_than_the_one_that_was_cast(tmp_path: Path) -> None:
    evidence = correct_run()
    rows_of(evidence.traces["n3"], event="quorum-state")[-1]["peer"] = "n4"
    only(invalid(evidence, tmp_path), "vote-once", "voted twice in one epoch")


@pytest.mark.parametrize(
    ("reports", "epochs"),
    [
        ([], []),
        ([("quorum-state", 0, None)], []),
        ([("vote", 3, "n2"), ("quorum-state", 3, "n2"), ("quorum-state", 4, None)], []),
        ([("vote", 3, "n2"), ("quorum-state", 3, None), ("quorum-state", 3, None)], [3]),
        ([("quorum-state", 3, "n2"), ("quorum-state", 3, None)], [3]),  # a kill discarded the vote row
        ([("vote", 3, "n2"), ("quorum-state", 4, None), ("vote", 5, "n1"), ("quorum-state", 5, None)], [5]),
        ([("vote", 3, "n2"), ("quorum-state", 3, None), ("vote", 4, "n1"), ("quorum-state", 4, None)], [3, 4]),
    ],
)
def test_votes_last_as_long_as_their_epoch(reports: list[tuple[str, int, str | None]], epochs: list[int]) -> None:
    rows = [{"event": event, "epoch": epoch, "peer": peer} for event, epoch, peer in reports]
    gone = [each for each in followed(rows).broken if each.kind == "vote not kept"]
    assert [each.witness().facts["epoch"] for each in gone] == epochs
