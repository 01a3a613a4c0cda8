"""What must hold while voters change (KIP-853): the part of the watch that knows who votes.

The sets are read from the log of each server whenever its log was changed, and not from what its core believes.

    one at a time        a leader appends no set before the last one is committed, nor before its epoch has committed
    overlap              a set differs from the one before it by at most one voter
    caught up            a voter that joins had reached the leader's log within the last seconds
    taken back           a truncation that removes a set is reported as such at once
    a voter leads        who is elected is a voter by its log, or was one before the last change there
    snapshots            a snapshot names the voters that the log below its end names last
    the removed resign   a leader that is no voter any more resigns as soon as that is committed

A voter is a server with its disk: `key` names both.  A disk that was replaced held what it held when it was replaced:
its acknowledgements still count, and it will never vote again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from harness.campaign.swarm.watched import Member, Watched
from system_under_test.kraft.raft.changes import CAUGHT_UP_WITHIN_S
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import CONFIGURED, VoterHistory, VoterSet

SLOWEST_CLOCK = 0.9
"""Of the clocks of a storm: so many of its seconds pass in one real second."""


def key_of(key: ReplicaKey) -> str:
    return f"n{key.id}/{key.directory}"


def keys_of(voters: VoterSet) -> frozenset[str]:
    return frozenset(key_of(entry.key) for entry in voters)


@dataclass(slots=True)
class _Known:
    """Of one server, in this life.  history: of its log.  untold_s: since when a set that was cut off is not reported.

    ends: (time, end of the log) at each append since it leads.  must_resign_s: since when its removal is committed."""

    history: VoterHistory | None = None
    untold_s: float | None = None
    must_resign_s: float | None = None
    ends: list[tuple[float, int]] = field(default_factory=list)


class VoterSets:
    """servers: all that may vote.  violated: as `Watch.violated`, with a server in place of its role."""

    def __init__(self, now: Callable[[], float], violated: Callable[[str, Watched, str], None]) -> None:
        self.servers: Sequence[Member] = ()
        self.changes = 0
        self._now = now
        self._violated = violated
        self._known: dict[str, _Known] = {}
        self._lost: dict[str, int] = {}

    def disk_is_lost(self, server: Member) -> None:
        """Its disk is about to be replaced."""
        self._lost[server.key] = server.flushed

    def in_force(self, server: Watched) -> frozenset[str]:
        """The voters that the log of a server names last."""
        return keys_of(self._history(server).latest)

    def electorate(self, server: Watched, holds: Callable[[Watched], bool], offset: int) -> tuple[int, int]:
        """(how many of the voters in force hold its log below an offset, how many of them there are)."""
        voters = self.in_force(server)
        by_key = {each.key: each for each in self.servers}
        count = 0
        for key in voters:
            each = by_key.get(key)
            count += holds(each) if each is not None else self._lost.get(key, -1) >= offset
        return count, len(voters)

    def _history(self, server: Watched) -> VoterHistory:
        known = self._known.setdefault(server.name, _Known())
        if known.history is None:
            known.history = self._member(server).voter_history()
        return known.history

    def _member(self, server: Watched) -> Member:
        return next(each for each in self.servers if each is server)

    # Rows

    def started(self, server: Watched) -> None:
        self._known[server.name] = _Known()

    def cut(self, server: Watched) -> None:
        """The end of its log was cut off."""
        before = self._history(server)
        known = self._known[server.name]
        known.history = None
        if self._history(server).latest_offset < before.latest_offset:
            known.untold_s = self._now()

    def snapshot(self, server: Watched, end: int) -> None:
        """It has a snapshot of all below `end`, and its log may begin there."""
        self._known.setdefault(server.name, _Known()).history = None
        offset, voters = self._history(server).before(end)
        if end != server.snapshot_end or offset == CONFIGURED:
            return
        named = self._member(server).snapshot_voters()
        if named is None or keys_of(named) != keys_of(voters):
            words = "no voters" if named is None else _words(keys_of(named))
            what = f"{server.name}: up to {end} it names {words}, and the log names {_words(keys_of(voters))}"
            self._violated("a snapshot names other voters", server, what)

    def later(self, server: Watched, event: str) -> None:
        """Any row: what had to follow an earlier one at once has followed it."""
        known = self._known.get(server.name)
        if known is None or event in ("disk", "start"):
            return
        if known.untold_s is not None and known.untold_s < self._now():
            known.untold_s = None
            self._violated("voters outlive their record", server, f"{server.name}: their record was cut off")
        if known.must_resign_s is not None and known.must_resign_s < self._now() and event != "role":
            known.must_resign_s = None
            self._violated("a removed leader leads on", server, f"{server.name}: its removal is committed")

    def appended(self, server: Watched, end: int) -> None:
        self._known.setdefault(server.name, _Known()).ends.append((self._now(), end))

    def named(self, server: Watched, offset: int, office: tuple[int, int] | None, marks: tuple[int, int]) -> bool:
        """A server reports the voters that its log names last; whether a leader has changed them by that.

        office: (epoch, its start) of a leader.  marks: its high watermark, and that of its epoch."""
        mark, of_epoch = marks
        before = self._history(server)
        known = self._known[server.name]
        known.history, known.untold_s = None, None
        history = self._history(server)
        if (
            office is None
            or before.latest_offset in (CONFIGURED, history.latest_offset)
            or offset != history.latest_offset
        ):
            return False
        if history.latest_offset < before.latest_offset:
            return False
        self.changes += 1
        epoch, start = office
        what = f"{server.name} in epoch {epoch} at offset {offset}"
        if of_epoch <= start:
            self._violated("voters change before the epoch commits", server, what)
        if mark <= before.latest_offset:
            self._violated("two changes of voters at once", server, f"{what}; {before.latest_offset} is not committed")
        old, new = keys_of(before.latest), keys_of(history.latest)
        if len(old ^ new) > 1:
            self._violated("sets of voters differ by more than one", server, what)
        for each in self.servers:
            if each.key in new - old:
                self._joins(server, each, epoch)
        return True

    def _joins(self, leader: Watched, joining: Member, epoch: int) -> None:
        """Its log reached what the leader's was so many seconds ago, or what it was when the leader began to lead."""
        since_s = self._now() - CAUGHT_UP_WITHIN_S / SLOWEST_CLOCK
        ends = self._known[leader.name].ends
        before = max(0, bisect_right(ends, (since_s, 1 << 62)) - 1)
        if ends and joining.epoch <= epoch and joining.end[1] < ends[before][1]:
            what = f"{joining.name} ends at {joining.end[1]}; {leader.name} ended at {ends[before][1]} long before"
            self._violated("a voter joins before it has caught up", leader, what)

    def committed(self, leader: Watched, mark: int) -> None:
        """A leader has published a mark."""
        history = self._history(leader)
        if (
            history.latest_offset != CONFIGURED
            and history.latest_offset < mark
            and leader.key not in keys_of(history.latest)
        ):
            self._known[leader.name].must_resign_s = self._now()

    def took_office(self, server: Watched, start: int) -> None:
        """start: where its epoch begins in the log."""
        known = self._known.setdefault(server.name, _Known())
        known.must_resign_s, known.ends = None, [(self._now(), start)]
        history = self._history(server)
        before = history.before(history.latest_offset)[1]
        if server.key not in keys_of(history.latest) | keys_of(before):
            self._violated("a leader that is no voter", server, f"{server.name}: its log names {self.words(server)}")

    def left_office(self, server: Watched) -> None:
        self._known.setdefault(server.name, _Known()).must_resign_s = None

    def words(self, server: Watched) -> str:
        return _words(self.in_force(server))


def _words(keys: Iterable[str]) -> str:
    return " ".join(sorted(key.partition("/")[0] for key in keys))
