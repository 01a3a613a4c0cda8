"""Checks that each copy of a data directory was taken when its trace was as long as the copy notes.

A copy notes how many bytes the trace of its node had.  That binds the copy to a moment in the trace, and checkers rest
on it: they demand of the log what the trace had reported until then.  So a later copy must not stand in for an earlier
one with the later size.  A node stamps each row before it writes it, and does not run while its disk is copied:

* The last row within the noted size was stamped before the copy had been taken.
* Of the rows behind it, one may have been stamped before the node was stopped and written after it ran again.  The row
  after that one was stamped after the copy had been taken.

The times of both come from different hands: the node stamps its rows, and the harness notes when a copy was complete.
The check needs one clock.  Where a Docker engine runs in a virtual machine, its nodes have another clock: then
rows have times outside of the run, and nothing is judged.
"""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.clocks import one_clock, one_kernel
from checkers.base.run_evidence import numbers
from checkers.base.stored_run import StoredRun, node_files

IN_FLIGHT = 1
"""So many rows a node may have stamped and not yet written when it is stopped."""


def at_another_length(run: StoredRun) -> list[str]:
    """One sentence for each copy whose size of the trace belongs to another moment."""
    if not run.demands.traces or not one_clock(run.header):
        return []
    taken = {(copy.copy, copy.node): copy.taken_ns for copy in run.copies_index}
    times = {node: _rows_of(path) for node, path in node_files(run.trace).items()}
    run_ns = run.record.journal[-1].time_ns
    spans = {node: (int(at_ns.min()), int(at_ns.max())) for node, (_, at_ns) in times.items() if len(at_ns)}
    if too_long := [node for node, (first, last) in spans.items() if last - first > run_ns]:
        return [f"the times in the trace of {', '.join(too_long)} span more than the run"]
    if foreign := [node for node, (first, last) in spans.items() if first < 0 or last > run_ns]:
        words = f"the trace of {', '.join(foreign)} has rows of times outside of the run, and there is only one clock"
        return [words] if one_kernel(run.header) else []
    clauses = []
    for copy in (*run.copies, *run.damaged_copies):
        number, node = copy["copy"], copy["node"]
        taken_ns = taken.get((number, node), -1)
        if copy["error"] or node not in times or taken_ns < 0:
            continue
        seq, time_ns = times[node]
        behind = int(np.searchsorted(seq, copy["trace_seq"], side="right"))
        late = behind > 0 and int(time_ns[behind - 1]) > taken_ns
        early = behind + IN_FLIGHT < len(seq) and int(time_ns[behind + IN_FLIGHT]) < taken_ns
        if late or early:
            words = "had rows of a later time" if late else "lacked rows of an earlier time"
            clauses.append(f"copy {number} of {node} cannot be right: its trace {words} than its size shows")
    return clauses


def _rows_of(trace: str) -> tuple[Int64, Int64]:
    """The seq and the time of every row of a trace, in order of seq."""
    table = pq.read_table(trace, columns=["seq", "time_ns"], partitioning=None)
    seq, time_ns = numbers(table, "seq"), numbers(table, "time_ns")
    order = np.argsort(seq, kind="stable")
    return seq[order], time_ns[order]
