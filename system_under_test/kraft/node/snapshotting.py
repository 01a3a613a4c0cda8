"""Applies committed records, takes snapshots while the node serves requests, and deletes the log before the snapshots.

A snapshot is due when enough bytes were committed since the last snapshot, or after enough time if anything was
committed. The image is copied at once, which is cheap.  Its records are written one batch per turn of the node's loop.
Then the file gets its final name, and the snapshot is reported.  A metadata transaction in progress has no state to
store, so the snapshot waits for its end.

Committed records are applied one slice per turn of the loop.  A node may have many records to replay at its start, or
after it was cut off.  If it replayed them in one step, its loop would be blocked for so long that the quorum would
elect another leader.

A long replay reports only some of its intermediate states.  They are chosen by offset, so that all nodes report the
same states.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.log import snapshot_file
from system_under_test.kraft.log.log import Log
from system_under_test.kraft.log.snapshot_file import SnapshotWriter
from system_under_test.kraft.node.parts import NodeParts
from system_under_test.kraft.node.state_machine import StateMachine
from system_under_test.kraft.ports import Timer
from system_under_test.kraft.raft import decisions
from system_under_test.kraft.raft.messages import SnapshotId
from system_under_test.kraft.raft.voters import VoterSet
from system_under_test.kraft.records.metadata import encode

CLEAN_EVERY_S = 1.0
"""Seconds between two checks of the retention limits.  The limits are also checked after each snapshot."""


class Snapshotting:
    """Takes snapshots, and deletes the log before them.

    report: called with (end offset, hash of the written state)
    guarded: runs a step, and ends the node if the step raises
    high_watermark: returns the node's high watermark, or None
    voters_before: log offset -> voters that the log below it names last, or None
    """

    def __init__(
        self,
        parts: NodeParts,
        machine: StateMachine,
        *,
        report: Callable[[int, int], None],
        guarded: Callable[[Callable[[], None]], None],
        high_watermark: Callable[[], int | None],
        voters_before: Callable[[int], VoterSet | None],
    ) -> None:
        self._log = parts.log
        self._machine = machine
        self._clock = parts.clock
        self._limits = parts.snapshots
        self._bugs = parts.identity.bugs
        self._report = report
        self._guarded = guarded
        self._high_watermark = high_watermark
        self._voters_before = voters_before
        self._bytes_before = 0  # `applied_bytes` at the last snapshot
        self._began_at = self._clock.now()
        self._running: tuple[SnapshotId, SnapshotWriter, Iterator[bytes]] | None = None
        self._position = 0
        self._cleaned_at = self._clock.now()
        self._timer: Timer | None = None

    def applied(self) -> None:
        """Handle applied records: take a snapshot if one is due, and delete the beginning of the log if it has grown
        too large.
        """
        machine = self._machine
        if self._clock.now() >= self._cleaned_at + CLEAN_EVERY_S:
            self._clean()
        newest = self._log.snapshot
        if self._running is not None or machine.committed.in_transaction:
            return
        if (newest is not None and machine.applied_offset <= newest.end_offset) or machine.applied_offset == 0:
            return
        due_at = self._began_at + self._limits.max_snapshot_interval_ms / 1000
        new_bytes = machine.applied_bytes - self._bytes_before
        if new_bytes >= self._limits.max_record_bytes_between_snapshots or self._clock.now() >= due_at:
            self._begin()
        elif self._timer is None:
            self._timer = self._clock.call_at(due_at, self._look_again)

    def stop(self) -> None:
        """Stop writing, because the node has ended."""
        self._running = None
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Discard the unfinished snapshot, because the node loads another state."""
        if self._running is not None:
            snapshot, self._running = self._running[0], None
            self._log.snapshots.drop_part(snapshot)
        self._bytes_before, self._began_at = self._machine.applied_bytes, self._clock.now()

    def _look_again(self) -> None:
        self._timer = None
        self._guarded(self.applied)

    def _begin(self) -> None:
        machine = self._machine
        image, end = machine.committed, machine.applied_offset
        if machine.active and decisions.may_snapshot_uncommitted(self._bugs):
            image, end = machine.speculative, self._log.end_offset
        prefix, prefix_hash = self._log.prefix_at(end), self._log.prefix_hash_at(end)
        assert prefix is not None and prefix_hash is not None, "the applied records end at the end of a batch"
        snapshot = SnapshotId(decisions.snapshot_end(end, self._bugs), prefix.epoch)
        header = snapshot_file.SnapshotHeader(
            version=0, last_timestamp_ms=self._clock.wall_ms(), prefix_hash=prefix_hash
        )
        values, voters = _values(image.copy(), self._bugs), self._voters_before(end)
        writer = SnapshotWriter(snapshot, header, values, voters, self._limits.batch_max_bytes)
        self._bytes_before, self._began_at = machine.applied_bytes, self._clock.now()
        self._running, self._position = (snapshot, writer, iter(writer)), 0
        self._step()

    def _step(self) -> None:
        """Write one batch, or complete the snapshot if no batch is left.  The next step follows in a later turn of the
        loop.
        """
        if self._running is None:
            return
        snapshot, writer, batches = self._running
        raw = next(batches, None)
        if raw is not None:
            self._log.snapshots.write_part(snapshot, self._position, raw)
            if len(raw) >= self._limits.batch_max_bytes:
                self._log.snapshots.sync_part(snapshot)
            self._position += len(raw)
            self._clock.call_at(self._clock.now(), lambda: self._guarded(self._step))
            return
        self._log.snapshots.freeze(snapshot)
        self._running = None
        self._report(snapshot.end_offset, writer.content_hash)
        self._clean()
        self.applied()

    def _clean(self) -> None:
        limits, mark = self._limits, self._high_watermark() or 0
        oldest_ms = self._clock.wall_ms() - limits.retention_ms
        self._cleaned_at = self._clock.now()
        self._log.clean(limits.retention_bytes, oldest_ms, lambda all: decisions.next_log_start(all, mark, self._bugs))


def _values(image: Image, bugs: Collection[str]) -> Iterator[bytes]:
    for record in decisions.snapshot_entries(image.records(), bugs):
        yield encode(record)


SLICE_RECORDS = 500
"""Maximum number of committed records applied in one turn of the loop.  A larger batch is not split."""
SPARSE_RECORDS = 5_000
"""Number of records beyond which a replay reports only some states: one every REPORT_RECORDS, and the last."""
REPORT_RECORDS = 20_000
"""Number of records between two reports of a long replay.  A report hashes every changed entry, which costs more than
replaying the records.
"""


class Replay:
    """Applies committed records.

    report: called with (applied offset, state hash)
    say: called with a line for the node's operator
    end_offset: all records below it are committed
    """

    def __init__(
        self, log: Log, machine: StateMachine, report: Callable[[int, int], None], say: Callable[[str], None]
    ) -> None:
        self.end_offset = machine.applied_offset
        self.goes_on = False
        self._log = log
        self._machine = machine
        self._report = report
        self._say = say
        self._waiting: list[tuple[int, int]] = []  # (mark, token)

    def apply_slice(self) -> None:
        """Apply the next committed batches.  `goes_on` is True afterwards if more batches are left."""
        machine, target = self._machine, self.end_offset
        sparse = target - machine.applied_offset > SPARSE_RECORDS
        slice_end = machine.applied_offset + SLICE_RECORDS
        self.goes_on = False
        for batch in self._log.batches(machine.applied_offset, target):
            if machine.applied_offset >= slice_end:
                self.goes_on = True
                break
            before = machine.applied_offset
            for record in machine.apply(batch):
                self._say(
                    f"kept a record of unknown type {record.type}, version {record.version}, at offset {before} or "
                    "shortly after it: a later version of the software wrote it"
                )
            now = machine.applied_offset
            if not sparse or now == target or now // REPORT_RECORDS > before // REPORT_RECORDS:
                self._report(now, machine.committed.state_hash)

    def wait_for(self, mark: int, token: int) -> None:
        """Queue a proved read until everything below `mark` is applied."""
        self._waiting.append((mark, token))

    def take_ready(self) -> list[int]:
        """Remove and return the tokens of the reads whose records are all applied by now."""
        ready = [token for mark, token in self._waiting if mark <= self._machine.applied_offset]
        self._waiting = [(mark, token) for mark, token in self._waiting if mark > self._machine.applied_offset]
        return ready
