"""The leader and the vote in a copied quorum-state file are those that the traces report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_rows import write_trace

from checkers.base.columns import COPIES
from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.run_quality.cross_checks.logs_at_copies import differ

VOTE = {"event": "vote", "epoch": 3, "peer": "n2"}
FOLLOWS = {"role": "follower", "epoch": 3, "peer": "n2"}
TRACES: dict[str, list[dict[str, Any]]] = {
    "n1": [VOTE, FOLLOWS, {"role": "unattached", "epoch": 4}, {"event": "vote", "epoch": 4, "peer": "n3"}],
    "n2": [VOTE, {"role": "leader", "epoch": 3}],
    "n3": [FOLLOWS, {"event": "vote", "epoch": 4, "peer": "n3"}, {"role": "candidate", "epoch": 4}],
}


def found(folder: Path, traces: dict[str, list[dict[str, Any]]] = TRACES, **of_copy: Any) -> list[str]:
    """Of a copy of n1 that was taken when it followed n2 in epoch 3."""
    run = StoredRun(folder, Demands(servers=tuple(traces), logs=True, traces=True))
    for node, rows in traces.items():
        write_trace(run, node, rows)
    copy = {"copy": 0, "when": "final", "node": "n1", "state": "running", "log_end": 0, "torn_bytes": 0}
    copy |= {"quorum_epoch": 3, "voted_for": "n2", "leader_id": 2, "trace_seq": 1} | of_copy
    pq.write_table(pa.Table.from_pylist([copy], COPIES), run.copies_table)
    return differ(run)


def test_a_file_that_agrees(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("of_copy", "words"),
    [
        ({"leader_id": 1}, "in epoch 3 it names the leader n1, and the traces n2"),
        ({"leader_id": 7}, "in epoch 3 it names the leader n7, and the traces n2"),
        ({"leader_id": 3, "node": "n3", "voted_for": None}, "in epoch 3 it names the leader n3, and the traces n2"),
        ({"leader_id": -1}, "in epoch 3 it names no leader, and the trace of n1 had named n2"),
        ({"node": "n3", "voted_for": "n2"}, "in epoch 3 it holds a vote for n2, and the trace of n3 shows none"),
    ],
)
def test_a_file_that_says_something_else(of_copy: dict[str, Any], words: str, tmp_path: Path) -> None:
    [clause] = found(tmp_path, **of_copy)
    node = of_copy.get("node", "n1")
    assert clause == f"the quorum-state of copy 0 of {node} cannot be right: {words}"


@pytest.mark.parametrize(
    "of_copy",
    [
        pytest.param({"leader_id": -1, "trace_seq": 0}, id="it did not know the leader yet"),
        pytest.param({"trace_seq": 0}, id="it had written the leader, and not reported it"),
        pytest.param({"quorum_epoch": 4, "leader_id": 3, "voted_for": None}, id="no trace names the leader"),
        pytest.param({"quorum_epoch": 4, "leader_id": -1, "voted_for": "n3"}, id="a vote was on its way"),
        pytest.param({"leader_id": None}, id="no file, or one of an older version"),
        pytest.param({"leader_id": 1, "error": "torn"}, id="a copy that could not be read"),
        pytest.param({"leader_id": 1, "node": "n4"}, id="a node without a trace"),
    ],
)
def test_what_is_no_contradiction(of_copy: dict[str, Any], tmp_path: Path) -> None:
    assert found(tmp_path, **of_copy) == []


def test_a_disk_that_replaced_another_one_holds_nothing_of_it(tmp_path: Path) -> None:
    """What the node reported with its old disk says nothing of the file on the new one."""
    disks = [[{"event": "disk", "detail": name}] for name in ("old", "new")]
    traces = TRACES | {"n1": [*disks[0], VOTE, FOLLOWS, *disks[1]]}
    of_copy = {"leader_id": -1, "voted_for": None, "trace_seq": 3}
    assert found(tmp_path / "new", traces, disk="new", **of_copy) == []
    assert len(found(tmp_path / "old", traces, disk="old", **of_copy)) == 1
