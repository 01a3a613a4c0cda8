"""Copies of data directories that are evidence, and the entries of the others in the table of copies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_journal

from checkers.base.columns import COPIES
from checkers.base.stored_run import StoredRun
from checkers.record.files import BrokenFile
from checkers.record.reading import RunRecord
from harness.judge.judge_run import copies_of, tabulate
from system_under_test.subject import Collected

TAKEN = [(0, "before heal 1", "n1"), (0, "before heal 1", "n2"), (1, "final", "n1"), (1, "final", "n2")]


def run_with_a_wiped_disk(root: Path, *, wiped: bool) -> StoredRun:
    """n2 is damaged while the first copy is taken, and nothing is left of its disk at the end."""
    rows = []
    for copy, when, node in TAKEN:
        folder = root / "nodes" / node / "copies" / str(copy)
        folder.mkdir(parents=True)
        if (copy, node) != (1, "n2"):
            (folder / "log").write_bytes(b"entries")
        state = {"state": "dead", "folder": str(folder.relative_to(root)), "trace_size_bytes": 0}
        rows.append({"copy": copy, "when": when, "node": node, **state})
    times = {"injected_ns": 1 if wiped else -1, "heal_ordered_ns": 2}
    card = {"number": 1, "kind": "membership", "name": "one", "at_s": 0.0, "heal_s": 1.0}
    said = {"achieved": "installed", "words": "n2 removed", "kind": "membership"}
    fault = {"card": card, **said, "nodes": ["n2"], "settings": {"damages_data": True}, **times}
    write_journal(root, copies=rows, faults=[fault])
    run = StoredRun(root)

    def write(copies: Sequence[Collected]) -> None:
        known = {"log_end": 1, "torn_bytes": 0, "quorum_epoch": 1, "trace_seq": 1}
        table = [{"copy": c.copy, "node": c.node, "when": c.when, "state": c.state, **known} for c in copies]
        run.copies_table.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(table, COPIES), run.copies_table)

    tabulate(RunRecord(root), write)
    return StoredRun(root)


def test_every_copy_of_a_damaged_disk_stays_in_the_table(tmp_path: Path) -> None:
    run = run_with_a_wiped_disk(tmp_path, wiped=True)
    assert [(c["copy"], c["node"]) for c in run.copies] == [(0, "n1"), (1, "n1")]
    assert sorted((c["copy"], c["node"]) for c in run.damaged_copies) == [(0, "n2"), (1, "n2")]


def test_an_empty_copy_is_missing_unless_a_fault_had_damaged_the_disk(tmp_path: Path) -> None:
    assert all(copy["error"] is None for copy in run_with_a_wiped_disk(tmp_path / "wiped", wiped=True).copies)
    lost = run_with_a_wiped_disk(tmp_path / "lost", wiped=False).copies
    assert [copy["error"] for copy in lost if copy["error"]] == ["nodes/n2/copies/1 is missing"]


@pytest.mark.parametrize("number", [-1, 1 << 15, 10**12])
def test_a_number_that_no_copy_has_is_refused(number: int, tmp_path: Path) -> None:
    row = {"copy": number, "when": "final", "node": "n1", "state": "dead", "folder": "nodes/n1/copies/0"}
    write_journal(tmp_path, copies=[row])
    with pytest.raises(BrokenFile, match=f"{number} is no number of a copy"):
        copies_of(RunRecord(tmp_path))


def test_a_copy_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    """Else each of its entries would stand in the table of the log twice."""
    row = {"copy": 0, "when": "final", "node": "n1", "state": "dead", "folder": "nodes/n1/copies/0"}
    write_journal(tmp_path, copies=[row, row])
    with pytest.raises(BrokenFile, match="copy 0 of n1 twice"):
        copies_of(RunRecord(tmp_path))
