"""Checks that the times in a trace never fall within one life of its process.

A process stamps each row with its monotonic clock, in the order in which it writes them.  So a row that is earlier than
the row before it was not written like that.  Each node is compared with itself alone, so it does not matter whose clock
it has.
"""

from __future__ import annotations

import numpy as np

from checkers.base.run_evidence import numbers, read_table
from checkers.base.stored_run import StoredRun, node_files


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
