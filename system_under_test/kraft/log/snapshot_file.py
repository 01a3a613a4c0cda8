"""Snapshots of a log (KIP-630): their content and their files.

The content is a sequence of record batches, as in the log.  Their records result in the state at the snapshot's end.

    a control batch with the header    int16 version 0 | int64 time of the newest covered record | tags
    KRaftVersion and Voters            if the log names voters: two control batches; Kafka puts all into the first
    data batches                       the records that make up the state
    a control batch with the footer    int16 version 0 | tags

Offsets count from 0 within the file, and every batch has the epoch of the snapshot.  A file without its footer
is incomplete.  As in Kafka, a quorum of static voters (kraft.version 0) writes no voters into its snapshots.

Tag 10000 of the header is specific to this implementation, and other readers skip it: an int64, the prefix hash of the
log at the end of the snapshot (`batch.py`).  A node continues the prefix hash from it, because the log before the
snapshot is gone.

The files:

    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint         complete and durable
    <end offset, 20 digits>-<epoch, 10 digits>.checkpoint.part    being written or fetched; removed at the next start

A snapshot gets its final name only when its bytes are durable: fsync, rename, fsync of the folder.  If it were renamed
before its fsync, it could be empty after a power loss, while the log before it may already be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from itertools import takewhile
from operator import xor
from typing import Annotated, NamedTuple

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.batch import KRAFT_VERSION, VOTERS, BatchHeader, CorruptBatch
from system_under_test.kraft.ports import Disk, File
from system_under_test.kraft.raft.messages import Batch, SnapshotId
from system_under_test.kraft.raft.voters import KRaftVersion, VoterSet
from system_under_test.kraft.records.metadata import canonical
from system_under_test.kraft.records.struct import Int16, Int64, Malformed, Struct, StructCodec, Tag

HEADER, FOOTER = 3, 4
"""Types of control records."""

BATCH_MAX_BYTES = 1 << 18


class CorruptSnapshot(ValueError):
    """Raised for bytes that are no complete snapshot; the message names the file, the position and the reason."""


@dataclass(frozen=True, slots=True)
class SnapshotHeader(Struct):
    """The record that begins a snapshot.

    last_timestamp_ms: timestamp of the newest record that the snapshot covers
    """

    version: Int16
    last_timestamp_ms: Int64
    prefix_hash: Annotated[Int64, Tag(10_000)] = codec.EMPTY


@dataclass(frozen=True, slots=True)
class Footer(Struct):
    version: Int16


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a snapshot.

    values: the records of the state, in an order in which they can be replayed
    voters: voters in force at the end of the snapshot; None if the log before it named none
    """

    header: SnapshotHeader
    values: tuple[bytes, ...]
    voters: VoterSet | None = None

    @property
    def state_hash(self) -> int:
        """Return the hash of the state (see `SnapshotWriter`), in which every record has its canonical form."""
        return reduce(xor, (value_hash(canonical(value)) for value in self.values), 0)


_HEADER_CODEC, _FOOTER_CODEC = StructCodec(SnapshotHeader), StructCodec(Footer)


class SnapshotWriter:
    """The bytes of a snapshot, batch by batch.  Iterate over it only once.

    batch_max_bytes: a batch is full when its values reach this size
    content_hash: XOR of int64(BLAKE2b-8) over the values yielded so far.  After the last value, it equals the state
        hash of an image with these values.
    """

    def __init__(
        self,
        snapshot: SnapshotId,
        header: SnapshotHeader,
        values: Iterable[bytes],
        voters: VoterSet | None = None,
        batch_max_bytes: int = BATCH_MAX_BYTES,
    ) -> None:
        self.content_hash = 0
        self._batch_max_bytes = batch_max_bytes
        self._voters = voters
        self._epoch = snapshot.epoch
        self._header = header
        self._values = values

    def __iter__(self) -> Iterator[bytes]:
        time_ms, offset = self._header.last_timestamp_ms, 1
        yield codec.encode_control(0, self._epoch, HEADER, _HEADER_CODEC.encode(self._header), time_ms)
        for body in () if self._voters is None else (KRaftVersion(1), self._voters):
            yield codec.encode(Batch(offset, self._epoch, 1, body), time_ms)
            offset += 1
        waiting: list[bytes] = []
        size_bytes = 0
        for value in self._values:
            self.content_hash ^= value_hash(value)
            waiting.append(value)
            size_bytes += len(value)
            if size_bytes >= self._batch_max_bytes:
                yield codec.encode_values(offset, self._epoch, waiting, time_ms)
                offset += len(waiting)
                waiting, size_bytes = [], 0
        if waiting:
            yield codec.encode_values(offset, self._epoch, waiting, time_ms)
            offset += len(waiting)
        yield codec.encode_control(offset, self._epoch, FOOTER, _FOOTER_CODEC.encode(Footer(version=0)), time_ms)


def value_hash(value: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "big", signed=True)


class _Found(NamedTuple):
    """A batch of a snapshot.

    controls: (type, value) of the records of a control batch
    """

    position: int
    header: BatchHeader
    raw: bytes
    controls: list[tuple[int, bytes]]


def _batches(data: bytes) -> Iterator[_Found]:
    """Yield the batches.  Raises CorruptSnapshot if the next bytes are no whole batch, or if the first batch has no
    header.
    """
    position = 0
    while position < len(data) or not position:
        try:
            header = codec.read_header(data, position)
            raw = data[position : position + header.size_bytes]
            codec.check_crc(raw)
            controls = codec.controls(raw) if header.control else []
            if not position and (not controls or controls[0][0] != HEADER):
                raise CorruptBatch("the first record must be the header")
        except CorruptBatch as problem:
            where = f"byte {position}" if position else "it has no header"
            raise CorruptSnapshot(f"{where}: {problem}") from None
        yield _Found(position, header, raw, controls)
        position += header.size_bytes


def read(data: bytes, snapshot: SnapshotId) -> Content:
    """Return the content of a complete snapshot.  Raises CorruptSnapshot."""
    values: list[bytes] = []
    ended, offset = False, 0
    for position, batch, raw, controls in _batches(data):
        try:
            if (batch.base_offset, batch.epoch) != (offset, snapshot.epoch) or ended:
                raise CorruptBatch(
                    f"a batch at offset {batch.base_offset} of epoch {batch.epoch}, but {offset} is expected"
                )
            if not batch.control:
                values += codec.values(raw)
            for place, (kind, value) in enumerate(controls, offset):
                if place and kind == FOOTER and not ended:
                    _FOOTER_CODEC.read(value, 0, 0)
                    ended = True
                elif place and (ended or kind not in (KRAFT_VERSION, VOTERS)):
                    raise CorruptBatch(f"an unexpected control record of type {kind} at offset {place}")
        except (CorruptBatch, Malformed) as problem:
            raise CorruptSnapshot(f"byte {position}: {problem}") from None
        offset += batch.count
    if not ended:
        raise CorruptSnapshot(f"it ends after {len(data)} bytes without its footer")
    header, voters = read_beginning(data)
    return Content(header, tuple(values), voters)


BEGINNING_MAX_BYTES = 1 << 16
"""Number of bytes that suffice for `read_beginning`, with up to 500 voters."""


def read_beginning(data: bytes) -> tuple[SnapshotHeader, VoterSet | None]:
    """Return the header and the voters from the first bytes of a snapshot.  The voters are None if the snapshot names
    none.

    The bytes may end within a batch.  Raises CorruptSnapshot.
    """
    records: list[tuple[int, bytes]] = []
    try:
        for found in takewhile(lambda each: each.header.control, _batches(data)):
            records += found.controls
    except CorruptSnapshot:
        if not records:
            raise
    try:
        header: SnapshotHeader = _HEADER_CODEC.read(records[0][1], 0, 0)[0]
        voters = dict(records).get(VOTERS)
        return header, None if voters is None else codec.decode_voters(voters)
    except Malformed as problem:
        raise CorruptSnapshot(f"a control record at the beginning of the snapshot: {problem}") from None


PART = ".part"
_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


def file_name(snapshot: SnapshotId) -> str:
    return f"{snapshot.end_offset:020d}-{snapshot.epoch:010d}.checkpoint"


def snapshots_in(disk: Disk, folder: str) -> list[SnapshotId]:
    """Return the complete snapshots in a folder, oldest first.

    The snapshot at offset 0, which Kafka's formatter writes, covers no part of the log and is left out.  So it is
    neither loaded nor offered to followers.
    """
    found = [_NAME.fullmatch(name) for name in disk.names(folder)]
    return sorted(SnapshotId(int(match[1]), int(match[2])) for match in found if match and int(match[1]))


class Snapshots:
    """The snapshots of a log.  All methods may raise OSError.

    ids: the complete snapshots, oldest first
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._beginnings: dict[SnapshotId, tuple[SnapshotHeader, VoterSet | None]] = {}
        for name in disk.names(folder):
            if name.endswith(f".checkpoint{PART}"):
                disk.remove(f"{folder}/{name}")
        self.ids = snapshots_in(disk, folder)

    @property
    def newest(self) -> SnapshotId | None:
        return self.ids[-1] if self.ids else None

    def size_bytes(self, snapshot: SnapshotId) -> int:
        with self._open(snapshot) as file:
            return file.size()

    def read_at(self, snapshot: SnapshotId, position: int, size_bytes: int) -> tuple[bytes, int] | None:
        """Return (bytes from a position on, total size); None if there is no such snapshot."""
        if snapshot not in self.ids:
            return None
        with self._open(snapshot) as file:
            return file.read_at(position, size_bytes), file.size()

    def load(self, snapshot: SnapshotId, suffix: str = "") -> Content:
        """Return the content of a snapshot.  Raises CorruptSnapshot.

        suffix: PART to load an unfinished snapshot whose bytes are all written
        """
        try:
            with self._open(snapshot, suffix) as file:
                return read(file.read_at(0, file.size()), snapshot)
        except CorruptSnapshot as problem:
            raise CorruptSnapshot(f"{file_name(snapshot)}{suffix}: {problem}") from None

    def header(self, snapshot: SnapshotId) -> SnapshotHeader:
        """Return the header of a snapshot.  Raises CorruptSnapshot."""
        return self._beginning(snapshot)[0]

    def voters(self, snapshot: SnapshotId) -> VoterSet | None:
        """Return the voters in force at the end of a snapshot; None if it names none.  Raises CorruptSnapshot."""
        return self._beginning(snapshot)[1]

    def _beginning(self, snapshot: SnapshotId) -> tuple[SnapshotHeader, VoterSet | None]:
        if snapshot not in self._beginnings:
            found = self.read_at(snapshot, 0, BEGINNING_MAX_BYTES)
            try:
                self._beginnings[snapshot] = read_beginning(found[0] if found else b"")
            except CorruptSnapshot as problem:
                raise CorruptSnapshot(f"{file_name(snapshot)}: {problem}") from None
        return self._beginnings[snapshot]

    # Making one

    def write_part(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Write bytes of an unfinished snapshot.  Position 0 discards all earlier bytes."""
        with self._open(snapshot, PART) as file:
            if position == 0:
                file.truncate(0)
            file.write_at(position, data)

    def sync_part(self, snapshot: SnapshotId) -> None:
        """Make the bytes written so far durable, so that the fsync of `freeze` is short."""
        with self._open(snapshot, PART) as file:
            file.fsync()

    def check_part(self, snapshot: SnapshotId, position: int, data: bytes) -> None:
        """Raise CorruptSnapshot unless the bytes written below `position`, followed by `data`, are a whole snapshot."""
        with self._open(snapshot, PART) as file:
            read(file.read_at(0, position) + data, snapshot)

    def freeze(self, snapshot: SnapshotId) -> None:
        """Give a complete snapshot its final name, durable on return."""
        self.sync_part(snapshot)
        path = self._path(snapshot)
        self._disk.rename(path + PART, path)
        self._disk.fsync_dir(self._folder)
        self.ids = sorted({*self.ids, snapshot})

    def drop_part(self, snapshot: SnapshotId) -> None:
        if self._disk.exists(self._path(snapshot) + PART):
            self._disk.remove(self._path(snapshot) + PART)

    def remove(self, snapshot: SnapshotId) -> None:
        """Delete a snapshot, durable on return."""
        self.ids.remove(snapshot)
        self._beginnings.pop(snapshot, None)
        self._disk.remove(self._path(snapshot))
        self._disk.fsync_dir(self._folder)

    def _path(self, snapshot: SnapshotId) -> str:
        return f"{self._folder}/{file_name(snapshot)}"

    def _open(self, snapshot: SnapshotId, suffix: str = "") -> closing[File]:
        return closing(self._disk.open(self._path(snapshot) + suffix))
