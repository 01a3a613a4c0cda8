"""Compares the times in traces with each other, and with the stretches in which their node was measured silent.

A process stamps each row with its monotonic clock, in the order in which it writes them.  So within one life of the
process no row is earlier than the row before it.  Each node is compared with itself, so it does not matter whose clock
it has.

A row with a time within a stretch in which all measurements show the process dead or stopped (`held_windows.py`)
contradicts them.  So the times of faults are compared with times that the nemesis does not write.  This needs one
clock, so it does not judge nodes on other machines.  It cannot judge partitions: a node that is cut off goes on writing
rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

from checkers.base.clocks import one_clock
from checkers.base.run_evidence import numbers, read_table
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


def times_fall(run: StoredRun) -> list[str]:
    """One sentence for each node whose trace has a row that is earlier than the row before it."""
    clauses = []
    for node, path in node_files(run.trace).items() if run.demands.traces else ():
        rows = read_table(path, ("seq", "incarnation", "time_ns"))
        seq, life, time_ns = (numbers(rows, name) for name in ("seq", "incarnation", "time_ns"))
        order = np.argsort(seq, kind="stable")
        falls = np.flatnonzero((np.diff(time_ns[order]) < 0) & (np.diff(life[order]) == 0))
        if len(falls):
            row = int(order[falls[0] + 1])
            clauses.append(f"the trace of {node} has a row (seq {seq[row]}) that is earlier than the row before it")
    return clauses
