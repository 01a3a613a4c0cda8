"""Checks that no client had an answer from a server that was measured dead or stopped, or over a link measured cut.

A client states which server it asks: the node of its operations.  Take an operation that was invoked and answered while
all measurements show that server dead or stopped, or its link to the client cut in either direction.  Then another
server answered, or none at all: the client connects elsewhere than it states, its library fails over or repeats
requests by itself, or the client answers from a cache or swallows errors.  What a run shows of single servers, such as
"every server answered", is then worth nothing.

Both times are those of the harness, so the clocks of nodes do not matter.

Cost: one pass over four columns of the history.  An operation whose rows lie in two row groups is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools
from checkers.base.history import Type
from checkers.base.run_evidence import numbers
from checkers.base.stored_run import StoredRun
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
