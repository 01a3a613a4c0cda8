"""Judges the traces of nodes while they grow: elections, votes, marks, applied states.

A trace only grows, and each of these rules forbids two rows that exist.  So a violation in a prefix is a
violation in the whole.  The same functions judge the sealed run, over the same tables with more rows.  Each rule
carries those earlier rows of a node that a later row can still contradict: its highest epoch, its highest mark in this
life of its process, its votes, ...  So a row is read once, and not every second.

Several nodes report a hash at the same offset.  The first row there is kept, and stands for all rows that agree with
it.  It is a violation if any node ever reports another prefix hash or state hash there.  Memory: some 40 bytes for
every offset with a row.

Three rules cannot be judged while the run goes on: that nothing was *lost* (a node may not have fetched it yet), that
logs hold the writes of the history, and that the cluster recovers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.columns import TRACE
from checkers.base.run_evidence import CURRENT_EPOCH_EVENTS, numbers, of_events, present, row, with_offset, words
from checkers.base.verdict import Witness
from checkers.kernels.raft.compared_rows import NOWHERE, disagreements
from checkers.kernels.raft.marks import Marks
from checkers.online.online_finding import OnlineFinding
from checkers.raft.commits import committed_evidence, kept_by_own_trace, own_epoch_first
from checkers.raft.commits import committed_never_lost as committed
from checkers.raft.disks_by_row import disks_by_row
from checkers.raft.elections import election_safety as raft_elections
from checkers.raft.elections import kept_votes
from checkers.raft.nodes import monotonicity, state_machine_safety
from checkers.raft.witness_rows import Row, pairs

_NONE = np.empty(0, np.int64)
_NO_MARKS = Marks(_NONE, _NONE, np.empty(0, np.bool_), _NONE)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule about the rows of one node.  judge: gets rows in seq order.  carry: positions of rows still needed."""

    checker: str
    events: Sequence[str]
    judge: Callable[[pa.Table], list[Witness]]
    carry: Callable[[pa.Table], Sequence[int]]
    needs_offset: bool = False


class OnlineTraces:
    """Gets whole rows of each node's trace, in seq order.  rows: how many so far.

    Every violation is reported once.  If the same nodes break the same rule again, that is not reported.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._carried: dict[tuple[str, int], pa.Table] = {}
        self._claims: dict[int, dict[tuple[Any, ...], Row]] = defaultdict(dict)
        self._marks = _FirstReports("high-watermark")
        self._states = _FirstReports("applied")
        self._reported: set[tuple[str, str, tuple[str, ...]]] = set()

    def take(self, more: Sequence[pa.Table]) -> list[OnlineFinding]:
        """Add rows, one table of schema TRACE per node that reported any; returns the violations that they show."""
        found = [finding for rows in more if len(rows) for finding in self._take(rows)]
        return [finding for finding in found if self._is_new(finding)]

    def _take(self, rows: pa.Table) -> list[OnlineFinding]:
        self.rows += len(rows)
        node = str(rows["node"][0])
        found = [finding for number, rule in enumerate(_RULES) for finding in self._follow(node, number, rule, rows)]
        found += [OnlineFinding("election-safety", w) for w in self._elected(node, rows)]
        marks = with_offset(of_events(rows, ("high-watermark",)))
        found += [OnlineFinding("committed-never-lost", w) for w in _prefixes_differ(self._marks.beside(marks))]
        applied = with_offset(of_events(rows, ("applied",)))
        found += [
            OnlineFinding("state-machine-safety", w)
            for w in state_machine_safety.states_differ(self._states.beside(applied))
        ]
        return found

    def _follow(self, node: str, number: int, rule: _Rule, rows: pa.Table) -> list[OnlineFinding]:
        fresh = of_events(rows, rule.events)
        if rule.needs_offset:
            fresh = with_offset(fresh)
        if not len(fresh):
            return []
        before = self._carried.get((node, number))
        table = fresh if before is None else pa.concat_tables([before, fresh])
        found = [OnlineFinding(rule.checker, witness) for witness in rule.judge(table)]
        kept = pa.array(sorted(set(_carried(rule, table))), pa.int64())
        self._carried[node, number] = table.take(kept).combine_chunks()
        return found

    def _elected(self, node: str, rows: pa.Table) -> list[Witness]:
        epochs = set()
        for claim in raft_elections.claims(of_events(rows, raft_elections.CLAIM_EVENTS)):
            name = (node, claim["event"], claim["role"], claim["peer"], claim["incarnation"])
            if name not in self._claims[claim["epoch"]]:
                self._claims[claim["epoch"]][name] = claim
                epochs.add(claim["epoch"])
        return [w for e in sorted(epochs) for w in raft_elections.judge_epoch(e, list(self._claims[e].values()))]

    def _is_new(self, finding: OnlineFinding) -> bool:
        name = (finding.checker, finding.witness.kind, tuple(sorted(finding.witness.facts.get("nodes", ()))))
        new = name not in self._reported
        self._reported.add(name)
        return new


_REPORT = np.dtype(
    [
        *(("node", np.int16), ("incarnation", np.int32), ("seq", np.int64), ("time_ns", np.int64)),
        *(("epoch", np.int32), ("hash", np.int64)),
    ]
)
_NO_NODE = -1


class _FirstReports:
    """For each offset, the first row of some event that reported a hash there."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._nodes: list[str] = []
        self._first_reports = np.empty(0, _REPORT)

    def beside(self, rows: pa.Table) -> pa.Table:
        """The first rows known at the offsets of these rows, followed by these rows.

        rows: of one node, each with an offset.  A row at a new offset is kept as the first one there.
        """
        rows = rows.filter(pa.array(present(rows, "hash")))
        rows = rows.filter(pa.array(numbers(rows, "offset") > 0))
        if not len(rows):
            return rows
        offsets = numbers(rows, "offset")
        self._make_room(int(offsets.max()) + 1)
        there = np.unique(offsets)
        known = self._rows(there[self._first_reports["node"][there] != _NO_NODE])
        fresh = np.flatnonzero(self._first_reports["node"][offsets] == _NO_NODE)[::-1]  # of several the first stays
        reports = self._first_reports
        reports["node"][offsets[fresh]] = self._number(str(rows["node"][0]))
        for name in ("incarnation", "seq", "time_ns", "epoch", "hash"):
            reports[name][offsets[fresh]] = numbers(rows, name)[fresh]
        return pa.concat_tables([known, rows])

    def _make_room(self, size: int) -> None:
        if size > len(self._first_reports):
            more = np.empty(max(size, 2 * len(self._first_reports)) - len(self._first_reports), _REPORT)
            more["node"] = _NO_NODE
            self._first_reports = np.concatenate([self._first_reports, more])

    def _number(self, node: str) -> int:
        if node not in self._nodes:
            self._nodes.append(node)
        return self._nodes.index(node)

    def _rows(self, offsets: Int64) -> pa.Table:
        reports = self._first_reports[offsets]
        columns: dict[str, npt.NDArray[Any] | list[str | None]] = {name: reports[name] for name in _REPORT.names or ()}
        columns |= {"node": [self._nodes[i] for i in reports["node"]], "offset": offsets}
        columns |= {"event": [self._event] * len(reports)}
        nothing = [None] * len(reports)
        return pa.Table.from_arrays([pa.array(columns.get(f.name, nothing), f.type) for f in TRACE], schema=TRACE)


def _carried(rule: _Rule, table: pa.Table) -> Sequence[int]:
    """What later rows are compared with: rows of the disk that the node has now, and the last one that names it."""
    disks = disks_by_row(table)
    begin = int(np.argmax(disks.number == disks.number[-1]))
    return [*(begin + at for at in rule.carry(table.slice(begin))), *disks.last_report]


def _votes(rows: pa.Table) -> Sequence[int]:
    return [int(at) for at in np.flatnonzero(present(rows, "peer"))]


def _none(rows: pa.Table) -> Sequence[int]:
    return ()


def _highest_epoch(rows: pa.Table) -> Sequence[int]:
    return (int(np.argmax(numbers(rows, "epoch"))),)


def _highest_mark(rows: pa.Table) -> Sequence[int]:
    """The first row with the largest offset, in this life of the process."""
    begin = int(np.argmax(numbers(rows, "incarnation") == numbers(rows, "incarnation")[-1]))
    return (begin + int(np.argmax(numbers(rows, "offset")[begin:])),)


def _highest_applied(rows: pa.Table) -> Sequence[int]:
    """The highest mark, the highest applied offset and the mark that allowed it, in this life of the process."""
    begin = int(np.argmax(numbers(rows, "incarnation") == numbers(rows, "incarnation")[-1]))
    offsets = numbers(rows, "offset")[begin:]
    marks = np.flatnonzero(state_machine_safety.shows_commitment(rows)[begin:])
    applied = np.flatnonzero(state_machine_safety.is_applied(rows)[begin:])
    kept = [int(marks[np.argmax(offsets[marks])])] if len(marks) else []
    if len(applied):
        highest = int(applied[np.argmax(offsets[applied])])
        before = marks[marks < highest]
        kept += [highest, *([int(before[np.argmax(offsets[before])])] if len(before) else [])]
    return [begin + i for i in kept]


def _owed(rows: pa.Table) -> Sequence[int]:
    """Rows that show whether a later truncation or restart removes too much: the largest mark that is flushed, the last
    mark if the log was not cut since, the last flush, and the lowest end of the log since that."""
    owed, _, _ = kept_by_own_trace.follow(rows, _NO_MARKS)
    events, offsets = np.array(words(rows, "event")), numbers(rows, "offset")
    kept = [int(owed[-1])] if owed[-1] != NOWHERE else []
    marks = np.flatnonzero(events == "high-watermark")
    if len(marks) and not np.isin(events[marks[-1] :], ("truncate", "start")).any():
        kept.append(int(marks[-1]))
    flushes = np.flatnonzero(events == "flush")
    since = int(flushes[-1]) if len(flushes) else 0
    kept += [since] if len(flushes) else []
    cuts = since + np.flatnonzero(np.isin(events[since:], ("truncate", "start")))
    return kept + ([int(cuts[np.argmin(offsets[cuts])])] if len(cuts) else [])


def _removed(rows: pa.Table) -> list[Witness]:
    _, removed, _ = kept_by_own_trace.follow(rows, _NO_MARKS)
    pairs = [(int(removed[at]), at) for at in np.flatnonzero(removed != NOWHERE).tolist()]
    return [committed_evidence.removed(row(rows, mark, "trace"), row(rows, cut, "trace")) for mark, cut in pairs]


def _prefixes_differ(marks: pa.Table) -> list[Witness]:
    found = disagreements(numbers(marks, "offset"), numbers(marks, "hash"))
    return [committed_evidence.prefixes_differ(row(marks, a, "trace"), row(marks, b, "trace")) for a, b in pairs(found)]


_RULES = (
    _Rule("vote-once", kept_votes.KEPT_EVENTS, raft_elections.voted_twice, _votes),
    _Rule("vote-once", kept_votes.KEPT_EVENTS, kept_votes.votes_not_kept, kept_votes.last_vote),
    _Rule("monotonicity", CURRENT_EPOCH_EVENTS, monotonicity.epochs_fell, _highest_epoch),
    _Rule("monotonicity", ("high-watermark",), monotonicity.marks_fell, _highest_mark, needs_offset=True),
    _Rule(
        "state-machine-safety",
        state_machine_safety.APPLIED_EVENTS,
        state_machine_safety.applied_wrongly,
        _highest_applied,
        needs_offset=True,
    ),
    _Rule(
        "commit-own-epoch",
        tuple(own_epoch_first.EVENTS),
        own_epoch_first.marks_of_older_epochs,
        own_epoch_first.still_needed,
    ),
    _Rule("committed-never-lost", tuple(kept_by_own_trace.HELD_EVENTS), _removed, _owed),
    _Rule("committed-never-lost", ("fatal",), committed.refused, _none),
)
