"""Checks that each copy of a data directory was taken when its trace was as long as copies.json notes.

A copy notes how many bytes the trace of its node had.  That binds the copy to a moment in the trace, and checkers rest
on it: they demand of the log what the trace had reported until then.  So a later copy must not stand in for an earlier
one with the later size.  A node stamps each row before it writes it, and does not run while its disk is copied:

* The last row within the noted size was stamped before the copy had been taken.
* Of the rows behind it, one may have been stamped before the node was stopped and written after it ran again.  The row
  after that one was stamped after the copy had been taken.  Where copies.json notes no such time, it was stamped after
  the order to copy.

The times of both come from different hands: the node stamps its rows, and the harness notes its orders in the history.
So a time in copies.json that is moved leaves the rows of the order, or the rows of the trace, on its wrong side.
The check needs one clock.  Where a Docker engine runs in a virtual machine, its nodes have another clock: then
rows have times outside of the run, and nothing is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from checkers.base import ledger
from checkers.base.arrays import Int64
from checkers.base.clocks import one_clock, one_kernel
from checkers.base.history import Type
from checkers.base.run_evidence import numbers
from checkers.base.stored_run import StoredRun, node_files

IN_FLIGHT = 1
"""So many rows a node may have stamped and not yet written when it is stopped."""

Row = Mapping[str, Any]


def at_another_length(run: StoredRun, rows: Sequence[Row]) -> list[str]:
    """One sentence for each copy whose size of the trace belongs to another moment.  rows: those of process -1.

    Raises KeyError or TypeError if an entry of copies.json or of the history is malformed.
    """
    if not run.demands.traces or not one_clock(run.header):
        return []
    begun, ended = _bounds(rows)
    taken = {(copy.copy, copy.node): copy.taken_ns for copy in run.copies_index}
    times = {node: _rows_of(path) for node, path in node_files(run.trace).items()}
    run_ns = rows[-1]["time_ns"]
    spans = {node: (int(at_ns.min()), int(at_ns.max())) for node, (_, at_ns) in times.items() if len(at_ns)}
    if too_long := [node for node, (first, last) in spans.items() if last - first > run_ns]:
        return [f"the times in the trace of {', '.join(too_long)} span more than the run"]
    if foreign := [node for node, (first, last) in spans.items() if first < 0 or last > run_ns]:
        words = f"the trace of {', '.join(foreign)} has rows of times outside of the run, and there is only one clock"
        return [words] if one_kernel(run.header) else []
    clauses = []
    for copy in (*run.copies, *run.damaged_copies):
        number, node = copy["copy"], copy["node"]
        if copy["error"] or node not in times or number not in begun:
            continue
        seq, time_ns = times[node]
        behind = int(np.searchsorted(seq, copy["trace_seq"], side="right"))
        taken_ns = taken.get((number, node), -1)
        latest_ns = taken_ns if taken_ns >= 0 else ended[number]
        earliest_ns = taken_ns if taken_ns >= 0 else begun[number]
        late = behind > 0 and int(time_ns[behind - 1]) > latest_ns
        early = behind + IN_FLIGHT < len(seq) and int(time_ns[behind + IN_FLIGHT]) < earliest_ns
        if late or early:
            words = "had rows of a later time" if late else "lacked rows of an earlier time"
            clauses.append(f"copy {number} of {node} cannot be right: its trace {words} than its size shows")
    return clauses


def taken_outside(run: StoredRun, rows: Sequence[Row]) -> list[str]:
    """One sentence for each copy that copies.json calls complete before its order or after its last row.

    The harness notes all these times by its own clock.  rows: those of process -1.  Raises KeyError or TypeError if an
    entry of the history is malformed."""
    begun, ended = _bounds(rows)
    return [
        f"copy {copy.copy} of {copy.node} cannot have been complete at {copy.taken_ns / 1e9:.3f} s: the history shows "
        f"that it was taken from {begun[copy.copy] / 1e9:.3f} to {ended[copy.copy] / 1e9:.3f} s"
        for copy in run.copies_index
        if copy.taken_ns >= 0 and copy.copy in begun and not begun[copy.copy] <= copy.taken_ns <= ended[copy.copy]
    ]


def _bounds(rows: Sequence[Row]) -> tuple[dict[Any, int], dict[Any, int]]:
    """Number of each copy -> the times of its order and of its end, by the rows about copies.

    A copy may wait for another one, so orders can overlap, but never two of the same reason."""
    ordered: dict[Any, int] = {}
    begun: dict[Any, int] = {}
    ended: dict[Any, int] = {}
    for row in rows:
        if row["f"] != ledger.COPY:
            continue
        entry = ledger.payload(row)
        if row["type"] == Type.INVOKE:
            ordered[entry["when"]] = row["time_ns"]
        elif row["type"] == Type.OK and entry["when"] in ordered and entry["copy"] not in ended:
            begun[entry["copy"]], ended[entry["copy"]] = ordered[entry["when"]], row["time_ns"]
    return begun, ended


def _rows_of(trace: str) -> tuple[Int64, Int64]:
    """The seq and the time of every row of a trace, in order of seq."""
    table = pq.read_table(trace, columns=["seq", "time_ns"], partitioning=None)
    seq, time_ns = numbers(table, "seq"), numbers(table, "time_ns")
    order = np.argsort(seq, kind="stable")
    return seq[order], time_ns[order]
