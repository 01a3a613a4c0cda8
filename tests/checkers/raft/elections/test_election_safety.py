"""One wrong leader or vote in a correct run: the right checker finds it, and its witness shows it."""

from __future__ import annotations

from pathlib import Path

from injected_violations import final, invalid, last_own, only, rows_of
from toy_quorum import Evidence, Quorum


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
