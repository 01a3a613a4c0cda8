"""Checks that no node wrote a row of its trace while it was measured dead or stopped.

A process stamps each row of its trace before it writes it.  A row with a time within a stretch in which all
measurements show the process dead or stopped (`held_windows.py`) contradicts them.

So the times of faults are compared with times that the nemesis does not write.  If a fault is moved in time in the
history, in its record and in its measurements, the traces still show that.  The check needs one clock, so it does not
judge nodes on other machines.  It cannot judge partitions: a node that is cut off goes on writing rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

from checkers.base.clocks import one_clock
from checkers.base.run_evidence import numbers
from checkers.base.stored_run import StoredRun, node_files
from checkers.record.held_windows import silent_processes


def rows_while_held(run: StoredRun) -> list[str]:
    """One sentence for each fault and node whose trace has a row while the node was measured dead or stopped.

    Reads the times of the traces, a row group at a time.
    """
    if not run.demands.traces or not one_clock(run.header):
        return []
    traces = node_files(run.trace)
    clauses = []
    for record in run.faults:
        for state, node, first_ns, last_ns in silent_processes(record):
            row_ns = _row_between(traces[node], first_ns, last_ns) if node in traces else None
            if row_ns is not None:
                held = f"{node} as {state} from {first_ns / 1e9:.3f} to {last_ns / 1e9:.3f} s"
                words = f"fault {record.card.number} measured {held}"
                clauses.append(f"{words}, but its trace has a row at {row_ns / 1e9:.3f} s")
    return clauses


def _row_between(trace: str, first_ns: int, last_ns: int) -> int | None:
    """The time of the first row of a trace strictly between two times; None if there is none."""
    with pq.ParquetFile(trace) as file:
        for group in range(file.num_row_groups):
            time_ns = numbers(file.read_row_group(group, ["time_ns"], use_threads=False), "time_ns")
            within = np.flatnonzero((time_ns > first_ns) & (time_ns < last_ns))
            if len(within):
                return int(time_ns[within[0]])
    return None
