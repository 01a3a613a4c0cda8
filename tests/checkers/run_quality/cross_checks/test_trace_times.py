"""The times in a trace never fall within one life of its process."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_rows import write_trace

from checkers.base.demands import Demands
from checkers.base.stored_run import StoredRun
from checkers.run_quality.cross_checks.trace_times import times_fall


def found(folder: Path, *rows: tuple[int, int, int]) -> list[str]:
    """rows: seq, incarnation and time of each."""
    run = StoredRun(folder, Demands(servers=("n1",), traces=True))
    write_trace(run, "n1", [{"seq": seq, "incarnation": life, "time_ns": at_ns} for seq, life, at_ns in rows])
    return times_fall(run)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 5), (1, 0, 5), (2, 0, 6)],
        [(0, 0, 9), (1, 1, 2), (2, 1, 3)],  # the machine was started anew
        [(1, 0, 6), (0, 0, 5)],  # numbers order the rows
        [],
    ],
)
def test_times_that_rise(rows: list[tuple[int, int, int]], tmp_path: Path) -> None:
    assert found(tmp_path, *rows) == []


def test_a_row_that_is_earlier_than_the_row_before_it(tmp_path: Path) -> None:
    words = "the trace of n1 has a row (seq 2) that is earlier than the row before it"
    assert found(tmp_path, (0, 0, 5), (1, 0, 9), (2, 0, 8), (3, 0, 7)) == [words]
