"""Checks that no client had an answer from a server that was measured dead or stopped, or over a link measured cut.

A client states which server it asks: the node of its operations.  Take an operation that was invoked and answered while
all measurements show that server dead or stopped, or its link to the client cut in either direction.  Then another
server answered, or none at all: the client connects elsewhere than it states, its library fails over or repeats
requests by itself, or the client answers from a cache or swallows errors.  What a run shows of single servers, such as
"every server answered", is then worth nothing.

Both times are those of the harness, so the clocks of nodes do not matter.

Cost: one pass over four columns of the history.  An operation whose rows lie in two row groups is not looked at.

Compares the times in traces with each other, and with the stretches in which their node was measured silent.

A process stamps each row with its monotonic clock, in the order in which it writes them.  So within one life of the
process no row is earlier than the row before it.  Each node is compared with itself, so it does not matter whose clock
it has.

A row with a time within a stretch in which all measurements show the process dead or stopped (`held_windows.py`)
contradicts them.  So the times of faults are compared with times that the nemesis does not write.  This needs one
clock, so it does not judge nodes on other machines.  It cannot judge partitions: a node that is cut off goes on writing
rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools
from checkers.base.clocks import one_clock
from checkers.base.history import Type
from checkers.base.run_evidence import numbers, read_table
from checkers.base.stored_run import StoredRun, node_files
from checkers.record.faults import FaultRecord
from checkers.record.held_windows import HeldWindow, cut_links, silent_processes

_COLUMNS = ["time_ns", "process", "type", "node"]


@dataclass(slots=True)
class _Watch:
    """One stretch in which a server could not answer the clients of a node.

    fault: number of its card.  client: the node of those clients, "" for all clients.
    count, process, invoked_ns: how many operations were answered nevertheless, and the first of them.
    """

    fault: int
    held: HeldWindow
    server: str
    client: str
    count: int = 0
    process: int = -1
    invoked_ns: int = -1


def answers_while_held(run: StoredRun) -> list[str]:
    """One sentence for each fault and server, or link, for which the history has such answers."""
    watches = [watch for record in run.faults for watch in _watches(run, record)]
    if not run.demands.nodes or not run.demands.concurrency or not watches:
        return []
    with pq.ParquetFile(run.history) as file:
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, _COLUMNS, use_threads=False)
            time_ns = numbers(rows, "time_ns")
            for watch in watches:
                first = int(np.searchsorted(time_ns, watch.held.from_ns, side="right"))
                end = int(np.searchsorted(time_ns, watch.held.to_ns, side="left"))
                if end > first:
                    _look(run, rows.slice(first, end - first), watch)
    return [_words(watch) for watch in watches if watch.count]


def _watches(run: StoredRun, record: FaultRecord) -> Iterator[_Watch]:
    servers, clients = run.demands.servers, run.demands.client_nodes
    number = record.card.number
    for held in silent_processes(record):
        if held.subject in servers:
            yield _Watch(number, held, held.subject, "")
    for held in cut_links(record):
        for server, client in (held.subject, held.subject[::-1]):
            if server in servers and client in clients:
                yield _Watch(number, held, server, client)


def _look(run: StoredRun, rows: pa.Table, watch: _Watch) -> None:
    """Count the operations whose rows all lie among these."""
    places = np.argsort(numbers(rows, "process"), kind="stable")
    rows = rows.take(pa.array(places))
    process, type_, time_ns = (numbers(rows, name) for name in ("process", "type", "time_ns"))
    of_server = pc.fill_null(pc.equal(pc.cast(rows["node"], pa.string()), watch.server), False)
    wrong: Bools = np.asarray(of_server.to_numpy(), np.bool_)[1:] & (process[1:] >= 0)
    wrong &= (process[1:] == process[:-1]) & (type_[:-1] == int(Type.INVOKE)) & (type_[1:] == int(Type.OK))
    if watch.client:  # threads are dealt over the client nodes in turn
        clients = run.demands.client_nodes
        wrong &= (process[1:] % run.demands.concurrency) % len(clients) == clients.index(watch.client)
    found = np.flatnonzero(wrong)
    if len(found) and not watch.count:
        first = found[np.argmin(time_ns[found])]
        watch.process, watch.invoked_ns = int(process[first]), int(time_ns[first])
    watch.count += len(found)


def _words(watch: _Watch) -> str:
    held, server = watch.held, watch.server
    between = f"from {held.from_ns / 1e9:.3f} to {held.to_ns / 1e9:.3f} s"
    if watch.client:
        measured = f"the link {'>'.join(held.subject)} as cut {between}"
    else:
        measured = f"{server} as {held.what} {between}"
    answers = f"{watch.count} operation{'s' if watch.count > 1 else ''}"
    return (
        f"fault {watch.fault} measured {measured}, but {server} answered {answers} of "
        f"{watch.client or 'clients'} meanwhile (the first of process {watch.process}, invoked at "
        f"{watch.invoked_ns / 1e9:.3f} s): the client asks another server than it states, its library repeats requests "
        f"by itself, or it swallows errors"
    )


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
