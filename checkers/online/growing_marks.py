"""Judges while traces grow whether leaders raise their marks only over what a majority durably holds.

Applies `checkers.raft.commits.held_before_mark`.  Rows of several nodes are compared, and they are read one node after
another.  A voter that a leader may count wrote its `flush` row before the leader stamped its mark.  So once a mark has
been read, and after that each voter's trace again, every row that could excuse the mark is known.  A mark waits until
then.  While a voter's trace cannot be read, no mark is judged.

Only those rows of a voter are kept that a later mark can still need.  Each node reports in the order of time.  So rows
before the oldest of the last rows of all nodes are older than every mark that is still to come.  Of these rows the
largest end of each epoch is enough.  Needs one clock for all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from checkers.base.run_evidence import coded, numbers, of_events, row
from checkers.base.verdict import Witness
from checkers.online.online_finding import OnlineFinding
from checkers.raft.commits import held_before_mark as rule
from checkers.raft.commits.held_before_mark import APPEND, EVENTS, MARK, NONE, ROLE, START, Durable
from checkers.raft.voters_by_row import voters_by_row
from checkers.raft.witness_rows import Row

CHECKER = "majority-before-mark"
UNREAD = np.iinfo(np.int64).min
"""In place of the time of a voter's last row: none was read yet."""


@dataclass(slots=True)
class _Voter:
    """looks: how often its trace was read.  start: where the epoch that it leads begins; -1 while it does not lead.
    members: the voters that its log names last; None if it names none."""

    durable: Durable = field(default_factory=lambda: Durable(*np.empty((3, 0), np.int64)))
    last_epoch: int = NONE
    last_ns: int = UNREAD
    looks: int = 0
    epoch: int = -1
    start: int = -1
    members: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Marks of one leader in one epoch.  members: the voters that it counted.  looks: voter -> how often its
    trace had been read by then."""

    marks: pa.Table
    epoch: int
    members: frozenset[str]
    looks: Mapping[str, int]


class OnlineMarks:
    """voters: the names of all.  judged: how many marks so far."""

    def __init__(self, voters: Sequence[str]) -> None:
        self.judged = 0
        self._voters = {name: _Voter() for name in voters}
        self._waiting: list[_Waiting] = []
        self._reported: set[str] = set()

    def take(self, more: Mapping[str, pa.Table]) -> list[OnlineFinding]:
        """Add the new rows of each node whose trace could be read.  Returns the violations that are certain.

        more: node -> all rows of its trace since the last call, which may be none.  Each leader is reported once.
        """
        known = {name: rows for name, rows in more.items() if name in self._voters}
        for name in known:
            self._voters[name].looks += 1
        for name, rows in known.items():
            self._read(name, of_events(rows, EVENTS))
        found = self._judge()
        self._forget()
        return [OnlineFinding(CHECKER, witness) for witness in found if self._is_new(witness)]

    def _read(self, name: str, rows: pa.Table) -> None:
        if not len(rows):
            return
        voter = self._voters[name]
        event = coded(rows, "event", EVENTS)
        epoch, offset, time_ns = (numbers(rows, column) for column in ("epoch", "offset", "time_ns"))
        fresh = rule.durable(event, epoch, offset, time_ns, voter.last_epoch)
        voter.durable = _joined(voter.durable, fresh)
        appends = np.flatnonzero(event == APPEND)
        voter.last_epoch = int(epoch[appends[-1]]) if len(appends) else voter.last_epoch
        voter.last_ns = int(time_ns[-1])
        leads = coded(rows, "role", {"leader": 1}) == 1
        named = voters_by_row(rows)
        changes = np.flatnonzero((event == ROLE) | (event == START)).tolist()
        for begin, end in zip([0, *changes], [*changes, len(event)], strict=True):
            if begin in changes:
                led = bool(leads[begin])
                voter.epoch, voter.start = (int(epoch[begin]), int(offset[begin])) if led else (-1, -1)
            if voter.start >= 0:
                here = slice(begin, end)
                mine = (event[here] == MARK) & (epoch[here] == voter.epoch) & (offset[here] > voter.start)
                marks = begin + np.flatnonzero(mine)
                for members, some in rule.by_members(named, marks, voter.members or frozenset(self._voters)):
                    self._wait(rows.take(pa.array(some)), voter.epoch, members)
        if named.sets:
            voter.members = named.sets[-1]

    def _wait(self, marks: pa.Table, epoch: int, members: frozenset[str]) -> None:
        if len(marks):
            looks = {name: voter.looks for name, voter in self._voters.items()}
            self._waiting.append(_Waiting(marks, epoch, members, looks))

    def _judge(self) -> list[Witness]:
        """Judge the marks behind which every voter was read again."""
        waiting, self._waiting = self._waiting, []
        found: list[Witness] = []
        for one in waiting:
            if all(self._voters[name].looks > before for name, before in one.looks.items()):
                found += self._early(one)
            else:
                self._waiting.append(one)
        return found

    def _early(self, waiting: _Waiting) -> list[Witness]:
        voters = {
            name: voter.durable
            for name, voter in self._voters.items()
            if voter.last_ns != UNREAD and name in waiting.members
        }
        marks, count = waiting.marks, len(waiting.members)
        since = rule.held_since(voters, waiting.epoch, numbers(marks, "offset"))
        early = rule.too_early(since, numbers(marks, "time_ns"), count - len(voters), count)
        self.judged += len(marks)
        return [
            rule.witness(_row(marks, at), {name: int(held[at]) for name, held in since.items()}, count)
            for at in early[:1].tolist()
        ]

    def _forget(self) -> None:
        """Keep one row for all that every later mark may count."""
        behind = [int(numbers(waiting.marks, "time_ns")[0]) for waiting in self._waiting]
        horizon_ns = min([*(voter.last_ns for voter in self._voters.values()), *behind])
        for voter in self._voters.values():
            voter.durable = _largest_before(voter.durable, horizon_ns)

    def _is_new(self, witness: Witness) -> bool:
        leader = str(witness.facts["nodes"][0])
        new = leader not in self._reported
        self._reported.add(leader)
        return new


def _row(marks: pa.Table, at: int) -> Row:
    return row(marks, at, "trace")


def _joined(before: Durable, after: Durable) -> Durable:
    columns = (np.concatenate([getattr(one, name) for one in (before, after)]) for name in ("time_ns", "end", "epoch"))
    return Durable(*columns)


def _largest_before(durable: Durable, horizon_ns: int) -> Durable:
    """The same, with one row of each epoch for those up to the horizon: the first that reached the largest end."""
    old = np.flatnonzero(durable.time_ns <= horizon_ns)
    largest: dict[int, int] = {}
    for at, epoch, end in zip(old.tolist(), durable.epoch[old].tolist(), durable.end[old].tolist(), strict=True):
        if epoch not in largest or end > durable.end[largest[epoch]]:
            largest[epoch] = at
    kept = np.array([*sorted(largest.values()), *np.flatnonzero(durable.time_ns > horizon_ns)], np.int64)
    return Durable(durable.time_ns[kept], durable.end[kept], durable.epoch[kept])
