"""Committed and speculative metadata, and the operations that wait for each offset.

A controller decides on the *speculative* image, which contains all entries appended here, committed or not.  Its
answers wait until the offsets on which they depend are committed and replayed into the *committed* image.  Only the
committed image is ever read.  A node that ceases to lead discards the speculative image, because a successor may
overwrite its entries.

    write   decide on speculative -> records -> replayed there -> pending -> appended (offsets known) -> committed

A write is *queued* from the moment its records are passed to the consensus core.  If the node loses leadership before
that, the write fails with NotQueued: nothing was appended, and nothing will be.  If the node loses leadership after
that, the write fails with LostLeadership: its outcome is unknown.

Pending writes are collected and share one proposal (`Proposals`).  While appended records wait for their commit, writes
are collected for LINGER_S, because the fsync and the fetches in progress would delay a second append anyway.  Otherwise
a write is proposed at once if the last proposal contained one write only, and in the next turn of the loop if it
contained several.  The loop often reads the writes of many clients in one turn, and then these writes share an append.

*Duties.*  A timer runs the duties of the active controller (`controller/partition_requests.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from system_under_test.kraft.controller.brokers import Sessions
from system_under_test.kraft.controller.features import why_not_served
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import NO_DUTIES, Duties
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.node.parts import DeadlineTimer, NodeParts
from system_under_test.kraft.ports import Timer
from system_under_test.kraft.raft.decisions import drops_what_it_decided, is_answered
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.records.metadata import (
    EndTransactionRecord,
    FeatureLevelRecord,
    Record,
    UnknownRecord,
    encode_at,
)
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued, TooLarge

T = TypeVar("T")

WRITE_MAX_RECORDS = 10_000
WRITE_MAX_BYTES = 4 << 20
"""Maximum bytes of the records of one write.  Their batch is never split, and must fit into a frame with room to spare;
otherwise no follower could fetch it.
"""

_DECIDE_WHO_SERVES = frozenset({FeatureLevelRecord, EndTransactionRecord})
"""Types of records that can make the level of an image unsupported, or supported again."""

NOT_ACTIVE = "not the active controller"
LOST_BEFORE_APPEND = "ceased to be the active controller before appending"


@dataclass(slots=True)
class Write:
    """A write in progress.

    records: values of its records; empty if it only waits for earlier writes
    end_offset: offset after its last record; -1 until the write is queued
    done: called once, with the error or None
    """

    records: list[bytes]
    done: Callable[[Exception | None], None]
    end_offset: int = -1


class StateMachine:
    """The committed and the speculative image, and the writes in progress.

    applied_offset: all records below it are in the committed image
    not_served: reason why no request may be answered from the committed image, or None
    bugs: planted bugs
    node: id of this node
    """

    def __init__(self, start_offset: int, bugs: Collection[str] = (), node: int | None = None) -> None:
        self._bugs = bugs
        self._node = node
        self.applied_offset = start_offset
        self.applied_bytes = 0  # of all batches applied since the process started
        self.not_served: str | None = None
        self.committed = Image(bugs, node)
        self._speculative: Image | None = None
        self._decided: dict[bytes, Record | UnknownRecord] = {}  # records of this controller, until they are applied
        self._pending: list[Write] = []  # decided, but not yet passed to the core
        self._queued: deque[Write] = deque()  # end offsets ascending

    @property
    def active(self) -> bool:
        return self._speculative is not None

    @property
    def speculative_hash(self) -> int:
        """Return the hash of the state on which an active controller decides."""
        return self.speculative.state_hash

    @property
    def speculative(self) -> Image:
        """Return the state on which an active controller decides."""
        assert self._speculative is not None, "only an active controller decides"
        return self._speculative

    @property
    def pending_records(self) -> int:
        """Return the number of records that are decided but not passed to the core yet."""
        return sum(len(write.records) for write in self._pending)

    def apply(self, batch: Batch) -> list[UnknownRecord]:
        """Replay the committed batch at `applied_offset`.  Returns its records of unknown types, which are kept without
        effect.
        """
        raw = batch.body
        assert isinstance(raw, bytes)
        assert batch.base_offset == self.applied_offset, (batch.base_offset, self.applied_offset)
        replay = self._replay_decided if self._decided else self.committed.replay
        replayed = [] if codec.is_control(raw) else list(map(replay, codec.values(raw)))
        self.applied_offset = batch.end_offset
        self.applied_bytes += len(raw)
        kinds = set(map(type, replayed))
        if not kinds.isdisjoint(_DECIDE_WHO_SERVES):
            self.not_served = why_not_served(self.committed)
        return [record for record in replayed if isinstance(record, UnknownRecord)] if UnknownRecord in kinds else []

    def _replay_decided(self, value: bytes) -> Record | UnknownRecord:
        """Replay a record.  If this controller decided a record with the same bytes, reuse that record instead of
        decoding the bytes.
        """
        record = self._decided.pop(value, None)
        if record is None:
            return self.committed.replay(value)
        self.committed.apply(record)
        return record

    def load(self, end_offset: int, values: Iterable[bytes], *, onto: Image | None = None) -> None:
        """Replace the committed state with the state of a snapshot.  A leader never does this.

        onto: see `raft.decisions.keeps_state_under_snapshot`

        Raises CorruptRecord.
        """
        assert self._speculative is None, "a leader never loads a snapshot"
        image = Image(self._bugs, self._node) if onto is None else onto
        for value in values:
            image.replay(value)
        self.committed, self.applied_offset = image, end_offset
        self.not_served = why_not_served(image)

    def settle(self) -> None:
        """Complete the writes that are committed and applied by now."""
        while self._queued and is_answered(self._queued[0].end_offset, self.applied_offset, self._bugs):
            self._queued.popleft().done(None)

    def activate(self) -> None:
        """Become the active controller.  Call this when this node leads and has applied its LeaderChange, before
        anything is appended after that record.
        """
        self._speculative = self.committed.copy()

    def renounce(self) -> None:
        """Cease to be the active controller, because this node no longer leads."""
        if self._speculative is not None and not drops_what_it_decided(self._bugs):
            self.committed = self._speculative
        self._speculative = None
        self._decided.clear()
        pending, queued = self._pending, self._queued
        self._pending, self._queued = [], deque()
        for write in pending:
            write.done(NotQueued(LOST_BEFORE_APPEND))
        for write in queued:
            # A write without records has no effect under any leader.
            write.done(LostLeadership() if write.records else NotQueued(LOST_BEFORE_APPEND))

    def decide(
        self, decide: Callable[[Image], tuple[list[Record], T]], settled: Callable[[T, Exception | None], None]
    ) -> Write:
        """Run a decision on the speculative image, replay its records there, and return the pending write.

        settled: called when the write is done, with the result of the decision and the error or None

        Raises NotQueued if this node is not active, TooLarge, and the errors of `decide`.  In these cases nothing is
        pending.
        """
        if self._speculative is None:
            raise NotQueued(NOT_ACTIVE)
        if self.not_served is not None:
            raise NotQueued(self.not_served)
        records, result = decide(self._speculative)
        level = self._speculative.metadata_version
        values = [encode_at(record, level) for record in records]
        size_bytes = sum(map(len, values))
        if len(values) > WRITE_MAX_RECORDS or size_bytes > WRITE_MAX_BYTES:
            raise TooLarge(
                f"The request makes {len(values)} records of {size_bytes} bytes; "
                f"one atomic batch holds at most {WRITE_MAX_RECORDS} records and {WRITE_MAX_BYTES} bytes."
            )
        for value in values:
            self._decided[value] = self._speculative.replay(value)
        write = Write(values, partial(settled, result))
        self._pending.append(write)
        return write

    def take_pending(self) -> list[Write]:
        taken, self._pending = self._pending, []
        return taken

    def queued(self, writes: list[Write], first_offset: int, end_offset: int) -> None:
        """Note that the core has accepted these writes, in this order, at the offsets from `first_offset` on."""
        offset = first_offset
        for write in writes:
            offset += len(write.records)
            write.end_offset = offset
            self._queued.append(write)
        assert offset == end_offset, (offset, end_offset)


LINGER_S = 0.002
"""Seconds that a write waits for other writes to share its append and fsync (Kafka: 25 ms, even if no record is in
flight).
"""

BATCH_MAX_BYTES = 8 << 20
BATCH_MAX_RECORDS = 10_000


class Proposals:
    """Collects pending writes, and proposes them to the core.

    propose: passes the core a token and the bodies of batches; the core answers with `accepted` or `refused`
    decided: called once per proposal, with True if its writes have records
    """

    def __init__(
        self,
        parts: NodeParts,
        machine: StateMachine,
        tokens: Iterator[int],
        propose: Callable[[int, Sequence[tuple[Any, int]]], None],
        decided: Callable[[bool], None],
    ) -> None:
        self._machine = machine
        self._log = parts.log
        self._clock = parts.clock
        self._tokens = tokens
        self._propose = propose
        self._decided = decided
        self._linger: Timer | None = None
        self._lone = False  # the last proposal contained one write
        self._proposed: dict[int, list[Write]] = {}

    def soon(self, high_watermark: int) -> None:
        """Propose the pending writes: LINGER_S after the first of them, or earlier (see the module's docstring)."""
        if self._linger is not None:
            return
        in_flight = high_watermark < self._log.end_offset
        if self._lone and not in_flight:
            self._propose_pending()
            return
        wait_s = LINGER_S if in_flight else 0.0
        self._linger = self._clock.call_at(self._clock.now() + wait_s, self._propose_pending)

    def now(self) -> None:
        """Propose the pending writes before anything else can be appended."""
        self.cancel()
        self._propose_pending()

    def _propose_pending(self) -> None:
        """Pass all pending writes to the core: one append, one fsync."""
        self._linger = None
        writes = self._machine.take_pending()
        if not writes:
            return
        self._lone = len(writes) == 1
        bodies = batches_of(writes)
        self._decided(bool(bodies))
        if not bodies:
            self._machine.queued(writes, self._log.end_offset, self._log.end_offset)
            self._machine.settle()
            return
        token = next(self._tokens)
        self._proposed[token] = writes
        self._propose(token, bodies)

    def accepted(self, token: int, first_offset: int, end_offset: int) -> None:
        self._machine.queued(self._proposed.pop(token), first_offset, end_offset)
        self._machine.settle()

    def refused(self, token: int, reason: str) -> None:
        """Fail the writes of a proposal that the core rejected.  Other tokens are ignored."""
        for write in self._proposed.pop(token, ()):
            write.done(NotQueued(reason))

    def cancel(self) -> None:
        """Cancel the timer of the next proposal."""
        if self._linger is not None:
            self._linger.cancel()


def batches_of(writes: Sequence[Write]) -> list[tuple[Any, int]]:
    """Return (body, record count) of each batch.  All records of a write are in one batch."""
    bodies: list[tuple[Any, int]] = []
    batch: list[bytes] = []
    size_bytes = 0
    for write in writes:
        added_bytes = sum(map(len, write.records))
        full = size_bytes + added_bytes > BATCH_MAX_BYTES or len(batch) + len(write.records) > BATCH_MAX_RECORDS
        if batch and full:
            bodies.append((tuple(batch), len(batch)))
            batch, size_bytes = [], 0
        batch += write.records
        size_bytes += added_bytes
    if batch:
        bodies.append((tuple(batch), len(batch)))
    return bodies


WriteDecision = Callable[[Callable[[Image], tuple[list[Record], None]]], Awaitable[None]]


class ControllerDuties:
    """Runs the duties of the active controller.

    write: `QuorumService.write`
    spawn: `Executor.spawn`
    say: receives a line for the node's operator
    """

    def __init__(
        self,
        parts: NodeParts,
        machine: StateMachine,
        write: WriteDecision,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        say: Callable[[str], None],
    ) -> None:
        self._machine = machine
        self._clock = parts.clock
        self._settings = parts.duties or NO_DUTIES
        self._bugs = parts.controller_bugs
        self._write = write
        self._spawn = spawn
        self._say = say
        self._duties: Duties | None = None
        self._timer = DeadlineTimer(parts.clock, self._ring)

    @property
    def sessions(self) -> Sessions:
        """Return the sessions of the brokers.  Raises NotQueued if this node is not the active controller."""
        if self._duties is None:
            raise NotQueued(NOT_ACTIVE)
        return self._duties.sessions

    def begin(self) -> None:
        """Begin the duties of the active controller.  From now on, every unfenced broker has a full session."""
        self._duties = Duties(self._machine.speculative, self._clock.now(), self._settings, self._bugs)
        self._set_timer()

    def end(self) -> None:
        self._duties = None
        self._timer.cancel()

    def decided(self, *, records: bool) -> None:
        """Note that writes were decided, which may have moved deadlines.

        records: True if the writes have records
        """
        if self._duties is not None:
            if records:
                self._duties.appended(self._clock.now())
            self._set_timer()

    def _set_timer(self) -> None:
        if self._duties is not None:
            self._timer.set(self._duties.next_due_s(self._machine.speculative))

    def _ring(self) -> None:
        duties = self._duties
        if duties is None:
            return
        if duties.next_due_s(self._machine.speculative) > self._clock.now():
            self._set_timer()
            return
        self._spawn(self._perform(duties), "duties")

    async def _perform(self, duties: Duties) -> None:
        try:
            await self._write(lambda image: (duties.perform(image, self._clock.now()), None))
        except (NotQueued, LostLeadership):
            return  # another controller has taken over
        except TooLarge as problem:
            self._say(f"a duty of the controller failed: {problem}")
            self._set_timer()
