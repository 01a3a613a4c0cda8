"""The six epoch states of a voter, their transitions, and the linearizable reads of a leader.

Theory of operation.  A voter is in exactly one state, and each state belongs to one epoch.  Epochs never decrease, and
in one epoch a voter makes few transitions:

    unattached ── election timeout ──▶ prospective ── majority of pre-votes ──▶ candidate (epoch + 1) ──▶ leader
        ▲                                 │    ▲                                    │                       │
        │ pre-votes refused, no leader    │    └────────── election timeout ────────┘                       ▼
        └─────────────────────────────────┤                                                             resigned
                                          ▼
                                       follower ── fetch timeout ──▶ prospective

`LEGAL` lists every transition, each with the change of epoch that it requires.  A voter that learns of a higher epoch
becomes unattached, or a follower if it learns the leader, too.  The table shows why elections are safe.  Only a
prospective voter becomes a candidate, in an epoch that it never used before.  A leader that leaves its epoch never
leads that epoch again.  No voter follows two leaders in one epoch.

A voter persists its state before it becomes unattached, candidate, leader or follower (`Voter.enter`).  The states
prospective and resigned exist only in memory: after a crash, the voter starts in the state that quorum-state names.

An illegal transition raises `IllegalTransition`.  No code handles this exception, because it is itself a finding.

*Reads.*  A leader answers a read only if it can prove that its state is current.

A deposed leader may not know that it was deposed.  Its committed state may be old, and a read from this state may miss
a write that the new leader has already acknowledged.  So a read waits for proof that a majority was still in this epoch
*after* the read arrived.  Any later leader needs a vote from this majority, so it was elected after the read arrived.
So the read may be ordered before everything that the later leader commits (Raft, section 6.4).

The fetches that run anyway provide the proof.  A Fetch shows only that its sender was in the epoch when it *sent* the
request, perhaps long ago.  But a follower sends its next Fetch only after it has received the previous answer on the
same connection.  So if an answer was written after the read arrived, the Fetch that follows this answer was also sent
after the read arrived.  The first Fetch of a connection therefore proves nothing.

Time is a counter that grows with each noted read.  A connection remembers the value of the counter when its last answer
was written.  The next Fetch on this connection raises its voter to that value.  A read is proved once a majority of
voters is at or above the value at which the read was noted.  All waiting reads thus share the same fetches.

A read that arrives before the leader has committed its own LeaderChange is held back and noted later: until then the
leader does not know which entries its predecessors acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import ClassVar, TypeVar

from system_under_test.kraft.raft.messages import FetchRequest, ReplicaKey, SnapshotId
from system_under_test.kraft.raft.voters import VoterEntry, VoterSet, held_by_majority

T = TypeVar("T")

OBSERVERS_MAX = 100


class Role(StrEnum):
    UNATTACHED = "unattached"
    PROSPECTIVE = "prospective"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FOLLOWER = "follower"
    RESIGNED = "resigned"


class EpochStep(Enum):
    """Ways in which a transition may change the epoch."""

    SAME = "same epoch"
    NEXT = "the next epoch"
    HIGHER = "a higher epoch"
    NOT_LOWER = "the same or a higher epoch"


LEGAL: dict[tuple[Role, Role], EpochStep] = {
    (Role.UNATTACHED, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.UNATTACHED, Role.PROSPECTIVE): EpochStep.SAME,  # election timeout
    (Role.UNATTACHED, Role.FOLLOWER): EpochStep.NOT_LOWER,  # learnt the leader
    (Role.PROSPECTIVE, Role.CANDIDATE): EpochStep.NEXT,  # a majority would vote for it
    (Role.PROSPECTIVE, Role.FOLLOWER): EpochStep.NOT_LOWER,  # pre-vote lost and leader known, or leader learnt
    (Role.PROSPECTIVE, Role.UNATTACHED): EpochStep.NOT_LOWER,  # pre-vote lost and no leader known
    (Role.CANDIDATE, Role.LEADER): EpochStep.SAME,
    (Role.CANDIDATE, Role.PROSPECTIVE): EpochStep.SAME,  # election timeout
    (Role.CANDIDATE, Role.FOLLOWER): EpochStep.NOT_LOWER,  # another candidate won
    (Role.CANDIDATE, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.LEADER, Role.RESIGNED): EpochStep.SAME,  # shutdown, or no majority fetches any more
    (Role.LEADER, Role.FOLLOWER): EpochStep.HIGHER,
    (Role.LEADER, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.FOLLOWER, Role.PROSPECTIVE): EpochStep.SAME,  # fetch timeout
    (Role.FOLLOWER, Role.FOLLOWER): EpochStep.HIGHER,
    (Role.FOLLOWER, Role.UNATTACHED): EpochStep.HIGHER,
    (Role.RESIGNED, Role.UNATTACHED): EpochStep.HIGHER,  # also one epoch higher, after an election timeout
    (Role.RESIGNED, Role.FOLLOWER): EpochStep.HIGHER,
}


class IllegalTransition(Exception):
    """Raised for a transition outside `LEGAL`: a bug in the core, never the result of bad input."""


@dataclass(slots=True)
class Votes:
    """The answers of the voters in one campaign, including the campaigning voter's own."""

    granted: set[int]
    refused: set[int] = field(default_factory=set)

    def record(self, voter: int, *, granted: bool) -> None:
        """Record a vote; a voter may change its pre-vote, and the last one counts."""
        chosen, other = (self.granted, self.refused) if granted else (self.refused, self.granted)
        chosen.add(voter)
        other.discard(voter)

    def answered(self, voter: int) -> bool:
        return voter in self.granted or voter in self.refused


@dataclass(slots=True)
class Unattached:
    """State of a voter that knows no leader of its epoch."""

    role: ClassVar[Role] = Role.UNATTACHED
    epoch: int
    election_deadline: float


@dataclass(slots=True)
class Prospective:
    """State of a voter that asks whether it would be elected, without changing any voter's epoch (KIP-996)."""

    role: ClassVar[Role] = Role.PROSPECTIVE
    epoch: int
    election_deadline: float
    votes: Votes
    leader_id: int | None  # the leader that fell silent, if known


@dataclass(slots=True)
class Candidate:
    """State of a voter that has voted for itself and requests the votes of the others."""

    role: ClassVar[Role] = Role.CANDIDATE
    epoch: int
    election_deadline: float
    votes: Votes


@dataclass(slots=True)
class FollowerProgress:
    """A leader's knowledge about one replica that fetches from it."""

    end_offset: int = -1  # the replica's log end; -1 until its first Fetch that matches our log
    fetched_at: float = -float("inf")
    leader_end_offset: int = -1  # the leader's log end at that Fetch
    caught_up_at: float = -float("inf")  # the replica holds the leader's log as of this time
    begin_due: float = 0.0  # time of the next BeginQuorumEpoch to the replica, unless it fetches

    def fetched(self, end_offset: int, leader_end_offset: int, now: float) -> None:
        """Note a Fetch at `end_offset`: its sender holds the leader's log below this offset."""
        if end_offset >= leader_end_offset:
            self.caught_up_at = now
        elif end_offset >= self.leader_end_offset >= 0:
            self.caught_up_at = self.fetched_at
        self.end_offset, self.leader_end_offset, self.fetched_at = end_offset, leader_end_offset, now


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change of the voters whose record is in the log at `offset` and is not committed yet."""

    token: int
    offset: int


@dataclass(slots=True)
class Parked:
    """A Fetch that waits for news."""

    token: int
    connection: int
    request: FetchRequest
    deadline: float


@dataclass(slots=True)
class Leader:
    """State of a leader, which appends, answers fetches, and commits."""

    role: ClassVar[Role] = Role.LEADER
    epoch: int
    epoch_start_offset: int  # offset of its LeaderChange
    followers: dict[int, FollowerProgress]
    quorum_deadline: float  # the leader resigns then, unless a majority fetched; infinite for a sole voter
    reads: Reads
    heard: set[int] = field(default_factory=set)  # voters that fetched since the quorum deadline was last set
    parked: list[Parked] = field(default_factory=list)
    news_at: float = float("inf")  # time to check parked fetches because the log grew
    mark_at: float = float("inf")  # time to answer fetches that wait for the high watermark alone
    observers: dict[ReplicaKey, FollowerProgress] = field(default_factory=dict)  # replicas that fetch and do not vote
    changes: list[PendingChange] = field(default_factory=list)
    announced: dict[int, VoterEntry] = field(default_factory=dict)  # voters' own reports while `kraft.version` is 0

    def take_voters(self, voters: VoterSet, others: Sequence[int], *, counts_itself: bool) -> None:
        """Put other voters in force.  A new voter keeps the progress that it made as an observer; the progress of a
        removed voter is dropped.
        """
        for other in others:
            if other not in self.followers:
                self.followers[other] = self.observers.pop(voters.key_of(other), FollowerProgress())
        for gone in [peer for peer in self.followers if peer not in others]:
            del self.followers[gone]
        self.heard &= set(others)
        self.reads.take_voters(others, counts_itself=counts_itself)

    def observer(self, key: ReplicaKey) -> FollowerProgress:
        """Return the progress of an observer.  Only the OBSERVERS_MAX observers that fetched last are kept."""
        if key not in self.observers and len(self.observers) >= OBSERVERS_MAX:
            del self.observers[min(self.observers, key=lambda each: self.observers[each].fetched_at)]
        return self.observers.setdefault(key, FollowerProgress())


@dataclass(slots=True)
class Download:
    """A snapshot that is being fetched.  The bytes below `position` are already written."""

    snapshot: SnapshotId
    position: int = 0


@dataclass(slots=True)
class Follower:
    """State of a voter that fetches from the leader of its epoch."""

    role: ClassVar[Role] = Role.FOLLOWER
    epoch: int
    leader_id: int
    fetch_deadline: float
    has_fetched: bool = False  # the leader has answered, so this voter refuses pre-votes
    download: Download | None = None  # the snapshot to fetch before the log can continue


@dataclass(slots=True)
class Resigned:
    """State of a voter that led this epoch, will never lead it again, and announces this to the other voters."""

    role: ClassVar[Role] = Role.RESIGNED
    epoch: int
    election_deadline: float
    preferred: tuple[ReplicaKey, ...]
    untold: set[int]


State = Unattached | Prospective | Candidate | Leader | Follower | Resigned


def copy_of(state: State) -> State:
    """Return an independent copy of a state.  It shares only values that never change in place."""
    twin = _shallow(state)
    match twin:
        case Prospective() | Candidate():
            twin.votes = Votes(set(twin.votes.granted), set(twin.votes.refused))
        case Follower(download=Download() as download):
            twin.download = _shallow(download)
        case Resigned():
            twin.untold = set(twin.untold)
        case Leader():
            twin.followers = {peer: _shallow(progress) for peer, progress in twin.followers.items()}
            twin.observers = {key: _shallow(progress) for key, progress in twin.observers.items()}
            twin.heard, twin.announced = set(twin.heard), dict(twin.announced)
            twin.parked, twin.changes, twin.reads = list(twin.parked), list(twin.changes), twin.reads.copy()
    return twin


def _shallow(value: T) -> T:
    twin = object.__new__(type(value))
    for name in type(value).__slots__:  # type: ignore[attr-defined]
        setattr(twin, name, getattr(value, name))
    return twin


def check_transition(old: State, new: State) -> None:
    """Raise IllegalTransition unless `new` may follow `old`."""
    step = LEGAL.get((old.role, new.role))
    change = new.epoch - old.epoch
    match step:
        case EpochStep.SAME:
            fits = change == 0
        case EpochStep.NEXT:
            fits = change == 1
        case EpochStep.HIGHER:
            fits = change > 0
        case EpochStep.NOT_LOWER:
            fits = change >= 0
        case None:
            fits = False
    if not fits:
        allowed = f"needs {step.value}" if step else "is never allowed"
        raise IllegalTransition(f"{old.role} of epoch {old.epoch} -> {new.role} of epoch {new.epoch}: {allowed}")


ABSENT = -1


class Reads:
    """The waiting reads of one leader in one epoch.

    others: ids of the voters other than the leader
    """

    def __init__(self, others: Sequence[int]) -> None:
        self._others = tuple(others)
        self._clock = 0
        self._early: list[int] = []
        self._noted: deque[tuple[int, int, int]] = deque()  # (stamp, token, mark), stamps ascending
        self._answered: dict[int, int] = {}  # connection -> clock at the last Fetch answered on it
        self._confirmed: dict[int, int] = dict.fromkeys(others, ABSENT)  # voter -> newest stamp it has confirmed
        self._counts_itself = True

    def take_voters(self, others: Sequence[int], *, counts_itself: bool) -> None:
        """Put other voters in force.

        counts_itself: True if the leader is one of the voters
        """
        self._others = tuple(others)
        self._confirmed = {voter: self._confirmed.get(voter, ABSENT) for voter in others}
        self._counts_itself = counts_itself

    def hold(self, token: int) -> None:
        """Hold a read until the leader has committed an entry of its own epoch."""
        self._early.append(token)

    def take_held(self) -> list[int]:
        held, self._early = self._early, []
        return held

    def note(self, token: int, mark: int) -> None:
        """Note a read that must see everything below `mark`.  Only a Fetch that follows a later answer can prove it."""
        self._clock += 1
        self._noted.append((self._clock, token, mark))

    def answered(self, connection: int) -> None:
        """Note that a Fetch was just answered on this connection."""
        self._answered[connection] = self._clock

    def fetched(self, voter: int, connection: int) -> None:
        """Note a Fetch of this epoch by a voter on this connection."""
        if connection in self._answered and voter in self._confirmed:
            self._confirmed[voter] = max(self._confirmed[voter], self._answered[connection])

    def forget(self, connection: int) -> None:
        """Forget a broken connection: data written on it may never have arrived."""
        self._answered.pop(connection, None)

    def needs(self, voter: int) -> bool:
        """Return whether the next Fetch of this voter could prove a read that the voter's earlier fetches did not
        prove.
        """
        return bool(self._noted) and self._confirmed.get(voter, self._clock) < self._noted[-1][0]

    def take_proved(self) -> list[tuple[int, int]]:
        """Remove and return the (token, mark) of every read that a majority has proved by now, in order of arrival."""
        if not self._noted:
            return []
        own = [self._clock] if self._counts_itself else []
        proved_stamp = held_by_majority([*own, *(self._confirmed[voter] for voter in self._others)])
        proved = []
        while self._noted and self._noted[0][0] <= proved_stamp:
            _, token, mark = self._noted.popleft()
            proved.append((token, mark))
        return proved

    def copy(self) -> Reads:
        """Return an independent copy."""
        twin = object.__new__(Reads)
        twin.__dict__.update(self.__dict__)
        twin._early, twin._noted = list(self._early), self._noted.copy()
        twin._answered, twin._confirmed = dict(self._answered), dict(self._confirmed)
        return twin

    @property
    def proofs(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Return connection -> stamp when its last answer was written, and voter -> newest stamp that the voter has
        confirmed.
        """
        return self._answered, self._confirmed

    @property
    def waiting(self) -> tuple[Sequence[tuple[int, int, int]], Sequence[int], int]:
        """Return the noted reads as (stamp, token, mark), the tokens of reads that are held back, and the counter."""
        return tuple(self._noted), tuple(self._early), self._clock

    def unanswered(self) -> list[int]:
        """Return the tokens of all reads still waiting."""
        return [*(token for _, token, _ in self._noted), *self._early]
