"""A mark that a majority came to hold only later: clocks of one machine show it, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_quorum import Evidence, Quorum, Row, minority_commit
from trace_rows import trace_rows

from checkers.base.checker import Budget
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import CATALOG
from checkers.raft.monitor import TimedMonitor
from checkers.raft.trace_checkers import ROW_SIZE_BYTES

NAME = "majority-before-mark"


@pytest.fixture
def evidence() -> Evidence:
    """n1 leads five nodes, and three of them hold its last mark."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    quorum.write(followers={"n2", "n3"})
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, NAME)[NAME]


def last_flush(evidence: Evidence, node: str) -> Row:
    return [row for row in evidence.traces[node] if row["event"] == "flush"][-1]


def later(evidence: Evidence, node: str) -> None:
    """The node flushed its last entry after its leader's mark; everything behind that happened later too."""
    flush = last_flush(evidence, node)
    mark_ns = max(row["time_ns"] for row in evidence.traces["n1"])
    for row in evidence.traces[node]:
        if row["seq"] >= flush["seq"]:
            row["time_ns"] += mark_ns


def test_a_mark_that_a_majority_held_only_later_is_found(evidence: Evidence, tmp_path: Path) -> None:
    assert judged(evidence, tmp_path / "in time").validity is Validity.VALID
    later(evidence, "n3")
    verdict = judged(evidence, tmp_path / "late")
    [witness] = verdict.witnesses
    assert witness.kind == "high watermark before its majority"
    assert witness.facts["may_have_held"] == ["n1", "n2"] and witness.facts["committed_below"] == 3
    assert witness.rows[0]["event"] == "high-watermark" and witness.rows[0]["node"] == "n1"
    without_clocks = evidence.judge(tmp_path / "other", "high-watermark-majority")["high-watermark-majority"]
    assert without_clocks.validity is Validity.VALID


def test_one_that_is_late_is_no_matter_while_a_majority_is_not(evidence: Evidence, tmp_path: Path) -> None:
    for node in ("n4", "n5"):
        later(evidence, node)
    assert judged(evidence, tmp_path).validity is Validity.VALID


@pytest.mark.parametrize("how", ["no trace", "the mark came after the last copy", "recovered by a restart"])
def test_what_is_not_known_counts_as_held(evidence: Evidence, tmp_path: Path, how: str) -> None:
    later(evidence, "n3")
    if how == "no trace":
        del evidence.traces["n3"]
        verdict = judged(evidence, tmp_path)
        assert verdict.validity is Validity.UNKNOWN and "n3 delivered no traces" in verdict.reason
        return
    if how == "recovered by a restart":
        before = next(row for row in evidence.traces["n3"] if row["event"] == "flush")
        before |= {"event": "start", "offset": 3, "incarnation": 1}
    else:
        for copy in evidence.copies:
            marks = [r["seq"] for r in evidence.traces[copy["node"]] if r["offset"] == 3 and r["hash"] is not None]
            copy["trace_seq"] = min(marks, default=copy["trace_seq"] + 1) - 1
    assert judged(evidence, tmp_path).validity is Validity.VALID


def test_a_longer_tail_of_an_older_epoch_does_not_hold_a_mark(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    for _ in range(9):
        quorum.write(followers={"n4"})
    quorum.nodes["n4"].trace[:] = [r for r in quorum.nodes["n4"].trace if r["event"] != "high-watermark"]
    quorum.elect("n2", {"n2", "n3", "n5"})
    assert quorum.commit_alone({"n3"}) < len(quorum.nodes["n4"].log)
    witness = judged(quorum.evidence(), tmp_path).witnesses[0]
    assert witness.facts["epoch"] == 2 and witness.facts["may_have_held"] == ["n2", "n3"]


def test_servers_without_a_common_clock_are_not_compared(evidence: Evidence, tmp_path: Path) -> None:
    later(evidence, "n3")
    evidence.test["spec"]["backend"] = "ssh"
    assert judged(evidence, tmp_path).validity is Validity.NOT_APPLICABLE


@pytest.mark.parametrize("seed", range(4))
def test_a_commit_by_a_minority_is_found(seed: int, tmp_path: Path) -> None:
    assert judged(minority_commit(seed)[0].evidence(), tmp_path).validity is Validity.INVALID


def test_what_a_restart_recovered_may_be_of_any_epoch() -> None:
    def early(mark: int, epoch: int) -> bool:
        """Whether a mark of a leader is wrong of which one other voter is known to hold this."""
        monitor = TimedMonitor(("n1", "n2", "n3"), ("n1", "n2", "n3"))
        other = [
            {"event": "append", "epoch": 2, "offset": 1},
            {"event": "flush", "epoch": 2, "offset": 1},
            {"event": "start", "epoch": 2, "offset": 3},
        ]
        leader = [
            {"event": "role", "role": "leader", "epoch": epoch, "offset": 0},
            {"event": "append", "epoch": epoch, "offset": 9},
            {"event": "flush", "epoch": epoch, "offset": 9},
            {"event": "high-watermark", "epoch": epoch, "offset": mark},
        ]
        return bool([found for row in trace_rows(other, "n2") + trace_rows(leader) for found in monitor.take(row)])

    assert [early(mark, 2) for mark in (1, 3, 4)] == [early(mark, 5) for mark in (1, 3, 4)] == [False, False, True]


def test_traces_beyond_the_budget_are_unknown(evidence: Evidence, tmp_path: Path) -> None:
    *_, part = CATALOG[NAME].split(evidence.write(tmp_path))
    need = sum(map(len, evidence.traces.values())) * ROW_SIZE_BYTES
    assert CATALOG[NAME].judge(part, Budget(size_bytes=need)).unknown == ""
    assert "beyond the budget" in CATALOG[NAME].judge(part, Budget(size_bytes=need - 1)).unknown
