"""The messages of voters to each other, what a log holds, and what the core needs of a log.

Names and fields follow Kafka's RPCs (Vote 52, BeginQuorumEpoch 53, EndQuorumEpoch 54, Fetch 1; KIP-595, KIP-996,
KIP-853); `wire/` translates them to and from bytes.  A voter's directory id is None where it is not specified.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol
from uuid import UUID

from system_under_test.kraft.raft.timing import Timing


class Error(IntEnum):
    """Kafka's error codes, as far as the quorum uses them."""

    NONE = 0
    NOT_LEADER_OR_FOLLOWER = 6
    BROKER_NOT_AVAILABLE = 8
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    INCONSISTENT_VOTER_SET = 94
    INCONSISTENT_CLUSTER_ID = 104
    INVALID_VOTER_KEY = 125


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    id: int
    directory: UUID | None = None


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


@dataclass(frozen=True, slots=True)
class FetchRequest:
    cluster_id: str
    replica: ReplicaKey
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int | None  # what the follower knows (v18)
    max_wait_ms: int
    max_size_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchResponse:
    error: Error
    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None = None
    diverging: EpochEnd | None = None
    batches: tuple[Batch, ...] = ()


RaftRequest = VoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest
RaftResponse = VoteResponse | EpochResponse | FetchResponse


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What must survive a crash besides the log (the quorum-state file)."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


class LogView(Protocol):
    """A read-only view of the log; it shows what carried-out effects made of it."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """Epoch of the last batch, 0 for an empty log."""
        ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """The largest epoch <= `epoch` in the log and the offset after its last batch; EpochEnd(0, start) if none."""
        ...

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        """Whole batches from the one that holds `offset`, at least one if there is any, uncommitted ones too."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this voter is, and who votes (static voters).

    directories: voter -> the directory id of its disk, as far as the configuration names them.
    """

    cluster_id: str
    me: ReplicaKey
    voters: tuple[int, ...]
    timing: Timing = field(default_factory=Timing)
    bugs: frozenset[str] = frozenset()
    directories: Mapping[int, UUID] = field(default_factory=dict)

    def key_of(self, voter: int) -> ReplicaKey:
        """A voter with its directory, as far as that is known."""
        return ReplicaKey(voter, self.directories.get(voter))
