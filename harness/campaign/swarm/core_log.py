"""The log of a consensus core without a disk below it, with what a power loss takes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from random import Random

from simulation.machine import Machine
from system_under_test.kraft.raft.messages import (
    BEGINNING,
    Batch,
    EpochEnd,
    QuorumState,
    SnapshotId,
)
from system_under_test.kraft.raft.voters import VoterHistory, VoterSet


class CoreLog:
    """The log of a core alone, with what a power loss takes.  A `LogView`; the machine's disk decides what fails.

    It is never cut, and has no snapshots."""

    start = BEGINNING
    snapshot: SnapshotId | None = None

    def __init__(self, machine: Machine) -> None:
        self.state = QuorumState()
        self.batches: list[Batch] = []
        self.ends: list[int] = []
        self.chain: list[int] = []
        self.flushed = 0
        self._machine = machine
        self.fsynced = 0
        self._flushing = 0  # what the flush that goes on makes durable

    @property
    def end_offset(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        at = bisect_right(self.batches, epoch, key=lambda batch: batch.epoch) - 1
        return EpochEnd(self.batches[at].epoch, self.ends[at]) if at >= 0 else EpochEnd(0, 0)

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        first = bisect_right(self.ends, offset)
        return self.batches[first : first + 100]

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_size_bytes: int) -> tuple[bytes, int] | None:
        return None

    def prefix(self, offset: int) -> int | None:
        if offset == 0:
            return 0
        at = bisect_left(self.ends, offset)
        return self.chain[at] if at < len(self.ends) and self.ends[at] == offset else None

    def append(self, batches: Sequence[Batch]) -> None:
        self._changes("write")
        for batch in batches:
            self.batches.append(batch)
            self.ends.append(batch.end_offset)
            before = self.chain[-1] if self.chain else 1
            self.chain.append(_mixed(before, batch))

    def flush(self, really: bool = True) -> None:
        disk = self._machine.disk
        disk.fail_if("fsync", "log")
        disk.before_change()
        self.flushed = self.end_offset
        if really:
            self.fsynced = self.end_offset

    def begin_flush(self, done: Callable[[int, Exception | None], None], really: bool = True) -> None:
        self._flushing = self.end_offset
        self._machine.disk.beside(partial(self._end_flush, really), partial(done, self.end_offset))

    def _end_flush(self, really: bool) -> None:
        disk = self._machine.disk
        disk.fail_if("fsync", "log")
        disk.before_change()
        self.flushed = max(self.flushed, self._flushing)
        if really:
            self.fsynced = max(self.fsynced, self._flushing)

    def truncate(self, end_offset: int) -> None:
        """Durable on return, as that of a node's log."""
        self._changes("truncate")
        self._cut(end_offset)

    def store(self, state: QuorumState) -> None:
        self._changes("write")
        self.state = state

    def lose(self, kind: str, random: Random) -> None:
        """A power loss: of what was not fsynced nothing is kept, or a prefix."""
        kept = {"lose": self.fsynced, "keep": self.end_offset}.get(kind)
        ends = [self.fsynced, *(end for end in self.ends if end > self.fsynced)]
        self._cut(random.choice(ends) if kept is None else kept)
        self.flushed = self.fsynced = self.end_offset

    def _changes(self, verb: str) -> None:
        disk = self._machine.disk
        disk.fail_if(verb, "log")
        disk.before_change()

    def _cut(self, end_offset: int) -> None:
        keep = bisect_right(self.ends, end_offset)
        del self.batches[keep:], self.ends[keep:], self.chain[keep:]
        self.flushed, self.fsynced = min(self.flushed, self.end_offset), min(self.fsynced, self.end_offset)
        self._flushing = min(self._flushing, self.end_offset)


class VotersInCoreLog:
    """`raft.voters.VoterRecords` of such a log.  configured: in force as long as the log names none."""

    def __init__(self, log: CoreLog, configured: VoterSet) -> None:
        self._log = log
        self._configured = configured

    def load(self) -> VoterHistory:
        history = VoterHistory(self._configured)
        for batch in self._log.batches:
            if (named := self.read(batch)) is not None:
                history.append(batch.base_offset, named)
        return history

    def read(self, batch: Batch) -> VoterSet | None:
        return batch.body if isinstance(batch.body, VoterSet) else None


def _mixed(before: int, batch: Batch) -> int:
    """A running hash that is the same in every process."""
    body = batch.body if isinstance(batch.body, tuple) else ("leader",)
    if isinstance(batch.body, VoterSet):
        body = ("voters", *((entry.key.id, entry.key.directory, entry.endpoints) for entry in batch.body))
    text = f"{before} {batch.base_offset} {batch.epoch} {batch.count} {body}"
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")
