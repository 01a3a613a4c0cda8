"""Checks that no node wrote a row of its trace while it was measured dead or stopped.

The nemesis measures the state of each process that a fault holds, about once a second.  A process stamps each row of
its trace before it writes it.  Take the first and the last measurement that show a process dead or
stopped.  A row with a time between them contradicts them, unless a measurement between them shows the process running.

So the times of faults are compared with times that the nemesis does not write.  If a fault is moved in time in the
history, in its record and in its measurements, the traces still show that.  The check needs one clock, so it does not
judge nodes on other machines.  It cannot judge partitions: a node that is cut off goes on writing rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from checkers.base.clocks import one_clock
from checkers.base.json_file import mapping, sequence
from checkers.base.run_evidence import numbers
from checkers.base.stored_run import StoredRun, node_files

SILENT = ("dead", "stopped")

Record = Mapping[str, Any]


def rows_while_held(run: StoredRun) -> list[str]:
    """One sentence for each fault and node whose trace has a row while the node was measured dead or stopped.

    Reads the times of the traces, a row group at a time.  Raises KeyError or TypeError if a record is malformed.
    """
    if not run.demands.traces or not one_clock(run.test):
        return []
    traces = node_files(run.trace)
    clauses = []
    for record in run.faults:
        for node, state, first_ns, last_ns in _silences(record):
            row_ns = _row_between(traces[node], first_ns, last_ns) if node in traces else None
            if row_ns is not None:
                held = f"{node} as {state} from {first_ns / 1e9:.3f} to {last_ns / 1e9:.3f} s"
                words = f"fault {record['card']['number']} of faults.json measured {held}"
                clauses.append(f"{words}, but its trace has a row at {row_ns / 1e9:.3f} s")
    return clauses


def _silences(record: Record) -> Iterator[tuple[str, str, int, int]]:
    """Yields (node, state, from, to): the times in ns between which all measurements show the ordered state.

    Yields nothing for a node that a measurement shows in another state after the first one in the ordered state.
    """
    held = mapping(mapping(mapping(record.get("ordered")).get("held")).get("states"))
    for node, state in held.items():
        if state not in SILENT:
            continue
        shown = [(m, mapping(m["states"])[node]) for m in _until_heal(record) if node in mapping(m.get("states"))]
        while shown and shown[0][1] != state:
            del shown[0]  # the order may take a moment
        if len(shown) > 1 and all(measured == state for _, measured in shown):
            yield node, state, int(shown[0][0]["to_ns"]), int(shown[-1][0]["from_ns"])


def _until_heal(record: Record) -> Sequence[Record]:
    return [m for m in map(mapping, sequence(record.get("measured"))) if m.get("phase") != "heal"]


def _row_between(trace: str, first_ns: int, last_ns: int) -> int | None:
    """The time of the first row of a trace strictly between two times; None if there is none."""
    with pq.ParquetFile(trace) as file:
        for group in range(file.num_row_groups):
            time_ns = numbers(file.read_row_group(group, ["time_ns"], use_threads=False), "time_ns")
            within = np.flatnonzero((time_ns > first_ns) & (time_ns < last_ns))
            if len(within):
                return int(time_ns[within[0]])
    return None
