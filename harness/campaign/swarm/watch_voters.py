"""Rules while voters change (KIP-853): the part of the watch that knows the voters.

The sets of voters are read from the log of each server whenever the log changes, not from the state of its core.

    overlap              a set differs from the previous one by at most one voter
    caught up            a voter that joins had reached the leader's log end of the last seconds
    taken back           a truncation that removes a set is reported at once
    a voter leads        an elected server is a voter according to its log, or was one before the log's last change
    snapshots            a snapshot names the voters that the log below its end names last
    the removed resign   a leader that is no longer a voter resigns as soon as its removal is committed
    as in the log        a server reports the voters that its log names last
    as agreed            no log and no snapshot names other voters below a committed offset than those committed there
    as asked for         no replica joins or is removed unless an operator has requested this, for the same disk
    acknowledged late    a change is acknowledged only after a set with this change is committed

A voter is a server with its disk: `key` names both.  A replaced disk keeps the content that it had when it was
replaced.  Its acknowledgements still count, but it will never vote again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from checkers.raft.rules import FAR_SETS, JOINED_EARLY, TraceRow
from harness.campaign.swarm.watch_calls import OF_A_CORE, SLOWEST_CLOCK
from system_under_test.kraft.raft.changes import CAUGHT_UP_WITHIN_S, AddVoter, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import CONFIGURED, VoterHistory, VoterSet

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter


@cache  # replicas are few, and every Fetch names one
def key_of(key: ReplicaKey) -> str:
    return f"n{key.id}/{key.directory}"


def keys_of(voters: VoterSet) -> frozenset[str]:
    return frozenset(key_of(entry.key) for entry in voters)


@dataclass(slots=True)
class _Known:
    """State of one server in this incarnation.

    history: history of voters in its log
    untold_s: time since which the removal of a set is not reported
    must_resign_s: time at which its removal was committed
    reported: names of the voters that it reported last
    differs_s: time since which `reported` differs from its log
    ends: (time, end of the log) at each append since it became leader
    """

    history: VoterHistory | None = None
    untold_s: float | None = None
    must_resign_s: float | None = None
    reported: frozenset[str] | None = None
    differs_s: float | None = None
    ends: list[tuple[float, int]] = field(default_factory=list)


class VoterSets:
    """The rules of voters. servers: all possible voters. violated: takes a rule, the server, and a description."""

    def __init__(self, now: Callable[[], float], violated: Callable[[str, NodeVoter, str], None]) -> None:
        self.servers: Sequence[NodeVoter] = ()
        self.changes = 0
        self._now = now
        self._violated = violated
        self._known: dict[str, _Known] = {}
        self._lost: dict[str, int] = {}
        self._agreed: dict[int, VoterSet] = {}  # offset -> the voter set committed there
        self._asked_for: set[tuple[str, str]] = set()

    def disk_is_lost(self, server: NodeVoter) -> None:
        """Note that the server's disk is about to be replaced."""
        self._lost[server.key] = server.flushed

    def in_force(self, server: NodeVoter) -> frozenset[str]:
        """Return the voters that the log of a server names last."""
        return keys_of(self._history(server).latest)

    def electorate(self, server: NodeVoter, holds: Callable[[NodeVoter], bool], offset: int) -> tuple[int, int]:
        """Return (number of voters in force that have the log below an offset, number of voters in force)."""
        voters = self.in_force(server)
        by_key = {each.key: each for each in self.servers}
        count = 0
        for key in voters:
            each = by_key.get(key)
            count += holds(each) if each is not None else self._lost.get(key, -1) >= offset
        return count, len(voters)

    def _history(self, server: NodeVoter) -> VoterHistory:
        known = self._known.setdefault(server.name, _Known())
        if known.history is None:
            known.history = server.voter_history()
        return known.history

    # Rows

    def started(self, server: NodeVoter) -> None:
        self._known[server.name] = _Known()

    def cut(self, server: NodeVoter) -> None:
        """Note that the end of the server's log was truncated."""
        before = self._history(server)
        known = self._known[server.name]
        known.history = None
        if self._history(server).latest_offset < before.latest_offset:
            known.untold_s = self._now()
        self._compare(server)

    def _compare(self, server: NodeVoter) -> None:
        """Compare the voters that a server reported last with those of its log.  Only names are compared, because
        reports contain nothing else.
        """
        known, named = self._known[server.name], {str(id) for id in self._history(server).latest.ids}
        same = known.reported is None or {each.removeprefix("n") for each in known.reported} == named
        known.differs_s = None if same else self._now()

    def snapshot(self, server: NodeVoter, end: int) -> None:
        """Check a snapshot of everything before `end`; the log may begin there."""
        self._known.setdefault(server.name, _Known()).history = None
        offset, voters = self._history(server).before(end)
        self._compare(server)
        agreed = self._agreed_before(end)
        if agreed is not None and keys_of(agreed) != keys_of(voters):
            has, committed = _words(keys_of(voters)), _words(keys_of(agreed))
            what = f"{server.name}: up to {end} it has {has}, but {committed} is committed"
            self._violated("other voters than committed", server, what)
        if end != server.snapshot_end or offset == CONFIGURED:
            return
        named = server.snapshot_voters()
        if named is None or keys_of(named) != keys_of(voters):
            words = "no voters" if named is None else _words(keys_of(named))
            what = f"{server.name}: up to {end} it names {words}, but the log names {_words(keys_of(voters))}"
            self._violated("a snapshot names other voters", server, what)

    def later(self, server: NodeVoter, event: str) -> None:
        """Check at any row that the consequences of earlier rows have occurred in time."""
        known = self._known.get(server.name)
        if known is None or event in ("disk", "start"):
            return
        if known.differs_s is not None and known.differs_s < self._now() and event in OF_A_CORE:
            known.differs_s = None
            what = f"{server.name} reports {_words(known.reported or ())}, its log names {self.words(server)}"
            self._violated("voters are not those of the log", server, what)
        if known.untold_s is not None and known.untold_s < self._now():
            known.untold_s = None
            self._violated("voters outlive their record", server, f"{server.name}: their record was cut off")
        if known.must_resign_s is not None and known.must_resign_s < self._now() and event != "role":
            known.must_resign_s = None
            self._violated("a removed leader leads on", server, f"{server.name}: its removal is committed")

    def appended(self, server: NodeVoter, end: int) -> None:
        self._known.setdefault(server.name, _Known()).ends.append((self._now(), end))

    def named(
        self,
        server: NodeVoter,
        offset: int,
        office: TraceRow | None,
        reported: str | None = None,
    ) -> bool:
        """Check a report of the voters that a log names last; return True if a leader has changed the voters.

        office: row in which the server became leader
        reported: names of these voters, if the row contains them
        """
        before = self._history(server)
        known = self._known[server.name]
        known.history, known.untold_s = None, None
        history = self._history(server)
        known.reported = None if reported is None else frozenset(reported.split())
        self._compare(server)
        of_leader = office is not None and before.latest_offset != CONFIGURED
        if not of_leader or not before.latest_offset < history.latest_offset == offset:
            return False
        assert office is not None
        self.changes += 1
        what = f"{server.name} in epoch {office.epoch} at offset {offset}"
        old, new = keys_of(before.latest), keys_of(history.latest)
        if len(old ^ new) > 1:
            self._violated(FAR_SETS, server, what)
        changed = [*(("add", key) for key in new - old), *(("remove", key) for key in old - new)]
        for verb, key in changed:
            if (verb, key) not in self._asked_for:
                self._violated("a change of voters that nobody asked for", server, f"{what}: {verb} {key}")
        for each in self.servers:
            if each.key in new - old:
                self._joins(server, each, office.epoch)
        return True

    def _joins(self, leader: NodeVoter, joining: NodeVoter, epoch: int) -> None:
        """Check that a joining voter's log has reached the leader's log end of some seconds ago, or at least its log
        end at the election.
        """
        since_s = self._now() - CAUGHT_UP_WITHIN_S / SLOWEST_CLOCK
        ends = self._known[leader.name].ends
        before = max(0, bisect_right(ends, (since_s, 1 << 62)) - 1)
        if ends and joining.epoch <= epoch and joining.end[1] < ends[before][1]:
            what = f"{joining.name} ends at {joining.end[1]}; {leader.name} ended at {ends[before][1]} long before"
            self._violated(JOINED_EARLY, leader, what)

    def committed(self, leader: NodeVoter, mark: int) -> None:
        """Check the voters after a leader has published a high watermark."""
        history = self._history(leader)
        offset, voters = history.before(mark)
        if offset != CONFIGURED:
            self._agreed.setdefault(offset, voters)
            if offset == history.latest_offset and leader.key not in keys_of(voters):
                self._known[leader.name].must_resign_s = self._now()

    def took_office(self, server: NodeVoter, start: int) -> None:
        """Note an election. start: offset at which the epoch begins in the log."""
        known = self._known.setdefault(server.name, _Known())
        known.must_resign_s, known.ends = None, [(self._now(), start)]
        history = self._history(server)
        before = history.before(history.latest_offset)[1]
        if server.key not in keys_of(history.latest) | keys_of(before):
            self._violated("a leader that is no voter", server, f"{server.name}: its log names {self.words(server)}")

    def _agreed_before(self, end: int) -> VoterSet | None:
        """Return the set that is in force at `end` according to the committed log; None if there is none."""
        offsets = [offset for offset in self._agreed if offset < end]
        return self._agreed[max(offsets)] if offsets else None

    # Operators

    def asked_for(self, change: VoterChange) -> None:
        """Note an operator's request to change the voters."""
        match change:
            case AddVoter(entry):
                self._asked_for.add(("add", key_of(entry.key)))
            case RemoveVoter(key):
                self._asked_for.add(("remove", key_of(key)))

    def acknowledged(self, server: NodeVoter, change: VoterChange, end: int) -> None:
        """Check the acknowledgement of a change; the server's log ended at `end` when the change was requested."""
        sets = [voters for offset, voters in self._agreed.items() if offset >= end]
        if not any(_carries_out(voters, change) for voters in sets):
            what = f"{server.name}: {change} was requested when the log ended at {end}"
            self._violated("a change of voters is acknowledged and not committed", server, what)

    def left_office(self, server: NodeVoter) -> None:
        self._known.setdefault(server.name, _Known()).must_resign_s = None

    def words(self, server: NodeVoter) -> str:
        return _words(self.in_force(server))


def _carries_out(voters: VoterSet, change: VoterChange) -> bool:
    match change:
        case AddVoter(entry) | UpdateVoter(entry):
            return voters.entry(entry.key.id) == entry
        case RemoveVoter(key):
            return key_of(key) not in keys_of(voters)
        case _:
            return True


def _words(keys: Iterable[str]) -> str:
    return " ".join(sorted(key.partition("/")[0] for key in keys))
