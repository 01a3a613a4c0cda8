"""Metadata records: the values of the data records in the metadata log.

    value = uvarint frame version (1) | uvarint record type | uvarint record version | body

Bodies are of the protocol's flexible kind (KIP-482): strings and arrays are preceded by their length plus one as a
uvarint (0 = null), and a section of tagged fields ends every struct.  Unknown tags are skipped.  Types, field order
and tags are Kafka's own, so that any reader of Kafka's metadata understands this log.

    2 Topic (v0)   3 Partition (v0, v1; v1 adds directories)   4 Config (v0)   20 NoOp (v0)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

FRAME_VERSION = 1

TOPIC_RESOURCE = 2
"""`resource_type` of a topic's config (brokers are 4)."""


class CorruptRecord(ValueError):
    """Bytes that are no record, or a record that contradicts what came before it."""


@dataclass(frozen=True, slots=True)
class TopicRecord:
    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """directories: one per replica, or () as in v0; Uuid(0) means not assigned."""

    partition: int
    topic_id: UUID
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    leader: int = -1
    recovery_state: int = 0  # tag 0
    leader_epoch: int = -1
    partition_epoch: int = -1
    directories: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """value None removes the override."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class NoOpRecord:
    pass


Record = TopicRecord | PartitionRecord | ConfigRecord | NoOpRecord


def encode(record: Record) -> bytes:
    """The record's value as it stands in the log."""
    out = _Writer()
    match record:
        case TopicRecord():
            out.header(2, 0)
            out.string(record.name)
            out.uuid(record.topic_id)
            out.no_tags()
        case PartitionRecord():
            _encode_partition(out, record)
        case ConfigRecord():
            out.header(4, 0)
            out.int8(record.resource_type)
            out.string(record.resource_name)
            out.string(record.name)
            out.string(record.value)
            out.no_tags()
        case NoOpRecord():
            out.header(20, 0)
            out.no_tags()
    return bytes(out.data)


def decode(value: bytes) -> Record:
    """The record in `value`.  Raises CorruptRecord for anything but exactly one known record."""
    source = _Reader(value)
    try:
        frame, kind, version = source.uvarint(), source.uvarint(), source.uvarint()
        if frame != FRAME_VERSION:
            raise CorruptRecord(f"metadata record of frame version {frame}; known is {FRAME_VERSION}")
        reader = _READERS.get((kind, version))
        if reader is None:
            raise CorruptRecord(f"metadata record of unknown type {kind}, version {version}")
        record = reader(source)
    except (IndexError, struct.error, UnicodeDecodeError) as problem:
        raise CorruptRecord(f"metadata record of {len(value)} bytes cannot be decoded: {problem}") from problem
    if source.at != len(value):
        raise CorruptRecord(f"{len(value) - source.at} bytes follow the metadata record")
    return record


def _encode_partition(out: _Writer, record: PartitionRecord) -> None:
    out.header(3, 1 if record.directories else 0)
    out.int32(record.partition)
    out.uuid(record.topic_id)
    for ids in (record.replicas, record.isr, record.removing, record.adding):
        out.int32s(ids)
    out.int32(record.leader)
    out.int32(record.leader_epoch)
    out.int32(record.partition_epoch)
    if record.directories:
        out.uuids(record.directories)
    if record.recovery_state:
        out.data += b"\x01\x00\x01"  # one tag: number 0, one byte long
        out.int8(record.recovery_state)
    else:
        out.no_tags()


def _decode_topic(source: _Reader) -> TopicRecord:
    record = TopicRecord(name=source.text(), topic_id=source.uuid())
    source.tags()
    return record


def _decode_partition(source: _Reader, *, directories: bool) -> PartitionRecord:
    partition, topic_id = source.int32(), source.uuid()
    replicas, isr, removing, adding = source.int32s(), source.int32s(), source.int32s(), source.int32s()
    leader, leader_epoch, partition_epoch = source.int32(), source.int32(), source.int32()
    homes = source.uuids() if directories else ()
    state = source.tags().get(0, b"\0")
    if len(state) != 1:
        raise CorruptRecord(f"a leader recovery state of {len(state)} bytes")
    recovery = int.from_bytes(state, "big", signed=True)
    return PartitionRecord(
        partition, topic_id, replicas, isr, removing, adding, leader, recovery, leader_epoch, partition_epoch, homes
    )


def _decode_config(source: _Reader) -> ConfigRecord:
    record = ConfigRecord(source.int8(), source.text(), source.text(), source.string())
    source.tags()
    return record


def _decode_no_op(source: _Reader) -> NoOpRecord:
    source.tags()
    return NoOpRecord()


class _Writer:
    def __init__(self) -> None:
        self.data = bytearray()

    def header(self, kind: int, version: int) -> None:
        self.uvarint(FRAME_VERSION)
        self.uvarint(kind)
        self.uvarint(version)

    def uvarint(self, number: int) -> None:
        while number > 0x7F:
            self.data.append(number & 0x7F | 0x80)
            number >>= 7
        self.data.append(number)

    def int8(self, number: int) -> None:
        self.data += struct.pack(">b", number)

    def int32(self, number: int) -> None:
        self.data += struct.pack(">i", number)

    def int32s(self, numbers: tuple[int, ...]) -> None:
        self.uvarint(len(numbers) + 1)
        self.data += struct.pack(f">{len(numbers)}i", *numbers)

    def uuid(self, uuid: UUID) -> None:
        self.data += uuid.bytes

    def uuids(self, uuids: tuple[UUID, ...]) -> None:
        self.uvarint(len(uuids) + 1)
        for uuid in uuids:
            self.uuid(uuid)

    def string(self, text: str | None) -> None:
        if text is None:
            self.uvarint(0)
            return
        encoded = text.encode()
        self.uvarint(len(encoded) + 1)
        self.data += encoded

    def no_tags(self) -> None:
        self.data.append(0)


class _Reader:
    """Reads one value from the front; IndexError or struct.error where it ends too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def uvarint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
            if shift > 28:
                raise CorruptRecord("a uvarint of more than five bytes")

    def take(self, size_bytes: int) -> bytes:
        end = self.at + size_bytes
        if end > len(self.data):
            raise IndexError(f"{size_bytes} bytes announced, {len(self.data) - self.at} there")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def int8(self) -> int:
        return int.from_bytes(self.take(1), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def length(self) -> int:
        """Of a compact array that is not nullable."""
        length = self.uvarint() - 1
        if length < 0:
            raise CorruptRecord("null where an array must stand")
        return length

    def int32s(self) -> tuple[int, ...]:
        length = self.length()
        return struct.unpack(f">{length}i", self.take(4 * length))

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def uuids(self) -> tuple[UUID, ...]:
        whole = self.take(16 * self.length())
        return tuple(UUID(bytes=whole[i : i + 16]) for i in range(0, len(whole), 16))

    def string(self) -> str | None:
        length = self.uvarint() - 1
        return None if length < 0 else self.take(length).decode()

    def text(self) -> str:
        text = self.string()
        if text is None:
            raise CorruptRecord("null where a string must stand")
        return text

    def tags(self) -> dict[int, bytes]:
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}


_READERS: dict[tuple[int, int], Callable[[_Reader], Record]] = {
    (2, 0): _decode_topic,
    (3, 0): lambda source: _decode_partition(source, directories=False),
    (3, 1): lambda source: _decode_partition(source, directories=True),
    (4, 0): _decode_config,
    (20, 0): _decode_no_op,
}
