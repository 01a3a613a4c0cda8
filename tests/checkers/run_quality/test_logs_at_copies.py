"""A copy of a log holds no less than its node's trace had called flushed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_journal
from toy_quorum import Evidence, random_run
from trace_rows import write_trace

from checkers.base.columns import COPIES
from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.run_quality.evidence import behind_trace


@pytest.fixture
def evidence() -> Evidence:
    return random_run(4).evidence()


def row(event: str, offset: int | None = None, epoch: int = 1, **more: Any) -> dict[str, Any]:
    return {"event": event, "offset": offset, "epoch": epoch, "peer": None, **more}


WRITTEN = [row("start", 0, 0), row("role", epoch=1, role="follower", peer="n2")] + [
    row(event, offset) for offset in (3, 5) for event in ("append", "flush")
]
"""The trace of a follower whose log ends at 5, all of it flushed."""


def lacking(
    folder: Path,
    log_end: int,
    after: Sequence[dict[str, Any]],
    *,
    before: Sequence[dict[str, Any]] = WRITTEN,
    faults: Sequence[dict[str, Any]] = (),
    **of_copy: Any,
) -> list[str]:
    """What is noticed of a copy of n1 whose log ends there.  before, after: rows of its trace, before and after it."""
    run = StoredRun(folder, Demands(servers=("n1",), logs=True, traces=True))
    write_trace(run, "n1", [*before, *after])
    copy = {"copy": 0, "when": "final", "node": "n1", "state": "running", "torn_bytes": 0, "quorum_epoch": 1}
    copy |= {"log_end": log_end, "trace_seq": len(before) - 1} | of_copy
    pq.write_table(pa.Table.from_pylist([copy], COPIES), run.copies_table)
    index = {"copy": 0, "when": "final", "node": "n1", "state": "running", "folder": "", "taken_ns": 10}
    write_journal(folder, copies=[index], faults=faults)
    return behind_trace(run)


LATER_EPOCH = row("role", epoch=2, role="follower", peer="n3")


@pytest.mark.parametrize(
    ("after", "state"),
    [
        pytest.param([], "running", id="nothing follows"),
        pytest.param([row("append", 6)], "stopped", id="the log went on from its end"),
        pytest.param([LATER_EPOCH, row("append", 6, 2)], "running", id="it went on in a later epoch"),
        pytest.param([row("start", 5, 1)], "dead", id="the next process found it"),
        pytest.param([LATER_EPOCH, row("truncate", 4, 2)], "running", id="not so much was cut"),
    ],
)
def test_a_copy_that_lacks_what_was_flushed_is_noticed(after: list[dict[str, Any]], state: str, tmp_path: Path) -> None:
    assert lacking(tmp_path / "whole", 5, after, state=state) == []
    [clause] = lacking(tmp_path / "short", 3, after, state=state)
    assert clause.startswith("copy 0 of n1 cannot be right: its log ends at 3, and its trace had reported")


@pytest.mark.parametrize(
    ("after", "state"),
    [
        pytest.param([row("truncate", 3, 2)], "running", id="a truncation was on its way"),
        pytest.param([row("start", 3, 1)], "running", id="its process died and the next one found as much"),
        pytest.param([row("start", 3, 1)], "dead", id="the next process found as much"),
        pytest.param([], "dead", id="no process looked at the disk again"),
        pytest.param([row("snapshot", 3, 2, peer="n2")], "running", id="a snapshot was put in place of the log"),
    ],
)
def test_what_may_have_removed_it_is_no_contradiction(after: list[dict[str, Any]], state: str, tmp_path: Path) -> None:
    assert lacking(tmp_path, 3, after, state=state) == []


UNFLUSHED = [*WRITTEN[:-1], row("append", 7)]
NEW_DISK = [row("disk", detail="a"), *WRITTEN]
WIPED = {
    "card": {"number": 1, "kind": "membership", "name": "one", "at_s": 0.0, "heal_s": 1.0},
    "achieved": "installed",
    "words": "n1 loses its disk",
    "nodes": ["n1"],
    "settings": {"wiped": True},
    "injected_ns": 5,
}


@pytest.mark.parametrize(
    ("before", "of_copy", "faults"),
    [
        pytest.param(UNFLUSHED, {}, [], id="what was not flushed"),
        pytest.param([*WRITTEN, row("truncate", 3)], {}, [], id="what was cut before"),
        pytest.param([*WRITTEN, LATER_EPOCH], {}, [], id="a later leader may cut it, and no row follows"),
        pytest.param([*WRITTEN, row("start", 5, 2)], {}, [], id="so may one of whom the next process hears"),
        pytest.param([*WRITTEN, row("start", 3, 1)], {}, [], id="a restart found less"),
        pytest.param(NEW_DISK, {"disk": "b"}, [], id="another disk"),
        pytest.param(WRITTEN, {}, [WIPED], id="a disk that was wiped"),
        pytest.param(WRITTEN, {"error": "torn"}, [], id="a copy that could not be read"),
        pytest.param(WRITTEN, {"node": "n2"}, [], id="a node without a trace"),
        pytest.param(WRITTEN, {"trace_seq": -1}, [], id="a copy from before the trace"),
    ],
)
def test_what_need_not_be_there(
    before: list[dict[str, Any]], of_copy: dict[str, Any], faults: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert lacking(tmp_path, 3, [], before=before, faults=faults, **of_copy) == []


def test_the_same_disk_by_its_name(tmp_path: Path) -> None:
    assert len(lacking(tmp_path, 3, [], before=NEW_DISK, disk="a")) == 1


def test_no_copy_of_a_correct_run_lacks_anything(evidence: Evidence, tmp_path: Path) -> None:
    assert behind_trace(evidence.write(tmp_path)) == []
