"""Votes go only to logs that are at least as up to date as the voter's own.

Ongaro & Ousterhout 2014, section 5.4.1.  A log is up to date by the epoch of its last entry, then by its end.  The
voter's log at its vote follows from the rows of its own trace before the vote: starts, appends and truncations.  The
candidate's log follows in the same way from the candidate's trace, at its row as a candidate or a leader of that epoch.
No clock is compared: the epoch joins the two rows.

A trace does not always show the epoch of the last entry.  An append row names only the epoch of its last batch, and a
restart may find an entry whose row a kill has hidden.  Then the epoch is known as an interval.  A vote is wrong only if
every epoch in the interval makes it wrong.  A vote for a candidate that reports no candidacy is not judged.

A part is the trace of one node.  Cost and memory: linear in its rows of appends, truncations and starts, 60 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.checker import Budget, Checker, Part
from checkers.base.run_evidence import coded, conclude, gaps, numbers, read_trace, trace_row, words
from checkers.base.stored_run import StoredRun, node_files
from checkers.base.verdict import MAX_WITNESSES, Verdict, Witness
from checkers.raft.trace_findings_to_verdict import nothing_of, part_per_node
from checkers.raft.witness_rows import in_trace

_EVENTS = {"start": 0, "append": 1, "truncate": 2, "vote": 3, "role": 4, "snapshot": 5}
_START, _APPEND, _TRUNCATE, _VOTE, _ROLE, _SNAPSHOT = _EVENTS.values()
_COLUMNS = ("epoch", "offset", "peer", "role")
_ROW_SIZE_BYTES = 60


class LogAt(NamedTuple):
    """A node's log at one of its rows: its end, and the lowest and the highest epoch that its last entry can have."""

    end: int
    lowest: int
    highest: int

    def behind(self, other: LogAt) -> bool:
        """Whether this log is certainly less up to date than the other one."""
        if self.highest != other.lowest:
            return self.highest < other.lowest
        return self.end < other.end


class Ballot(NamedTuple):
    """A vote for another node, or a candidacy (peer is the node itself), with the log at that row."""

    epoch: int
    peer: str
    seq: int
    log: LogAt


@dataclass(frozen=True, slots=True)
class BallotFinding:
    """What one node gave and stood for.  votes: the first for each epoch and candidate."""

    node: str
    path: str
    votes: tuple[Ballot, ...] = ()
    candidacies: tuple[Ballot, ...] = ()
    unknown: str = ""


def _judge(part: Part, budget: Budget) -> BallotFinding:
    node, path = part.params["node"], part.paths[0]
    rows = read_trace(path, _EVENTS, _COLUMNS)
    if len(rows) * _ROW_SIZE_BYTES > budget.size_bytes:
        return BallotFinding(node, path, unknown=f"{path}: {len(rows)} rows are beyond {budget.size_bytes} bytes")
    votes: dict[tuple[int, str], Ballot] = {}
    candidacies: list[Ballot] = []
    for ballot in ballots(rows, node):
        if ballot.peer == node:
            candidacies.append(ballot)
        else:
            votes.setdefault((ballot.epoch, ballot.peer), ballot)
    return BallotFinding(node, path, tuple(votes.values()), tuple(candidacies))


def ballots(rows: pa.Table, node: str) -> Iterator[Ballot]:
    """Votes and candidacies of one node, in seq order.  rows: of its trace, the events of `_EVENTS`."""
    event = coded(rows, "event", _EVENTS)
    stands = coded(rows, "role", {"candidate": 1, "leader": 1}) == 1
    chosen = np.flatnonzero((event != _APPEND) & ((event != _ROLE) | stands))
    peers, epochs, seqs = words(rows, "peer") if len(chosen) else [], numbers(rows, "epoch"), numbers(rows, "seq")
    offset = numbers(rows, "offset")
    log = _LogInTrace(event == _APPEND, offset, epochs)
    for at in chosen.tolist():
        if event[at] in (_START, _TRUNCATE):
            log.ends_at(at)
        elif event[at] == _SNAPSHOT:
            if peers[at] is not None and offset[at] > log.at(at).end:
                log.ends_at(at)  # a fetched snapshot replaces a log that ends below it
        else:
            peer = str(peers[at]) if event[at] == _VOTE else node
            yield Ballot(int(epochs[at]), peer, int(seqs[at]), log.at(at))


class _LogInTrace:
    """One node's log, as far as the rows of its trace show it.

    appended: which rows are appends.  offset: end of the log after each row.  epoch: of the last batch of an append.
    """

    def __init__(self, appended: Any, offset: Int64, epoch: Int64) -> None:
        self._appends = np.flatnonzero(appended)
        self._offset, self._epoch = offset, epoch
        self._next = 0  # of the appends, the first that has not been taken
        self._ends, self._epochs = np.empty(0, np.int64), np.empty(0, np.int64)
        self._tail = LogAt(0, 0, 0)  # what the last cut left; it holds until an append reaches beyond it
        self._cut_at = -1

    def at(self, row: int) -> LogAt:
        """The log before this row."""
        place = int(np.searchsorted(self._appends, row)) - 1
        if place < 0 or self._appends[place] < self._cut_at:
            return self._tail
        last = self._appends[place]
        return LogAt(int(self._offset[last]), int(self._epoch[last]), int(self._epoch[last]))

    def ends_at(self, row: int) -> None:
        """Take a start, a truncation or a fetched snapshot: the log now ends at the offset of the row."""
        end, before = int(self._offset[row]), self.at(row)
        place = int(np.searchsorted(self._appends, row))
        taken = self._appends[self._next : place]
        self._next = place
        self._ends = np.concatenate((self._ends, self._offset[taken]))
        self._epochs = np.concatenate((self._epochs, self._epoch[taken]))
        if end == before.end:
            self._tail = before
        elif end > before.end:
            self._tail = LogAt(end, before.lowest, int(self._epoch[row]))
        else:
            self._tail = self._shorter(end, before)
        kept = int(np.searchsorted(self._ends, end, side="right"))
        self._ends, self._epochs = self._ends[:kept], self._epochs[:kept]
        self._cut_at = row

    def _shorter(self, end: int, before: LogAt) -> LogAt:
        """The last entry below `end` came with the append that reached it, or was found by a restart before."""
        kept = int(np.searchsorted(self._ends, end, side="right"))
        lowest = int(self._epochs[kept - 1]) if kept else 0
        if end == 0 or (kept and self._ends[kept - 1] == end):
            return LogAt(end, lowest, lowest)
        highest = int(self._epochs[kept]) if kept < len(self._epochs) else before.highest
        return LogAt(end, lowest, highest)


def _combine(run: StoredRun, findings: Sequence[BallotFinding]) -> Verdict:
    stood: dict[tuple[int, str], list[tuple[BallotFinding, Ballot]]] = {}
    for finding in findings:
        for candidacy in finding.candidacies:
            stood.setdefault((candidacy.epoch, finding.node), []).append((finding, candidacy))
    wrong, compared = [], 0
    for finding in findings:
        for vote in finding.votes:
            shown = stood.get((vote.epoch, vote.peer), [])
            compared += bool(shown)
            if shown and all(candidacy.log.behind(vote.log) for _, candidacy in shown):
                wrong.append((finding, vote, *shown[-1]))
    wrong.sort(key=lambda found: (found[1].epoch, found[0].node))
    given = sum(len(f.votes) for f in findings)
    looked_at = {"nodes": len(node_files(run.trace)), "votes for others": given, "votes compared": compared}
    if wrong:
        looked_at["violations"] = len(wrong)
    unknown = [f.unknown for f in findings if f.unknown] + gaps(run, "traces")
    if len(run.servers) > 1:
        unknown += nothing_of(looked_at, "votes compared")
    return conclude([_witness(*found) for found in wrong[:MAX_WITNESSES]], looked_at, unknown)


def _witness(voter: BallotFinding, vote: Ballot, candidate: BallotFinding, candidacy: Ballot) -> Witness:
    epoch = vote.epoch
    rows = (trace_row(voter.path, vote.seq), trace_row(candidate.path, candidacy.seq))
    return Witness(
        kind="vote for a log that is behind",
        summary=f"{voter.node} voted for {vote.peer} in epoch {epoch}, whose log was behind its own.",
        rows=rows,
        facts={
            "nodes": [voter.node, vote.peer],
            "epoch": epoch,
            "offset": candidacy.log.end,
            "why": [
                f"The log of {vote.peer} {_shown(candidacy)} when it stood for epoch {epoch} ({in_trace(rows[1])}).",
                f"The log of {voter.node} {_shown(vote)} when it voted ({in_trace(rows[0])}).",
            ],
            "expected": "a vote goes only to a log at least as up to date as the voter's own: otherwise a leader may "
            "lack what is committed",
        },
    )


def _shown(ballot: Ballot) -> str:
    end, lowest, highest = ballot.log
    if end == 0:
        return "was empty"
    epoch = f"epoch {lowest}" if lowest == highest else f"an epoch from {lowest} to {highest}"
    return f"ended at offset {end} with an entry of {epoch}"


VOTE_UP_TO_DATE = Checker(
    name="vote-up-to-date",
    title="Votes for logs that are up to date",
    question="Did every vote go to a log at least as up to date as the voter's own?",
    split=part_per_node,
    judge=_judge,
    combine=_combine,
    needs=frozenset({"traces"}),
)
