"""The usual Fetch between voters, packed and read without an entity in between (Fetch 1 v18, a flexible version).

Each commit costs each follower a Fetch or two, and a general codec takes more of a processor for one than the consensus
core does.  Only one form is known here; for all else the functions return None, and kio's codec does it:

    request    one topic with one partition, no session, no forgotten topics, no rack
    response   no error, no divergence, no snapshot; a leader is named

A reader packs what it has read again and compares.  So it accepts exactly the bytes that the packer makes, and never
believes a length that it did not compute.  Tests compare the packer's bytes with kio's.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from uuid import UUID

from system_under_test.kraft.raft.messages import FetchRequest, ReplicaKey

TOPIC_ID = UUID(int=1)

_REQUEST = struct.Struct(">iiibiiB16sBiiqiqi")
"""max wait, min bytes, max bytes, isolation, session, its epoch, topics + 1, topic, partitions + 1; then the partition:
its number, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes."""
_DIRECTORY_TAG = b"\x00\x10"
_MARK = struct.Struct(">BBq")
_REPLICA = struct.Struct(">BBiqB")
_NO_SESSION = -1
_UNKNOWN = -1
_SHORT_MAX = 126
"""A compact length beyond it takes a second byte."""

_RESPONSE = struct.Struct(">ihiB16sBihqqqBi")
"""throttle time, error, session, topics + 1, topic, partitions + 1; then the partition: its number, error, high
watermark, last stable offset, log start offset, aborted transactions + 1, preferred read replica."""
_LEADER = struct.Struct(">BBBiiBBB")
"""tags, tag of the current leader, its size, leader, epoch, its tags; tags of the topic, and of the response."""
_LEADER_TAG, _LEADER_BYTES = 1, 9


def pack_request(request: FetchRequest) -> bytes | None:
    """The body of a request; None if it has not the usual form."""
    ends = _request_ends(request.cluster_id, request.replica)
    if ends is None:
        return None
    before_mark, behind_mark = ends
    mark = _UNKNOWN if request.high_watermark is None else request.high_watermark
    size_bytes = request.max_size_bytes
    return b"".join((
        _REQUEST.pack(
            *(request.max_wait_ms, 0, size_bytes, 0, 0, _NO_SESSION, 2, TOPIC_ID.bytes, 2),
            *(0, request.current_leader_epoch, request.fetch_offset, request.last_fetched_epoch, -1, size_bytes),
        ),
        before_mark,
        _MARK.pack(1, 8, mark),
        behind_mark,
    ))  # fmt: skip


def read_request(body: bytes) -> FetchRequest | None:
    """The request whose body these bytes are; None if they have not the usual form."""
    at = _REQUEST.size
    try:
        wait_ms, _, size_bytes, _, _, _, _, _, _, _, epoch, offset, last_epoch, _, _ = _REQUEST.unpack_from(body)
        directory = _uuid(body[at + 3 : at + 19]) if body[at] == 2 else None
        at += 1 if directory is None else 19
        _, _, mark = _MARK.unpack_from(body, at)
        at += _MARK.size + 5
        cluster_id = body[at + 2 : at + 1 + body[at + 1]].decode()
        _, _, replica, _, _ = _REPLICA.unpack_from(body, at + 1 + body[at + 1])
        known = None if mark == _UNKNOWN else mark
        key = _replica_key(replica, directory)
        request = FetchRequest(cluster_id, key, epoch, offset, last_epoch, known, wait_ms, size_bytes)
        return request if mark >= _UNKNOWN and pack_request(request) == body else None
    except (IndexError, UnicodeDecodeError, ValueError, struct.error):
        return None


def pack_response(leader_id: int, epoch: int, high_watermark: int | None, records: bytes) -> bytes:
    """The body of a response without an error."""
    return b"".join((
        _response_head(high_watermark),
        _uvarint(len(records) + 1),
        records,
        _LEADER.pack(1, _LEADER_TAG, _LEADER_BYTES, leader_id, epoch, 0, 0, 0),
    ))  # fmt: skip


def read_response(body: bytes) -> tuple[int, int, int | None, bytes] | None:
    """Return what `pack_response` was given; None if the bytes have not the usual form."""
    behind = len(body) - _LEADER.size
    if behind <= _RESPONSE.size:
        return None
    mark = _RESPONSE.unpack_from(body)[8]
    high_watermark = None if mark == _UNKNOWN else mark
    if mark < _UNKNOWN or body[: _RESPONSE.size] != _response_head(high_watermark):
        return None
    tags, tag, size_bytes, leader_id, epoch, *rest = _LEADER.unpack_from(body, behind)
    if (tags, tag, size_bytes, *rest) != (1, _LEADER_TAG, _LEADER_BYTES, 0, 0, 0) or leader_id < 0:
        return None
    left_bytes = behind - _RESPONSE.size
    for length_bytes in range(1, 6):
        length = _uvarint(left_bytes - length_bytes + 1)
        if len(length) == length_bytes:
            at = _RESPONSE.size + length_bytes
            matches = body[_RESPONSE.size : at] == length
            return (leader_id, epoch, high_watermark, body[at:behind]) if matches else None
    return None


def _response_head(high_watermark: int | None) -> bytes:
    mark = _UNKNOWN if high_watermark is None else high_watermark
    return _RESPONSE.pack(0, 0, 0, 2, TOPIC_ID.bytes, 2, 0, 0, mark, -1, 0, 0, -1)


@lru_cache(64)
def _request_ends(cluster_id: str, replica: ReplicaKey) -> tuple[bytes, bytes] | None:
    """Return what stands before the high watermark behind the partition, and behind it; None for a cluster id too
    long."""
    name = cluster_id.encode()
    if not 0 < len(name) < _SHORT_MAX:
        return None
    directory = b"\x01" if replica.directory is None else b"\x02" + _DIRECTORY_TAG + replica.directory.bytes
    cluster = bytes((len(name) + 1, len(name) + 1)) + name
    # Tags of the topic, forgotten topics + 1, rack + 1, tags: the cluster id, and the replica.
    return directory, b"\x00\x01\x01\x02\x00" + cluster + _REPLICA.pack(1, 13, replica.id, -1, 0)


@lru_cache(64)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)


@lru_cache(64)
def _replica_key(replica: int, directory: UUID | None) -> ReplicaKey:
    return ReplicaKey(replica, directory)


def _uvarint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
