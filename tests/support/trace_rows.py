"""Rows of traces for tests: what a test does not name is filled in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import TRACE
from checkers.base.stored_run import StoredRun
from checkers.raft.monitor import NodeMonitor, NodeReport
from checkers.raft.rules import TraceRow

Row = dict[str, Any]


def write_trace(run: StoredRun, node: str, rows: Sequence[Row], rows_in_group: int = 1000) -> Path:
    """Write the trace of a node, in rows of schema TRACE, and return its path.

    A row needs nothing: its number is its place, its time is 0, and its event is "role".
    """
    blank = {"node": node, "incarnation": 0, "time_ns": 0, "event": "role", "epoch": 0}
    path = run.trace / f"{node}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist([blank | {"seq": place} | row for place, row in enumerate(rows)], TRACE)
    pq.write_table(table, path, row_group_size=rows_in_group)
    return path


def trace_rows(rows: Sequence[Row], node: str = "n1") -> list[TraceRow]:
    """Rows as the monitor takes them, filled in as in `write_trace`."""
    blank: Row = {"node": node, "incarnation": 0, "event": "role", "epoch": 0}
    return [TraceRow(**(blank | {"seq": place} | row)) for place, row in enumerate(rows)]


def followed(rows: Sequence[Row], monitor: NodeMonitor | None = None) -> NodeReport:
    """What the monitor reports of one node with these rows."""
    monitor = monitor or NodeMonitor("n1")
    for row in trace_rows(rows):
        monitor.take(row)
    return monitor.finish()


def broken(rows: Sequence[Row], monitor: NodeMonitor | None = None) -> list[str]:
    """The kinds of the rules that these rows of one node break, in order."""
    return [each.kind for each in followed(rows, monitor).broken]
