"""Effects that the core requests, in order.

The order is the contract.  The executor carries out one effect after another, and finishes each before the next.  A
node may crash between any two of them.  The executor writes the trace row of an effect directly after it has carried
the effect out.  So the row precedes every message that depends on the effect.

    effect                         on return                        what must wait for it
    Persist, Flush                 durable                          every later effect of the list
    Truncate, InstallSnapshot      changed, and the change durable  every later effect of the list
    Append, WriteSnapshot          readable, not durable            every later effect of the list
    BeginFlush                     begun, not finished              until `Core.on_flushed`: the leader's own log end in
                                                                    a high watermark, and a follower's next Fetch, which
                                                                    acknowledges its log end

So an fsync of the log delays nothing else.  A leader answers fetches with batches that are not durable on its own disk
yet, and can commit them once they are durable on a majority of the other voters' disks.  Entries that are appended
during a flush share the next flush.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from system_under_test.kraft.raft.messages import Batch, Error, QuorumState, RaftRequest, RaftResponse, SnapshotId
from system_under_test.kraft.raft.voters import VoterSet

Token = int
"""Identifier of a request that waits for an answer.  The caller chooses it."""


class CoreEffect:
    """An instruction of the core to its caller."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Persist(CoreEffect):
    """Write quorum-state; durable on return.

    voted_now: True if this write grants a (standard) vote
    """

    state: QuorumState
    voted_now: bool = False


@dataclass(frozen=True, slots=True)
class Append(CoreEffect):
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class BeginFlush(CoreEffect):
    """Begin to make all appended entries durable, concurrently with later effects.

    At most one flush is in progress.  When it is done, the caller passes the log end offset at its beginning to
    `Core.on_flushed`.
    """


@dataclass(frozen=True, slots=True)
class Flush(CoreEffect):
    """Make all appended entries durable before the next effect."""


@dataclass(frozen=True, slots=True)
class Truncate(CoreEffect):
    """Remove all entries from `end_offset` on."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot(CoreEffect):
    """Write bytes of a snapshot that is being fetched, not durably.  Position 0 discards all earlier bytes."""

    snapshot: SnapshotId
    position: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class InstallSnapshot(CoreEffect):
    """Install a snapshot whose bytes are all written: make it durable, let the log begin after it, and load its state.

    Afterwards the log is empty and ends where the snapshot ends.
    """

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Send(CoreEffect):
    peer: int
    request: RaftRequest


@dataclass(frozen=True, slots=True)
class Reply(CoreEffect):
    token: Token
    response: RaftResponse


@dataclass(frozen=True, slots=True)
class RoleChanged(CoreEffect):
    """role: a value of `states.Role`"""

    role: str
    epoch: int
    leader_id: int | None
    epoch_start_offset: int | None = None  # for a leader only


@dataclass(frozen=True, slots=True)
class HighWatermark(CoreEffect):
    """Everything below `offset` is committed."""

    offset: int


@dataclass(frozen=True, slots=True)
class Accepted(CoreEffect):
    """A proposal was accepted: its records have the offsets first_offset .. end_offset - 1 of `epoch`, until they are
    committed or lost.
    """

    token: Token
    epoch: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class NotAccepted(CoreEffect):
    """A proposal was rejected without an append, or this voter cannot answer a read.  reason: text for the user"""

    token: Token
    reason: str


@dataclass(frozen=True, slots=True)
class ReadReady(CoreEffect):
    """A read may be answered from committed state, once all records below `high_watermark` are applied."""

    token: Token
    high_watermark: int


@dataclass(frozen=True, slots=True)
class VotersChanged(CoreEffect):
    """The log now names other voters, which are in force at once.

    offset: offset of the record that names them; `voters.CONFIGURED` if the log contains no such record
    """

    offset: int
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class VotersChangeDone(CoreEffect):
    """A requested change of the voters is committed or refused.

    error: Kafka's code.  After NOT_LEADER_OR_FOLLOWER the change may still commit if this voter led when it appended
        the record.
    reason: text for the user
    """

    token: Token
    error: Error
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fatal(CoreEffect):
    """The node must stop (a truncation below its high watermark, two leaders in one epoch)."""

    reason: str
