"""Kafka's record batch, version 2, as in log files and fetches; the control records of voters; the prefix hash.

Layout (big endian), as the Kafka protocol guide defines it:

    offset  0  int64   base offset              } not covered by the CRC, so that a leader can
            8  int32   length of the rest       } place a batch without recomputing the CRC
           12  int32   leader epoch             }
           16  int8    magic, 2
           17  uint32  CRC-32C of all bytes after it
           21  int16   attributes: bit 5 = control batch
           23  int32   last offset delta = number of records - 1
           27  int64   base timestamp, 35 int64 max timestamp (ms)
           43  int64   producer id, 51 int16 producer epoch, 53 int32 base sequence: all -1 here
           57  int32   number of records
           61          the records: zigzag varints for all lengths and deltas

A metadata record has no key and no headers.  A control batch holds one record whose key is (int16 version, int16
type) and whose value is a flexible Kafka message: LeaderChange (2), the header (3) and footer (4) of a snapshot,
KRaftVersion (5) or Voters (6) (KIP-853).  All are written in version 0.

The *prefix hash* is one number for the content of a log up to an offset.  This definition suffices to compute
it from the files.  Take the record batches of the log in order, from offset 0.  Begin with h = 0.  For every
batch replace h by

    the first 8 bytes, read as a big-endian signed 64-bit integer, of
    BLAKE2b(digest size 8 bytes, no key, no salt) over the 24 bytes
        int64  h (the value so far)
        int64  the batch's base offset
        int32  the batch's leader epoch
        uint32 the batch's CRC field
    all big endian, without padding (Python: struct.pack(">qqiI", h, base_offset, epoch, crc)).

The hash at an offset is the value after the batch that ends there; an offset inside a batch has none.  The CRC stands
for the records; base offset and epoch are added because Kafka's CRC covers neither.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any
from uuid import UUID

from crc32c import crc32c

from system_under_test.kraft.raft.messages import Batch, LeaderChange, ReplicaKey
from system_under_test.kraft.raft.voters import KRaftVersion, VoterEndpoint, VoterEntry, VoterSet, voter_set
from system_under_test.kraft.records.struct import (
    Int16,
    Int32,
    Malformed,
    Since,
    Struct,
    StructCodec,
    UInt16,
    read_uvarint,
    uvarint,
)

HEADER_SIZE_BYTES = 61
_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21
_MAGIC = 2
_MAGIC_AT = 16
_NO_PRODUCER = b"\xff" * 14
_NO_PRODUCER_AT = 43
_CONTROL = 1 << 5
_COMPRESSION = 0b111
_LENGTH_FROM = 12  # `length` counts from here
_CONTROL_KEY = struct.Struct(">hh")
_SHIFT_MAX = 63  # of a varint of 64 bits

MAX_SIZE_BYTES = 64 << 20
"""Maximum bytes of a batch.  A greater length is treated as corrupt, so no memory is allocated for it."""


class CorruptBatch(ValueError):
    """Raised for bytes that are no record batch, or not the expected one.  The message names the violated rule."""


class IncompleteBatch(CorruptBatch):
    """Raised if the bytes end within the batch: a torn tail, or the end of a size-limited fetch."""


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The first 61 bytes of a batch, decoded.

    size_bytes: size of the whole batch, including the header
    """

    base_offset: int
    size_bytes: int
    epoch: int
    crc: int
    control: bool
    count: int
    max_timestamp_ms: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count


def encode(batch: Batch, timestamp_ms: int, *, checked: bool = True) -> bytes:
    """Return the bytes of a batch whose body is raw bytes, a control record, or a tuple of record values.

    checked: True to raise CorruptBatch if raw bytes are not this batch.  Raw bytes are returned unchanged.
    """
    body = batch.body
    if isinstance(body, bytes):
        if checked:
            check(batch)
        return body
    if type(body) in _CONTROL_VALUES:
        type_number, value_of = _CONTROL_VALUES[type(body)]
        return encode_control(batch.base_offset, batch.epoch, type_number, value_of(body), timestamp_ms)
    if isinstance(body, tuple) and len(body) == batch.count:
        return encode_values(batch.base_offset, batch.epoch, body, timestamp_ms)
    raise TypeError(f"cannot encode a body of {type(body).__name__} as {batch.count} records")


def encode_values(base_offset: int, epoch: int, values: Sequence[bytes], timestamp_ms: int) -> bytes:
    """Return a data batch, whose records have no keys and no headers.  Raises ValueError without values."""
    if not values:
        raise ValueError("a batch holds at least one record")
    records = b"".join([_record(delta, b"\x01", value) for delta, value in enumerate(values)])
    return _batch(base_offset, epoch, 0, len(values), records, timestamp_ms)


def encode_control(base_offset: int, epoch: int, type_number: int, value: bytes, timestamp_ms: int) -> bytes:
    """Return a control batch with one record of this type."""
    key = _CONTROL_KEY.pack(0, type_number)
    record = _record(0, _zigzag(len(key)) + key, value)
    return _batch(base_offset, epoch, _CONTROL, 1, record, timestamp_ms)


def read_header(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Return the header at `position`.  The CRC is not checked here (`check_crc`).

    Raises IncompleteBatch if the batch extends beyond the end of `data`, CorruptBatch if it is invalid.
    """
    if len(data) - position < HEADER_SIZE_BYTES:
        raise IncompleteBatch(f"{len(data) - position} bytes are too few for a batch header")
    base, length, epoch, magic, crc, attributes, last_delta, _, newest_ms, _, _, _, count = _HEADER.unpack_from(
        data, position
    )
    size = length + _LENGTH_FROM
    if magic != _MAGIC:
        raise CorruptBatch(f"magic {magic} where 2 is expected")
    if not HEADER_SIZE_BYTES < size <= MAX_SIZE_BYTES:
        raise CorruptBatch(f"a batch cannot have {size} bytes")
    if base < 0 or epoch < 0 or count < 1 or last_delta != count - 1:
        raise CorruptBatch(
            f"impossible header: base offset {base}, epoch {epoch}, {count} records, last offset delta {last_delta}"
        )
    if attributes & _COMPRESSION:
        raise CorruptBatch("the batch is compressed, which metadata batches never are")
    if len(data) - position < size:
        raise IncompleteBatch(f"a batch of {size} bytes, of which only {len(data) - position} are left")
    return BatchHeader(base, size, epoch, crc, bool(attributes & _CONTROL), count, newest_ms)


def check_crc(raw: bytes | memoryview) -> None:
    """Raise CorruptBatch unless the CRC of one whole batch matches its bytes."""
    (stored,) = struct.unpack_from(">I", raw, 17)
    if crc32c(raw[_CRC_FROM:]) != stored:
        raise CorruptBatch(f"CRC {stored:#010x} does not match the bytes")


def check(batch: Batch) -> None:
    """Raise CorruptBatch unless the body is exactly one record batch with a matching CRC and the fields of `batch`."""
    body = batch.body
    assert isinstance(body, bytes)
    header = read_header(body)
    same = (header.base_offset, header.epoch, header.count, header.size_bytes)
    if same != (batch.base_offset, batch.epoch, batch.count, len(body)):
        raise CorruptBatch(
            f"a batch expected at offset {batch.base_offset} of epoch {batch.epoch} has the header {header}"
        )
    check_crc(body)


def next_whole(data: bytes, position: int) -> int | None:
    """Return the start of the first whole batch with a matching CRC, at `position` or after it; None if there is none.

    The search looks for the producer id, epoch and sequence.  In the batches of this log they are all -1: fourteen
    bytes 0xff.
    """
    at = data.find(_NO_PRODUCER, position + _NO_PRODUCER_AT)
    while at >= 0:
        start = at - _NO_PRODUCER_AT
        if data[start + _MAGIC_AT] == _MAGIC:
            try:
                header = read_header(data, start)
                check_crc(data[start : start + header.size_bytes])
                return start
            except CorruptBatch:
                pass  # not a batch: these bytes only look like one
        at = data.find(_NO_PRODUCER, at + 1)
    return None


def split(data: bytes) -> tuple[Batch, ...]:
    """Return the whole batches of a fetch.  A size-limited fetch may end within a batch, which is then left out.

    Raises CorruptBatch for bytes that are no batch.  The CRCs are verified later, when the batches are appended.
    """
    batches = []
    position = 0
    while position < len(data):
        try:
            header = read_header(data, position)
        except IncompleteBatch:
            break
        raw = data[position : position + header.size_bytes]
        batches.append(Batch(header.base_offset, header.epoch, header.count, raw))
        position += header.size_bytes
    return tuple(batches)


def is_control(raw: bytes) -> bool:
    """Return whether a whole batch is a control batch, whose records are not passed to the state machine."""
    return bool(raw[22] & _CONTROL)


def values(raw: bytes) -> list[bytes]:
    """Return the record values of a whole data batch, in offset order.  Raises CorruptBatch if their sizes are
    inconsistent.
    """
    return _keys_and_values(raw)[1]


def controls(raw: bytes) -> list[tuple[int, bytes]]:
    """Return (type, value) of each record in a control batch. There may be several: Kafka's first leader writes all of
    its control records into one batch.

    Raises CorruptBatch."""
    keys, found = _keys_and_values(raw)
    if list(map(len, keys)) != [_CONTROL_KEY.size] * len(found):
        raise CorruptBatch("the key of a control record must be its version and its type")
    return [(_CONTROL_KEY.unpack(key)[1], value) for key, value in zip(keys, found, strict=True)]


def _keys_and_values(raw: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the keys of the records that have a key, and all values.

    A node reads every record of its log here when it starts, so a one-byte number is read without a function call.
    """
    (count,) = struct.unpack_from(">i", raw, 57)
    at = HEADER_SIZE_BYTES
    keys, found = [], []
    try:
        for _ in range(count):
            length, at = (raw[at], at + 1) if raw[at] < 0x80 else read_uvarint(raw, at, _SHIFT_MAX)
            end = at + (length >> 1)
            at += 1  # after the attributes
            at = at + 1 if raw[at] < 0x80 else read_uvarint(raw, at, _SHIFT_MAX)[1]  # timestamp delta
            at = at + 1 if raw[at] < 0x80 else read_uvarint(raw, at, _SHIFT_MAX)[1]  # offset delta
            size, at = (raw[at], at + 1) if raw[at] < 0x80 else read_uvarint(raw, at, _SHIFT_MAX)
            if not size & 1:  # an odd size stands for a negative length, which means no key
                keys.append(raw[at : at + (size >> 1)])
                at += size >> 1
            size, at = (raw[at], at + 1) if raw[at] < 0x80 else read_uvarint(raw, at, _SHIFT_MAX)
            behind = at + (size >> 1)
            if (length | size) & 1 or behind > end:
                raise CorruptBatch("a record without a value, or whose value ends after the record")
            found.append(raw[at:behind])
            at = end
    except (IndexError, Malformed):
        raise CorruptBatch(f"{count} records do not fit into {len(raw)} bytes") from None
    if at != len(raw):
        raise CorruptBatch(f"the {count} records end after {at} of {len(raw)} bytes")
    return keys, found


def leader_change(raw: bytes) -> LeaderChange:
    """Return the LeaderChange that begins a control batch.  Raises CorruptBatch if it begins with another record."""
    type_number, value = controls(raw)[0]
    if type_number != LEADER_CHANGE:
        raise CorruptBatch(f"a control record of type {type_number} is no LeaderChange")
    try:
        record, _ = _LEADER_CODEC.read(value, 0, int.from_bytes(value[:2], "big"))
    except Malformed as problem:
        raise CorruptBatch(str(problem)) from None
    voters, granting = (tuple(each.id for each in listed) for listed in (record.voters, record.granting_voters))
    return LeaderChange(record.leader_id, voters, granting)


def voters(raw: bytes) -> VoterSet | None:
    """Return the set of voters that a whole batch names; None if it names none.  Raises CorruptBatch."""
    if not is_control(raw):
        return None
    value = dict(controls(raw)).get(VOTERS)
    try:
        return None if value is None else decode_voters(value)
    except Malformed as problem:
        raise CorruptBatch(str(problem)) from None


def _batch(base_offset: int, epoch: int, attributes: int, count: int, records: bytes, timestamp_ms: int) -> bytes:
    length = HEADER_SIZE_BYTES - _LENGTH_FROM + len(records)
    if length > MAX_SIZE_BYTES - _LENGTH_FROM:
        raise ValueError(f"a batch of {length} bytes is larger than {MAX_SIZE_BYTES}")
    fields = (attributes, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count)
    covered = struct.pack(">hiqqqhii", *fields) + records
    return struct.pack(">qiibI", base_offset, length, epoch, _MAGIC, crc32c(covered)) + covered


def _record(delta: int, key: bytes, value: bytes) -> bytes:
    """Return one record, with an already encoded key.  Its attributes and timestamp delta are 0, and it has no
    headers.
    """
    content = b"".join((b"\x00\x00", _zigzag(delta), key, _zigzag(len(value)), value, b"\x00"))
    return _zigzag(len(content)) + content


def _zigzag(number: int) -> bytes:
    return uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


EMPTY = 0
"""The prefix hash of a log without batches."""

_INPUT = struct.Struct(">qqiI")
_OUTPUT = struct.Struct(">q")


def extend(prefix: int, base_offset: int, epoch: int, crc: int) -> int:
    """Return the prefix hash after one more batch; int64."""
    digest = blake2b(_INPUT.pack(prefix, base_offset, epoch, crc), digest_size=8).digest()
    hashed: int = _OUTPUT.unpack(digest)[0]
    return hashed


LEADER_CHANGE, KRAFT_VERSION, VOTERS = 2, 5, 6
"""Types of control records."""

_NO_DIRECTORY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class _Endpoint(Struct):
    name: str
    host: str
    port: UInt16


@dataclass(frozen=True, slots=True)
class _Versions(Struct):
    min: Int16
    max: Int16


@dataclass(frozen=True, slots=True)
class _Voter(Struct):
    id: Int32
    directory: UUID
    endpoints: tuple[_Endpoint, ...]
    kraft_versions: _Versions


@dataclass(frozen=True, slots=True)
class _Voters(Struct):
    version: Int16
    voters: tuple[_Voter, ...]


@dataclass(frozen=True, slots=True)
class _KRaftVersion(Struct):
    version: Int16
    kraft_version: Int16


@dataclass(frozen=True, slots=True)
class _LeadersVoter(Struct):
    id: Int32
    directory: Annotated[UUID, Since(1)] = _NO_DIRECTORY


@dataclass(frozen=True, slots=True)
class _LeaderChange(Struct):
    version: Int16
    leader_id: Int32
    voters: tuple[_LeadersVoter, ...]
    granting_voters: tuple[_LeadersVoter, ...]


_VOTERS_CODEC, _VERSION_CODEC, _LEADER_CODEC = (
    StructCodec(_Voters),
    StructCodec(_KRaftVersion),
    StructCodec(_LeaderChange, 1),
)


def encode_voters(voters: VoterSet) -> bytes:
    """Return the value of a Voters record."""
    rows = tuple(
        _Voter(
            entry.key.id,
            entry.key.directory or _NO_DIRECTORY,
            tuple(_Endpoint(*endpoint) for endpoint in entry.endpoints),
            _Versions(*entry.kraft_versions),
        )
        for entry in voters
    )
    return _VOTERS_CODEC.encode(_Voters(0, rows))


def decode_voters(value: bytes) -> VoterSet:
    """Return the voters in a Voters record.  Raises Malformed."""
    try:
        record, _ = _VOTERS_CODEC.read(value, 0, 0)
        return voter_set(
            VoterEntry(
                ReplicaKey(row.id, None if row.directory == _NO_DIRECTORY else row.directory),
                tuple(VoterEndpoint(e.name, e.host, e.port) for e in row.endpoints),
                (row.kraft_versions.min, row.kraft_versions.max),
            )
            for row in record.voters
        )
    except ValueError as problem:
        raise Malformed(f"a record of voters: {problem}") from None


def encode_kraft_version(version: KRaftVersion) -> bytes:
    """Return the value of a KRaftVersion record."""
    return _VERSION_CODEC.encode(_KRaftVersion(0, version.version))


def _encode_leader_change(change: LeaderChange) -> bytes:
    voters, granting = (tuple(map(_LeadersVoter, ids)) for ids in (change.voters, change.granting_voters))
    return _LEADER_CODEC.encode(_LeaderChange(0, change.leader_id, voters, granting))


_CONTROL_VALUES: Mapping[type, tuple[int, Callable[[Any], bytes]]] = {
    LeaderChange: (LEADER_CHANGE, _encode_leader_change),
    VoterSet: (VOTERS, encode_voters),
    KRaftVersion: (KRAFT_VERSION, encode_kraft_version),
}
"""Class of the body of a control batch -> type of its only record, and function that encodes the record's value."""
