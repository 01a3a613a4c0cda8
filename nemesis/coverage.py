"""Coverage of the faults of a run: kinds of fault, roles of the nodes that they hit, and reactions of the system.

A *cell* is (kind of fault, role of a node that it hit, phase of the system while it was in force).  During a fault
against the leader, several phases follow one another: the leader still leads, no node leads, a new leader has just been
elected.  A *situation* is a rarer state that may be necessary to trigger a bug, such as two terms under one cut.

This module does no I/O.  It receives the nodes' reports as a sequence of looks, and equal sequences give equal cells.
The deck prefers cards that are likely to reach new cells (`nemesis.deck`), and the report shows the table.

*Leader.*  The nodes' reports determine the leader.

The leader is the leader of the highest epoch that any node reports.  A deposed leader that has not noticed its
deposition reports an older epoch, so it never takes precedence over its successor.  If the highest epoch has no leader,
an election is in progress and `leader_now` returns None.

*Moments.*  A card can wait until the nodes report an event that an earlier fault causes.

A fixed time cannot hit an election, because an election begins after a random timeout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from checkers.record.faults import Fault
from checkers.record.header_and_outcome import Coverage
from nemesis.cluster import Link
from nemesis.kind import LeaderNow, isolated
from system_under_test.subject import NodeStatus

LEADER, FOLLOWER, LEADERLESS = "leader", "follower", "without a leader"
ROLES = (LEADER, FOLLOWER, LEADERLESS)
LED, ELECTION, NEW_LEADER = "a node leads", "no node leads", "a new leader"
PHASES = (LED, ELECTION, NEW_LEADER)

SECOND_TERM = "two terms while the leader before them was still hit"
TWO_LEADERS = "two nodes that take themselves for the leader"
OLD_ENTRIES = "a new leader with entries of an earlier epoch that no node knows to be committed"
BOTH_SIDES = "a cut with a reader at each side"
ALL_VOTED = "a vote of every server while faults were in force"
TOGETHER = "faults of two kinds at once"
SITUATIONS = (SECOND_TERM, TWO_LEADERS, OLD_ENTRIES, BOTH_SIDES, ALL_VOTED, TOGETHER)

_CAMPAIGNING = ("prospective", "candidate")


class Cell(NamedTuple):
    kind: str
    role: str
    phase: str


@dataclass(frozen=True, slots=True)
class Look:
    """The state of the cluster at one time.

    servers, clients: names of all nodes
    statuses: reports of the nodes that answer
    in_force: card number -> its fault
    """

    servers: Sequence[str]
    clients: Sequence[str]
    statuses: Sequence[NodeStatus]
    in_force: Mapping[int, Fault]


@dataclass(slots=True)
class _Hit:
    """A fault in force.

    roles: roles of the nodes that it hit
    epoch: highest epoch just before the fault
    led: epochs that had a leader since then
    """

    kind: str
    roles: frozenset[str]
    epoch: int
    led: set[int] = field(default_factory=set)


class FaultCoverage:
    """Coverage of one run.

    met: cell -> number of looks that found it
    situations: situation -> number of looks that found it
    """

    def __init__(self) -> None:
        self.met: Counter[Cell] = Counter()
        self.situations: Counter[str] = Counter()
        self._hits: dict[int, _Hit] = {}
        self._roles: dict[str, str] = {}
        self._largest_mark = -1
        self._epoch = -1
        self._led_epoch = -1
        self._voted: set[str] = set()
        self._reports: set[str] = set()  # situations that this system's reports can show

    def see(self, look: Look) -> None:
        """Add one look.  Looks must arrive in the order of time."""
        phases, leader_epoch = self._phases(look)
        epoch = max((s.epoch for s in look.statuses), default=-1)
        before = self._epoch if self._epoch >= 0 else epoch
        for number in self._hits.keys() - look.in_force.keys():
            del self._hits[number]
        for number, fault in look.in_force.items():
            if number not in self._hits:
                self._hits[number] = self._hit(fault, before)
                if fault.cut and _reader_at_each_side(look, fault.cut):
                    self.situations[BOTH_SIDES] += 1
        for hit in self._hits.values():
            hit.led |= {leader_epoch} if leader_epoch > hit.epoch else set()
            self.met.update(Cell(hit.kind, role, phase) for role in hit.roles for phase in phases)
        self._situations(look)
        self._roles |= {s.node: _role(s) for s in look.statuses}
        self._epoch = max(self._epoch, epoch)

    def so_far(self) -> Coverage:
        """Return the coverage so far, in the form that the journal stores."""
        situations = {
            name: self.situations[name] if self.situations[name] or name in self._reports else None
            for name in SITUATIONS
        }
        return Coverage(tuple((*cell, looks) for cell, looks in sorted(self.met.items())), situations)

    def _phases(self, look: Look) -> tuple[set[str], int]:
        """Return the phases since the last look, and the epoch of the current leader (-1 if there is none)."""
        leader = leader_now(look.statuses, [s.node for s in look.statuses])
        campaigned = any(s.campaigned or s.role in _CAMPAIGNING for s in look.statuses)
        phases = {ELECTION} if leader is None or campaigned else set()
        if leader is None:
            return phases, -1
        mark = next((s for s in look.statuses if s.node == leader.node), None)
        committed = mark is None or mark.log_end is None or mark.high_watermark is not None
        new = leader.epoch > self._led_epoch >= 0
        self._led_epoch = max(self._led_epoch, leader.epoch)
        return phases | {NEW_LEADER if new or not committed else LED}, leader.epoch

    def _hit(self, fault: Fault, epoch: int) -> _Hit:
        nodes = fault.nodes or tuple(isolated(fault))
        return _Hit(fault.kind, frozenset(self._roles[n] for n in nodes if n in self._roles), epoch)

    def _situations(self, look: Look) -> None:
        self._reports |= {SECOND_TERM, TWO_LEADERS, TOGETHER} if look.statuses else set()
        self._reports |= {BOTH_SIDES} if any(fault.cut for fault in look.in_force.values()) else set()
        leading = [s for s in look.statuses if s.role == LEADER]
        self._reports |= {OLD_ENTRIES} if any(s.log_end is not None for s in leading) else set()
        self._reports |= {ALL_VOTED} if any(s.voted_epoch is not None for s in look.statuses) else set()
        held = {
            SECOND_TERM: any(LEADER in hit.roles and len(hit.led) >= 2 for hit in self._hits.values()),
            TWO_LEADERS: len({s.epoch for s in leading}) >= 2,
            OLD_ENTRIES: any(s.high_watermark is None and (s.log_end or 0) - 1 > self._largest_mark for s in leading),
            TOGETHER: len({hit.kind for hit in self._hits.values()}) >= 2,
            ALL_VOTED: self._vote(look),
        }
        self.situations.update(name for name, now in held.items() if now and look.in_force)
        marks = [s.high_watermark for s in look.statuses if s.high_watermark is not None]
        self._largest_mark = max([self._largest_mark, *marks])

    def _vote(self, look: Look) -> bool:
        """Return True if every server has voted in an epoch that began while a fault was in force."""
        first = min((hit.epoch for hit in self._hits.values()), default=None)
        if first is not None:
            self._voted |= {s.node for s in look.statuses if s.voted_epoch is not None and s.voted_epoch > first}
        return bool(look.servers) and self._voted >= set(look.servers)


def _role(status: NodeStatus) -> str:
    return status.role if status.role in (LEADER, FOLLOWER) else LEADERLESS


def _reader_at_each_side(look: Look, cut: Collection[Link]) -> bool:
    """Return True if every server can still exchange messages with a client node."""
    return all(any((c, s) not in cut and (s, c) not in cut for c in look.clients) for s in look.servers)


def leader_now(statuses: Sequence[NodeStatus], running: Collection[str]) -> LeaderNow | None:
    """Return the leader of the highest epoch that any node reports; None if that epoch has no leader, or if the leader
    is not running.

    A node that reports itself as leader takes precedence over other nodes' reports.  If two nodes claim the same epoch
    (the checkers judge such a claim), the first by name is returned, so that equal reports give equal results.
    """
    epoch = max((s.epoch for s in statuses), default=-1)
    newest = [s for s in statuses if s.epoch == epoch]
    claimed = sorted(s.node for s in newest if s.role == "leader")
    named = sorted({s.leader for s in newest if s.leader is not None})
    for node in (*claimed, *named):
        if node in running:
            return LeaderNow(node, epoch)
    return None


ELECTION_MOMENT = "election"
NEW_LEADER_MOMENT = "new leader"
MOMENTS = (ELECTION_MOMENT, NEW_LEADER_MOMENT)
ACKNOWLEDGED_MOMENT = "acknowledged"
"""Event: a write was acknowledged under a new leader."""
HEALED_MOMENT = "healed"
HEAL_MOMENTS = (*MOMENTS, ACKNOWLEDGED_MOMENT, HEALED_MOMENT)
"""Names of the events that a heal can wait for."""

MOMENT_WAIT_S = 6.0
"""Maximum seconds that a card waits for its event; after that the card is skipped."""
ANY_LINE = "any"
"""Placeholder for a line: a line of the system's `moments` that the seed selects, or an unusual line if the system has
no `moments`.
"""
LINE_PRINTED_BY = (LEADER, FOLLOWER)
LINE_WAIT_S = 20.0
"""Maximum seconds that a card waits for a line; after that the card is skipped."""
LOOK_EVERY_S = 0.05
"""Seconds between two looks.  A new leader is hit within this time plus the time that the nodes need to report."""


def has_come(moment: str, since_epoch: int, statuses: Sequence[NodeStatus], running: Collection[str]) -> bool:
    """Return True if the event has occurred since that epoch.

    A new leader: a running node leads a later epoch.  An election: a running node campaigns, or a later epoch has
    begun.
    """
    if moment == NEW_LEADER_MOMENT:
        leader = leader_now(statuses, running)
        return leader is not None and leader.epoch > since_epoch
    return any(s.epoch > since_epoch or s.role in _CAMPAIGNING for s in statuses if s.node in running)


def newest_epoch(statuses: Sequence[NodeStatus]) -> int:
    """Return the highest epoch that any node reports; -1 if none reports one."""
    return max((s.epoch for s in statuses), default=-1)
