"""What one node reports: rising epochs and marks, one state for one prefix, and the disk that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from injected_violations import final, invalid, last_own, only, rows_of
from records_of_runs import fault_of
from toy_quorum import Evidence, Quorum, Row
from trace_rows import broken, followed

from checkers.base.verdict import Validity, Verdict
from checkers.raft.monitor import NodeMonitor, NodeReport
from checkers.raft.rules import DISK_REPLACED as KIND
from checkers.raft.trace_checkers import explained, spans_of_loss
from checkers.raft.trace_verdicts import unnamed_disks
from checkers.record.faults import DAMAGES_DATA, WIPES_DISKS


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


# One state that differs, or that was applied too early or backwards, in a correct run


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
    assert witness.facts["offset"] == applied["offset"] and {"n4"} < {row["node"] for row in witness.rows}


@pytest.mark.parametrize(("peer", "kinds"), [("n1", []), ("n4", []), (None, ["applied beyond the high watermark"])])
def test_the_state_of_a_loaded_snapshot_needs_no_mark(peer: str | None, kinds: list[str]) -> None:
    """One that the node fetched (n1) or found (n4, the node itself); what it has just taken itself shows nothing."""
    base = {"node": "n4", "incarnation": 1, "epoch": 3, "offset": 5, "hash": 7}
    rows = [base | {"event": "snapshot", "peer": peer}, base | {"event": "applied"}]
    assert [kind for kind in broken(rows) if kind != "snapshot beyond the high watermark"] == kinds


# A node that comes back with another disk


MS = 1_000_000


def trace(*rows: tuple[int, str, str | None]) -> list[Row]:
    """rows: time in ms, event, and the disk."""
    return [{"epoch": 1, "time_ns": at * MS, "event": event, "detail": disk} for at, event, disk in rows]


def starts(rows: list[Row], *spans: tuple[int, int]) -> NodeReport:
    """What the monitor reports, where faults may have taken the disk in these spans of ms."""
    return followed(rows, NodeMonitor("n1", explains=lambda gone, there: explained(ns(spans), gone, there)))


def ns(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(a * MS, b * MS) for a, b in spans]


REPLACED = trace((0, "disk", "a"), (1, "start", None), (40, "vote", None), (60, "disk", "b"), (61, "start", None))


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], False),
        ([(45, 50)], True),
        ([(10, 40)], True),
        ([(60, 90)], True),
        ([(0, 39)], False),
        ([(61, 90)], False),
        ([(0, 39), (61, 90)], False),
        ([(0, 39), (41, 41)], True),
    ],
)
def test_a_fault_explains_a_disk_only_if_it_held_between_the_old_and_the_new(
    spans: list[tuple[int, int]], expected: bool
) -> None:
    found = starts(REPLACED, *spans)
    assert found.counts == {"disks named": 2, "disks replaced": 1}
    assert [each.kind for each in found.broken] == ([] if expected else [KIND])


def test_a_start_with_the_same_disk_needs_no_fault() -> None:
    found = starts(trace((0, "disk", "a"), (5, "start", None), (9, "disk", "a"), (9, "start", None)))
    assert found.broken == [] and found.counts == {"disks named": 2, "disks replaced": 0}


def test_each_change_needs_a_fault_of_its_own() -> None:
    twice = trace((0, "disk", "a"), (50, "disk", "b"), (55, "start", None), (90, "disk", "a"))
    (found,) = starts(twice, (20, 54)).broken
    assert [row["detail"] for row in found.witness().rows] == ["b", "a"]


def test_a_copy_of_a_disk_that_no_start_named() -> None:
    rows = trace((0, "disk", "a"), (1, "start", None), (40, "vote", None))

    def found(disk: str | None, taken_ms: int, *spans: tuple[int, int], trace_seq: int = 2) -> int:
        copy = {"copy": 3, "node": "n1", "when": "final", "disk": disk, "trace_seq": trace_seq}
        copy |= {"quorum_epoch": 0, "state": "running"}
        return len(unnamed_disks(followed(rows, NodeMonitor("n1", [copy])), ns(spans), {3: taken_ms * MS}))

    assert [found(disk, 70) for disk in ("a", None, "b")] == [0, 0, 1]
    assert found("b", 70, (50, 60)) == found("b", 70, (70, 90)) == 0
    assert found("b", 70, (0, 39)) == found("b", 70, (71, 90)) == 1
    assert found("b", 70, trace_seq=-1) == 0, "the copy was made before the node had named any disk"


def wiping(node: str, injected_ns: int, healed_ns: int, **settings: bool) -> dict[str, Any]:
    times = {"injected_ns": injected_ns, "heal_ordered_ns": healed_ns, "healed_ns": healed_ns, "apply_ms": 0.0}
    return {"kind": "membership", "nodes": [node], "cut": [], "settings": settings, **times}


def test_only_faults_that_take_a_disk_explain_it() -> None:
    def spans(node: str, **settings: bool) -> list[tuple[int, int]]:
        return spans_of_loss([fault_of(wiping("n4", 10, 20, **settings))], node)

    assert spans("n4", **{WIPES_DISKS: True}) == [(10, 20)]
    ((began_ns, end_ns),) = spans("n4", **{DAMAGES_DATA: True})
    assert began_ns == 10 and end_ns > 10**18, "a damaged disk stays damaged"
    assert spans("n4") == spans("n4", **{WIPES_DISKS: False}) == spans("n3", **{WIPES_DISKS: True}) == []
    never = fault_of(wiping("n4", -1, -1, **{WIPES_DISKS: True}))
    assert spans_of_loss([never], "n4") == []


def judged(folder: Path, *faults: dict[str, Any], clock: str = "same kernel") -> Verdict:
    """n4 is wiped, and comes back with a disk of its own."""
    quorum = Quorum(names_disks=True)
    quorum.elect("n1")
    quorum.write("k0")
    quorum.wipe("n4")
    quorum.write("k1")
    quorum.read_all()
    evidence: Evidence = quorum.evidence()
    evidence.faults += faults
    evidence.test["nodes_clock"] = clock
    return evidence.judge(folder, "kept-disk")["kept-disk"]


def test_a_run_is_judged_by_its_faults(tmp_path: Path) -> None:
    whole_run_ns = 10**12
    wiped = wiping("n4", 0, whole_run_ns, **{WIPES_DISKS: True})
    assert judged(tmp_path / "wiped", wiped).validity is Validity.VALID
    without = judged(tmp_path / "without")
    assert without.validity is Validity.INVALID and {w.kind for w in without.witnesses} == {KIND}
    assert without.witnesses[0].facts["nodes"] == ["n4"]
    of_another = judged(tmp_path / "another", wiping("n3", 0, whole_run_ns, **{WIPES_DISKS: True}))
    assert of_another.validity is Validity.INVALID
    later = wiping("n4", whole_run_ns, whole_run_ns, **{WIPES_DISKS: True})
    assert judged(tmp_path / "later", later).validity is Validity.INVALID
    assert judged(tmp_path / "other clocks", later, clock="own").validity is Validity.VALID


def test_traces_that_name_no_disk_are_not_judged(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    assert quorum.evidence().judge(tmp_path, "kept-disk")["kept-disk"].validity is Validity.NOT_APPLICABLE
