"""Copies of a disk that a fault had damaged prove nothing about the system; all others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_journal

from checkers.base.columns import COPIES
from checkers.base.stored_run import StoredRun

WHEN = ("before heal 1", "before heal 2", "found online", "final")


def fault(number: int, node: str, injected_ns: int, **settings: bool) -> dict[str, Any]:
    times = {"injected_ns": injected_ns, "heal_ordered_ns": injected_ns + 50 if injected_ns >= 0 else -1}
    return {"card": {"number": number}, "nodes": [node], "settings": settings, **times}


def stored(folder: Path, *faults: dict[str, Any]) -> StoredRun:
    rows = [
        {"copy": copy, "node": node, "when": when, "state": "dead", "log_end": 1, "torn_bytes": 0}
        | {"quorum_epoch": 1, "trace_seq": 1}
        for copy, when in enumerate(WHEN)
        for node in ("n1", "n2")
    ]
    run = StoredRun(folder)
    run.copies_table.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows, COPIES), run.copies_table)
    write_journal(folder, faults=faults)
    return run


@pytest.mark.parametrize(
    ("number", "injected_ns", "settings", "left"),
    [
        (1, 100, {"damages_data": True}, []),
        (2, 200, {"damages_data": True}, [0]),
        (2, 200, {"may_die": True}, [0, 1, 2, 3]),
        (2, -1, {"damages_data": True}, [0, 1, 2, 3]),
    ],
)
def test_copies_after_the_damage_are_left_out(
    tmp_path: Path, number: int, injected_ns: int, settings: dict[str, bool], left: list[int]
) -> None:
    other = fault(3 - number, "n2", 300 - injected_ns if injected_ns >= 0 else 100)
    run = stored(tmp_path, fault(number, "n1", injected_ns, **settings), other)
    assert [copy["copy"] for copy in run.copies if copy["node"] == "n1"] == left
    assert [copy["copy"] for copy in run.copies if copy["node"] == "n2"] == [0, 1, 2, 3]


def test_the_order_may_have_done_its_damage_before_it_returned(tmp_path: Path) -> None:
    damage = fault(2, "n1", 155, damages_data=True) | {"apply_ms": 10 / 1e6}
    run = stored(tmp_path, fault(1, "n2", 100), damage)
    assert [copy["copy"] for copy in run.copies if copy["node"] == "n1"] == []


@pytest.mark.parametrize(("taken_ns", "left"), [(119, [0]), (120, [])])
def test_a_copy_that_was_complete_before_the_damage_shows_the_system(
    tmp_path: Path, taken_ns: int, left: list[int]
) -> None:
    """A copy before a heal may end after the heal on a slow machine, so its own time decides."""
    run = stored(tmp_path, fault(1, "n2", 50), fault(2, "n1", 120, damages_data=True))
    times = (taken_ns, 160, 170, 180)
    index = [
        {"copy": copy, "when": when, "node": node, "state": "dead", "folder": f"{copy}/{node}"}
        | {"trace_size_bytes": 0, "taken_ns": times[copy]}
        for copy, when in enumerate(WHEN)
        for node in ("n1", "n2")
    ]
    write_journal(tmp_path, copies=index)
    run = StoredRun(tmp_path)
    assert [copy["copy"] for copy in run.copies if copy["node"] == "n1"] == left
    assert [copy["copy"] for copy in run.copies if copy["node"] == "n2"] == [0, 1, 2, 3]


def test_a_fault_that_overlaps_the_damage_may_have_copied_it(tmp_path: Path) -> None:
    run = stored(tmp_path, fault(1, "n2", 100), fault(2, "n1", 120, damages_data=True))
    assert [copy["copy"] for copy in run.copies if copy["node"] == "n1"] == []
