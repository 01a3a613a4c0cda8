"""A node that was measured dead or stopped wrote no row of its trace meanwhile.

The times in a trace never fall within one life of its process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_records import whole
from journals import write_header, write_journal
from trace_rows import write_trace

from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.run_quality.evidence import rows_while_held, times_fall

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
