"""Checks that copied logs and quorum-state files hold what the traces of their nodes had reported, and no more.

A node reports each change of its log in its trace right after it made it, and before anything else happens.  So a copy
may be ahead of the rows within its noted size by IN_FLIGHT append, and no more.  An earlier copy in whose place a later
one was put is further ahead.

A copy must reach what the rows within its noted size call flushed: a flush survives kills and losses of power.  It may
lack that only if a truncation was on its way when the node was stopped, or if the disk broke its promise.  Both leave
signs behind, and then nothing is concluded:

* A restart that found less is a violation of the system (`raft/model/lives.py`).  Then the copy may be as short.  Of a
  process that was dead and never started again, it is not known what the next one would have found.
* A truncation that was on its way is reported in the next row about the log.  If no such row follows, none was on its
  way if the last entry is of the node's own epoch: in one epoch there is one leader, and a log whose last entry that
  leader wrote is a part of the leader's log.

Lost entries that were committed are a violation, too (`raft/committed.py`).

Only the numbers of rows count, so the clocks of nodes do not matter.

The leader and the vote in a copied quorum-state file must be those that the traces report.  A node writes this file
before it reports its role or its vote, and knows nothing else after a restart:

* The leader that it names must lead that epoch.  A node may have died before it reported a leader, so a leader of whom
  no trace speaks is not doubted.
* A node whose trace names the leader of the file's epoch has written it: a leader is not forgotten within its epoch.
* A vote must stand in the trace.  One vote may be on its way when the node is stopped, but none in an epoch whose
  leader the node knows: then it votes no more.

A vote that the trace has and the file has not is a violation of the system (`vote-once`).

Checks that each copy of a data directory was taken when its trace was as long as the copy notes.

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

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq

from checkers.base.arrays import Int64
from checkers.base.clocks import one_clock, one_kernel
from checkers.base.run_evidence import CURRENT_EPOCH_EVENTS, coded, numbers, read_trace, words
from checkers.base.stored_run import StoredRun, node_files
from checkers.kernels.raft.compared_rows import (
    APPEND,
    FLUSH,
    OTHER,
    START,
    TRUNCATE,
    durable_ends,
)
from checkers.raft.reading import DisksByRow, disks_by_row

IN_FLIGHT = 1
"""How many appends a node may have written, but not yet reported, when it is stopped."""

_APPEND, _OTHER = 1, 2
_EVENTS = {"append": _APPEND, "truncate": _OTHER, "start": _OTHER}
"""Events of a trace that show where the log ends."""


class _LogEnds(NamedTuple):
    """The rows that show where a log ends: their seq, that end, and the code of the event."""

    seq: Int64
    offset: Int64
    event: Int64


def contents(run: StoredRun) -> list[str]:
    """Return one sentence for each copy that does not hold of the log what the trace reported until then."""
    return ahead_of_trace(run) + behind_trace(run) + differ(run) if run.demands.logs else []


def ahead_of_trace(run: StoredRun) -> list[str]:
    """One sentence for each copy of a log that is ahead of its trace.  Damaged disks are not looked at."""
    if not (run.demands.logs and run.demands.traces):
        return []
    ends = {node: _ends_of(path) for node, path in node_files(run.trace).items()}
    clauses = []
    for copy in run.copies:
        number, node, log_end = copy["copy"], copy["node"], copy["log_end"]
        if copy["error"] or node not in ends:
            continue
        reported_later = _appends_behind(ends[node], copy["trace_seq"], log_end)
        if reported_later > IN_FLIGHT:
            words = f"its log ends at {log_end}, and its trace reported {reported_later} appends up to there only later"
            clauses.append(f"copy {number} of {node} cannot be right: {words}")
    return clauses


def _ends_of(trace: str) -> _LogEnds:
    rows = read_trace(trace, _EVENTS, ("offset",))
    return _LogEnds(numbers(rows, "seq"), numbers(rows, "offset"), coded(rows, "event", _EVENTS))


def _appends_behind(ends: _LogEnds, trace_seq: int, log_end: int) -> int:
    """How many appends up to `log_end` follow `trace_seq`, without a truncation or a start in between."""
    place = int(np.searchsorted(ends.seq, trace_seq, side="right"))
    known = int(ends.offset[place - 1]) if place else 0
    if log_end <= known:
        return 0
    beyond = np.flatnonzero((ends.event[place:] != _APPEND) | (ends.offset[place:] > log_end))
    return int(beyond[0]) if len(beyond) else len(ends.seq) - place


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
    """Whether a fault may have taken the disk of this node before that time; -1: at any time."""
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


_ROLE, _VOTE = 1, 2
_OF_QUORUM_STATES = {"role": _ROLE, "vote": _VOTE, "quorum-state": _VOTE, "disk": 0}


class _Reports:
    """What one trace says of leaders and votes: seq, epoch, event and the node that each row names, "" for none."""

    def __init__(self, node: str, path: str) -> None:
        rows = read_trace(path, _OF_QUORUM_STATES, ("epoch", "peer", "role", "detail"))
        self.seq, self.epoch = numbers(rows, "seq"), numbers(rows, "epoch")
        self.event = coded(rows, "event", _OF_QUORUM_STATES)
        self.disks = disks_by_row(rows)
        leads = coded(rows, "role", {"leader": 1}) == 1
        self.named = np.array(
            [node if own else peer or "" for own, peer in zip(leads, words(rows, "peer"), strict=True)]
        )

    def leaders(self) -> set[tuple[int, str]]:
        """(epoch, leader) of every row that names a leader."""
        shown = (self.event == _ROLE) & (self.named != "")
        return set(zip(self.epoch[shown].tolist(), self.named[shown].tolist(), strict=True))

    def before(self, copy: Mapping[str, Any], event: int) -> set[str]:
        """Whom the rows of this event named in the epoch of this copy's file, before the copy and on its disk."""
        shown = (self.event == event) & (self.named != "") & (self.epoch == copy["quorum_epoch"])
        shown &= (self.seq <= copy["trace_seq"]) & (self.disks.number == self.disks.of_copy(dict(copy)))
        return set(self.named[shown].tolist())


def differ(run: StoredRun) -> list[str]:
    """One sentence for each copy whose quorum-state file says something else than the traces.  Damaged disks are not
    looked at."""
    if not (run.demands.logs and run.demands.traces):
        return []
    reports = {node: _Reports(node, path) for node, path in node_files(run.trace).items()}
    leaders: dict[int, set[str]] = defaultdict(set)
    for epoch, leader in (claim for each in reports.values() for claim in each.leaders()):
        leaders[epoch].add(leader)
    clauses = []
    for copy in run.copies:
        node, epoch, leader_id = copy["node"], copy["quorum_epoch"], copy.get("leader_id")
        if copy["error"] or node not in reports or leader_id is None:
            continue
        named, known = f"n{leader_id}" if leader_id >= 0 else "", reports[node].before(copy, _ROLE)
        file = f"the quorum-state of copy {copy['copy']} of {node} cannot be right: in epoch {epoch}"
        if named and leaders[epoch] and named not in leaders[epoch]:
            clauses.append(f"{file} it names the leader {named}, and the traces {_either(leaders[epoch])}")
        elif known and not named:
            clauses.append(f"{file} it names no leader, and the trace of {node} had named {_either(known)}")
        if known and copy["voted_for"] is not None and not reports[node].before(copy, _VOTE):
            clauses.append(f"{file} it holds a vote for {copy['voted_for']}, and the trace of {node} shows none")
    return clauses


def _either(names: set[str]) -> str:
    return " or ".join(sorted(names))


IN_FLIGHT = 1
"""Maximum number of rows that a stopped node has stamped and not yet written."""


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
