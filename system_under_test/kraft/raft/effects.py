"""Effects that the core requests, in order.

The order is the contract.  The executor carries effects out one after another, and finishes each before the next.  A
crash may fall between any two of them.  The executor writes the trace row of an effect directly after carrying it out,
and so before any message that depends on it.

    effect                         when it returns                   what may not come before
    Persist, Flush                 durable                           every later effect of the list
    Truncate, InstallSnapshot      changed, and the change durable   every later effect of the list
    Append, WriteSnapshot          readable, not durable             every later effect of the list
    BeginFlush                     begun; `Core.on_flushed` ends it  the leader's own log end in a high watermark,
                                                                     and a follower's next Fetch, which acknowledges

So an fsync of the log delays only what must wait for it.  A leader answers fetches with batches that are not durable on
its own disk yet, and commits them by the disks of the others.  Entries appended during a flush wait for the next one,
and share it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from system_under_test.kraft.raft.messages import Batch, Error, QuorumState, RaftRequest, RaftResponse, SnapshotId
from system_under_test.kraft.raft.voters import VoterSet

Token = int
"""Names a request that waits for an answer; chosen by the caller."""


class CoreEffect:
    """An order of the core to its caller."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Persist(CoreEffect):
    """Write quorum-state, durable on return. voted_now: this write grants a (standard) vote."""

    state: QuorumState
    voted_now: bool = False


@dataclass(frozen=True, slots=True)
class Append(CoreEffect):
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class BeginFlush(CoreEffect):
    """Make everything appended so far durable, concurrently with later effects.  One at a time: `Core.on_flushed` is
    called when it is done, with the current end of the log.
    """


@dataclass(frozen=True, slots=True)
class Flush(CoreEffect):
    """Everything appended so far is durable on return."""


@dataclass(frozen=True, slots=True)
class Truncate(CoreEffect):
    """Remove everything from end_offset on."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class WriteSnapshot(CoreEffect):
    """Write bytes of a snapshot that is being fetched; position 0 starts it over.  Not durable."""

    snapshot: SnapshotId
    position: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class InstallSnapshot(CoreEffect):
    """Install a snapshot whose bytes are all written: make it durable, let the log begin after it, and load its state.

    The log is empty then, and ends where the snapshot ends."""

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
    """role: unattached|prospective|candidate|leader|follower|resigned."""

    role: str
    epoch: int
    leader_id: int | None
    epoch_start_offset: int | None = None  # of a leader


@dataclass(frozen=True, slots=True)
class HighWatermark(CoreEffect):
    """Everything below `offset` is committed."""

    offset: int


@dataclass(frozen=True, slots=True)
class Accepted(CoreEffect):
    """A proposal will be committed or lost with its offsets: first .. end - 1, of `epoch`."""

    token: Token
    epoch: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class NotAccepted(CoreEffect):
    """A proposal was never queued, or a read cannot be answered here; the reason in words."""

    token: Token
    reason: str


@dataclass(frozen=True, slots=True)
class ReadReady(CoreEffect):
    """Answer the read from committed state replayed at least to `high_watermark`."""

    token: Token
    high_watermark: int


@dataclass(frozen=True, slots=True)
class VotersChanged(CoreEffect):
    """The log now names other voters: those of its record at `offset`.  They are in force at once.

    offset: `voters.CONFIGURED` if it names none yet, or none any more."""

    offset: int
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class VotersChangeDone(CoreEffect):
    """A wanted change of the voters is committed, or was refused; Kafka's code and the reason in words.

    After NOT_LEADER_OR_FOLLOWER it may be in force all the same: this voter led when it appended the record."""

    token: Token
    error: Error
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fatal(CoreEffect):
    """The node must not continue (a truncation below its high watermark, two leaders in one epoch)."""

    reason: str
