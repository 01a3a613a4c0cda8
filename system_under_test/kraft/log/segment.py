"""One segment: a `.log` file of record batches, and two sparse indexes that can be made anew from it.

Each index has an entry for at least every 4096 bytes of log, as Kafka writes them.  An entry of `.index` is (int32
offset relative to the segment's base, int32 position).  An entry of `.timeindex` is (int64 largest timestamp so far,
int32 relative offset that has it).  The `.log` alone is the truth: indexes are never fsynced, and a start writes those
again that differ from it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import BatchHeader
from system_under_test.kraft.ports import Disk

SEGMENT_MAX_BYTES = 1 << 30
SEGMENT_MAX_AGE_MS = 7 * 24 * 3600 * 1000
INDEX_INTERVAL_BYTES = 4096
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


def file_name(base_offset: int, suffix: str = ".log") -> str:
    return f"{base_offset:020d}{suffix}"


class Segment:
    """Batches from `base_offset` on.  Made by `open`, or, empty, by `create`.

    size_bytes: of all batches, with those that were appended and are not written to the file yet."""

    def __init__(self, disk: Disk, folder: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self.first_timestamp_ms: int | None = None
        self._disk = disk
        self._folder = folder
        self._log = disk.open(self._path(".log"))
        self._unwritten: list[bytes] = []
        self._written_bytes = 0
        self._syncing = self._closed = False
        self._index = _Index(disk, self._path(".index"), _INDEX_ENTRY)
        self._times = _Index(disk, self._path(".timeindex"), _TIME_ENTRY)
        self._unindexed_bytes = 0
        self._newest = (-1, 0)  # largest timestamp, and the offset that has it

    @classmethod
    def create(cls, disk: Disk, folder: str, base_offset: int) -> Segment:
        """An empty segment whose name is durable on return."""
        segment = cls(disk, folder, base_offset)
        segment.write_indexes()
        disk.fsync_dir(folder)
        return segment

    def scan(self, *, checked: bool = True) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch from the first on; CRCs are checked and the indexes made anew.

        Raises CorruptBatch (IncompleteBatch at the end of the file) at the first bytes that are no whole batch;
        `size_bytes` is then where they begin, and `cut` removes them.
        """
        data = self._log.read_at(0, self._log.size())
        view = memoryview(data)
        self._forget()
        while self.size_bytes < len(data):
            position = self.size_bytes
            header = codec.read_header(view, position)
            if checked:
                codec.check_crc(view[position : position + header.size_bytes])
            yield position, header
            self._take(position, header)
            self._written_bytes = self.size_bytes

    def write_indexes(self) -> None:
        """Bring both index files to what the last `scan` found."""
        self._index.write()
        self._times.write()

    def cut(self, size_bytes: int) -> None:
        """Remove everything from a position on, where a batch begins; durable on return.

        Only the batches behind the last index entry that stays are read again.
        """
        if size_bytes <= self._written_bytes:
            self._unwritten.clear()
            self._written_bytes = size_bytes
            self._log.truncate(size_bytes)
            self._log.fsync()
        else:
            unwritten = b"".join(self._unwritten)[: size_bytes - self._written_bytes]
            self._unwritten = [unwritten]
        start = self._index.keep_before(size_bytes)
        self._times.keep(len(self._index))
        newest = self._times.last()
        self.size_bytes, self._unindexed_bytes = start, 0
        self._newest = (-1, 0) if newest is None else (newest[0], newest[1] + self.base_offset)
        if start == 0:
            self.first_timestamp_ms = None
        kept = self.read(start, size_bytes - start)
        while self.size_bytes < size_bytes:
            self._take(self.size_bytes, codec.read_header(kept, self.size_bytes - start))
        self.write_indexes()

    def has_room(self, size_bytes: int, timestamp_ms: int, max_size_bytes: int) -> bool:
        """Return whether batches of so many bytes belong into this segment.  One that is full or old takes no more."""
        if not self.size_bytes:
            return True
        age_ms = timestamp_ms - (self.first_timestamp_ms or timestamp_ms)
        return self.size_bytes + size_bytes <= max_size_bytes and age_ms <= SEGMENT_MAX_AGE_MS

    def append(self, raws: list[bytes], headers: list[BatchHeader]) -> None:
        """Take batches behind the last one: readable at once, written by the next flush."""
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
        """Return where the first readable batch begins, at `position` or behind it; None if there is none."""
        return codec.next_whole(self._log.read_at(0, self._log.size()), position)

    @property
    def name(self) -> str:
        """The file of the batches, within the data directory."""
        return self._path(".log")

    def tail_size_bytes(self) -> int:
        """Bytes behind the last whole batch."""
        return self._log.size() - self.size_bytes

    def flush(self) -> None:
        """Write what was appended, and make it durable.

        Of two writes the second begins when the first is durable, so that a power loss that reorders writes leaves no
        batch behind a torn one."""
        if self._syncing and self._unwritten:
            self._log.fsync()
        self._write()
        self._log.fsync()

    def begin_flush(self, done: Callable[[Exception | None], None]) -> None:
        """Act like `flush`, but the fsync goes on beside the loop, and `done` is called on the loop after it.  One at a
        time; what is appended meanwhile is not written before the next flush."""
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
            self._index.write()
            self._times.write()

    def close(self) -> None:
        """A file whose fsync goes on is closed after it."""
        self._closed = True
        if not self._syncing:
            self._log.close()

    def remove(self) -> None:
        """Delete the segment, durable on return."""
        self.close()
        for suffix in (".log", ".index", ".timeindex"):
            if suffix == ".log" or self._disk.exists(self._path(suffix)):  # indexes are made with the first batch
                self._disk.remove(self._path(suffix))
        self._disk.fsync_dir(self._folder)

    def _path(self, suffix: str) -> str:
        return f"{self._folder}/{file_name(self.base_offset, suffix)}"

    def _forget(self) -> None:
        self.size_bytes = self._written_bytes = self._unindexed_bytes = 0
        self.first_timestamp_ms = None
        self._newest = (-1, 0)
        self._index.clear()
        self._times.clear()

    def _take(self, position: int, header: BatchHeader) -> None:
        last_offset = header.end_offset - 1
        if header.max_timestamp_ms > self._newest[0]:
            self._newest = (header.max_timestamp_ms, last_offset)
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = header.max_timestamp_ms
        if self._unindexed_bytes > INDEX_INTERVAL_BYTES:
            self._index.add(last_offset - self.base_offset, position)
            self._times.add(self._newest[0], self._newest[1] - self.base_offset)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size_bytes
        self.size_bytes = position + header.size_bytes


class _Index:
    """The content of an index file, and what of it is written already.  The file is open only while it is written."""

    def __init__(self, disk: Disk, path: str, entry: struct.Struct) -> None:
        self._disk = disk
        self._path = path
        self._entry = entry
        self._content = bytearray()
        self._written = -1  # unknown

    def __len__(self) -> int:
        return len(self._content) // self._entry.size

    def last(self) -> tuple[int, ...] | None:
        return self._entry.unpack(self._content[-self._entry.size :]) if self._content else None

    def keep(self, count: int) -> None:
        """Drop all entries but the first `count`."""
        del self._content[count * self._entry.size :]
        if self._written > len(self._content):
            with closing(self._disk.open(self._path)) as file:
                file.truncate(len(self._content))
            self._written = len(self._content)

    def keep_before(self, position: int) -> int:
        """Drop the entries (offset, position) from `position` on.  Returns that of the last one that stays, or 0."""
        entries = range(len(self))
        size = self._entry.size
        self.keep(bisect_left(entries, position, key=lambda i: self._entry.unpack_from(self._content, i * size)[1]))
        last = self.last()
        return 0 if last is None else last[1]

    def clear(self) -> None:
        self._content.clear()
        self._written = -1

    def add(self, *fields: int) -> None:
        self._content += self._entry.pack(*fields)

    def write(self) -> None:
        if self._written == len(self._content):
            return
        with closing(self._disk.open(self._path)) as file:
            if self._written >= 0:
                file.write_at(self._written, bytes(self._content[self._written :]))
            elif file.read_at(0, file.size()) != self._content:
                file.truncate(0)
                file.write_at(0, bytes(self._content))
        self._written = len(self._content)
