"""Checks that no copy of a log holds entries that its node's trace reported only later.

A node reports each append in its trace right after it wrote to its log, and before anything else happens.  So a copy
may be ahead of the rows within its noted size by IN_FLIGHT append, and no more.  An earlier copy in whose place a later
one was put is further ahead.  The other direction, a log that lacks what its trace had reported, is a violation and no
doubt about the evidence (`raft/commits/committed_never_lost.py`).

Only the numbers of rows count, so the clocks of nodes do not matter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int64
from checkers.base.run_evidence import coded, numbers, read_trace
from checkers.base.stored_run import StoredRun, node_files

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
