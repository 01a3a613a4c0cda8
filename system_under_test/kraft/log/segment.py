"""A segment (a `.log` file of record batches), and the table of all batches, with the bytes of the newest ones.

Kafka keeps two sparse indexes beside each segment, and rebuilds missing indexes.  This node finds a batch by the table
in memory (`log.py`), so it writes no index.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import BatchHeader
from system_under_test.kraft.ports import Disk

SEGMENT_MAX_BYTES = 1 << 30
SEGMENT_MAX_AGE_MS = 7 * 24 * 3600 * 1000


def file_name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


class Segment:
    """One file with the batches from `base_offset` on.

    size_bytes: size of all batches, including those not written to the file yet
    name: path of the file within the data directory
    """

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self.first_timestamp_ms: int | None = None
        self._disk = disk
        self._folder = folder
        self.name = f"{folder}/{file_name(base_offset)}"
        self._log = disk.open(self.name)
        self._unwritten: list[bytes] = []
        self._written_bytes = 0
        self._syncing = self._closed = False

    @classmethod
    def create(cls, disk: Disk, folder: str, base_offset: int) -> Segment:
        """Create an empty segment.  Its file name is durable on return."""
        segment = cls(disk, folder, base_offset)
        disk.fsync_dir(folder)
        return segment

    def scan(self, *, checked: bool = True) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of every batch from the first on; CRCs are verified.

        Raises CorruptBatch (IncompleteBatch at the end of the file) at the first bytes that are no whole batch.  Then
        `size_bytes` is the position of these bytes, and `cut` removes them.
        """
        data = self._log.read_at(0, self._log.size())
        view = memoryview(data)
        self.size_bytes = self._written_bytes = 0
        self.first_timestamp_ms = None
        while self.size_bytes < len(data):
            position = self.size_bytes
            header = codec.read_header(view, position)
            if checked:
                codec.check_crc(view[position : position + header.size_bytes])
            yield position, header
            self._take(position, header)
            self._written_bytes = self.size_bytes

    def cut(self, size_bytes: int) -> None:
        """Remove all batches from the position `size_bytes` on; durable on return."""
        if size_bytes <= self._written_bytes:
            self._unwritten.clear()
            self._written_bytes = size_bytes
            self._log.truncate(size_bytes)
            self._log.fsync()
        else:
            self._unwritten = [b"".join(self._unwritten)[: size_bytes - self._written_bytes]]
        self.size_bytes = size_bytes
        if size_bytes == 0:
            self.first_timestamp_ms = None

    def has_room(self, size_bytes: int, timestamp_ms: int, max_size_bytes: int) -> bool:
        """Return whether batches of this size can be appended to this segment.  A full or old segment accepts no more
        batches.
        """
        if not self.size_bytes:
            return True
        age_ms = timestamp_ms - (self.first_timestamp_ms or timestamp_ms)
        return self.size_bytes + size_bytes <= max_size_bytes and age_ms <= SEGMENT_MAX_AGE_MS

    def append(self, raws: list[bytes], headers: list[BatchHeader]) -> None:
        """Add batches after the last one: readable at once, written by the next flush."""
        position = self.size_bytes
        for raw, header in zip(raws, headers, strict=True):
            self._take(position, header)
            position += len(raw)
        self._unwritten += raws

    def read(self, position: int, size_bytes: int) -> bytes:
        in_file = max(0, min(size_bytes, self._written_bytes - position))
        data = self._log.read_at(position, in_file) if in_file else b""
        if in_file < size_bytes and self._unwritten:
            start = max(0, position - self._written_bytes)
            data += b"".join(self._unwritten)[start : start + size_bytes - in_file]
        return data

    def next_whole_batch(self, position: int) -> int | None:
        """Return the position of the first readable batch, at `position` or after it; None if there is none."""
        return codec.next_whole(self._log.read_at(0, self._log.size()), position)

    def tail_size_bytes(self) -> int:
        """Return the number of bytes after the last whole batch."""
        return self._log.size() - self.size_bytes

    def flush(self) -> None:
        """Write the appended batches, and make them durable.

        A write begins only after the previous write is durable.  So a power loss that reorders writes leaves no batch
        after a torn one.
        """
        if self._syncing and self._unwritten:
            self._log.fsync()
        self._write()
        self._log.fsync()

    def begin_flush(self, done: Callable[[Exception | None], None]) -> None:
        """Flush, but run the fsync concurrently with the loop, one at a time.  The next flush writes the batches that
        are appended meanwhile.

        done: called on the loop after the fsync, with its error or None
        """
        self._write()
        self._syncing = True
        self._disk.beside(self._log.fsync, partial(self._synced, done))

    def _synced(self, done: Callable[[Exception | None], None], problem: Exception | None) -> None:
        self._syncing = False
        if self._closed:
            self._log.close()
        done(problem)

    def _write(self) -> None:
        if self._unwritten:
            self._log.write_at(self._written_bytes, b"".join(self._unwritten))
            self._written_bytes = self.size_bytes
            self._unwritten.clear()

    def close(self) -> None:
        """Close the file, after the fsync in progress if there is one."""
        self._closed = True
        if not self._syncing:
            self._log.close()

    def remove(self) -> None:
        """Delete the segment, durable on return."""
        self.close()
        self._disk.remove(self.name)
        self._disk.fsync_dir(self._folder)

    def _take(self, position: int, header: BatchHeader) -> None:
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = header.max_timestamp_ms
        self.size_bytes = position + header.size_bytes


class BatchTable:
    """One row per batch, stored in columns: 41 bytes a batch.

    newest: row number -> bytes, for the newest batches, oldest first
    """

    def __init__(self, newest_max_bytes: int) -> None:
        self.bases, self.ends, self.hashes = array("q"), array("q"), array("q")
        self.epochs, self.segments, self.positions, self.sizes = array("i"), array("i"), array("i"), array("i")
        self.controls = array("b")
        self.newest: dict[int, bytes] = {}
        self._newest_bytes = 0
        self._newest_max_bytes = newest_max_bytes

    def __len__(self) -> int:
        return len(self.ends)

    def add(self, header: BatchHeader, segment: int, position: int, prefix: int, raw: bytes | None) -> None:
        """Add a row.

        raw: bytes of the batch if they should stay in memory, or None
        """
        if raw is not None:
            self.newest[len(self)] = raw
            self._newest_bytes += len(raw)
            while self._newest_bytes > self._newest_max_bytes and len(self.newest) > 1:
                self._newest_bytes -= len(self.newest.pop(next(iter(self.newest))))
        self.bases.append(header.base_offset)
        self.ends.append(header.end_offset)
        self.hashes.append(prefix)
        self.epochs.append(header.epoch)
        self.segments.append(segment)
        self.positions.append(position)
        self.sizes.append(header.size_bytes)
        self.controls.append(header.control)

    def keep(self, count: int) -> None:
        for column in self._columns():
            del column[count:]
        self._keep_newest({number: raw for number, raw in self.newest.items() if number < count})

    def drop_first(self, count: int, segments: int) -> None:
        """Remove the first `count` batches, and renumber the segments, of which the first `segments` are removed."""
        for column in self._columns():
            del column[:count]
        self.segments = array("i", [number - segments for number in self.segments])
        self._keep_newest({number - count: raw for number, raw in self.newest.items() if number >= count})

    def epoch_starts(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) of every epoch, in ascending order."""
        found, number = [], 0
        while number < len(self):
            found.append((self.epochs[number], self.bases[number]))
            number = bisect_right(self.epochs, self.epochs[number], number)
        return found

    def _keep_newest(self, kept: dict[int, bytes]) -> None:
        self.newest, self._newest_bytes = kept, sum(map(len, kept.values()))

    def _columns(self) -> tuple[array[int], ...]:
        numbers = self.epochs, self.segments, self.positions, self.sizes, self.controls
        return self.bases, self.ends, self.hashes, *numbers
