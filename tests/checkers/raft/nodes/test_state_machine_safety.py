"""One state that differs, or that was applied too early or backwards, in a correct run: the right checker finds it."""

from __future__ import annotations

from pathlib import Path

import pytest
from injected_violations import invalid, last_own, only, rows_of
from toy_quorum import Evidence
from trace_rows import broken

from checkers.base.verdict import Validity


def test_states_that_differ(evidence: Evidence, tmp_path: Path) -> None:
    applied = last_own(evidence, "n4", "applied")
    applied["hash"] ^= 1
    witness = only(invalid(evidence, tmp_path), "state-machine-safety", "applied states differ")
    assert witness.facts["offset"] == applied["offset"]
    assert {"n4"} < {r["node"] for r in witness.rows}


def test_something_applied_beyond_the_mark(evidence: Evidence, tmp_path: Path) -> None:
    applied = last_own(evidence, "n4", "applied")
    applied["offset"] += 1
    witness = only(invalid(evidence, tmp_path), "state-machine-safety", "applied beyond the high watermark")
    assert witness.rows[-1]["offset"] == applied["offset"]


def test_something_applied_after_a_restart_before_any_mark_is_known(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n1"]
    restart = rows_of(rows, event="start")[-1]
    at = rows.index(restart)
    next_mark = next(r for r in rows[at:] if r["event"] == "high-watermark")
    applied = rows[rows.index(next_mark) + 1]
    assert applied["event"] == "applied"
    applied["seq"], next_mark["seq"] = next_mark["seq"], applied["seq"]
    witness = only(invalid(evidence, tmp_path), "state-machine-safety", "applied beyond the high watermark")
    assert "not known yet" in witness.summary


def test_something_applied_backwards(evidence: Evidence, tmp_path: Path) -> None:
    rows = evidence.traces["n4"]
    applied = rows_of(rows, event="applied")
    applied[-1] |= {"offset": applied[-3]["offset"], "hash": applied[-3]["hash"]}
    only(invalid(evidence, tmp_path), "state-machine-safety", "applied offset went back")


def test_states_are_compared_over_ranges_of_offsets(
    evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small ranges say what one says."""
    monkeypatch.setattr("checkers.raft.trace_checkers.ROWS_PER_RANGE", 60)
    whole = evidence.judge(tmp_path / "clean", "state-machine-safety")["state-machine-safety"]
    assert whole.validity is Validity.VALID and whole.looked_at["offsets compared"] == 12
    applied = last_own(evidence, "n4", "applied")
    applied["hash"] ^= 1
    witness = only(invalid(evidence, tmp_path / "wrong"), "state-machine-safety", "applied states differ")
    assert witness.facts["offset"] == applied["offset"]


@pytest.mark.parametrize(("peer", "kinds"), [("n1", []), ("n4", []), (None, ["applied beyond the high watermark"])])
def test_the_state_of_a_loaded_snapshot_needs_no_mark(peer: str | None, kinds: list[str]) -> None:
    """One that the node fetched (n1) or found (n4, the node itself); what it has just taken itself shows nothing."""
    base = {"node": "n4", "incarnation": 1, "epoch": 3, "offset": 5, "hash": 7}
    rows = [base | {"event": "snapshot", "peer": peer}, base | {"event": "applied"}]
    assert [kind for kind in broken(rows) if kind != "snapshot beyond the high watermark"] == kinds
