"""A voter's own reports of its quorum-state: a vote must stand there until the next epoch."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from injected_violations import correct_run, invalid, only, rows_of

from checkers.base.columns import TRACE
from checkers.raft.elections.kept_votes import last_vote, votes_not_kept


def rows(*reports: tuple[str, int, str | None]) -> pa.Table:
    """reports: event, epoch, vote."""
    known = {"node": "n1", "incarnation": 0, "time_ns": 0}
    return pa.Table.from_pylist(
        [known | {"seq": seq, "event": e, "epoch": n, "peer": peer} for seq, (e, n, peer) in enumerate(reports)], TRACE
    )


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
        ([("quorum-state", 3, "n2"), ("quorum-state", 3, None)], [3]),  # the vote row fell to a kill
        ([("vote", 3, "n2"), ("quorum-state", 4, None), ("vote", 5, "n1"), ("quorum-state", 5, None)], [5]),
        ([("vote", 3, "n2"), ("quorum-state", 3, None), ("vote", 4, "n1"), ("quorum-state", 4, None)], [3, 4]),
    ],
)
def test_votes_last_as_long_as_their_epoch(reports: list[tuple[str, int, str | None]], epochs: list[int]) -> None:
    assert [witness.facts["epoch"] for witness in votes_not_kept(rows(*reports))] == epochs


def test_only_the_last_vote_can_still_be_contradicted() -> None:
    assert last_vote(rows(("vote", 3, "n2"), ("vote", 4, "n1"), ("quorum-state", 5, None))) == (1,)
    assert last_vote(rows(("quorum-state", 5, None))) == ()
