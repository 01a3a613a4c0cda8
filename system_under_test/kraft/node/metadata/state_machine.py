"""Committed and speculative metadata, and who waits for which offset.

A controller decides on the *speculative* image: all that was appended here, committed or not.  Its answers are held
back until the offsets they rest on are committed and replayed into the *committed* image, which alone is ever read.
A node that ceases to lead throws the speculative image away, for a successor may overwrite what it shows.

    write   decide on speculative -> records -> replayed there -> pending -> appended (offsets known) -> committed

Here a write is *queued* from the moment its records are handed to the consensus core.  Before it, losing leadership
fails it with NotQueued: nothing was appended, and nothing will be.  After it, losing leadership fails the write with
LostLeadership: its outcome is unknown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from system_under_test.kraft.controller.features import why_not_served
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.raft.decisions import drops_what_it_decided, is_answered
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.records.metadata import EndTransactionRecord, FeatureLevelRecord, Record, UnknownRecord
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued, TooLarge

T = TypeVar("T")

WRITE_MAX_RECORDS = 10_000
WRITE_MAX_BYTES = 4 << 20
"""A batch is never split, and it must fit into a frame with room to spare: else no follower could ever fetch it."""

_DECIDE_WHO_SERVES = frozenset({FeatureLevelRecord, EndTransactionRecord})
"""Behind a record of these types an image may be of a level that is not served, or of one that is served again."""

NOT_ACTIVE = "not the active controller"
LOST_BEFORE_APPEND = "ceased to be the active controller before appending"


@dataclass(slots=True)
class Write:
    """A write on its way.

    records: none if it only waits for what was pending before it.  end_offset: -1 until it is queued.
    done: called once, with what went wrong.
    """

    records: list[bytes]
    done: Callable[[Exception | None], None]
    end_offset: int = -1


class StateMachine:
    """applied_offset: everything below it has been replayed into the committed image.

    not_served: why no request may be answered from the committed image; None if it may.  bugs: planted ones.
    """

    def __init__(self, start_offset: int, bugs: Collection[str] = ()) -> None:
        self._bugs = bugs
        self.applied_offset = start_offset
        self.applied_bytes = 0  # of all batches since the process started
        self.not_served: str | None = None
        self.committed = Image(bugs)
        self._speculative: Image | None = None
        self._decided: dict[bytes, Record | UnknownRecord] = {}  # records of this controller, until they are applied
        self._pending: list[Write] = []  # decided, not handed to the core yet
        self._queued: deque[Write] = deque()  # end offsets ascending

    @property
    def active(self) -> bool:
        return self._speculative is not None

    @property
    def speculative_hash(self) -> int:
        """The hash of the state on which an active controller decides."""
        return self.speculative.state_hash

    @property
    def speculative(self) -> Image:
        """The state on which an active controller decides."""
        assert self._speculative is not None, "only an active controller decides"
        return self._speculative

    @property
    def pending_records(self) -> int:
        """How many records are decided and not handed to the core yet."""
        return sum(len(write.records) for write in self._pending)

    def apply(self, batch: Batch) -> list[UnknownRecord]:
        """Replay a committed batch, the one at `applied_offset`.  Returns the records of it that were only kept."""
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
        """A controller has decoded its own records when it decided; the same bytes are the same record."""
        record = self._decided.pop(value, None)
        if record is None:
            return self.committed.replay(value)
        self.committed.apply(record)
        return record

    def load(self, end_offset: int, values: Iterable[bytes], *, onto: Image | None = None) -> None:
        """Replace the committed state by that of a snapshot.  A leader never does.

        onto: see `raft.decisions.keeps_state_under_snapshot`.  Raises CorruptRecord."""
        assert self._speculative is None, "a leader never loads a snapshot"
        image = Image(self._bugs) if onto is None else onto
        for value in values:
            image.replay(value)
        self.committed, self.applied_offset = image, end_offset
        self.not_served = why_not_served(image)

    def settle(self) -> None:
        """Complete the writes that are committed and applied by now."""
        while self._queued and is_answered(self._queued[0].end_offset, self.applied_offset, self._bugs):
            self._queued.popleft().done(None)

    def activate(self) -> None:
        """This node leads, its LeaderChange is applied, and nothing else has been appended behind it."""
        self._speculative = self.committed.copy()

    def renounce(self) -> None:
        """This node ceased to lead."""
        if self._speculative is not None and not drops_what_it_decided(self._bugs):
            self.committed = self._speculative
        self._speculative = None
        self._decided.clear()
        pending, queued = self._pending, self._queued
        self._pending, self._queued = [], deque()
        for write in pending:
            write.done(NotQueued(LOST_BEFORE_APPEND))
        for write in queued:
            # A write without records changes nothing under any leader.
            write.done(LostLeadership() if write.records else NotQueued(LOST_BEFORE_APPEND))

    def decide(
        self, decide: Callable[[Image], tuple[list[bytes], T]], settled: Callable[[T, Exception | None], None]
    ) -> Write:
        """Run a decision on the speculative image, replay its records there, and keep it pending.

        settled: called with the result of the decision when the write is done, and with what went wrong.
        Raises NotQueued where this node is not active, TooLarge, and what `decide` raises; nothing is pending then.
        """
        if self._speculative is None:
            raise NotQueued(NOT_ACTIVE)
        if self.not_served is not None:
            raise NotQueued(self.not_served)
        records, result = decide(self._speculative)
        size_bytes = sum(map(len, records))
        if len(records) > WRITE_MAX_RECORDS or size_bytes > WRITE_MAX_BYTES:
            raise TooLarge(
                f"The request makes {len(records)} records of {size_bytes} bytes; "
                f"{WRITE_MAX_RECORDS} records and {WRITE_MAX_BYTES} bytes are the most for one atomic batch."
            )
        for record in records:
            self._decided[record] = self._speculative.replay(record)
        write = Write(records, partial(settled, result))
        self._pending.append(write)
        return write

    def take_pending(self) -> list[Write]:
        taken, self._pending = self._pending, []
        return taken

    def queued(self, writes: list[Write], first_offset: int, end_offset: int) -> None:
        """The core has accepted these writes, in this order, as the offsets from first_offset on."""
        offset = first_offset
        for write in writes:
            offset += len(write.records)
            write.end_offset = offset
            self._queued.append(write)
        assert offset == end_offset, (offset, end_offset)
