"""Records of different hands that contradict each other: measurements, traces, answers of clients, deaths, copies.

The manifest binds every file, so nobody else can have changed one.  These comparisons find mistakes: of the harness, of
an agent, of a client or of a system that reports something else than it did.

* No client has an answer from a server that was measured dead or stopped, or over a link measured cut.  Take an
  operation that was invoked and answered while all measurements show that.  Then another server answered, or none at
  all: the client connects elsewhere than it states, its library fails over or repeats requests by itself, or the client
  answers from a cache or swallows errors.  What a run shows of single servers, such as "every server answered", is then
  worth nothing.  Both times are those of the harness, so the clocks of nodes do not matter.
* No row of a trace has a time within such a stretch (`held_windows.py`).  This needs one clock, so it does not judge
  nodes on other machines.  It cannot judge partitions: a node that is cut off goes on writing rows.
* Within one life of a process no row of its trace is earlier than the row before it.  Where nodes and harness share
  one clock, no row lies outside of the run, and a copy has about the time of the rows that its node wrote then.  A copy
  notes how many bytes the trace had.  A node stamps each row before it writes it, and does not run while its disk is
  copied: the last row within the noted size was stamped before the copy was complete, and of the rows behind it only
  the first can have been.  Where a Docker engine runs in a virtual machine, its nodes have another clock: then rows
  have times outside of the run, and nothing is judged.
* The journal lists each death that a fault measured, and one for each life of a trace but the last.  `nodes-stay-up`
  judges only the deaths that are listed.  An ordered death is no violation, so it needs an order: servers are ended by
  faults, and in the phase of collection.  A fault that failed may have ended one later on.
* A copied log reaches what the trace had called flushed: a flush survives kills and losses of power.  It may lack that
  only if a truncation was on its way when the node was stopped, or if the disk broke its promise:

  - A restart that found less is a violation of the system (`raft/model/lives.py`).  Then the copy may be as short.  Of
    a process that was dead and never started again, it is not known what the next one would have found.
  - A truncation that was on its way is reported in the next row about the log.  If no such row follows, none was on its
    way if the last entry is of the node's own epoch: in one epoch there is one leader, and a log whose last entry that
    leader wrote is a part of the leader's log.

Cost: one pass over four columns of the history.  An operation whose rows lie in two row groups is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int64
from checkers.base.clocks import error_ns, one_clock, one_kernel
from checkers.base.history import Type
from checkers.base.run_evidence import CURRENT_EPOCH_EVENTS, coded, numbers, read_table, read_trace, words
from checkers.base.stored_run import StoredRun, node_files
from checkers.kernels.raft.compared_rows import APPEND, FLUSH, OTHER, START, TRUNCATE, durable_ends
from checkers.raft.reading import DisksByRow, disks_by_row
from checkers.record.faults import FaultRecord
from checkers.record.held_windows import HeldWindow, cut_links, silent_processes
from checkers.record.outcome import Death
from checkers.run_quality.faults_installed import INSTALLED, achieved

_COLUMNS = ["time_ns", "process", "type", "node"]
DEAD = "dead"
_LATE_NS = 5_000_000_000
"""An end may be noticed so long after the heal of the fault that ordered it, or be noted so long before its order."""
_IN_FLIGHT = 1
"""Maximum number of rows that a stopped node has stamped and not yet written."""


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


def not_listed(run: StoredRun) -> list[str]:
    """One sentence for each death that must have happened and that the journal does not list.  Raises BrokenFile."""
    listed: dict[str, list[int]] = {}
    for death in _ends(run):
        listed.setdefault(death.node, []).append(death.time_ns)
    clauses = []
    for fault in run.record.faults:
        for node in sorted(_measured_dead(fault)):
            if not any(at_ns <= fault.end_ns(at_ns) for at_ns in listed.get(node, ())):
                clauses.append(
                    f"fault {fault.card.number} measured {node} as dead, and the journal lists no death of it before "
                    "the heal"
                )
    for node, path in node_files(run.trace).items():
        lives = len(read_trace(path, ("start",), ("seq",)))
        ends = len(listed.get(node, ()))
        if lives - 1 > ends:
            clauses.append(f"the trace of {node} shows {lives} starts, and the journal lists {ends} of its deaths")
    return clauses


def without_order(run: StoredRun) -> list[str]:
    """One sentence for each death that is listed as ordered, and that neither a fault nor the collection ordered.

    Empty if the run did not come to the collection: then its servers are ended at any time.  Raises BrokenFile."""
    phases = run.record.outcome.phases if run.record.outcome is not None else ()
    collected_ns = next((phase.start_ns for phase in phases if phase.name == "collection"), -1)
    if collected_ns < 0:
        return []
    clauses = []
    for death in (death for death in _ends(run) if death.ordered):
        node, at_ns = death.node, death.time_ns
        slack_ns = _LATE_NS + error_ns(run.header, node)
        if at_ns < collected_ns - slack_ns and not any(_ordered(f, node, at_ns, slack_ns) for f in run.record.faults):
            clauses.append(
                f"the journal lists an ordered death of {node} at {at_ns / 1e9:.1f} s, and no fault ended {node} then"
            )
    return clauses


def _ends(run: StoredRun) -> list[Death]:
    """The deaths of processes; a complaint in a node's log has no time."""
    deaths = run.record.outcome.deaths if run.record.outcome is not None else ()
    return [death for death in deaths if death.time_ns >= 0]


def _ordered(fault: FaultRecord, node: str, at_ns: int, slack_ns: int) -> bool:
    """Return whether this fault may have ended the node's server at that time."""
    if not fault.may_end(node):
        return False
    if not fault.carried_out or not fault.healed or achieved(fault).word != INSTALLED:
        return True
    return fault.began_ns - slack_ns <= at_ns <= fault.healed_ns + slack_ns


def _measured_dead(fault: FaultRecord) -> set[str]:
    shown = (item for measurement in fault.measured for item in measurement.states.items())
    return {node for node, state in shown if state == DEAD and node in fault.nodes}


_SNAPSHOT = "snapshot"
_CHANGES = {"append": APPEND, "flush": FLUSH, "truncate": TRUNCATE, "start": START}
_OF_LOGS = dict.fromkeys(("quorum-state", _SNAPSHOT, *CURRENT_EPOCH_EVENTS), OTHER) | _CHANGES


class _Flushed(NamedTuple):
    """The rows of one node that show its log, its epoch or its disk.

    event: as numbered in `node_logs.py`; a snapshot that another node sent is a TRUNCATE, because it replaces the log.
    flushed: the log end that was durable after each row.
    """

    seq: Int64
    event: Int64
    offset: Int64
    epoch: Int64
    flushed: Int64
    disks: DisksByRow


def behind_trace(run: StoredRun) -> list[str]:
    """One sentence for each copy of a log that lacks what its trace had called flushed.  Damaged disks are not looked
    at."""
    if not (run.demands.logs and run.demands.traces):
        return []
    traces = {node: _flushed_of(node, path) for node, path in node_files(run.trace).items()}
    taken_ns = {(copy.copy, copy.node): copy.taken_ns for copy in run.copies_index}
    clauses = []
    for copy in run.copies:
        number, node, log_end = copy["copy"], copy["node"], copy["log_end"]
        if copy["error"] or node not in traces:
            continue
        rows = traces[node]
        place = int(np.searchsorted(rows.seq, copy["trace_seq"], side="right"))
        if not place or rows.disks.of_copy(copy) != rows.disks.number[place - 1]:
            continue
        if rows.disks.ids == ("",) and _wiped(run, node, taken_ns.get((number, node), -1)):
            continue
        due = _certain_end(rows, place, dead=copy["state"] == "dead")
        if log_end < due:
            words = f"its log ends at {log_end}, and its trace had reported that everything below {due} was flushed"
            clauses.append(f"copy {number} of {node} cannot be right: {words}")
    return clauses


def _flushed_of(node: str, trace: str) -> _Flushed:
    rows = read_trace(trace, _OF_LOGS, ("epoch", "offset", "peer", "detail"))
    seq, epoch, offset = (numbers(rows, name) for name in ("seq", "epoch", "offset"))
    event = coded(rows, "event", _OF_LOGS)
    fetched = coded(rows, "event", {_SNAPSHOT: 1}) == 1
    fetched &= np.array([peer not in (None, node) for peer in words(rows, "peer")], np.bool_)
    event[fetched] = TRUNCATE
    return _Flushed(seq, event, offset, epoch, durable_ends(event, offset), disks_by_row(rows))


def _wiped(run: StoredRun, node: str, taken_ns: int) -> bool:
    """Return whether a fault may have taken the disk of this node before that time; -1: at any time."""
    return any(
        fault.carried_out and fault.wipes_disks and node in fault.nodes and (taken_ns < 0 or fault.began_ns <= taken_ns)
        for fault in run.faults
    )


def _certain_end(rows: _Flushed, place: int, *, dead: bool) -> int:
    """The least log end that a disk can have had after the first `place` rows; 0 where nothing is certain.

    dead: the process had ended before the copy."""
    due = int(rows.flushed[place - 1])
    later = np.flatnonzero(np.isin(rows.event[place:], (APPEND, TRUNCATE, START)))
    if len(later):
        following = place + int(later[0])
        return due if rows.event[following] == APPEND else min(due, int(rows.offset[following]))
    changes = np.flatnonzero(np.isin(rows.event[:place], (APPEND, TRUNCATE, START)))
    appends = changes[rows.event[changes] == APPEND]
    if dead or not len(appends):
        return 0
    last = int(appends[-1])
    untouched = np.all(rows.offset[changes[changes > last]] == rows.offset[last])
    starts = changes[rows.event[changes] == START]
    of_life = rows.epoch[int(starts[-1]) if len(starts) else 0 : place]
    return due if untouched and int(of_life.max()) == int(rows.epoch[last]) else 0


def at_another_length(run: StoredRun) -> list[str]:
    """One sentence for each copy whose size of the trace belongs to another moment."""
    if not (run.demands.traces and run.demands.logs and one_clock(run.header)):
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
        early = behind + _IN_FLIGHT < len(seq) and int(time_ns[behind + _IN_FLIGHT]) < taken_ns
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
