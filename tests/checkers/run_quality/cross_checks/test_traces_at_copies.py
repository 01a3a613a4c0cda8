"""The size of a trace that copies.json notes belongs to the moment at which the copy was taken."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from trace_rows import write_trace

from checkers.base import ledger
from checkers.base.columns import COPIES
from checkers.base.demands import Demands
from checkers.base.history import Type
from checkers.base.stored_run import StoredRun
from checkers.record.reading import COPIES_INDEX, TEST
from checkers.run_quality.cross_checks.traces_at_copies import (
    IN_FLIGHT,
    at_another_length,
    taken_outside,
)

S = 1_000_000_000
WHEN = "before heal 1"
BEGIN_S, TAKEN_S, DONE_S = 20, 22, 24
"""When the order to copy was given, when the copy of n1 was complete, and when those of all nodes were."""

BLANK = {"state": "stopped", "log_end": 0, "torn_bytes": 0, "quorum_epoch": -1}


@dataclass
class Copied:
    """n1 wrote a row of its trace in each second of a minute, and was copied once: after its row of second 20."""

    seq: int = 20
    taken_s: float = TAKEN_S
    error: str | None = None
    rows_at_s: dict[int, float] = field(default_factory=lambda: {seq: float(seq) for seq in range(60)})
    node: str = "n1"
    backend: str = "namespaces"
    copy: int = 0
    before: tuple[dict[str, Any], ...] = ()
    """Other copies, which stand before this one."""

    def judged(self, folder: Path) -> list[str]:
        run = StoredRun(folder, Demands(servers=("n1",), traces=True, logs=True))
        write_trace(run, "n1", [{"seq": seq, "time_ns": int(at_s * S)} for seq, at_s in self.rows_at_s.items()])
        copy = {"copy": self.copy, "when": WHEN, "node": self.node, "trace_seq": self.seq, "error": self.error}
        rows = [BLANK | row for row in (*self.before, copy)]
        pq.write_table(pa.Table.from_pylist(rows, COPIES), run.copies_table)
        index = {"copy": self.copy, "when": WHEN, "node": self.node, "state": "stopped", "folder": ""}
        index["taken_ns"] = -1 if self.taken_s < 0 else int(self.taken_s * S)
        header = {"spec": {"backend": self.backend}, "run_id": "1", "started_monotonic_ns": 1}
        for name, content in ((COPIES_INDEX, [index]), (TEST, header)):
            (folder / name).write_text(json.dumps(content))
        return at_another_length(run, HISTORY)


def about_copies(type_: Type, at_s: float, **payload: Any) -> dict[str, Any]:
    return {"f": ledger.COPY, "type": int(type_), "time_ns": int(at_s * S), "payload": json.dumps(payload)}


HISTORY = [
    about_copies(Type.INVOKE, BEGIN_S, when=WHEN),
    about_copies(Type.OK, DONE_S, when=WHEN, copy=0),
    {"f": ledger.END, "type": int(Type.OK), "time_ns": 61 * S, "payload": "{}"},
]
LATE, EARLY = "its trace had rows of a later time", "its trace lacked rows of an earlier time"


@pytest.mark.parametrize("seq", [TAKEN_S - IN_FLIGHT - 1, TAKEN_S - IN_FLIGHT, TAKEN_S])
def test_a_size_of_the_time_of_the_copy(seq: int, tmp_path: Path) -> None:
    """At its earliest one row was on its way when the node was stopped, and the row after that one has the time of the
    copy."""
    assert Copied(seq).judged(tmp_path) == []


@pytest.mark.parametrize("seq", [BEGIN_S - IN_FLIGHT - 1, DONE_S])
def test_a_size_of_any_time_from_the_order_to_its_end_where_no_other_is_known(seq: int, tmp_path: Path) -> None:
    assert Copied(seq, taken_s=-1).judged(tmp_path) == []


@pytest.mark.parametrize(
    ("copied", "words"),
    [
        (Copied(TAKEN_S + 1), LATE),
        (Copied(DONE_S + 1, taken_s=-1), LATE),
        (Copied(TAKEN_S - IN_FLIGHT - 2), EARLY),
        (Copied(BEGIN_S - IN_FLIGHT - 2, taken_s=-1), EARLY),
        (Copied(taken_s=19.5), LATE),
        (Copied(taken_s=23.5), EARLY),
        (Copied(-1), EARLY),
    ],
)
def test_a_size_of_another_time(copied: Copied, words: str, tmp_path: Path) -> None:
    [clause] = copied.judged(tmp_path)
    assert clause == f"copy 0 of n1 cannot be right: {words} than its size shows"


@pytest.mark.parametrize(
    ("taken_s", "outside"),
    [(BEGIN_S - 0.001, True), (BEGIN_S, False), (DONE_S, False), (DONE_S + 0.001, True), (-1, False)],
)
def test_a_copy_is_taken_between_its_rows_in_the_history(taken_s: float, outside: bool, tmp_path: Path) -> None:
    index = {"copy": 0, "when": WHEN, "node": "n1", "state": "stopped", "folder": "", "taken_ns": int(taken_s * S)}
    (tmp_path / COPIES_INDEX).write_text(json.dumps([index]))
    words = f"copy 0 of n1 cannot have been complete at {taken_s:.3f} s: the history shows that it was taken from "
    clause = f"{words}{BEGIN_S:.3f} to {DONE_S:.3f} s"
    assert taken_outside(StoredRun(tmp_path), HISTORY) == ([clause] if outside else [])


def test_of_copies_for_the_same_reason_each_has_its_own_order(tmp_path: Path) -> None:
    """Copies between heals have one name."""
    rows = [*HISTORY[:2], about_copies(Type.INVOKE, 40, when=WHEN), about_copies(Type.OK, 44, when=WHEN, copy=1)]
    index = [
        {"copy": number, "when": WHEN, "node": "n1", "state": "running", "folder": "", "taken_ns": TAKEN_S * S}
        for number in (0, 1)
    ]
    (tmp_path / COPIES_INDEX).write_text(json.dumps(index))
    [clause] = taken_outside(StoredRun(tmp_path), rows)
    assert clause.startswith("copy 1 of n1 ")
    assert clause.endswith("from 40.000 to 44.000 s")


def test_a_copy_without_a_time_was_complete_when_all_were(tmp_path: Path) -> None:
    assert Copied(DONE_S, taken_s=-1).judged(tmp_path) == []


@pytest.mark.parametrize("seq", [58, 59])
def test_a_copy_at_the_end_of_the_trace(seq: int, tmp_path: Path) -> None:
    assert Copied(seq, taken_s=60).judged(tmp_path) == []


OTHERS = [
    pytest.param({"error": "torn"}, id="it could not be read"),
    pytest.param({"node": "n0"}, id="its node has no trace"),
    pytest.param({"copy": 7}, id="no such copy stands in the history"),
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_copy_that_cannot_be_compared_is_left_out(other: dict[str, Any], tmp_path: Path) -> None:
    assert Copied(TAKEN_S + 1, **other).judged(tmp_path) == []


@pytest.mark.parametrize("other", OTHERS)
def test_the_copies_behind_one_that_cannot_be_compared_are_compared(other: dict[str, Any], tmp_path: Path) -> None:
    before = {"copy": 0, "when": WHEN, "node": "n1", "trace_seq": 20, "error": None} | other
    assert len(Copied(TAKEN_S + 1, before=(before,)).judged(tmp_path)) == 1


def test_rows_are_taken_in_order_of_their_numbers(tmp_path: Path) -> None:
    backwards = {seq: float(seq) for seq in reversed(range(60))}
    assert Copied(rows_at_s=backwards).judged(tmp_path / "right") == []
    assert len(Copied(TAKEN_S + 1, rows_at_s=backwards).judged(tmp_path / "wrong")) == 1


@pytest.mark.parametrize(
    ("begin_s", "end_s", "backend", "words"),
    [
        (0, 61, "namespaces", ""),
        (-1, 59, "namespaces", "has rows of times outside of the run"),
        (3, 62, "namespaces", "has rows of times outside of the run"),
        (-1, 59, "docker", ""),  # the engine may run in a virtual machine
        (-1, 61, "docker", "span more than the run"),
        (-1, 61, "ssh", ""),
    ],
)
def test_times_of_a_trace_lie_within_the_run(
    begin_s: float, end_s: float, backend: str, words: str, tmp_path: Path
) -> None:
    times = {0: begin_s, 20: float(BEGIN_S), 22: float(TAKEN_S), 59: end_s}
    clauses = Copied(rows_at_s=times, backend=backend).judged(tmp_path)
    assert len(clauses) == bool(words)
    assert all("the trace of n1" in clause or "the times in the trace of n1" in clause for clause in clauses)
    assert all(words in clause for clause in clauses)
