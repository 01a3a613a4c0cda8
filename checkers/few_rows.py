"""A sealed run of two nodes and a few rows.  Judging this run loads the kernels that any run of registers needs.

The module imports only code that judges parts, so that Spark's daemon starts quickly.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Task, judge_task
from checkers.base.columns import COPIES, HISTORY, LOG, TRACE, events_to_table
from checkers.base.history import Event, Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.raft.committed import COMMITTED
from checkers.raft.log_matching import LOG_MATCHING
from checkers.raft.trace_verdicts import OF_TRACES
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.seal import seal

_Values = tuple[Any, ...]


def in_turn_on_k(*operations: tuple[int, str, _Values, _Values | None]) -> list[Event]:
    """Return the events of operations on one key, each after the other.

    operations: (process, function, values of the invoke, values of the answer or None)
    """
    events = [
        (process, type_, f, values)
        for process, f, *both in operations
        for type_, values in zip((Type.INVOKE, Type.OK), both, strict=True)
        if values is not None
    ]
    return [
        replace(Event(n, n, p, type_, f, "k", *values), node="n1") for n, (p, type_, f, values) in enumerate(events)
    ]


STALE_READ = in_turn_on_k(
    (0, "write", (1,), (1,)), (0, "cas", (1, 2), (1, 2)), (1, "read", (), (1,)), (1, "write", (3,), None)
)

NODES = ("n1", "n2")
_DEMANDS = Demands(servers=NODES, nodes=True, logs=True, traces=True, elections=True, faults=True)

OF_PARTS = (LINEARIZABILITY, COMMITTED, OF_TRACES[0], LOG_MATCHING)
"""Checkers of a run of registers, one for each `judge` function."""


def load_kernels_of_parts() -> None:
    """Load the kernels that Spark workers call for a run of registers.  Workers only judge parts."""
    with sealed_run() as files:
        for checker in OF_PARTS:
            for part in checker.split(files):
                judge_task(Task(checker.judge, part, Budget()))


@contextmanager
def sealed_run() -> Iterator[StoredRun]:
    """Make a temporary run of two nodes and a few rows, with a stale read."""
    with tempfile.TemporaryDirectory(prefix="krucible-warm-") as name:
        files = StoredRun(Path(name), _DEMANDS)
        with pa.ipc.new_stream(str(files.root / "history.arrows"), HISTORY) as stream:
            stream.write_table(events_to_table(STALE_READ))
        seal(files.root)
        for folder in (files.log, files.trace):
            folder.mkdir(parents=True)
        for node in NODES:
            pq.write_table(pa.Table.from_pylist(log_rows(node), LOG), files.log / f"{node}.parquet")
            pq.write_table(pa.Table.from_pylist(trace_rows(node), TRACE), files.trace / f"{node}.parquet")
        pq.write_table(pa.Table.from_pylist([_copy_row(node) for node in NODES], COPIES), files.copies_table)
        yield files


def log_rows(node: str) -> list[dict[str, Any]]:
    """Return a log of three records: LeaderChange and two writes."""
    written = ((None, None), ("k", 1), ("k", 2))
    return [
        {"copy": 1, "node": node, "offset": offset, "epoch": 1, "checksum": offset, "batch_offset": offset}
        | {"batch_hash": offset + 1, "key": key, "value": value}
        for offset, (key, value) in enumerate(written)
    ]


def trace_rows(node: str) -> list[dict[str, Any]]:
    """Return a trace with one election and three records that are appended, flushed, committed and applied."""
    leads = node == NODES[0]
    rows: list[dict[str, Any]] = [
        {"event": "start", "epoch": 0, "offset": 0, "hash": 0},
        {"event": "vote", "epoch": 1, "peer": NODES[0]},
        {"event": "role", "epoch": 1, "peer": NODES[0], "role": "leader" if leads else "follower", "offset": 0},
    ]
    for event in ("append", "flush", "high-watermark", "applied"):
        rows += [{"event": event, "epoch": 1, "offset": end, "hash": end} for end in (1, 2, 3)]
    return [{"node": node, "incarnation": 0, "seq": seq, "time_ns": seq} | row for seq, row in enumerate(rows)]


def _copy_row(node: str) -> dict[str, Any]:
    return {"copy": 1, "node": node, "when": "final", "state": "stopped", "log_end": 3, "torn_bytes": 0} | {
        "quorum_epoch": 1,
        "voted_for": NODES[0],
        "trace_seq": 14,
        "error": None,
    }
