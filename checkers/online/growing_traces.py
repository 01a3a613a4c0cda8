"""Judges the traces of nodes while they grow: hands every row to the monitor of Raft's rules.

A trace only grows, and each of these rules forbids two rows that exist.  So a violation in a prefix is a violation in
the whole, which the same monitor finds in the sealed run.

Two rules need the rows of all nodes in the order of one clock, and traces are read one node after another.  A row that
excuses a mark was written before the mark was stamped.  So once a mark has been read, and after that each voter's trace
again, every row that could excuse it is known.  Rows wait until then.  While a voter's trace cannot be read, no mark is
judged.

Three rules cannot be judged while the run goes on: that nothing was *lost* (a node may not have fetched it yet), that
logs hold the writes of the history, and that the cluster recovers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from checkers.base.run_evidence import of_events
from checkers.base.verdict import Witness
from checkers.online.online_finding import OnlineFinding
from checkers.raft.monitor import Monitor, TimedMonitor
from checkers.raft.reading import rows_of_table
from checkers.raft.trace_checkers import in_time
from checkers.raft.trace_row import TraceRow

CHECKER = "majority-before-mark"


class _Once:
    """Keeps the findings that are new: a rule is reported once for the same nodes."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, str, tuple[str, ...]]] = set()

    def new(self, found: Iterable[tuple[str, Witness]]) -> list[OnlineFinding]:
        fresh = []
        for checker, witness in found:
            name = (checker, witness.kind, tuple(sorted(witness.facts.get("nodes", ()))))
            if name not in self._reported:
                self._reported.add(name)
                fresh.append(OnlineFinding(checker, witness))
        return fresh


class OnlineTraces:
    """Takes whole rows of each node's trace, in seq order.  rows: number so far."""

    def __init__(self) -> None:
        self._monitor, self._once = Monitor(), _Once()

    @property
    def rows(self) -> int:
        return self._monitor.rows

    def take(self, more: Sequence[pa.Table]) -> list[OnlineFinding]:
        """Add rows, one table of schema TRACE per node that reported any; returns the violations that they show."""
        rows = (row for table in more for row in rows_of_table(table))
        return self._once.new(found for row in rows for found in self._monitor.take(row))


class _Read(NamedTuple):
    """Rows that one look has read.  looks: voter -> how often its trace had been read by then."""

    rows: list[TraceRow]
    looks: Mapping[str, int]


class OnlineMarks:
    """Judges marks in the order of one clock.  voters: the names of all.  Each leader is reported once."""

    def __init__(self, voters: Sequence[str]) -> None:
        self._looks = dict.fromkeys(voters, 0)
        self._reads: list[_Read] = []
        self._monitor = TimedMonitor(voters)
        self._reported: set[str] = set()

    @property
    def judged(self) -> int:
        """The number of marks judged so far."""
        return self._monitor.marks

    def take(self, more: Mapping[str, pa.Table]) -> list[OnlineFinding]:
        """Add the new rows of each node whose trace could be read.  Returns the violations that are certain.

        more: node -> all rows of its trace since the last call, which may be none.
        """
        known = {name: rows for name, rows in more.items() if name in self._looks}
        for name in known:
            self._looks[name] += 1
        rows = [row for table in known.values() for row in rows_of_table(of_events(table, TimedMonitor.EVENTS))]
        self._reads.append(_Read(rows, dict(self._looks)))
        found = [broken for row in in_time(self._certain()) for broken in self._monitor.take(row)]
        fresh = []
        for broken in found:
            leader = broken.evidence.rows[-1].node
            if broken.rule.checker == CHECKER and leader not in self._reported:
                self._reported.add(leader)
                fresh.append(OnlineFinding(CHECKER, broken.witness()))
        return fresh

    def _certain(self) -> list[TraceRow]:
        """Take out the rows up to the last one behind which every voter was read again."""
        sure = [read for read in self._reads if all(self._looks[name] > before for name, before in read.looks.items())]
        until_ns = max((row.time_ns for read in sure for row in read.rows), default=-1)
        certain = [row for read in self._reads for row in read.rows if row.time_ns <= until_ns]
        left = (_Read([row for row in read.rows if row.time_ns > until_ns], read.looks) for read in self._reads)
        self._reads = [read for read in left if read.rows]
        return certain
