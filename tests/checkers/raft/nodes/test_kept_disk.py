"""A node that comes back with another disk: rightly after a fault that took its disk, and as a violation else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fault_records import fault_of
from toy_quorum import Evidence, Quorum, Row

from checkers.base.columns import TRACE
from checkers.base.verdict import Validity, Verdict
from checkers.raft.nodes.kept_disk import KIND, spans_of_loss, unexplained_copies, unexplained_starts
from checkers.record.faults import DAMAGES_DATA, WIPES_DISKS

MS = 1_000_000


def trace(*rows: tuple[int, str, str | None]) -> pa.Table:
    """rows: time in ms, event, and the disk."""
    known = {"node": "n1", "incarnation": 0, "epoch": 1}
    made = [
        known | {"seq": i, "time_ns": at * MS, "event": event, "detail": disk}
        for i, (at, event, disk) in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, TRACE)


REPLACED = trace((0, "disk", "a"), (1, "start", None), (40, "vote", None), (60, "disk", "b"), (61, "start", None))


@pytest.mark.parametrize(
    ("spans", "explained"),
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
    spans: list[tuple[int, int]], explained: bool
) -> None:
    found = unexplained_starts(REPLACED, [(a * MS, b * MS) for a, b in spans])
    assert found.counts == {"disks named": 2, "disks replaced": 1}
    assert [w.kind for w in found.witnesses] == ([] if explained else [KIND])


def test_a_start_with_the_same_disk_needs_no_fault() -> None:
    found = unexplained_starts(trace((0, "disk", "a"), (5, "start", None), (9, "disk", "a"), (9, "start", None)), [])
    assert found.witnesses == () and found.counts == {"disks named": 2, "disks replaced": 0}


def test_each_change_needs_a_fault_of_its_own() -> None:
    twice = trace((0, "disk", "a"), (50, "disk", "b"), (55, "start", None), (90, "disk", "a"))
    (witness,) = unexplained_starts(twice, [(20 * MS, 54 * MS)]).witnesses
    assert [row["detail"] for row in witness.rows] == ["b", "a"]


def test_a_copy_of_a_disk_that_no_start_named() -> None:
    rows = trace((0, "disk", "a"), (1, "start", None), (40, "vote", None))

    def found(disk: str | None, taken_ms: int, *spans: tuple[int, int], trace_seq: int = 2) -> int:
        copies: list[Row] = [{"copy": 3, "node": "n1", "when": "final", "disk": disk, "trace_seq": trace_seq}]
        return len(unexplained_copies(rows, copies, {3: taken_ms * MS}, [(a * MS, b * MS) for a, b in spans]))

    assert [found(disk, 70) for disk in ("a", None, "b")] == [0, 0, 1]
    assert found("b", 70, (50, 60)) == found("b", 70, (70, 90)) == 0
    assert found("b", 70, (0, 39)) == found("b", 70, (71, 90)) == 1
    assert found("b", 70, trace_seq=-1) == 0, "the copy was made before the node had named any disk"
    assert unexplained_copies(trace((1, "start", None)), [{"copy": 0, "disk": "b", "trace_seq": 0}], {}, []) == []


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
