"""A disk that says what is durable, and loses the rest.

What was written but not flushed stands in a journal.  A killed process finds all of it again (the page cache lives on),
and it is still not durable; a power loss keeps a random prefix of the journal.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from random import Random

from harness.exploring.voter import BatchLog
from system_under_test.kraft.raft.messages import Batch, QuorumState


class Disk(BatchLog):
    """One voter's log and quorum-state; chain[i] identifies the prefix that ends with batches[i]."""

    batches: list[Batch]

    def __init__(self, batches_per_read: int = 1000) -> None:
        super().__init__([])
        self.quorum_state = QuorumState()
        self.ends: list[int] = []
        self.chain: list[int] = []
        self.batches_per_read = batches_per_read
        self._durable: list[Batch] = []
        self._journal: list[Batch | int] = []  # an appended batch, or the offset of a truncation
        self._flush_number = 0

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        return super().read(offset, max_size_bytes)[: self.batches_per_read]

    def append(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            assert batch.base_offset == self.end_offset, "a log has no holes"
            self._put(batch)
            self._journal.append(batch)

    def truncate(self, end_offset: int) -> None:
        self._cut(end_offset)
        self._journal.append(end_offset)

    def flush(self) -> None:
        self._durable = self.batches.copy()
        self._journal.clear()
        self._flush_number += 1

    def begin_flush(self) -> Callable[[], None]:
        """To be called when the fsync is done: what is in the log now is durable then."""
        batches, written, number = self.batches.copy(), len(self._journal), self._flush_number

        def end() -> None:
            if self._flush_number == number:  # otherwise a later flush has replaced it
                self._durable = batches
                del self._journal[:written]

        return end

    def lose_power(self, random: Random) -> None:
        """What stands in the log afterwards is durable."""
        kept = self._journal[: random.randint(0, len(self._journal))]
        self.batches, self.ends, self.chain = [], [], []
        for batch in self._durable:
            self._put(batch)
        for entry in kept:
            if isinstance(entry, int):
                self._cut(entry)
            else:
                self._put(entry)
        self.flush()

    # Looking

    @property
    def flushed_end(self) -> int:
        """Everything before it is durable, and the log's own."""
        cuts = [entry for entry in self._journal if isinstance(entry, int)]
        durable_end = self._durable[-1].end_offset if self._durable else 0
        return min([durable_end, self.end_offset, *cuts])

    def prefix(self, end_offset: int) -> int | None:
        """Identifies everything before end_offset; None if no batch ends there.  The empty prefix is 0."""
        if end_offset == 0:
            return 0
        index = bisect_right(self.ends, end_offset) - 1
        return self.chain[index] if index >= 0 and self.ends[index] == end_offset else None

    def _put(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.ends.append(batch.end_offset)
        before = self.chain[-1] if self.chain else 0
        self.chain.append(hash((before, batch.base_offset, batch.epoch, batch.count, batch.body)))

    def _cut(self, end_offset: int) -> None:
        keep = bisect_right(self.ends, end_offset)
        del self.batches[keep:], self.ends[keep:], self.chain[keep:]
