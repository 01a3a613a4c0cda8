"""One voter's memory, and the few methods that change it.

The other modules change a voter only through these methods.  Each method updates the memory and emits the matching
effect: `append` and `truncate` update the copy of the log's end, `persist` updates the copy of quorum-state.  The
copies are needed because a LogView shows only effects that were carried out before the call, while later effects of a
call build on its earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NoReturn, Self

from system_under_test.kraft.raft import effects as fx
from system_under_test.kraft.raft import messages, states
from system_under_test.kraft.raft.decisions import BUGS, end_made_durable, takes_voters_back, voters_in_force
from system_under_test.kraft.raft.effects import CoreEffect
from system_under_test.kraft.raft.valid_messages import EPOCH_MAX, EpochAllowance, Trusted
from system_under_test.kraft.raft.voters import StaticVoters, VoterRecords, VoterSet

NOT_LEADER = "not the leader"
LOST_OFFICE = "ceased to lead before the change was committed"


class Halt(Exception):
    """Raised when this voter must stop; the core turns the exception into a `Fatal` effect."""


class Voter:
    """The state of a replica, which determines its behaviour; `core.Core` adds the events.

    An observer has the same state.  It is unattached or a follower, except while it campaigns because it
    `may_be_needed`.

    records: finds the sets of voters in the log; None if the voters never change
    high_watermark: the largest high watermark known to this incarnation; None until one is known
    voters: ids of the voters in force
    seeks_office: False while the caller replays committed records.  The voter could lead then, but not answer requests,
        so it starts no campaign.  It continues a campaign in progress, and still grants votes.
    deadline: time of the next `tick`; may lie in the past, or be infinite
    halted: True after a Fatal effect

    Raises ValueError if the identity contradicts its list of voters, or names an unknown bug.
    """

    def __init__(
        self,
        identity: messages.Identity,
        log: messages.LogView,
        persisted: messages.QuorumState,
        random: Random,
        now: float,
        records: VoterRecords | None = None,
    ) -> None:
        votes = identity.me.id in identity.voters
        if votes == identity.observer or len(set(identity.voters)) != len(identity.voters):
            what = "an observer must not be" if identity.observer else f"voter {identity.me.id} must be"
            raise ValueError(f"{what} one of the voters {identity.voters}, and no id may occur twice among them")
        if unknown := identity.bugs - BUGS.keys():
            raise ValueError(f"unknown planted bug: {', '.join(sorted(unknown))}; known are {', '.join(BUGS)}")
        self.identity = identity
        self.timing = identity.timing
        self.bugs = identity.bugs
        self.me = identity.me.id
        self.asked = 0  # number of times that an observer has asked a voter for the leader
        self.random = random

        self.log = log
        self.end_offset = log.end_offset
        self.end_epoch = log.last_epoch
        self.flushed_end = log.start.end_offset  # all entries below this offset are durable
        self.flushing: int | None = None  # end offset that the flush in progress makes durable

        self.persisted = persisted
        self.state: states.State = states.Unattached(persisted.epoch, math.inf)
        self.high_watermark: int | None = None

        self.records: VoterRecords = records or StaticVoters(identity)
        self.stale_history = False  # True after the install of a snapshot: its voters must be read
        self.voter_set = VoterSet(())
        self.load_voters()
        self.shutting_down = False
        self.seeks_office = True

        # voter -> epoch that it leads according to a request; its own answer must confirm this
        self.named_leaders: dict[int, int] = {}
        self.epochs_by_request = EpochAllowance(now)
        self.in_flight: set[tuple[int, type[messages.RaftRequest]]] = set()
        self.retry_at: dict[int, float] = {}
        self.effects: list[CoreEffect] = []
        self.deadline = math.inf
        self.halted = False

    def copy(self, log: messages.LogView, records: VoterRecords | None = None) -> Self:
        """Return an independent voter with the same memory and no effects, over a copy of the log."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.log, twin.effects, twin.state = log, [], states.copy_of(self.state)
        twin.named_leaders, twin.in_flight = dict(self.named_leaders), set(self.in_flight)
        twin.retry_at, twin.epochs_by_request = dict(self.retry_at), self.epochs_by_request.copy()
        if records is not None:
            twin.records, twin.history = records, self.history.copy()
        return twin

    # State of the voter

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def role(self) -> states.Role:
        return self.state.role

    @property
    def leader_id(self) -> int | None:
        """Return the leader of this epoch; None if it is unknown or has resigned."""
        match self.state:
            case states.Leader():
                return self.me
            case states.Follower(leader_id=leader_id) | states.Prospective(leader_id=leader_id):
                return leader_id
            case _:
                return None

    def election_timeout(self, now: float) -> float:
        """Return the time at which an election that begins now has failed.  The timeout is drawn from [t, 2t), so that
        split votes do not repeat.
        """
        return now + self.timing.election_timeout_s * (1 + self.random.random())

    def fetch_timeout(self, now: float) -> float:
        """Return the time at which a leader that has just answered counts as lost.  The timeout is drawn from [t, 1.1
        t).

        Kafka uses t itself.  But a leader answers all parked fetches at the same instant.  With t itself, all followers
        would lose a leader at the same instant, vote for themselves, and wait for an election timeout.
        """
        return now + self.timing.fetch_timeout_s * (1 + 0.1 * self.random.random())

    @property
    def alone(self) -> bool:
        """Return whether this voter is the only one."""
        return not self.others and not self.observes

    # Who votes

    @property
    def may_be_needed(self) -> bool:
        """Return whether this replica was removed from the voters by a change that may not be committed yet.

        The other voters may not know of the change, and may lack entries of this replica's log.  Then only this replica
        can win an election, so it campaigns, without a vote of its own (Ongaro 2014, section 4.2.2, figure 4.6).
        """
        history = self.history
        if not self.observes or not history.may_change or history.latest_offset < (self.high_watermark or 0):
            return False
        return history.before(history.latest_offset)[1].holds(self.identity.me)

    @property
    def trusted(self) -> Trusted:
        return Trusted(self.identity.me, self.voter_set, self.identity.dynamic or self.history.may_change)

    def load_voters(self) -> None:
        """Load the voters that the snapshot and the log name."""
        self.stale_history = False
        self.history = self.records.load()
        self._voters_in_force()

    def _voters_in_force(self) -> None:
        voters = voters_in_force(self.history, self.high_watermark, self.bugs)
        if voters is self.voter_set:
            return
        self.voter_set = voters
        self.voters = voters.ids
        self.others = tuple(voter for voter in voters.ids if voter != self.me)
        self.observes = not voters.holds(self.identity.me)
        if isinstance(self.state, states.Leader):
            self.state.take_voters(voters, self.others, counts_itself=not self.observes)

    def report_voters(self) -> None:
        """Report the voters that the log names last."""
        self.emit(fx.VotersChanged(self.history.latest_offset, self.history.latest))

    # Actions of the voter

    def enter(self, state: states.State, file: messages.QuorumState | None = None, *, voted_now: bool = False) -> None:
        """Enter an epoch state, after persisting quorum-state if `file` is passed."""
        states.check_transition(self.state, state)
        if state.epoch > EPOCH_MAX:
            self.halt(
                f"epoch {EPOCH_MAX} is the last one that Kafka's protocol can hold: no election is possible any more"
            )
        self.named_leaders = {leader: epoch for leader, epoch in self.named_leaders.items() if epoch > state.epoch}
        if file is not None:
            self.persist(file, voted_now=voted_now)
        old, self.state = self.state, state
        self.retry_at.clear()
        self.announce()
        if isinstance(old, states.Leader):
            self._abandon(old)

    def announce(self) -> None:
        start = self.state.epoch_start_offset if isinstance(self.state, states.Leader) else None
        self.emit(fx.RoleChanged(self.role, self.epoch, self.leader_id, start))

    def persist(self, state: messages.QuorumState, *, voted_now: bool = False) -> None:
        if state != self.persisted:
            self.persisted = state
            self.emit(fx.Persist(state, voted_now))

    def append(self, batches: Sequence[messages.Batch]) -> None:
        """Append batches, and begin to flush, because entries that a power loss could lose must not count for a
        majority.
        """
        self.end_offset = batches[-1].end_offset
        self.end_epoch = batches[-1].epoch
        self.emit(fx.Append(tuple(batches)))
        for batch in batches:
            named = self.records.read(batch)
            if named is not None:
                self.history.append(batch.base_offset, named)
                self._voters_in_force()
                self.report_voters()
        self.begin_flush()

    def begin_flush(self) -> None:
        """Begin a flush unless one is in progress.  Entries that are appended during a flush share the next one."""
        if self.flushing is None and self.flushed_end < self.end_offset:
            self.flushing = self.end_offset
            self.emit(fx.BeginFlush())

    def flushed(self, end_offset: int) -> None:
        """Handle the end of the flush in progress; the log ended at end_offset when it began."""
        if self.flushing is None:
            raise RuntimeError(f"voter {self.me}: a flush up to offset {end_offset} is done, but none is in progress")
        durable, self.flushing = end_made_durable(end_offset, self.flushing, self.bugs), None
        self.flushed_end = max(self.flushed_end, durable)
        self.begin_flush()

    def flush(self) -> None:
        """Make all appended entries durable before any later effect."""
        if self.flushed_end < self.end_offset:
            self.flushed_end = self.end_offset
            self.emit(fx.Flush())

    @property
    def committed_end(self) -> int:
        """Return the offset below which everything is certainly committed: the high watermark, or the end of the newest
        snapshot.
        """
        snapshot = self.log.snapshot
        return max(self.high_watermark or 0, snapshot.end_offset if snapshot else 0)

    def truncate(self, end_offset: int) -> None:
        if end_offset < self.committed_end:
            self.halt(
                f"epoch {self.epoch}: leader n{self.leader_id} requires a truncation to {end_offset}, "
                f"below the high watermark {self.committed_end}"
            )
        start = self.log.start
        last = self.log.read(end_offset - 1, 1)[0] if end_offset > start.end_offset else None
        if last is not None and last.end_offset > end_offset:  # batches are atomic: truncate before this one
            self.truncate(last.base_offset)
            return
        self.end_offset = end_offset
        self.end_epoch = last.epoch if last is not None else start.epoch
        self._cut_flushed()
        self.emit(fx.Truncate(end_offset))
        if self.history.latest_offset >= end_offset:
            self.history.truncate(end_offset)
            if takes_voters_back(self.bugs):
                self._voters_in_force()
                self.report_voters()
        self.begin_flush()

    def install(self, snapshot: messages.SnapshotId) -> None:
        """Install a fetched snapshot whose bytes are all written.  The log then begins after the snapshot."""
        self.end_offset, self.end_epoch = snapshot
        self._cut_flushed()
        self.flushed_end = self.end_offset
        self.emit(fx.InstallSnapshot(snapshot))
        self.stale_history = True

    def _cut_flushed(self) -> None:
        """Note a truncation of the log: the flush in progress does not cover entries appended in place of the tail."""
        self.flushed_end = min(self.flushed_end, self.end_offset)
        if self.flushing is not None:
            self.flushing = min(self.flushing, self.end_offset)

    def advance(self, high_watermark: int) -> None:
        if self.high_watermark is None or high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.emit(fx.HighWatermark(high_watermark))
            if self.history.may_change:
                self._voters_in_force()

    def send(self, peer: int, request: messages.RaftRequest) -> None:
        self.in_flight.add((peer, type(request)))
        self.emit(fx.Send(peer, request))

    def back_off(self, peer: int, now: float) -> None:
        self.retry_at[peer] = now + self.timing.retry_backoff_s

    def reply(self, token: int, response: messages.RaftResponse) -> None:
        self.emit(fx.Reply(token, response))

    def emit(self, effect: CoreEffect) -> None:
        self.effects.append(effect)

    def halt(self, reason: str) -> NoReturn:
        raise Halt(reason)

    # Role of the voter

    def names_me(self, key: messages.ReplicaKey) -> bool:
        mine = self.identity.me
        return key.id == mine.id and (key.directory is None or key.directory == mine.directory)

    def _abandon(self, old: states.Leader) -> None:
        """Reject all requests that still wait at a leader that no longer leads."""
        for parked in old.parked:
            self.reply(
                parked.token, messages.FetchResponse(messages.Error.NOT_LEADER_OR_FOLLOWER, self.leader_id, self.epoch)
            )
        for token in old.reads.unanswered():
            self.emit(fx.NotAccepted(token, NOT_LEADER))
        for pending in old.changes:
            self.emit(fx.VotersChangeDone(pending.token, messages.Error.NOT_LEADER_OR_FOLLOWER, LOST_OFFICE))
