"""The record types of Kafka's metadata log, and their bytes.

    value = uvarint frame version (1) | uvarint record type | uvarint record version | struct (`struct.py`)

Types, fields, versions and tags are Kafka's own (KIP-631 and later), so that any reader of Kafka's metadata understands
this log.  `encode_at` writes a record in the version that Kafka chooses at a `metadata.version`.  `encode` writes the
lowest version that can hold the record: the canonical form, from which state hashes are computed.

A record of an unknown type or version was written by a later version of the software.  It is kept as an
`UnknownRecord`, byte for byte, because during an upgrade the nodes with the old software must continue to run.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar, dataclass_transform
from uuid import UUID

from system_under_test.kraft.records.struct import (
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Malformed,
    Reader,
    Since,
    Struct,
    StructCodec,
    Tag,
    UInt16,
    read_uvarint,
)

FRAME_VERSION = 1

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
GROUP_RESOURCE = 32
"""Values of `resource_type` in a config: a topic, a broker, a group."""

NO_UUID = UUID(int=0)
MIGRATING, UNASSIGNED, LOST = NO_UUID, UUID(int=1), UUID(int=2)
"""Reserved directory ids of replicas (KIP-858): MIGRATING is not known yet, UNASSIGNED is not chosen yet, LOST was lost
by its broker.
"""
RESERVED_DIRECTORIES = 100
"""Number of reserved directory ids.  The ids below this number never name a broker's directory."""

DIRECTORIES_SINCE = 17
"""First level of `metadata.version` at which records name directories (3.7-IV2)."""

NO_LEADER = -1
LEADER_UNCHANGED = -2
"""Value of `leader` in a PartitionChangeRecord that does not change the leader."""


class CorruptRecord(ValueError):
    """Raised for bytes that are no record, and for a record that contradicts earlier records."""


class Record(Struct):
    """A record of the metadata log."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class UnknownRecord:
    """A record of a later version of the software.

    value: all its bytes, including the frame
    """

    type: int
    version: int
    value: bytes


R = TypeVar("R", bound=Record)

_CODECS: dict[int, tuple[type[Record], StructCodec]] = {}
_TYPE_OF: dict[type[Record], int] = {}


@dataclass_transform(frozen_default=True)
def _record(type_number: int, version_max: int = 0) -> Callable[[type[R]], type[R]]:
    """Turn a record class into a dataclass with slots, and register it under its type number."""

    def enter(cls: type[R]) -> type[R]:
        assert type_number < 0x80 and version_max < 0x80, "each is one byte (`encode`)"
        assert type_number not in _CODECS, f"record type {type_number} is declared twice"
        made = dataclass(frozen=True, slots=True)(cls)
        _CODECS[type_number] = made, StructCodec(made, version_max)
        _TYPE_OF[made] = type_number
        return made

    return enter


@dataclass(frozen=True, slots=True)
class Endpoint(Struct):
    """security_protocol: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL"""

    name: str
    host: str
    port: UInt16
    security_protocol: Int16 = 0


@dataclass(frozen=True, slots=True)
class FeatureRange(Struct):
    """The levels of a feature that a node supports, both included."""

    name: str
    level_min: Int16
    level_max: Int16


@dataclass(frozen=True, slots=True)
class QuotaEntity(Struct):
    """name: None for the default entity of this type"""

    type: str
    name: str | None


# -- Brokers and controllers


@_record(0, version_max=4)
class RegisterBrokerRecord(Record):
    """cordoned_dirs: directories that take no new replicas (KIP-1066); None until the broker has reported them"""

    broker_id: Int32
    is_migrating_zk_broker: Annotated[bool, Since(2)] = False
    incarnation_id: UUID = NO_UUID
    broker_epoch: Int64 = -1
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[FeatureRange, ...] = ()
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: Annotated[bool, Since(1)] = False
    log_dirs: Annotated[tuple[UUID, ...], Since(3), Tag(0)] = ()
    cordoned_dirs: Annotated[tuple[UUID, ...] | None, Since(4), Tag(1)] = None


@_record(1)
class UnregisterBrokerRecord(Record):
    broker_id: Int32
    broker_epoch: Int64


@_record(7)
class FenceBrokerRecord(Record):
    broker_id: Int32
    broker_epoch: Int64


@_record(8)
class UnfenceBrokerRecord(Record):
    broker_id: Int32
    broker_epoch: Int64


@_record(17, version_max=3)
class BrokerRegistrationChangeRecord(Record):
    """fenced: -1 to unfence, 1 to fence, 0 for no change
    in_controlled_shutdown: 1 to set it, 0 for no change
    """

    broker_id: Int32
    broker_epoch: Int64
    fenced: Annotated[Int8, Tag(0)] = 0
    in_controlled_shutdown: Annotated[Int8, Since(1), Tag(1)] = 0
    log_dirs: Annotated[tuple[UUID, ...], Since(2), Tag(2)] = ()
    cordoned_dirs: Annotated[tuple[UUID, ...] | None, Since(3), Tag(3)] = None


@_record(27)
class RegisterControllerRecord(Record):
    controller_id: Int32
    incarnation_id: UUID
    zk_migration_ready: bool = False
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[FeatureRange, ...] = ()


@_record(29)
class UnregisterControllerRecord(Record):
    controller_id: Int32


# -- Topics and partitions


@_record(2)
class TopicRecord(Record):
    name: str
    topic_id: UUID


@_record(3, version_max=2)
class PartitionRecord(Record):
    """directories: one for each replica (KIP-858), or () as in version 0
    elr: eligible leader replicas (KIP-966)
    """

    partition: Int32
    topic_id: UUID
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    removing: tuple[Int32, ...] = ()
    adding: tuple[Int32, ...] = ()
    leader: Int32 = NO_LEADER
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[tuple[UUID, ...], Since(1)] = ()
    recovery_state: Annotated[Int8, Tag(0)] = 0
    elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(1)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(2)] = None


@_record(5, version_max=2)
class PartitionChangeRecord(Record):
    """A change of a partition.  A field with its default value leaves the partition's value unchanged."""

    partition: Int32
    topic_id: UUID
    isr: Annotated[tuple[Int32, ...] | None, Tag(0)] = None
    leader: Annotated[Int32, Tag(1)] = LEADER_UNCHANGED
    replicas: Annotated[tuple[Int32, ...] | None, Tag(2)] = None
    removing: Annotated[tuple[Int32, ...] | None, Tag(3)] = None
    adding: Annotated[tuple[Int32, ...] | None, Tag(4)] = None
    recovery_state: Annotated[Int8, Tag(5)] = -1
    elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(6)] = None
    last_known_elr: Annotated[tuple[Int32, ...] | None, Since(2), Tag(7)] = None
    directories: Annotated[tuple[UUID, ...] | None, Since(1), Tag(8)] = None


@_record(9)
class RemoveTopicRecord(Record):
    topic_id: UUID


@_record(28)
class ClearElrRecord(Record):
    """Removal of the eligible leader replicas of a topic's partitions (KIP-966).

    topic: name of the topic; empty for all topics
    """

    topic: str


# -- Configurations, features and ids


@_record(4)
class ConfigRecord(Record):
    """value: None to remove the override"""

    resource_type: Int8
    resource_name: str
    name: str
    value: str | None


@_record(12)
class FeatureLevelRecord(Record):
    """level: 0 to remove the feature"""

    name: str
    level: Int16


@_record(14)
class ClientQuotaRecord(Record):
    entity: tuple[QuotaEntity, ...]
    key: str
    value: Float64
    remove: bool = False


@_record(15)
class ProducerIdsRecord(Record):
    """next_producer_id: first id of the next block"""

    broker_id: Int32
    broker_epoch: Int64
    next_producer_id: Int64


@_record(20)
class NoOpRecord(Record):
    pass


@_record(21)
class ZkMigrationStateRecord(Record):
    state: Int8


# -- Access control


@_record(10)
class DelegationTokenRecord(Record):
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp_ms: Int64
    max_timestamp_ms: Int64
    expiration_timestamp_ms: Int64
    token_id: str


@_record(26)
class RemoveDelegationTokenRecord(Record):
    token_id: str


@_record(11)
class UserScramCredentialRecord(Record):
    """mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512"""

    name: str
    mechanism: Int8
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Int32


@_record(22)
class RemoveUserScramCredentialRecord(Record):
    name: str
    mechanism: Int8


@_record(18)
class AccessControlEntryRecord(Record):
    id: UUID
    resource_type: Int8
    resource_name: str
    pattern_type: Int8
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


@_record(19)
class RemoveAccessControlEntryRecord(Record):
    id: UUID


# -- Metadata transactions (KIP-868)


@_record(23)
class BeginTransactionRecord(Record):
    name: Annotated[str | None, Tag(0)] = None


@_record(24)
class EndTransactionRecord(Record):
    pass


@_record(25)
class AbortTransactionRecord(Record):
    reason: Annotated[str | None, Tag(0)] = None


RECORD_TYPES: dict[int, type[Record]] = {number: cls for number, (cls, _) in sorted(_CODECS.items())}
"""Every known type of record, by its number."""


def versions(cls: type[Record]) -> range:
    """Return the versions in which this software reads and writes a record type."""
    return range(_CODECS[_TYPE_OF[cls]][1].version_max + 1)


def encode(record: Record | UnknownRecord, version: int | None = None) -> bytes:
    """Return the bytes of a record in the log.

    version: None for the lowest version that can hold the record

    Raises ValueError if the version cannot hold the record, or if a number is out of range.
    """
    if isinstance(record, UnknownRecord):
        return record.value
    number = _TYPE_OF[type(record)]
    codec = _CODECS[number][1]
    chosen = codec.version_for(record) if version is None else version
    out = bytearray((FRAME_VERSION, number, chosen))
    codec.write(out, record, chosen)
    return bytes(out)


_VERSIONS_AT_LEVEL: dict[type[Record], tuple[tuple[int, int], ...]] = {
    RegisterBrokerRecord: ((30, 4), (DIRECTORIES_SINCE, 3), (8, 2), (0, 1)),
    PartitionRecord: ((23, 2), (DIRECTORIES_SINCE, 1), (0, 0)),
    PartitionChangeRecord: ((23, 2), (DIRECTORIES_SINCE, 1), (0, 0)),
}
"""Record type -> pairs (level of `metadata.version`, version that Kafka writes from that level on), the highest level
first.  Kafka writes the records of other types in the lowest version that can hold them.
"""


def encode_at(record: Record | UnknownRecord, level: int | None) -> bytes:
    """Return the bytes of a record in the version that Kafka writes at a level of `metadata.version`.

    level: None if the cluster has no `metadata.version`

    Raises ValueError as `encode`.
    """
    versions_at = _VERSIONS_AT_LEVEL.get(type(record)) if level is not None else None  # type: ignore[arg-type]
    if versions_at is None or level is None:
        return encode(record)
    return encode(record, next(version for since, version in versions_at if level >= since))


def decode(value: bytes) -> Record | UnknownRecord:
    """Return the record in `value`.  Raises CorruptRecord unless the bytes are exactly one record."""
    try:
        read, at = _READERS.get(value[:_PREFIX_BYTES]), _PREFIX_BYTES
        if read is None:
            number, version, at = _prefix(value)
            _, codec = _CODECS.get(number, (None, None))
            if codec is None or version > codec.version_max:
                return UnknownRecord(number, version, value)
            read = codec.reader(version)
            if at == _PREFIX_BYTES:
                _READERS[value[:at]] = read
        record, end = read(value, at)
    except (Malformed, IndexError, UnicodeDecodeError, struct.error) as problem:
        raise CorruptRecord(f"metadata record of {len(value)} bytes cannot be decoded: {problem}") from problem
    if end != len(value):
        raise CorruptRecord(f"{len(value) - end} bytes follow the metadata record")
    return record  # type: ignore[no-any-return]  # of the class that its type declares


def canonical(value: bytes) -> bytes:
    """Return the same record in the lowest version that can hold it.  Other bytes are returned unchanged."""
    try:
        return encode(decode(value))
    except CorruptRecord:
        return value


_PREFIX_BYTES = 3
"""Number of bytes of frame version, type and version, if each of them takes one byte."""
_READERS: dict[bytes, Reader] = {}
"""Prefix of a record -> reader of its struct: a cache, because a start decodes every record."""


def _prefix(value: bytes) -> tuple[int, int, int]:
    """Return the type and version of a record, and the position where its struct begins."""
    frame, at = read_uvarint(value, 0)
    number, at = read_uvarint(value, at)
    version, at = read_uvarint(value, at)
    if frame != FRAME_VERSION:
        raise CorruptRecord(f"metadata record of frame version {frame}; only {FRAME_VERSION} is known")
    return number, version, at
