"""The log: a sequence of record batches.  Batches are appended at the end, the tail can be truncated, and the part
before a snapshot can be deleted.

The consensus core reads the log as a `LogView`, and changes it by effects.  Three offsets describe its state:

    start_offset  <=  flushed_offset     <=  end_offset
    first offset      durable below it:      end of the appended batches: readable at once,
                      a power loss leaves    followers may fetch them, a crash may lose
                      these batches          them

Flushing.  Appended batches stay in memory until a flush writes them, all in one write, and fsyncs them.  `begin_flush`
runs the fsync concurrently with the loop; batches appended meanwhile wait for the next flush and share it.

Recovery.  At start the node reads the whole log once, and verifies headers, CRCs, contiguous base offsets, and epochs
that never decrease.  Bytes that violate a rule are a torn tail only if all of this holds: they are in the *last*
segment, no readable batch follows them, and they are not below the recovery point.  A torn tail is an append that a
power loss interrupted; it is truncated.  Any other violation is corruption of durable data.  Then the node must not
start (`CorruptLog`), because it would forget entries that it has acknowledged.  A first segment that begins above 0 is
corruption, too, unless a snapshot covers the missing part.  After recovery the log is fsynced, because data that a
killed process left in the page cache is not durable yet.

Start of the log.  As in Kafka, no file records it.  If the first segment begins at 0, the log starts at 0.  Otherwise
it starts at the end of the first snapshot that does not end before the first segment, and earlier batches are ignored.
`clean` deletes the log before a snapshot: it raises the start, then deletes the segments that lie wholly before the
start, oldest first, and then the older snapshots.  The newest snapshot always stays.  So after a crash, the log starts
at the end of one of the remaining snapshots.

A snapshot that a follower fetched replaces the follower's log: the segments are deleted, newest first, and an empty log
starts at the end of the snapshot.  A crash meanwhile leaves a shorter log that does not contain the end of its newest
snapshot.  At its next start, the node replaces this log by an empty one.  Entries of such a log beyond the snapshot
were never committed.

At most one write at a time is not yet fsynced.  So a power loss that reorders writes leaves no batch after a torn one.

Reading.  Batches that are read from the disk are verified again (`DamagedLog`).  So a leader with a corrupt disk stops
before it sends corrupt batches to its followers.

Every truncation is made durable before it returns.  Otherwise a later append could survive a power loss that undoes the
truncation, and the log would join batches of two histories.

The epoch cache (`leader-epoch-checkpoint`) is derived from the batches and is rebuilt at start.  `BatchTable` keeps one
row for every batch in memory, so that a read finds the position of a batch by bisection.  The newest batches also stay
in memory as bytes, so that replication does not read the disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.batch import BatchHeader, CorruptBatch
from system_under_test.kraft.log.segment import SEGMENT_MAX_BYTES, BatchTable, Segment
from system_under_test.kraft.log.small_files import RecoveryPoint, load_epochs, store_epochs
from system_under_test.kraft.log.snapshot_file import PART, Content, CorruptSnapshot, Snapshots, file_name
from system_under_test.kraft.ports import Disk
from system_under_test.kraft.raft.messages import BEGINNING, Batch, EpochEnd, NewStart, SnapshotId

FOLDER = "__cluster_metadata-0"
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"  # Uuid(0, 1)

CACHE_MAX_BYTES = 8 << 20


class CorruptLog(ValueError):
    """Raised if durable data is corrupt; the message names the position.  The node must not start."""


class DamagedLog(ValueError):
    """Raised if a batch on the disk differs from the batch that was written; the message names the position.  The node
    must stop.
    """


class LogRefused(ValueError):
    """Raised for an append that is not contiguous: its base offset is not the log's end, or its epoch is lower."""


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """Result of the recovery at start.

    torn_bytes: bytes truncated from the end
    torn_because: the violated rule
    """

    batches: int
    torn_bytes: int
    torn_because: str = ""


class Log:
    """The log of one node (`open_log`).

    start: see `LogView`

    Every change raises OSError if the disk does; the node must then stop.
    """

    def __init__(
        self, disk: Disk, folder: str, segment_max_bytes: int, cache_max_bytes: int, checks_batches: bool
    ) -> None:
        self.recovery = LogRecovery(0, 0)
        self.snapshots = Snapshots(disk, folder)
        self.start = BEGINNING
        self._start_hash = codec.EMPTY
        self._cut_to = 0
        self._disk = disk
        self._folder = folder
        self._segment_max_bytes = segment_max_bytes
        self._segments: list[Segment] = []
        self._batches = BatchTable(cache_max_bytes)
        self._flushed = 0
        self._flushing: int | None = None  # end offset that the flush in progress makes durable
        self._checks_batches = checks_batches
        self._recovery_point = RecoveryPoint(disk, folder)

    @property
    def start_offset(self) -> int:
        return self.start.end_offset

    @property
    def snapshot(self) -> SnapshotId | None:
        """See `LogView`."""
        return self.snapshots.newest

    @property
    def end_offset(self) -> int:
        return self._batches.ends[-1] if self._batches.ends else self.start_offset

    @property
    def flushed_offset(self) -> int:
        """Return the offset below which all batches survive a power loss."""
        return self._flushed

    @property
    def last_epoch(self) -> int:
        return self._batches.epochs[-1] if self._batches.epochs else self.start.epoch

    @property
    def prefix_hash(self) -> int:
        """Return the prefix hash at `end_offset` (see `batch.py`)."""
        return self._batches.hashes[-1] if self._batches.hashes else self._start_hash

    def prefix_hash_at(self, offset: int) -> int | None:
        """Return the prefix hash at `offset`; None inside a batch, below the start or beyond the end."""
        if offset == self.start_offset:
            return self._start_hash
        found = self._batch_ending_at(offset)
        return None if found is None else self._batches.hashes[found]

    def prefix_at(self, offset: int) -> SnapshotId | None:
        """Return the id of a snapshot of everything below `offset`; None inside a batch, below the start or beyond the
        end.
        """
        if offset == self.start_offset:
            return self.start
        found = self._batch_ending_at(offset)
        return None if found is None else SnapshotId(offset, self._batches.epochs[found])

    @property
    def size_bytes(self) -> int:
        """Return the total size of all segments."""
        return sum(segment.size_bytes for segment in self._segments)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """See `LogView`."""
        found = bisect_right(self._batches.epochs, epoch) - 1
        if found < 0:
            return EpochEnd(self.start.epoch, self.start_offset)
        return EpochEnd(self._batches.epochs[found], self._batches.ends[found])

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        """See `LogView`.  Bodies are raw bytes.  Raises ValueError below the start or beyond the end."""
        if not self.start_offset <= offset <= self.end_offset:
            raise ValueError(f"offset {offset} is not within {self.start_offset}..{self.end_offset}")
        found: list[Batch] = []
        for batch in self.batches(offset):
            max_size_bytes -= len(batch.body)  # type: ignore[arg-type]
            if found and max_size_bytes < 0:
                break
            found.append(batch)
        return found

    def batches(self, offset: int, end_offset: int | None = None) -> Iterator[Batch]:
        """Yield batches from the one that contains `offset` on, up to the last batch that ends at or below
        `end_offset`.
        """
        number = bisect_right(self._batches.ends, offset)
        while number < len(self._batches):
            if end_offset is not None and self._batches.ends[number] > end_offset:
                return
            yield self._batch(number)
            number += 1

    def control_batches(self) -> Iterator[Batch]:
        """Return the control batches, in order."""
        return map(self._batch, compress(range(len(self._batches)), self._batches.controls))

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_size_bytes: int) -> tuple[bytes, int] | None:
        """See `LogView`."""
        return self.snapshots.read_at(snapshot, position, max_size_bytes)

    def append(self, batches: Sequence[Batch], timestamp_ms: int) -> None:
        """Append batches at the end: readable at once, durable after a flush.

        Raises LogRefused if the batches are not contiguous, and CorruptBatch if fetched bytes are corrupt.  Nothing is
        appended then.
        """
        raws = [codec.encode(batch, timestamp_ms, checked=self._checks_batches) for batch in batches]
        headers = [codec.read_header(raw) for raw in raws]
        end, epoch = self.end_offset, self.last_epoch
        for header in headers:
            if why := _why_apart(header, end, epoch):
                raise LogRefused(why)
            end, epoch = header.end_offset, header.epoch
        if not headers:
            return
        segment = self._segment_for(sum(map(len, raws)), timestamp_ms)
        position = segment.size_bytes
        segment.append(raws, headers)
        newest_epoch = self._batches.epochs[-1:]
        for raw, header in zip(raws, headers, strict=True):
            self._take(len(self._segments) - 1, position, header, raw)
            position += len(raw)
        if self._batches.epochs[-1:] != newest_epoch:
            self._store_epochs()

    def flush(self) -> None:
        """Make all appended batches durable."""
        if self._flushed < self.end_offset:
            self._segments[-1].flush()
            self._note_flushed(self.end_offset)

    def begin_flush(self, done: Callable[[int, Exception | None], None]) -> None:
        """Begin to make all appended batches durable, concurrently with the loop, one flush at a time.

        done: called on the loop afterwards, with the log end offset when the flush began, and the error or None

        The flush does not cover batches that are truncated meanwhile, or appended in their place: see `flushed_offset`.
        """
        if self._flushing is not None:
            raise RuntimeError("a flush is already in progress")
        self._flushing = self.end_offset
        self._segments[-1].begin_flush(partial(self._end_flush, self.end_offset, done))

    def _end_flush(
        self, end_offset: int, done: Callable[[int, Exception | None], None], problem: Exception | None
    ) -> None:
        durable, self._flushing = self._flushing, None
        if problem is None and durable is not None and durable > self._flushed:
            try:
                self._note_flushed(durable)
            except OSError as failed:  # this callback has no caller that could handle the error, so pass it to `done`
                problem = failed
        done(end_offset, problem)

    def _note_flushed(self, end_offset: int) -> None:
        self._flushed = end_offset
        self._recovery_point.raise_to(end_offset)

    def _note_cut(self) -> None:
        self._flushed = min(self._flushed, self.end_offset)
        if self._flushing is not None:
            self._flushing = min(self._flushing, self.end_offset)

    def truncate(self, end_offset: int) -> None:
        """Remove every batch that ends beyond `end_offset`, durable on return.

        Batches are removed as a whole, so the new end may lie below `end_offset`.
        """
        keep = bisect_right(self._batches.ends, end_offset)
        if keep == len(self._batches):
            return
        self._recovery_point.lower_to(self._batches.bases[keep])
        segment_number = self._batches.segments[keep]
        position = self._batches.positions[keep]
        self._batches.keep(keep)
        while len(self._segments) - 1 > segment_number:  # last segment first: a crash leaves no gap
            self._segments.pop().remove()
        self._segments[-1].cut(position)
        self._note_cut()
        self._store_epochs()

    def clean(
        self, retention_bytes: int, oldest_ms: int, next_start: Callable[[Sequence[SnapshotId]], NewStart | None]
    ) -> None:
        """Raise the start, one snapshot at a time, while the log and its snapshots are larger than `retention_bytes`,
        or while the oldest snapshot has no record younger than `oldest_ms`.

        next_start: ids of all snapshots -> next possible start of the log (`raft.decisions.next_log_start`)
        """
        while (start := next_start(self.snapshots.ids)) is not None and start.offset > self._cut_to:
            size_bytes = self.size_bytes + sum(map(self.snapshots.size_bytes, self.snapshots.ids))
            too_old = self.snapshots.header(self.snapshots.ids[0]).last_timestamp_ms < oldest_ms
            if size_bytes <= retention_bytes and not too_old:
                return
            self._begin_behind(start.behind, start.offset)

    def install(self, snapshot: SnapshotId) -> Content:
        """Give a completely fetched snapshot its final name, and begin an empty log after the snapshot.  A log that
        already contains the end of the snapshot is kept.  Durable on return.  Raises CorruptSnapshot before anything is
        changed.
        """
        content = self.snapshots.load(snapshot, PART)
        if self.prefix_at(snapshot.end_offset) == snapshot:
            self.flush()
            self.snapshots.freeze(snapshot)
            return content
        self._recovery_point.lower_to(0)
        self.snapshots.freeze(snapshot)
        self._begin_empty(snapshot)
        return content

    def _begin_behind(self, snapshot: SnapshotId, offset: int) -> None:
        """Raise the start, then delete everything before it: segments, oldest first, and older snapshots."""
        keep = bisect_right(self._batches.ends, offset)
        self._start_hash = self._batches.hashes[keep - 1] if keep else self._start_hash
        self.start, self._cut_to = SnapshotId(offset, snapshot.epoch), offset
        gone = bisect_right([segment.base_offset for segment in self._segments], offset) - 1
        self._batches.drop_first(keep, gone)
        self._store_epochs()
        for segment in self._segments[:gone]:
            segment.remove()
        del self._segments[:gone]
        for older in [each for each in self.snapshots.ids if each < snapshot]:
            self.snapshots.remove(older)

    def _begin_empty(self, snapshot: SnapshotId) -> None:
        """Delete the whole log, and begin an empty one after a snapshot."""
        self._recovery_point.lower_to(0)  # this log is being replaced, so a crash may lose any part of it
        self._batches.keep(0)
        while self._segments:  # last segment first: a crash leaves no gap
            self._segments.pop().remove()
        self._segments.append(Segment.create(self._disk, self._folder, snapshot.end_offset))
        self.start, self._start_hash = snapshot, self.snapshots.header(snapshot).prefix_hash
        self._store_epochs()
        self._note_cut()
        self._note_flushed(snapshot.end_offset)
        for older in [each for each in self.snapshots.ids if each != snapshot]:
            self.snapshots.remove(older)

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
        self._recovery_point.close()

    def _batch(self, number: int) -> Batch:
        """Return a batch, cached or read from the disk.  Raises DamagedLog."""
        table, cached = self._batches, self._batches.newest.get(number)
        base, epoch, count = table.bases[number], table.epochs[number], table.ends[number] - table.bases[number]
        if cached is not None:
            return Batch(base, epoch, count, cached)
        segment, position = self._segments[table.segments[number]], table.positions[number]
        batch = Batch(base, epoch, count, segment.read(position, table.sizes[number]))
        if self._checks_batches:
            try:
                codec.check(batch)
            except CorruptBatch as problem:
                raise DamagedLog(f"{segment.name}, byte {position}, offset {base}: {problem}") from None
        return batch

    def _segment_for(self, size_bytes: int, timestamp_ms: int) -> Segment:
        """Return the last segment, or a new one if the last segment is full or old.  A full segment is made durable
        first.
        """
        if self._segments[-1].has_room(size_bytes, timestamp_ms, self._segment_max_bytes):
            return self._segments[-1]
        self.flush()
        self._segments.append(Segment.create(self._disk, self._folder, self.end_offset))
        return self._segments[-1]

    def _take(self, segment_number: int, position: int, header: BatchHeader, raw: bytes | None = None) -> None:
        prefix = codec.extend(self.prefix_hash, header.base_offset, header.epoch, header.crc)
        self._batches.add(header, segment_number, position, prefix, raw)

    def _store_epochs(self) -> None:
        store_epochs(self._disk, self._folder, self._batches.epoch_starts())

    def _batch_ending_at(self, offset: int) -> int | None:
        found = bisect_left(self._batches.ends, offset)
        return found if found < len(self._batches) and self._batches.ends[found] == offset else None

    def _recover(self) -> None:
        bases = [int(n[:-4]) for n in self._disk.names(self._folder) if n.endswith(".log")]
        if not bases:
            bases = [(self.snapshots.newest or BEGINNING).end_offset]
            Segment.create(self._disk, self._folder, bases[0]).close()
        self._segments += [Segment(self._disk, self._folder, base) for base in bases]
        try:
            self.start = self._find_start(bases[0])
            self._start_hash = self.snapshots.header(self.start).prefix_hash if self.start_offset else 0
            holds_start = self._read_segments()
            newest = self.snapshots.newest
            if newest is not None and (not holds_start or self.prefix_at(newest.end_offset) != newest):
                self._check_recovery_point(newest.end_offset)
                self._begin_empty(newest)
        except CorruptSnapshot as problem:
            raise CorruptLog(str(problem)) from None
        self._check_snapshots()
        self._check_recovery_point(self.end_offset)
        self._segments[-1].flush()
        self._disk.fsync_dir(self._folder)
        self._flushed = self.end_offset
        self._recovery_point.raise_to(self._flushed)
        self.recovery = replace(self.recovery, batches=len(self._batches))
        if load_epochs(self._disk, self._folder) != self._batches.epoch_starts():
            self._store_epochs()

    def _check_recovery_point(self, end_offset: int) -> None:
        """Raise CorruptLog if the log ends below the recovery point."""
        if end_offset < self._recovery_point.offset:
            raise CorruptLog(
                f"{self._segments[-1].name} ends at offset {end_offset}, "
                f"but everything below offset {self._recovery_point.offset} was fsynced"
            )

    def _find_start(self, first_base: int) -> SnapshotId:
        """Return the snapshot after which the log begins.  Raises CorruptLog if the log begins above 0 without a
        snapshot of the missing part (KAFKA-14238).
        """
        if first_base == 0:
            return BEGINNING
        found = next((each for each in self.snapshots.ids if each.end_offset >= first_base), None)
        if found is None:
            raise CorruptLog(
                f"the log begins at offset {first_base}, and no snapshot ends there or later: "
                f"everything below offset {first_base} is lost"
            )
        return found

    def _read_segments(self) -> bool:
        """Read all batches, and enter those from the start on into the table.  Returns whether the log contains the end
        of the snapshot after which it begins.  Raises CorruptLog.
        """
        start = self.start
        end = self._segments[0].base_offset
        holds_start = end == start.end_offset
        epoch = start.epoch if holds_start else 0
        for number, segment in enumerate(self._segments):
            last = number == len(self._segments) - 1
            if segment.base_offset != end:
                raise CorruptLog(
                    f"segment {segment.base_offset} does not continue the log, which ends at {end} before it"
                )
            try:
                for position, header in segment.scan(checked=self._checks_batches):
                    if why := _why_apart(header, end, epoch):
                        raise CorruptBatch(why)
                    end, epoch = header.end_offset, header.epoch
                    if holds_start:
                        self._take(number, position, header)
                    holds_start = holds_start or start == (end, epoch)
            except CorruptBatch as problem:
                torn = segment.tail_size_bytes()
                self._check_torn(segment, end, problem, last)
                segment.cut(segment.size_bytes)
                self.recovery = LogRecovery(0, torn, str(problem))
        return holds_start

    def _check_snapshots(self) -> None:
        """Verify that the snapshots from the start on belong to this log.  Delete older snapshots, which a crash left
        behind.
        """
        for each in list(self.snapshots.ids):
            if each < self.start:
                self.snapshots.remove(each)
            elif self.prefix_at(each.end_offset) != each:
                raise CorruptLog(f"{file_name(each)} is no snapshot of this log, which ends at {self.end_offset}")

    def _check_torn(self, segment: Segment, end: int, problem: CorruptBatch, last: bool) -> None:
        """Raise CorruptLog unless the bytes after the last readable batch of this segment may be a torn append."""
        position = segment.size_bytes
        place = f"{segment.name}, byte {position}, offset {end}: {problem}"
        if not last:
            raise CorruptLog(f"{place}; other segments follow it") from None
        following = segment.next_whole_batch(position + 1)
        if following is not None:
            raise CorruptLog(f"{place}; a readable batch follows it at byte {following}") from None
        if end < self._recovery_point.offset:
            durable = f"everything below offset {self._recovery_point.offset} was fsynced"
            raise CorruptLog(f"{place}; {durable}") from None


def _why_apart(header: BatchHeader, end: int, epoch: int) -> str:
    """Return the reason why a batch cannot follow a log that ends here; "" if it can."""
    if header.base_offset == end and header.epoch >= epoch:
        return ""
    return f"a batch at {header.base_offset} of epoch {header.epoch} after a log that ends at {end} in epoch {epoch}"


def open_log(
    disk: Disk,
    folder: str = FOLDER,
    *,
    segment_max_bytes: int = SEGMENT_MAX_BYTES,
    cache_max_bytes: int = CACHE_MAX_BYTES,
    checks_batches: bool = True,
) -> Log:
    """Create the log in `folder`, or recover it.  Raises CorruptLog and OSError.

    checks_batches: False for a planted bug only; CRCs are then not verified
    """
    disk.make_dir(folder)
    if not disk.exists(f"{folder}/partition.metadata"):
        small_files.replace(disk, f"{folder}/partition.metadata", f"version: 0\ntopic_id: {TOPIC_ID}\n".encode())
    log = Log(disk, folder, segment_max_bytes, cache_max_bytes, checks_batches)
    log._recover()
    return log
