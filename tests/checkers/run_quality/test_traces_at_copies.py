"""The size of a trace that a copy notes belongs to the moment at which the copy was taken."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_header, write_journal
from trace_rows import write_trace

from checkers.base.columns import COPIES
from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.run_quality.evidence import at_another_length

S = 1_000_000_000
IN_FLIGHT = 1
WHEN = "before heal 1"
BEGIN_S, TAKEN_S = 20, 22
"""When the order to copy was given, and when the copy of n1 was complete."""

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
        index = {"copy": self.copy % 7, "when": WHEN, "node": self.node, "state": "stopped", "folder": ""}
        index["taken_ns"] = -1 if self.taken_s < 0 else int(self.taken_s * S)
        write_header(folder, spec={"backend": self.backend}, run_id="1", started_monotonic_ns=1)
        write_journal(folder, copies=[index], outcome={"phases": [{"name": "main", "start_ns": 0, "end_ns": 61 * S}]})
        return at_another_length(run)


LATE, EARLY = "its trace had rows of a later time", "its trace lacked rows of an earlier time"


@pytest.mark.parametrize("seq", [TAKEN_S - IN_FLIGHT - 1, TAKEN_S - IN_FLIGHT, TAKEN_S])
def test_a_size_of_the_time_of_the_copy(seq: int, tmp_path: Path) -> None:
    """At its earliest one row was on its way when the node was stopped, and the row after that one has the time of the
    copy."""
    assert Copied(seq).judged(tmp_path) == []


@pytest.mark.parametrize(
    ("copied", "words"),
    [
        (Copied(TAKEN_S + 1), LATE),
        (Copied(TAKEN_S - IN_FLIGHT - 2), EARLY),
        (Copied(taken_s=19.5), LATE),
        (Copied(taken_s=23.5), EARLY),
        (Copied(-1), EARLY),
    ],
)
def test_a_size_of_another_time(copied: Copied, words: str, tmp_path: Path) -> None:
    [clause] = copied.judged(tmp_path)
    assert clause == f"copy 0 of n1 cannot be right: {words} than its size shows"


@pytest.mark.parametrize("seq", [58, 59])
def test_a_copy_at_the_end_of_the_trace(seq: int, tmp_path: Path) -> None:
    assert Copied(seq, taken_s=60).judged(tmp_path) == []


OTHERS = [
    pytest.param({"error": "torn"}, id="it could not be read"),
    pytest.param({"node": "n0"}, id="its node has no trace"),
    pytest.param({"copy": 7}, id="the journal lists no such copy"),
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
