"""The two most frequent requests, packed and read without an entity in between.

Each commit costs each follower a Fetch or two, and each write of a register is an IncrementalAlterConfigs.  For a
Fetch, a general codec takes more CPU time than the consensus core; for a write, a third of the leader's CPU time.  This
module knows only one form of each request.  For any other form its functions return None, and kio's codec is used:

    Fetch 1 v18, request       one topic with one partition, no session, no forgotten topics, no rack
    Fetch 1 v18, response      no error, no divergence, no snapshot; a leader is named
    Alter 44 v1, request       one resource with one alteration, no tags, not only validated; all strings short
    Alter 44 v1, response      one resource without an error

The reader of a Fetch packs the result again and compares the bytes.  So it accepts exactly the bytes that the packer
makes, and never trusts a length that it did not compute.  A write request is accepted here only if it ends exactly
where its frame ends.  Tests compare the results of the readers, and the bytes of the packers, with kio's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from system_under_test.kraft.controller.configs import Alteration, Resource
from system_under_test.kraft.controller.one_by_one import Result
from system_under_test.kraft.raft.messages import FetchRequest, ReplicaKey
from system_under_test.kraft.records.struct import uvarint
from system_under_test.kraft.wire.frames import RequestHeader
from system_under_test.kraft.wire.versions import INCREMENTAL_ALTER_CONFIGS

TOPIC_ID = UUID(int=1)

_FETCH = struct.Struct(">iiibiiB16sBiiqiqi")
"""Max wait, min bytes, max bytes, isolation, session, session epoch, topics + 1, topic, partitions + 1.  Then, of the
partition: number, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes.
"""
_DIRECTORY_TAG = b"\x00\x10"
_MARK = struct.Struct(">BBq")
_REPLICA = struct.Struct(">BBiqB")
_NO_SESSION = -1
_UNKNOWN = -1
_CLUSTER_ID_MAX = 126
"""Maximum bytes of a cluster id whose compact length takes one byte."""

_FETCHED = struct.Struct(">ihiB16sBihqqqBi")
"""Throttle time, error, session, topics + 1, topic, partitions + 1.  Then, of the partition: number, error, high
watermark, last stable offset, log start offset, aborted transactions + 1, preferred read replica.
"""
_LEADER = struct.Struct(">BBBiiBBB")
"""Number of tags; tag of the current leader, with its size, the leader, its epoch and its own tags; tags of the topic;
tags of the response.
"""
_LEADER_TAG, _LEADER_BYTES = 1, 9


def pack_fetch_request(request: FetchRequest) -> bytes | None:
    """Return the body of a request; None if the request does not have the usual form."""
    ends = _request_ends(request.cluster_id, request.replica)
    if ends is None:
        return None
    before_mark, behind_mark = ends
    mark = _UNKNOWN if request.high_watermark is None else request.high_watermark
    size_bytes = request.max_size_bytes
    return b"".join((
        _FETCH.pack(
            *(request.max_wait_ms, 0, size_bytes, 0, 0, _NO_SESSION, 2, TOPIC_ID.bytes, 2),
            *(0, request.current_leader_epoch, request.fetch_offset, request.last_fetched_epoch, -1, size_bytes),
        ),
        before_mark,
        _MARK.pack(1, 8, mark),
        behind_mark,
    ))  # fmt: skip


def read_fetch_request(body: bytes) -> FetchRequest | None:
    """Return the request with this body; None if the body does not have the usual form."""
    at = _FETCH.size
    try:
        wait_ms, _, size_bytes, _, _, _, _, _, _, _, epoch, offset, last_epoch, _, _ = _FETCH.unpack_from(body)
        directory = _uuid(body[at + 3 : at + 19]) if body[at] == 2 else None
        at += 1 if directory is None else 19
        _, _, mark = _MARK.unpack_from(body, at)
        at += _MARK.size + 5
        cluster_id = body[at + 2 : at + 1 + body[at + 1]].decode()
        _, _, replica, _, _ = _REPLICA.unpack_from(body, at + 1 + body[at + 1])
        known = None if mark == _UNKNOWN else mark
        key = _replica_key(replica, directory)
        request = FetchRequest(cluster_id, key, epoch, offset, last_epoch, known, wait_ms, size_bytes)
        return request if mark >= _UNKNOWN and pack_fetch_request(request) == body else None
    except (IndexError, UnicodeDecodeError, ValueError, struct.error):
        return None


def pack_fetch_response(leader_id: int, epoch: int, high_watermark: int | None, records: bytes) -> bytes:
    """Return the body of a response without an error."""
    return b"".join((
        _response_head(high_watermark),
        uvarint(len(records) + 1),
        records,
        _LEADER.pack(1, _LEADER_TAG, _LEADER_BYTES, leader_id, epoch, 0, 0, 0),
    ))  # fmt: skip


def read_fetch_response(body: bytes) -> tuple[int, int, int | None, bytes] | None:
    """Return the arguments of `pack_fetch_response` that make this body; None if the body does not have the usual
    form.
    """
    behind = len(body) - _LEADER.size
    if behind <= _FETCHED.size:
        return None
    mark = _FETCHED.unpack_from(body)[8]
    high_watermark = None if mark == _UNKNOWN else mark
    if mark < _UNKNOWN or body[: _FETCHED.size] != _response_head(high_watermark):
        return None
    tags, tag, size_bytes, leader_id, epoch, *rest = _LEADER.unpack_from(body, behind)
    if (tags, tag, size_bytes, *rest) != (1, _LEADER_TAG, _LEADER_BYTES, 0, 0, 0) or leader_id < 0:
        return None
    left_bytes = behind - _FETCHED.size
    for length_bytes in range(1, 6):
        length = uvarint(left_bytes - length_bytes + 1)
        if len(length) == length_bytes:
            at = _FETCHED.size + length_bytes
            matches = body[_FETCHED.size : at] == length
            return (leader_id, epoch, high_watermark, body[at:behind]) if matches else None
    return None


def _response_head(high_watermark: int | None) -> bytes:
    mark = _UNKNOWN if high_watermark is None else high_watermark
    return _FETCHED.pack(0, 0, 0, 2, TOPIC_ID.bytes, 2, 0, 0, mark, -1, 0, 0, -1)


@lru_cache(64)
def _request_ends(cluster_id: str, replica: ReplicaKey) -> tuple[bytes, bytes] | None:
    """Return the bytes between the fixed part and the high watermark, and the bytes after the high watermark.  None if
    the cluster id is too long.
    """
    name = cluster_id.encode()
    if not 0 < len(name) < _CLUSTER_ID_MAX:
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


_WRITE_VERSION = 1
_SHORT_MAX = 127
"""Maximum compact length that takes one byte."""
_ONE = 2
"""Compact length of an array of one element."""
_INT8 = struct.Struct(">b")
_END = b"\0\0\0\0"
"""Tags of the alteration and of the resource, validate_only, and tags of the request."""

_WRITTEN = struct.Struct(">iBhBbB")
"""Throttle time, responses + 1, error, message (null), type of the resource, length of its name + 1."""


class UsualWrite(NamedTuple):
    """The fields of kio's IncrementalAlterConfigsRequest."""

    resources: tuple[Resource, ...]
    validate_only: bool = False


def read_write_request(header: RequestHeader, frame: bytes, at: int) -> UsualWrite | None:
    """Return the request of a frame whose header up to the client id ends at `at`; None if it does not have the usual
    form.
    """
    if header.api_key != INCREMENTAL_ALTER_CONFIGS or header.version != _WRITE_VERSION:
        return None
    try:
        if frame[at] != 0 or frame[at + 1] != _ONE:  # tags of the header; resources
            return None
        (resource_type,) = _INT8.unpack_from(frame, at + 2)
        resource, at = _short_text(frame, at + 3)
        if frame[at] != _ONE:
            return None
        name, at = _short_text(frame, at + 1)
        (operation,) = _INT8.unpack_from(frame, at)
        value, at = (None, at + 2) if frame[at + 1] == 0 else _short_text(frame, at + 1)
    except (IndexError, UnicodeDecodeError, struct.error, _Unusual):
        return None
    if frame[at:] != _END:
        return None
    return UsualWrite((Resource(resource_type, resource, (Alteration(name, operation, value),)),))


def pack_write_response(results: Sequence[Result]) -> bytes | None:
    """Return the body of the response; None if it does not have the usual form."""
    if len(results) != 1 or results[0]["error_code"] or results[0]["error_message"] is not None:
        return None
    name = results[0]["resource_name"].encode()
    if len(name) >= _SHORT_MAX:
        return None
    return b"".join((_WRITTEN.pack(0, _ONE, 0, 0, results[0]["resource_type"], len(name) + 1), name, b"\0\0"))


class _Unusual(ValueError):
    """Raised for a string that is null or not short."""


def _short_text(frame: bytes, at: int) -> tuple[str, int]:
    """Return a short string, and the position after it.  If the frame ends within the string, `read_write_request`
    notices it by the missing end of the request.
    """
    length = frame[at]
    if not 0 < length <= _SHORT_MAX:
        raise _Unusual
    end = at + length
    return frame[at + 1 : end].decode(), end
