"""Messages between voters, the content of a log, and the interface of the log that the core requires.

Names and fields follow Kafka's RPCs (Vote 52, BeginQuorumEpoch 53, EndQuorumEpoch 54, Fetch 1, FetchSnapshot 59;
KIP-595, KIP-630, KIP-996, KIP-853); `wire/` translates them to and from bytes.  A voter's directory id is None where it
is not specified.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol
from uuid import UUID


class Error(IntEnum):
    """Kafka's error codes that the quorum uses."""

    NONE = 0
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    INCONSISTENT_CLUSTER_ID = 104
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    id: int
    directory: UUID | None = None

    def __hash__(self) -> int:
        """Hash only the id: replicas of one id are few, and the hash of a UUID takes as long as the rest of a
        look-up.
        """
        return self.id


@dataclass(frozen=True, slots=True)
class VoteRequest:
    cluster_id: str
    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: int
    last_offset: int  # the candidate's log end offset
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class VoteResponse:
    error: Error
    leader_id: int | None
    leader_epoch: int
    granted: bool
    pre_vote: bool


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochRequest:
    cluster_id: str
    leader_id: int
    epoch: int
    voter: ReplicaKey


@dataclass(frozen=True, slots=True)
class EndQuorumEpochRequest:
    cluster_id: str
    leader_id: int
    epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class EpochResponse:
    """The answer to BeginQuorumEpoch and EndQuorumEpoch."""

    error: Error
    leader_id: int | None
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The control record that a new leader writes first."""

    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records appended together: offsets base_offset .. base_offset + count - 1, all of one epoch.

    body: opaque to the core.  Raw bytes if the batch was read from a log or fetched, a control record if the core made
        the batch, and otherwise the proposed body.
    """

    base_offset: int
    epoch: int
    count: int
    body: Hashable

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


@dataclass(frozen=True, slots=True)
class EpochEnd:
    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    """Identifier of a snapshot, which covers all entries below `end_offset`.  The last of these entries is of `epoch`
    (KIP-630).

    SnapshotId(0, 0) covers nothing: a log that begins there is complete.
    """

    end_offset: int
    epoch: int


BEGINNING = SnapshotId(0, 0)


class NewStart(NamedTuple):
    """A new start of a log: after the snapshot `behind`, at `offset`."""

    behind: SnapshotId
    offset: int


class FetchRequest(NamedTuple):
    """A Fetch.  Fetches and their responses are tuples: a frozen dataclass with this many fields takes five times as
    long to create.
    """

    cluster_id: str
    replica: ReplicaKey
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int | None  # the follower's (since version 18)
    max_wait_ms: int
    max_size_bytes: int = 1 << 20


class FetchResponse(NamedTuple):
    error: Error
    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None = None
    diverging: EpochEnd | None = None
    batches: tuple[Batch, ...] = ()
    snapshot: SnapshotId | None = None  # to fetch first: the leader's log begins after the follower's log end


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    """A request for the bytes of a snapshot from `position` on."""

    cluster_id: str
    replica: ReplicaKey
    current_leader_epoch: int
    snapshot: SnapshotId
    position: int
    max_size_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    """A part of a snapshot.

    size_bytes: size of the whole snapshot
    data: the bytes of the snapshot that begin at `position`
    """

    error: Error
    leader_id: int | None
    leader_epoch: int
    snapshot: SnapshotId = BEGINNING
    size_bytes: int = 0
    position: int = 0
    data: bytes = field(default=b"", repr=False)


RaftRequest = VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest | FetchSnapshotRequest
RaftResponse = VoteResponse | EpochResponse | FetchResponse | FetchSnapshotResponse


def empty_answer(request: RaftRequest, error: Error, leader_id: int | None, epoch: int) -> RaftResponse:
    """Return an answer that contains only the error, the known leader and its epoch."""
    match request:
        case FetchRequest():
            return FetchResponse(error, leader_id, epoch)
        case VoteRequest():
            return VoteResponse(error, leader_id, epoch, False, request.pre_vote)
        case FetchSnapshotRequest():
            return FetchSnapshotResponse(error, leader_id, epoch)
        case _:
            return EpochResponse(error, leader_id, epoch)


@dataclass(frozen=True, slots=True)
class QuorumState:
    """State that must survive a crash besides the log (the quorum-state file)."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


class LogView(Protocol):
    """A read-only view of the log and its snapshots, with all effects carried out so far."""

    @property
    def start(self) -> SnapshotId:
        """Return the snapshot after which the log begins; BEGINNING for a log that was never shortened."""
        ...

    @property
    def snapshot(self) -> SnapshotId | None:
        """Return the newest snapshot that is complete and durable."""
        ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Return the epoch of the last batch; if the log is empty, the epoch of the snapshot after which it begins."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch <= `epoch` in the log and the offset after its last batch.  If there is none, return
        the epoch and the end of the snapshot after which the log begins.
        """
        ...

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        """Return whole batches, committed or not, beginning with the batch that contains `offset`.  If the log contains
        `offset`, at least one batch is returned.
        """
        ...

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_size_bytes: int) -> tuple[bytes, int] | None:
        """Return (bytes of a snapshot from `position` on, size of the snapshot); None if there is no such snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and delays in seconds, with Kafka's defaults."""

    election_timeout_s: float = 1.0  # drawn from [t, 2t)
    fetch_timeout_s: float = 2.0
    request_timeout_s: float = 2.0
    retry_backoff_s: float = 0.02
    fetch_max_wait_s: float = 0.5
    mark_wait_s: float = 0.05  # time that an answer with only a new high watermark waits for records
    check_quorum_factor: float = 1.5  # as a multiple of the fetch timeout


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a replica, and the voters until its log names voters (`raft/voters.py`).

    observer: True if the replica is no voter: it replicates the log, never votes, and does not count for commits
    directories: voter -> directory id of its disk, where configured
    dynamic: True if the first leader writes these voters into the log, so that they can change (`kraft.version` 1)
    snapshot_part_max_bytes: maximum bytes of a snapshot in one response
    """

    cluster_id: str
    me: ReplicaKey
    voters: tuple[int, ...]
    timing: Timing = field(default_factory=Timing)
    bugs: frozenset[str] = frozenset()
    directories: Mapping[int, UUID] = field(default_factory=dict)
    observer: bool = False
    dynamic: bool = False
    snapshot_part_max_bytes: int = 1 << 20

    def key_of(self, voter: int) -> ReplicaKey:
        """Return the key of a voter, with its directory if the configuration names it."""
        return ReplicaKey(voter, self.directories.get(voter))
