"""The vote rule: what a trace shows of a log at a vote, and which votes it certainly rules out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Quorum, unfair_leader
from trace_rows import followed

from checkers.base.verdict import Validity
from checkers.raft.rules import LogAt

NAME = "vote-up-to-date"


@pytest.mark.parametrize("seed", range(8))
def test_votes_for_an_unfairly_elected_leader_are_found(seed: int, tmp_path: Path) -> None:
    quorum, epoch = unfair_leader(seed)
    verdict = quorum.evidence().judge(tmp_path, NAME)[NAME]
    assert verdict.validity is Validity.INVALID
    first = verdict.witnesses[0]
    leader_of = {elected["epoch"]: elected["node"] for elected in quorum.elected}
    assert first.facts["nodes"][1] == leader_of[first.facts["epoch"]] == leader_of[epoch]
    assert [row["event"] for row in first.rows] == ["vote", "role"]


def test_a_run_without_a_vote_to_compare_is_unknown(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    evidence = quorum.evidence()
    for rows in evidence.traces.values():
        for row in rows:
            if row["role"] in ("candidate", "leader"):
                row["role"] = "prospective"
            if row["event"] == "vote" and row["peer"] == row["node"]:
                row["event"] = "flush"
    verdict = evidence.judge(tmp_path, NAME)[NAME]
    assert (verdict.validity, verdict.reason) == (Validity.UNKNOWN, "there were no votes compared to look at")


def logs_at_votes(*rows: dict[str, Any]) -> list[LogAt]:
    """The log at each vote of a node whose trace holds these rows; each vote is of an epoch of its own."""
    numbered = [row | ({"epoch": 9 + at} if row["event"] == "vote" else {}) for at, row in enumerate(rows)]
    return [ballot.log for ballot in followed([{"epoch": 9} | row for row in numbered]).ballots]


def start(end: int, epoch: int = 9) -> dict[str, Any]:
    return {"event": "start", "offset": end, "epoch": epoch}


def append(end: int, epoch: int) -> dict[str, Any]:
    return {"event": "append", "offset": end, "epoch": epoch}


def cut(end: int) -> dict[str, Any]:
    return {"event": "truncate", "offset": end}


VOTE = {"event": "vote", "peer": "n2"}


def test_the_log_at_a_vote_follows_from_the_rows_before_it() -> None:
    assert logs_at_votes(start(0), VOTE, append(3, 1), VOTE, append(5, 4), append(6, 4), VOTE) == [
        LogAt(0, 0, 0),
        LogAt(3, 1, 1),
        LogAt(6, 4, 4),
    ]


def test_a_truncation_to_the_end_of_an_append_shows_the_epoch_there() -> None:
    log = logs_at_votes(start(0), append(3, 1), append(5, 4), cut(3), VOTE, append(4, 6), VOTE, cut(0), VOTE)
    assert log == [LogAt(3, 1, 1), LogAt(4, 6, 6), LogAt(0, 0, 0)]


def test_a_truncation_into_an_append_leaves_an_interval() -> None:
    """The append brought several batches, and its row names only the epoch of the last one."""
    rows = (start(0), append(3, 1), append(9, 5), append(12, 5))
    assert logs_at_votes(*rows, cut(6), VOTE, cut(4), VOTE) == [LogAt(6, 1, 5), LogAt(4, 1, 5)]
    assert logs_at_votes(*rows, cut(10), VOTE) == [LogAt(10, 5, 5)]


def test_a_restart_that_finds_more_than_was_reported_leaves_an_interval() -> None:
    assert logs_at_votes(start(0), append(3, 1), start(4, epoch=6), VOTE) == [LogAt(4, 1, 6)]
    assert logs_at_votes(start(7, epoch=6), VOTE, append(8, 6), VOTE, cut(7), VOTE) == [
        LogAt(7, 0, 6),
        LogAt(8, 6, 6),
        LogAt(7, 0, 6),
    ]


def test_a_restart_that_finds_less_is_a_truncation() -> None:
    assert logs_at_votes(start(0), append(3, 1), append(5, 4), start(3), VOTE) == [LogAt(3, 1, 1)]


def test_a_fetched_snapshot_replaces_a_shorter_log() -> None:
    fetched = {"event": "snapshot", "offset": 10, "peer": "n3"}
    own = {"event": "snapshot", "offset": 10, "peer": None}
    assert logs_at_votes(start(0), append(3, 1), fetched, VOTE) == [LogAt(10, 1, 9)]
    assert logs_at_votes(start(0), append(12, 2), fetched, own, VOTE) == [LogAt(12, 2, 2)]


@pytest.mark.parametrize(
    ("log", "other", "certainly"),
    [
        (LogAt(5, 1, 1), LogAt(4, 2, 2), True),
        (LogAt(5, 2, 2), LogAt(9, 1, 1), False),
        (LogAt(5, 2, 2), LogAt(5, 2, 2), False),
        (LogAt(4, 2, 2), LogAt(5, 2, 2), True),
        (LogAt(4, 1, 2), LogAt(5, 2, 3), True),
        (LogAt(5, 1, 2), LogAt(5, 2, 3), False),
        (LogAt(4, 1, 3), LogAt(5, 2, 3), False),
    ],
)
def test_a_log_is_behind_only_if_every_epoch_in_its_interval_makes_it_so(
    log: LogAt, other: LogAt, certainly: bool
) -> None:
    assert log.behind(other) is certainly
    possible = [
        (e, log.end) < (f, other.end)
        for e in range(log.lowest, log.highest + 1)
        for f in range(other.lowest, other.highest + 1)
    ]
    assert all(possible) is certainly
