"""Traces, copies and measurements must agree: times, sizes of traces, and logs that hold what was flushed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_header, write_journal
from records_of_runs import whole
from toy_quorum import Evidence, random_run
from trace_rows import write_trace

from checkers.base.columns import COPIES
from checkers.base.stored_run import Demands, StoredRun
from checkers.run_quality.evidence import at_another_length, behind_trace, rows_while_held, times_fall

S = 1_000_000_000
SEEN_S, UNTIL_S = 11, 19
"""The first measurement that shows the state ends at SEEN_S; the last one before the heal begins at UNTIL_S."""


def held(node: str = "n1", state: str = "stopped", number: int = 4) -> dict[str, Any]:
    measured = [("inject", 10, SEEN_S), ("hold", 14, 15), ("before heal", UNTIL_S, 20)]
    return whole(
        {
            "card": {"number": number, "kind": "pause"},
            "nodes": [node],
            "ordered": {"held": {"states": {node: state}}, "healed": {"states": {node: "running"}}},
            "injected_ns": 10 * S,
            "heal_ordered_ns": 20 * S,
            "healed_ns": 21 * S,
            "measured": [
                {"phase": phase, "from_ns": begin * S, "to_ns": end * S, "states": {node: state}}
                for phase, begin, end in measured
            ],
        }
    )


def judged(
    folder: Path, rows_ns: list[int], *faults: dict[str, Any], backend: str = "docker", traces: bool = True
) -> list[str]:
    """What is noticed in a run whose node n1 wrote rows of its trace at these times, two in a row group."""
    run = StoredRun(folder, Demands(servers=("n1", "n2"), traces=traces))
    write_trace(run, "n1", [{"time_ns": at_ns} for at_ns in rows_ns], rows_in_group=2)
    write_header(folder, spec={"backend": backend}, run_id="1", started_monotonic_ns=1)
    write_journal(folder, faults=faults)
    return rows_while_held(run)


AROUND = [9 * S, SEEN_S * S, UNTIL_S * S, 22 * S]
"""A process may have written until it was seen stopped, and again from the last measurement on."""


def test_rows_around_the_measured_stretch_contradict_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, AROUND, held()) == []


@pytest.mark.parametrize("state", ["dead", "stopped"])
@pytest.mark.parametrize("at_ns", [SEEN_S * S + 1, UNTIL_S * S - 1])
def test_a_row_within_the_measured_stretch_is_noticed(at_ns: int, state: str, tmp_path: Path) -> None:
    [clause] = judged(tmp_path, [*AROUND[:2], at_ns, *AROUND[2:]], held(state=state))
    assert clause == (
        f"fault 4 measured n1 as {state} from 11.000 to 19.000 s, but its trace has a row at {at_ns / S:.3f} s"
    )


def test_each_fault_is_compared_with_the_trace_of_its_own_node(tmp_path: Path) -> None:
    clauses = judged(tmp_path, [15 * S], held("n2", number=1), held("n1", number=2), held("n1", number=3))
    assert [clause.split()[1] for clause in clauses] == ["2", "3"], "n2 left no trace"


def test_without_a_common_clock_or_demanded_traces_nothing_is_compared(tmp_path: Path) -> None:
    assert judged(tmp_path / "ssh", [15 * S], held(), backend="ssh") == []
    assert judged(tmp_path / "none", [15 * S], held(), traces=False) == []
    assert len(judged(tmp_path / "both", [15 * S], held())) == 1


def found(folder: Path, *rows: tuple[int, int, int]) -> list[str]:
    """rows: seq, incarnation and time of each."""
    run = StoredRun(folder, Demands(servers=("n1",), traces=True))
    write_trace(run, "n1", [{"seq": seq, "incarnation": life, "time_ns": at_ns} for seq, life, at_ns in rows])
    return times_fall(run)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 5), (1, 0, 5), (2, 0, 6)],
        [(0, 0, 9), (1, 1, 2), (2, 1, 3)],  # the machine was restarted
        [(1, 0, 6), (0, 0, 5)],  # rows are in the order of their numbers
        [],
    ],
)
def test_times_that_rise(rows: list[tuple[int, int, int]], tmp_path: Path) -> None:
    assert found(tmp_path, *rows) == []


def test_a_row_that_is_earlier_than_the_row_before_it(tmp_path: Path) -> None:
    words = "the trace of n1 has a row (seq 2) that is earlier than the row before it"
    assert found(tmp_path, (0, 0, 5), (1, 0, 9), (2, 0, 8), (3, 0, 7)) == [words]


# The size of a trace that a copy notes belongs to the moment at which the copy was taken


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
        (-1, 59, "namespaces", "has rows with times outside of the run"),
        (3, 62, "namespaces", "has rows with times outside of the run"),
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


# A copy of a log holds no less than its node's trace had called flushed


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
