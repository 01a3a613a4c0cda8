"""One epoch or mark that goes back, in a correct run: the right checker finds it."""

from __future__ import annotations

from pathlib import Path

from injected_violations import final, invalid, last_own, only, rows_of
from toy_quorum import Evidence

from checkers.base.verdict import Validity


def test_an_epoch_that_goes_back_across_a_restart(evidence: Evidence, tmp_path: Path) -> None:
    restart = rows_of(evidence.traces["n1"], event="start")[-1]
    restart["epoch"] = 1
    witness = only(invalid(evidence, tmp_path), "monotonicity", "epoch went back")
    assert witness.rows[1]["seq"] == restart["seq"]


def test_a_high_watermark_that_goes_back(evidence: Evidence, tmp_path: Path) -> None:
    last = last_own(evidence, "n3", "high-watermark")
    earlier = rows_of(evidence.traces["n3"], event="high-watermark")[-3]
    last |= {"offset": earlier["offset"] - 1, "hash": None}
    evidence.traces["n3"] = [r for r in evidence.traces["n3"] if r["event"] != "applied"]
    witness = only(invalid(evidence, tmp_path), "monotonicity", "high watermark went back")
    assert last["seq"] in {r["seq"] for r in witness.rows}


def test_a_quorum_state_behind_what_the_node_had_said(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n4", copy=0)[0] |= {"quorum_epoch": 1, "voted_for": "n1"}
    witness = only(invalid(evidence, tmp_path), "monotonicity", "epoch went back")
    assert witness.rows[1]["copy"] == 0


def test_a_quorum_state_behind_the_log(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n4", copy=final(evidence))[0] |= {"quorum_epoch": 1, "trace_seq": -1}
    witness = only(invalid(evidence, tmp_path), "monotonicity", "epoch went back")
    assert witness.rows[0]["table"] == "log"


def test_a_quorum_state_that_is_missing_is_unknown_and_named(evidence: Evidence, tmp_path: Path) -> None:
    rows_of(evidence.copies, node="n4", copy=final(evidence))[0] |= {"quorum_epoch": -1, "voted_for": None}
    verdict = evidence.judge(tmp_path, "monotonicity")["monotonicity"]
    assert verdict.validity is Validity.UNKNOWN
    assert f"copy {final(evidence)} of n4 (final) holds no quorum-state file" in verdict.reason
