"""The content of a snapshot (KIP-630): record batches, as in the log, that amount to the state at its end.

    a control batch with the header    int16 version 0 | int64 time of the last record it stands for | tags
    two control batches                KRaftVersion and Voters, if the log names voters
    data batches                       the records that make up the state
    a control batch with the footer    int16 version 0 | tags

Offsets count from 0 within the file, and the epoch of every batch is that of the snapshot.  A file without its footer
is not complete.  A quorum of static voters (kraft.version 0) writes no voters into its snapshots; nor does Kafka.

Tag 10000 of the header is our own, and other readers skip it: an int64, the prefix hash of the log at the end of the
snapshot (`prefix_hash.py`).  A node continues the prefix hash from it, because the log before the snapshot is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from operator import xor
from typing import Annotated

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log import prefix_hash
from system_under_test.kraft.log.batch import CorruptBatch
from system_under_test.kraft.log.voter_records import KRAFT_VERSION, VOTERS
from system_under_test.kraft.raft.messages import Batch, SnapshotId
from system_under_test.kraft.raft.voters import KRaftVersion, VoterSet
from system_under_test.kraft.records.struct import Int16, Int64, Malformed, Struct, StructCodec, Tag

HEADER, FOOTER = 3, 4
"""Types of control records."""

BATCH_MAX_BYTES = 1 << 18


class CorruptSnapshot(ValueError):
    """Bytes that are no complete snapshot; the message says which, where and why."""


@dataclass(frozen=True, slots=True)
class SnapshotHeader(Struct):
    """last_timestamp_ms: of the newest record that the snapshot stands for."""

    version: Int16
    last_timestamp_ms: Int64
    prefix_hash: Annotated[Int64, Tag(10_000)] = prefix_hash.EMPTY


@dataclass(frozen=True, slots=True)
class Footer(Struct):
    version: Int16


@dataclass(frozen=True, slots=True)
class Content:
    """values: of the records of the state, in an order in which they can be replayed.

    voters: in force at the end of the snapshot; None if the log below it named none."""

    header: SnapshotHeader
    values: tuple[bytes, ...]
    voters: VoterSet | None = None

    @property
    def state_hash(self) -> int:
        """See `Writer.content_hash`."""
        return reduce(xor, map(value_hash, self.values), 0)


_HEADER_CODEC, _FOOTER_CODEC = StructCodec(SnapshotHeader, 0), StructCodec(Footer, 0)


class SnapshotWriter:
    """The bytes of a snapshot, batch by batch.  Iterate over it once; `content_hash` grows with what it yields.

    batch_max_bytes: a batch that holds so many bytes of values takes no more.
    content_hash: XOR over the values of int64(BLAKE2b-8), which is the state hash of an image that holds just them.
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
        out = bytearray()
        _HEADER_CODEC.write(out, self._header, 0)
        yield codec.encode_control(0, self._epoch, HEADER, bytes(out), time_ms)
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
        out = bytearray()
        _FOOTER_CODEC.write(out, Footer(version=0), 0)
        yield codec.encode_control(offset, self._epoch, FOOTER, bytes(out), time_ms)


def value_hash(value: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "big", signed=True)


def read(data: bytes, snapshot: SnapshotId) -> Content:
    """The content of a complete snapshot.  Raises CorruptSnapshot."""
    header, values, voters, ended = None, [], None, False
    position, offset = 0, 0
    view = memoryview(data)
    while position < len(data):
        try:
            found = codec.read_header(view, position)
            raw = data[position : position + found.size_bytes]
            codec.check_crc(raw)
            if (found.base_offset, found.epoch) != (offset, snapshot.epoch) or ended:
                raise CorruptBatch(f"a batch at offset {found.base_offset} of epoch {found.epoch} stands at {offset}")
            if offset == 0:
                header = _control(_HEADER_CODEC, HEADER, raw)
            elif found.control and codec.control(raw)[0] in (KRAFT_VERSION, VOTERS):
                voters = codec.voters(raw) or voters
            elif found.control:
                _control(_FOOTER_CODEC, FOOTER, raw)
                ended = True
            else:
                values += codec.values(raw)
        except (CorruptBatch, Malformed) as problem:
            raise CorruptSnapshot(f"byte {position}: {problem}") from None
        position += found.size_bytes
        offset += found.count
    if header is None or not ended:
        raise CorruptSnapshot(f"it ends after {position} bytes without its {'footer' if header else 'header'}")
    return Content(header, tuple(values), voters)


def read_snapshot_header(data: bytes) -> SnapshotHeader:
    """The header alone, of the first bytes of a snapshot.  Raises CorruptSnapshot."""
    try:
        found = codec.read_header(data)
        codec.check_crc(data[: found.size_bytes])
        header: SnapshotHeader = _control(_HEADER_CODEC, HEADER, data[: found.size_bytes])
        return header
    except (CorruptBatch, Malformed) as problem:
        raise CorruptSnapshot(f"it has no header: {problem}") from None


HEADER_MAX_BYTES = 256
"""`read_snapshot_header` needs no more."""


VOTERS_MAX_BYTES = 1 << 16
"""`read_voters` needs no more: enough for 500 voters."""


def read_voters(data: bytes) -> VoterSet | None:
    """The voters alone, of the first bytes of a snapshot; None if it names none.  Raises CorruptSnapshot."""
    position = 0
    try:
        for _ in range(3):
            found = codec.read_header(data, position)
            raw = data[position : position + found.size_bytes]
            codec.check_crc(raw)
            if (voters := codec.voters(raw)) is not None:
                return voters
            if not found.control:
                return None
            position += found.size_bytes
    except CorruptBatch as problem:
        if position == 0:
            raise CorruptSnapshot(f"it has no header: {problem}") from None
    return None


def _control(wanted: StructCodec, type_number: int, raw: bytes) -> SnapshotHeader:
    if not codec.is_control(raw):
        raise CorruptBatch("a data batch where the header must stand")
    found, value = codec.control(raw)
    if found != type_number:
        raise CorruptBatch(f"a control record of type {found} where {type_number} must stand")
    read_value, _ = wanted.read(value, 0, 0)
    return read_value  # type: ignore[no-any-return]
