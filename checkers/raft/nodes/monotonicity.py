"""Epochs and high watermarks only go forward.

Epochs never go back, restarts included, because a node writes them to disk before it uses them.  A disk that replaced
another one begins anew (`disks_by_row.py`).  So at the end the
quorum-state file holds an epoch at least as large as any the node reported, and as that of its log's last entry.  The
high watermark is not persisted.  It never goes back within one life of a process (an *incarnation*), and a new
leader's is unknown (null), not 0.

Cost: linear in the rows of a trace; memory: 40 bytes a row that is looked at, of one node.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Part
from checkers.base.run_evidence import (
    CURRENT_EPOCH_EVENTS,
    coded,
    log_groups,
    log_rows,
    numbers,
    present,
    read_trace,
    trace_row,
)
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import Witness
from checkers.kernels.raft.compared_rows import falls
from checkers.raft.disks_by_row import disks_by_row
from checkers.raft.trace_findings_to_verdict import TraceFinding, beyond_budget, part_per_node, trace_checker
from checkers.raft.witness_rows import Fetch, Row, copy_row, fetched_from, in_trace, pairs, whole

ROW_SIZE_BYTES = 60


def _split_monotonicity(run: StoredRun) -> list[Part]:
    logs = node_files(run.log)
    parts = part_per_node(run)
    return [Part((*p.paths, *([logs[p.params["node"]]] if p.params["node"] in logs else [])), p.params) for p in parts]


def _judge_monotonicity(part: Part, budget: Budget) -> TraceFinding:
    """Judge the trace of one node, and its log if it has one."""
    path = part.paths[0]
    reports = read_trace(path, CURRENT_EPOCH_EVENTS, ("epoch", "offset", "incarnation", "detail"))
    if excess := beyond_budget(path, len(reports), ROW_SIZE_BYTES, budget):
        return TraceFinding(unknown=excess)
    copied: list[Row] = part.params["copies"]
    fetch = fetched_from(path)
    is_mark = (coded(reports, "event", {"high-watermark": 1}) == 1) & present(reports, "offset")
    marks = reports.filter(pa.array(is_mark))
    witnesses = epochs_fell(reports, fetch) + marks_fell(marks, fetch)
    witnesses += _quorum_state_behind_trace(path, reports, copied)
    if copied and len(part.paths) > 1:
        witnesses += _quorum_state_behind_log(part.paths[1], copied[-1])
    present_files = sum(copy["quorum_epoch"] >= 0 for copy in copied)
    counts = {"epochs reported": len(reports), "high watermarks": len(marks), "quorum-state files": present_files}
    missing = [c for c in copied if c["quorum_epoch"] < 0 and _epoch_before(reports, c) > 0]
    return TraceFinding(tuple(witnesses), counts, "; ".join(_no_quorum_state(copy) for copy in missing))


def _epoch_before(reports: pa.Table, copy: Row) -> int:
    """Return the largest epoch that the disk of a copy had reached by then, or 0."""
    disks = disks_by_row(reports)
    before = (numbers(reports, "seq") <= copy["trace_seq"]) & (disks.number == disks.of_copy(copy))
    return int(numbers(reports, "epoch")[before].max(initial=0))


def _no_quorum_state(copy: Row) -> str:
    return f"copy {copy['copy']} of {copy['node']} ({copy['when']}) holds no quorum-state file"


def epochs_fell(reports: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Find epochs that fell.  reports: one node's rows of CURRENT_EPOCH_EVENTS, in seq order."""
    fell = falls(numbers(reports, "epoch"), disks_by_row(reports).number)
    return [_fell(fetch(reports, top), fetch(reports, low), "epoch") for low, top in pairs(fell)]


def marks_fell(marks: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Find high watermarks that fell.  marks: those of one node, in seq order, none of them null."""
    fell = falls(numbers(marks, "offset"), numbers(marks, "incarnation"))
    return [_fell(fetch(marks, top), fetch(marks, low), "offset") for low, top in pairs(fell)]


def _fell(high: Row, low: Row, column: str) -> Witness:
    what = "its epoch" if column == "epoch" else "its high watermark"
    return Witness(
        kind="epoch went back" if column == "epoch" else "high watermark went back",
        summary=f"{low['node']}: {what} fell from {high[column]} to {low[column]}.",
        rows=(high, low),
        facts={
            "nodes": [low["node"]],
            "epoch": low["epoch"],
            "offset": low["offset"],
            "why": [f"{r['node']} reported that {what} was {r[column]} ({in_trace(r)})." for r in (high, low)],
            "expected": "an epoch never goes back, restarts included"
            if column == "epoch"
            else "a high watermark never goes back in one life of a process; a new leader's is unknown, not lower",
        },
    )


def _quorum_state_behind_trace(path: str, reports: pa.Table, copied: Sequence[Row]) -> list[Witness]:
    """Find the first copy whose quorum-state has a lower epoch than the node had reported with that disk."""
    epoch, seq, disks = numbers(reports, "epoch"), numbers(reports, "seq"), disks_by_row(reports)
    for copy in copied:
        before = np.flatnonzero((seq <= copy["trace_seq"]) & (disks.number == disks.of_copy(copy)))
        if copy["quorum_epoch"] < 0 or len(before) == 0 or epoch[before].max() <= copy["quorum_epoch"]:
            continue
        top = trace_row(path, int(seq[before[np.argmax(epoch[before])]]))
        why = f"{copy['node']} reported that it was in epoch {top['epoch']} ({in_trace(top)})."
        return [_quorum_state_behind(copy, top, why)]
    return []


def _quorum_state_behind_log(path: str, copy: Row) -> list[Witness]:
    if copy["quorum_epoch"] < 0:
        return []
    at, epoch = 0, -1
    file = pq.ParquetFile(path)
    for group in log_groups(file.metadata, copy["copy"]):
        table = file.read_row_group(group.number, ["copy", "offset", "epoch"], use_threads=False)
        epochs = np.where(numbers(table, "copy") == copy["copy"], numbers(table, "epoch"), -1)
        if len(epochs) and epochs.max() > epoch:
            at, epoch = int(numbers(table, "offset")[np.argmax(epochs)]), int(epochs.max())
    if epoch <= copy["quorum_epoch"]:
        return []
    why = f"The log of {copy['node']} has an entry of epoch {epoch} at offset {at}."
    return [_quorum_state_behind(copy, log_rows(path, copy["copy"], [at])[0], why)]


def _quorum_state_behind(copy: Row, higher: Row, why: str) -> Witness:
    node, epoch = copy["node"], copy["quorum_epoch"]
    return Witness(
        kind="epoch went back",
        summary=f"{node} had reached epoch {higher['epoch']}, but its quorum-state holds epoch {epoch}.",
        rows=(higher, copy_row(copy)),
        facts={
            "nodes": [node],
            "epoch": higher["epoch"],
            "offset": higher["offset"],
            "why": [why, f"Copy {copy['copy']} ({copy['when']}) finds epoch {epoch} in its quorum-state."],
            "expected": "an epoch is on disk before another node learns of it, and before an entry of it is written",
        },
    )


MONOTONICITY = trace_checker(
    name="monotonicity",
    title="Epochs and marks only rise",
    question="Did epochs never go back, and high watermarks never within one life of a process?",
    split=_split_monotonicity,
    judge=_judge_monotonicity,
    needed=lambda run: ["epochs reported", "high watermarks"],
)
