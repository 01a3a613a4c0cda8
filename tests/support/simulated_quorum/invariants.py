"""What must hold after every event, with and without faults.

A `Watch` sees every effect directly after it was carried out, and every crash and restart.  It knows all disks at once,
as no voter does, and keeps what was ever promised: votes, leaders, committed prefixes, acknowledged proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simulated_quorum.disk import Disk
from system_under_test.kraft.raft.messages import FetchRequest, QuorumState, ReplicaKey, VoteRequest
from system_under_test.kraft.raft.voters import majority

ELECTION_SAFETY = "one leader per epoch"
VOTE_ONCE = "one vote per voter and epoch"
EPOCHS = "epochs never go back"
HIGH_WATERMARKS = "a high watermark never goes back"
LOG_MATCHING = "logs that share an entry share all before it"
AGREEMENT = "what is committed is the same everywhere"
COMMITTED_LOST = "what is committed is never lost"
ON_A_MAJORITY = "what is committed is durable on a majority"
READS = "a read sees all that was acknowledged before it"
DURABLE_FIRST = "what is sent was made durable before"
NO_FATAL = "no voter has to stop"
NO_EXCEPTION = "no illegal transition and no exception"


@dataclass(frozen=True)
class Violation:
    invariant: str
    time_s: float
    what: str

    def __str__(self) -> str:
        return f"at {self.time_s:.3f} s, {self.invariant!r} is violated: {self.what}"


class Watch:
    """now: the time of a violation."""

    def __init__(self, disks: Mapping[int, Disk], now: Callable[[], float]) -> None:
        self._now = now
        self.violations: list[Violation] = []
        self._disks = disks
        self._votes: dict[tuple[int, int], ReplicaKey] = {}  # (voter, epoch) -> candidate
        self.leaders: dict[int, tuple[int, int]] = {}  # epoch -> (voter, incarnation)
        self._epochs: dict[int, int] = dict.fromkeys(disks, 0)
        self._marks: dict[int, int] = {}  # voter -> high watermark in this incarnation
        self._entries: dict[tuple[int, int], int] = {}  # (end offset, epoch) -> prefix, of every entry ever written
        self._committed: dict[int, int] = {0: 0}  # end offset -> prefix
        self._committed_in: dict[int, int] = {}  # epoch of a leader -> largest mark it published
        self.acknowledged_end = 0  # end offset that clients may have seen by an acknowledgement or a read

    def violated(self, invariant: str, what: str) -> None:
        self.violations.append(Violation(invariant, self._now(), what))

    # What voters do

    def started(self, voter: int) -> None:
        """A new incarnation begins with the log as recovered."""
        self._marks.pop(voter, None)

    def persisted(self, voter: int, before: QuorumState, state: QuorumState, *, voted_now: bool) -> None:
        if state.epoch < max(before.epoch, self._epochs[voter]):
            self.violated(EPOCHS, f"voter {voter} goes from epoch {before.epoch} to {state.epoch}")
        self._epochs[voter] = max(self._epochs[voter], state.epoch)
        if state.voted is None:
            if before.voted is not None and before.epoch == state.epoch:
                self.violated(VOTE_ONCE, f"voter {voter} forgets its vote of epoch {state.epoch}")
            return
        earlier = self._votes.setdefault((voter, state.epoch), state.voted)
        if earlier != state.voted:
            self.violated(
                VOTE_ONCE, f"voter {voter} voted for {earlier.id} and for {state.voted.id} in epoch {state.epoch}"
            )
        if not voted_now and (before.epoch, before.voted) != (state.epoch, state.voted):
            self.violated(VOTE_ONCE, f"voter {voter} casts a vote in epoch {state.epoch} without saying so")

    def leads(self, voter: int, incarnation: int, epoch: int) -> None:
        earlier = self.leaders.setdefault(epoch, (voter, incarnation))
        if earlier[0] != voter:
            self.violated(ELECTION_SAFETY, f"voters {earlier[0]} and {voter} both lead epoch {epoch}")
        elif earlier[1] != incarnation:
            self.violated(ELECTION_SAFETY, f"voter {voter} leads epoch {epoch} again after a restart")
        needed = max((mark for led, mark in self._committed_in.items() if led < epoch), default=0)
        if needed in self._committed and self._disks[voter].prefix(needed) != self._committed[needed]:
            self.violated(COMMITTED_LOST, f"voter {voter} leads epoch {epoch} without what is committed up to {needed}")

    def appended(self, voter: int, count: int) -> None:
        disk = self._disks[voter]
        for batch, prefix in zip(disk.batches[-count:], disk.chain[-count:], strict=True):
            if self._entries.setdefault((batch.end_offset, batch.epoch), prefix) != prefix:
                self.violated(
                    LOG_MATCHING,
                    f"voter {voter} holds offset {batch.base_offset} of epoch {batch.epoch} after another prefix",
                )

    def truncating(self, voter: int, end_offset: int) -> None:
        """Called before the cut."""
        disk = self._disks[voter]
        for end, prefix in zip(reversed(disk.ends), reversed(disk.chain), strict=True):
            if end <= end_offset:
                break
            if self._committed.get(end) == prefix:
                self.violated(COMMITTED_LOST, f"voter {voter} cuts its log to {end_offset}, but {end} is committed")
                break

    def committed(self, voter: int, mark: int, led_epoch: int | None) -> None:
        """led_epoch: of the leader that publishes the mark; None for a follower that hears of it."""
        before = self._marks.get(voter, 0)
        if mark < before:
            self.violated(HIGH_WATERMARKS, f"voter {voter} goes from {before} to {mark}")
        self._marks[voter] = mark
        disk = self._disks[voter]
        if disk.prefix(mark) is None:
            self.violated(AGREEMENT, f"voter {voter} commits up to {mark}, where none of its entries ends")
        if led_epoch is not None:
            holders = [other for other in self._disks.values() if self._holds_durably(other, disk, mark)]
            if len(holders) < majority(len(self._disks)):
                self.violated(ON_A_MAJORITY, f"leader {voter} commits up to {mark}, durable on {len(holders)} voters")
            self._committed_in[led_epoch] = max(mark, self._committed_in.get(led_epoch, 0))
        for end, prefix in zip(disk.ends, disk.chain, strict=True):
            if before < end <= mark and self._committed.setdefault(end, prefix) != prefix:
                self.violated(AGREEMENT, f"voter {voter} commits another entry before {end} than others did")
                break

    def tells_end(self, voter: int, request: FetchRequest) -> None:
        if request.fetch_offset > self._disks[voter].flushed_end:
            self.violated(DURABLE_FIRST, f"voter {voter} fetches from {request.fetch_offset} with an unflushed tail")

    def grants(self, voter: int, request: VoteRequest) -> None:
        state = self._disks[voter].quorum_state
        if (state.epoch, state.voted) != (request.epoch, request.candidate):
            self.violated(DURABLE_FIRST, f"voter {voter} tells {request.candidate.id} of a vote its disk does not know")

    # What clients see

    def acknowledged(self, end_offset: int) -> None:
        self.acknowledged_end = max(self.acknowledged_end, end_offset)

    def answered_read(self, voter: int, mark: int, owed: int) -> None:
        """owed: what had been acknowledged when the read arrived."""
        if mark < owed:
            self.violated(READS, f"voter {voter} reads up to {mark}, but {owed} was acknowledged before the read")
        self.acknowledged(mark)

    @staticmethod
    def _holds_durably(disk: Disk, reference: Disk, mark: int) -> bool:
        return disk.flushed_end >= mark and disk.prefix(mark) == reference.prefix(mark)
