"""Elections: one leader in an epoch, votes that are kept, and votes for logs that are up to date."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from injected_violations import correct_run, final, invalid, last_own, only, rows_of
from toy_quorum import Evidence, Quorum
from trace_rows import followed

from checkers.base.verdict import Validity
from checkers.raft.rules import LogAt


def test_two_leaders_in_one_epoch(evidence: Evidence, tmp_path: Path) -> None:
    claim = last_own(evidence, "n5", "role")
    claim |= {"role": "leader", "peer": "n5"}
    witness = only(invalid(evidence, tmp_path), "election-safety", "two leaders in one epoch")
    assert witness.facts["nodes"] == ["n2", "n5"] and witness.facts["epoch"] == 2
    assert {(r["node"], r["role"]) for r in witness.rows if r["event"] == "role"} == {
        ("n2", "leader"),
        ("n5", "leader"),
    }
    assert witness.facts["votes"] == {"n2": ["n2", "n3", "n4", "n5"]}


def test_a_leader_that_only_its_followers_named(evidence: Evidence, tmp_path: Path) -> None:
    last_own(evidence, "n5", "role")["peer"] = "n3"
    witness = only(invalid(evidence, tmp_path), "election-safety", "two leaders in one epoch")
    assert witness.facts["nodes"] == ["n2", "n3"]


def test_a_leader_that_leads_the_same_epoch_after_a_restart(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n2"]
    again = dict(rows_of(rows, event="role", role="leader")[0])
    again |= {"seq": rows[-1]["seq"] + 1, "incarnation": 1}
    rows.append(again)
    witness = only(invalid(evidence, tmp_path), "election-safety", "leader again after a restart")
    assert again["seq"] in {r["seq"] for r in witness.rows}


def test_two_votes_in_one_epoch_with_a_restart_in_between(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n1"]
    restart = rows_of(rows, event="start")[-1]
    first = dict(rows_of(rows, event="vote")[0])
    restart |= {"event": "vote", "epoch": 2, "peer": "n4"}
    rows.insert(rows.index(restart), first | {"epoch": 2, "peer": "n1", "seq": restart["seq"] - 0.5, "incarnation": 0})
    for seq, r in enumerate(rows):
        r["seq"] = seq
    for c in evidence.copies:
        if c["node"] == "n1":
            c["voted_for"] = "n4" if c["copy"] == final(evidence) else None
            c["trace_seq"] = len(rows) - 1 if c["copy"] == final(evidence) else -1
    witness = only(invalid(evidence, tmp_path), "vote-once", "voted twice in one epoch")
    assert {r["peer"] for r in witness.rows} == {"n1", "n4"}
    assert "restarted in between" in witness.summary


def test_a_vote_that_the_quorum_state_no_longer_holds(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n3", copy=final(evidence))[0]["voted_for"] = None
    witness = only(invalid(evidence, tmp_path), "vote-once", "vote not kept")
    assert [r["table"] for r in witness.rows] == ["trace", "copies"]


def test_a_quorum_state_with_another_vote_than_the_trace(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n3", copy=final(evidence))[0]["voted_for"] = "n5"
    only(invalid(evidence, tmp_path), "vote-once", "voted twice in one epoch")


def test_two_copies_of_one_epoch_with_different_votes(evidence: Evidence, tmp_path: Path) -> None:
    shows_votes = ("vote", "quorum-state")
    evidence.traces["n4"] = [r for r in evidence.traces["n4"] if r["event"] not in shows_votes]
    assert {c["quorum_epoch"] for c in evidence.copies if c["node"] == "n4"} == {2}
    rows_of(evidence.copies, node="n4", copy=final(evidence))[0]["voted_for"] = "n5"
    witness = only(invalid(evidence, tmp_path), "vote-once", "voted twice in one epoch")
    assert [r["table"] for r in witness.rows] == ["copies", "copies"]


def test_a_leader_in_every_second_epoch_of_many_twice(tmp_path: Path) -> None:
    """Hundreds of violations: ten have a witness, all are counted."""
    quorum = Quorum()
    for i in range(400):
        quorum.elect("n1" if i % 2 else "n2")
    evidence = quorum.evidence()
    for r in rows_of(evidence.traces["n3"], event="role"):
        if r["epoch"] % 2:
            r["peer"] = "n4"
    verdict = evidence.judge(tmp_path, "election-safety")["election-safety"]
    assert len(verdict.witnesses) == 10 and verdict.looked_at["epochs with a violation"] == 200
    assert verdict.witnesses[0].facts["nodes"] == ["n2", "n4"] and verdict.witnesses[0].facts["epoch"] == 1


# A voter's own reports of its quorum-state


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


# The vote rule


NAME = "vote-up-to-date"


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


FETCHED = {"event": "snapshot", "offset": 10, "peer": "n3"}
SEVERAL_BATCHES = (start(0), append(3, 1), append(9, 5), append(12, 5))
"""An append of several batches, whose row names only the epoch of the last one."""


@pytest.mark.parametrize(
    ("rows", "logs"),
    [
        (
            (start(0), VOTE, append(3, 1), VOTE, append(5, 4), append(6, 4), VOTE),
            [LogAt(0, 0, 0), LogAt(3, 1, 1), LogAt(6, 4, 4)],
        ),
        # a truncation to the end of an append shows the epoch there, one into an append leaves an interval
        (
            (start(0), append(3, 1), append(5, 4), cut(3), VOTE, append(4, 6), VOTE, cut(0), VOTE),
            [LogAt(3, 1, 1), LogAt(4, 6, 6), LogAt(0, 0, 0)],
        ),
        ((*SEVERAL_BATCHES, cut(6), VOTE, cut(4), VOTE), [LogAt(6, 1, 5), LogAt(4, 1, 5)]),
        ((*SEVERAL_BATCHES, cut(10), VOTE), [LogAt(10, 5, 5)]),
        # a restart that finds more than was reported leaves an interval, one that finds less is a truncation
        ((start(0), append(3, 1), start(4, epoch=6), VOTE), [LogAt(4, 1, 6)]),
        (
            (start(7, epoch=6), VOTE, append(8, 6), VOTE, cut(7), VOTE),
            [LogAt(7, 0, 6), LogAt(8, 6, 6), LogAt(7, 0, 6)],
        ),
        ((start(0), append(3, 1), append(5, 4), start(3), VOTE), [LogAt(3, 1, 1)]),
        # a fetched snapshot replaces a shorter log
        ((start(0), append(3, 1), FETCHED, VOTE), [LogAt(10, 1, 9)]),
        ((start(0), append(12, 2), FETCHED, FETCHED | {"peer": None}, VOTE), [LogAt(12, 2, 2)]),
    ],
)
def test_the_log_at_a_vote_follows_from_the_rows_before_it(rows: Sequence[dict[str, Any]], logs: list[LogAt]) -> None:
    assert logs_at_votes(*rows) == logs


def test_a_log_is_behind_only_if_every_epoch_in_its_interval_makes_it_so() -> None:
    logs = [LogAt(end, low, high) for end, low, high in product((4, 5), range(3), range(3)) if low <= high]
    for log, other in product(logs, repeat=2):
        possible = [
            (e, log.end) < (f, other.end)
            for e in range(log.lowest, log.highest + 1)
            for f in range(other.lowest, other.highest + 1)
        ]
        assert log.behind(other) is all(possible), (log, other)
