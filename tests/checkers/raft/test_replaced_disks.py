"""A node whose disk was replaced by an empty one: another replica if the disk has an id of its own (KIP-853)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from injected_violations import invalid
from toy_quorum import OF_LOGS_AND_TRACES, Evidence, Quorum
from trace_rows import broken, followed

from checkers.base.columns import TRACE
from checkers.base.verdict import Validity
from checkers.online import OnlineTraces
from checkers.raft.monitor import NodeMonitor
from checkers.raft.reading import UNKNOWN, disks_by_row


def wiped_run(*, own_id: bool) -> Evidence:
    """n4 has voted in the second epoch and holds what was committed; it is wiped, and fetches everything again."""
    quorum = Quorum(names_disks=True)
    quorum.elect("n1")
    for i in range(4):
        quorum.write(f"k{i % 2}")
    quorum.cut({"n1"})
    quorum.write("k0")
    quorum.elect("n2", {"n2", "n3", "n4", "n5"})
    for _ in range(3):
        quorum.write("k1")
    quorum.heal()
    quorum.wipe("n4", own_id=own_id)
    quorum.replicate()
    quorum.write("k0")
    quorum.crash("n4")
    quorum.replicate()
    quorum.write("k1")
    quorum.read_all()
    return quorum.evidence()


def test_a_disk_with_an_id_of_its_own_owes_nothing_of_the_one_before(tmp_path: Path) -> None:
    evidence = wiped_run(own_id=True)
    judged = evidence.judge(tmp_path / "offline", *OF_LOGS_AND_TRACES, "trace-validation")
    assert {name: v.reason for name, v in judged.items() if v.validity not in (Validity.VALID,)} == {
        "snapshot-equals-prefix": judged["snapshot-equals-prefix"].reason
    }, "the toy takes no snapshots"
    assert found_online(evidence) == set()


def test_a_wiped_disk_that_passes_for_the_old_one_is_found(tmp_path: Path) -> None:
    evidence = wiped_run(own_id=False)
    found = invalid(evidence, tmp_path)
    assert {"committed-never-lost", "monotonicity"} <= set(found)
    assert "vote-once" in found, "its vote of the second epoch is gone"
    (witness, *_) = found["committed-never-lost"].witnesses
    assert witness.kind == "committed entry lost" and witness.facts["nodes"] == ["n4"]
    assert {"committed-never-lost", "monotonicity"} <= found_online(evidence)
    replayed = evidence.judge(tmp_path / "replayed", "trace-validation")["trace-validation"]
    assert replayed.witnesses[0].kind == "epoch went back"


def test_a_second_replacement_may_not_take_the_id_of_the_first_disk_for_granted(tmp_path: Path) -> None:
    """What a replaced disk loses *afterwards* is a loss as ever."""
    evidence = wiped_run(own_id=True)
    last = next(row for row in reversed(evidence.traces["n4"]) if row["event"] == "start")
    assert last["offset"] > 0
    last["offset"], last["hash"] = 0, 0
    found = invalid(evidence, tmp_path)
    assert "committed entry lost" in {w.kind for w in found["committed-never-lost"].witnesses}


@pytest.mark.parametrize("own_id", [True, False])
def test_a_copy_is_compared_with_the_rows_of_its_own_disk(own_id: bool, tmp_path: Path) -> None:
    """The last copy of n4 was made when a new disk was there that no process had started with yet."""
    evidence = wiped_run(own_id=True)
    copy = next(row for row in reversed(evidence.copies) if row["node"] == "n4")
    copy |= {"log_end": 0, "quorum_epoch": -1, "voted_for": None}
    copy["disk"] = "third disk of n4" if own_id else copy["disk"]
    evidence.logs["n4"] = [row for row in evidence.logs["n4"] if row["copy"] != copy["copy"]]
    judged = evidence.judge(tmp_path, "committed-never-lost", "monotonicity", "vote-once")
    assert judged["committed-never-lost"].validity is (Validity.VALID if own_id else Validity.INVALID)
    assert judged["monotonicity"].validity is (Validity.VALID if own_id else Validity.UNKNOWN)


def test_the_newest_snapshot_of_a_copy_is_one_of_its_own_disk() -> None:
    rows = [("disk", "a", None), ("snapshot", None, 7), ("disk", "b", None), ("snapshot", None, 3)]
    made = [{"event": event, "detail": disk, "offset": end} for event, disk, end in rows]
    known = {"quorum_epoch": 0, "state": "running"}
    copies = [
        known | {"disk": disk, "trace_seq": seq} for disk, seq in (("a", 0), ("a", 1), ("b", 2), ("b", 3), ("c", 3))
    ]
    at_copies = followed(made, NodeMonitor("n1", copies)).copies
    assert [at.snapshot if at.same_disk else 0 for at in at_copies] == [0, 7, 0, 3, 0]


def found_online(evidence: Evidence) -> set[str]:
    """The checkers that find something while the traces grow row by row."""
    online = OnlineTraces()
    found = set()
    tables = {node: pa.Table.from_pylist(rows, TRACE) for node, rows in evidence.traces.items()}
    for at in range(max(map(len, tables.values()))):
        more = [table.slice(at, 1) for table in tables.values() if at < len(table)]
        found |= {finding.checker for finding in online.take(more)}
    return found


def rows(*reports: tuple[str, int, str | None]) -> list[dict[str, Any]]:
    """reports: event, epoch, and the vote or the disk."""
    return [
        {"event": event, "epoch": epoch, "detail" if event == "disk" else "peer": word}
        for event, epoch, word in reports
    ]


def table(*reports: tuple[str, int, str | None]) -> pa.Table:
    known = {"node": "n1", "incarnation": 0, "time_ns": 0}
    return pa.Table.from_pylist([known | {"seq": at} | row for at, row in enumerate(rows(*reports))], TRACE)


def test_disks_are_numbered_by_their_ids() -> None:
    named = table(("vote", 1, "n2"), ("disk", 1, "a"), ("vote", 2, "n2"), ("disk", 2, "a"), ("disk", 0, "b"))
    disks = disks_by_row(named)
    assert disks.number.tolist() == [0, 0, 0, 0, 1] and disks.ids == ("a", "b")
    assert [disks.of_copy({"disk": disk}) for disk in ("a", "b", "c", None)] == [0, 1, UNKNOWN, UNKNOWN]
    bare = disks_by_row(table(("vote", 1, "n2")))
    assert bare.ids == ("",) and bare.of_copy({"disk": "a"}) == 0 and bare.of_copy({}) == 0
    assert disks_by_row(table()).number.dtype == np.int64


def test_each_disk_has_one_vote_in_an_epoch() -> None:
    assert broken(rows(("disk", 0, "a"), ("vote", 3, "n2"), ("disk", 0, "b"), ("vote", 3, "n4"))) == []
    on_one = rows(("disk", 0, "a"), ("vote", 3, "n2"), ("disk", 3, "a"), ("vote", 3, "n4"))
    assert broken(on_one) == ["voted twice in one epoch"]
    forgotten = rows(("disk", 0, "a"), ("vote", 3, "n2"), ("disk", 3, "a"), ("quorum-state", 3, None))
    assert broken(forgotten) == ["vote not kept"]
    anew = rows(("disk", 0, "a"), ("vote", 3, "n2"), ("disk", 0, "b"), ("quorum-state", 3, None))
    assert broken(anew) == []


def test_epochs_begin_anew_with_another_disk_only() -> None:
    assert broken(rows(("disk", 0, "a"), ("vote", 3, "n2"), ("disk", 0, "b"), ("vote", 1, "n2"))) == []
    fell = broken(rows(("disk", 0, "a"), ("vote", 3, "n2"), ("disk", 0, "a"), ("vote", 1, "n2")))
    assert fell == ["epoch went back"]
