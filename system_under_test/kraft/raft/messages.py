"""The messages between voters, the content of a log, and the core's requirements of a log.

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
    """Kafka's error codes, as far as the quorum uses them."""

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
    """The control record a new leader writes first."""

    leader_id: int
    voters: tuple[int, ...]
    granting_voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Records appended together: offsets base_offset .. base_offset + count - 1, all of one epoch.

    body is opaque to the core: raw bytes when read from a log or fetched, a LeaderChange when the core made it, and
    otherwise what was proposed.
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
    """A snapshot covers everything below `end_offset`, whose last batch is of `epoch` (KIP-630).

    SnapshotId(0, 0) covers nothing: a log that begins there is complete.
    """

    end_offset: int
    epoch: int


BEGINNING = SnapshotId(0, 0)


class NewStart(NamedTuple):
    """An order that a log begin after a snapshot, at an offset."""

    behind: SnapshotId
    offset: int


class FetchRequest(NamedTuple):
    """A tuple, like its response: a frozen dataclass with this many fields takes five times as long to create."""

    cluster_id: str
    replica: ReplicaKey
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int | None  # what the follower knows (v18)
    max_wait_ms: int
    max_size_bytes: int = 1 << 20


class FetchResponse(NamedTuple):
    error: Error
    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None = None
    diverging: EpochEnd | None = None
    batches: tuple[Batch, ...] = ()
    snapshot: SnapshotId | None = None  # the log does not go back that far: fetch this first


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequest:
    """Bytes of a snapshot from `position` on."""

    cluster_id: str
    replica: ReplicaKey
    current_leader_epoch: int
    snapshot: SnapshotId
    position: int
    max_size_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchSnapshotResponse:
    """size_bytes: of the whole snapshot; data: the bytes of it that begin at `position`."""

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
    """Return an answer with only the error and the known leader."""
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
        """Return the epoch of the last batch; if the log is empty, of the snapshot where it begins."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Return the largest epoch <= `epoch` in the log and the offset after its last batch; if there is none, the
        epoch and the end of the snapshot where the log begins.
        """
        ...

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        """Return whole batches from the one that contains `offset`, at least one if there is any, including uncommitted
        ones.
        """
        ...

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_size_bytes: int) -> tuple[bytes, int] | None:
        """Return (bytes of a snapshot from a position on, its size); None if there is no such snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; Kafka's defaults."""

    election_timeout_s: float = 1.0  # drawn from [t, 2t)
    fetch_timeout_s: float = 2.0
    request_timeout_s: float = 2.0
    retry_backoff_s: float = 0.02
    fetch_max_wait_s: float = 0.5
    mark_wait_s: float = 0.05  # wait for records before answering with a new high watermark alone
    check_quorum_factor: float = 1.5  # as a multiple of the fetch timeout


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of this replica, and the voters as long as the log names none (`raft/voters.py`).

    observer: it is none of the voters.  It follows the log, never votes and is never voted for, and the leader counts
    it for nothing.
    directories: voter -> the directory id of its disk, as far as the configuration names them.
    dynamic: the first leader writes these voters into the log, so that they can change (`kraft.version` 1).
    snapshot_part_max_bytes: of a snapshot, in one answer.
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
        """Return a voter with its directory, if that is known."""
        return ReplicaKey(voter, self.directories.get(voter))
