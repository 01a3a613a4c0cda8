"""Frames: one request or response on a TCP connection.

    frame    = int32 size | header | body
    request  = int16 api key | int16 version | int32 correlation id | nullable string client id | [tags] | body
    response = int32 correlation id | [tags] | body

Headers of flexible versions end with a section of tagged fields; ApiVersions' response never has one, because its
reader cannot know yet what the server speaks (KIP-511).  Bodies are kio's entities.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from kio.index import KioIndexError, load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from system_under_test.kraft.wire import lengths_within_frame

FRAME_SIZE_MAX_BYTES = 16 << 20

Entity = Any
"""A kio entity: a frozen dataclass that knows its api key and version."""

_REQUEST_PREFIX = struct.Struct(">hhih")
_UNREADABLE = (SerialError, ValueError, TypeError, LookupError, struct.error)
"""What kio raises over bytes that are no entity; over tagged fields it does not know, too."""


class MalformedFrame(ValueError):
    """Bytes that are no frame, header or body of Kafka's protocol.  Nothing more can be read from that connection."""


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True)
class Codec:
    """Means by which one version of one API is read and written.

    requests, responses: kio's modules of entity types.
    """

    request_type: type[Any]
    response_type: type[Any]
    requests: ModuleType
    responses: ModuleType
    read_request: Callable[[bytes, int], tuple[Any, int]]
    read_response: Callable[[bytes, int], tuple[Any, int]]
    write_request: Callable[[io.BytesIO, Any], None]
    write_response: Callable[[io.BytesIO, Any], None]
    flexible_request_header: bool
    flexible_response_header: bool


@cache
def codec(api_key: int, version: int) -> Codec:
    """Raises KeyError where kio knows no such API or version."""
    try:
        request_type = load_request_schema(api_key, version)
        response_type = load_response_schema(api_key, version)
    except KioIndexError as problem:
        raise KeyError(f"no API {api_key} in version {version}") from problem
    return Codec(
        request_type,
        response_type,
        load_payload_module(api_key, version, EntityType.request),
        load_payload_module(api_key, version, EntityType.response),
        entity_reader(request_type),
        entity_reader(response_type),
        entity_writer(request_type),
        entity_writer(response_type),
        request_type.__header_schema__.__flexible__,
        response_type.__header_schema__.__flexible__,
    )


def encode_request(correlation_id: int, client_id: str, request: Entity) -> bytes:
    """A whole frame, with its size."""
    kind = type(request)
    layout = codec(kind.__api_key__, kind.__version__)
    name = client_id.encode()
    out = io.BytesIO()
    out.write(b"\0\0\0\0")
    out.write(_REQUEST_PREFIX.pack(kind.__api_key__, kind.__version__, correlation_id, len(name)))
    out.write(name)
    if layout.flexible_request_header:
        out.write(b"\0")
    layout.write_request(out, request)
    return _sized(out)


def encode_response(correlation_id: int, response: Entity) -> bytes:
    """A whole frame, with its size."""
    kind = type(response)
    layout = codec(kind.__api_key__, kind.__version__)
    out = io.BytesIO()
    out.write(b"\0\0\0\0")
    out.write(correlation_id.to_bytes(4, "big", signed=True))
    if layout.flexible_response_header:
        out.write(b"\0")
    layout.write_response(out, response)
    return _sized(out)


def packed_request(api_key: int, version: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    """A whole frame, with its size, around the body of a request in a flexible version."""
    name = client_id.encode()
    header = _REQUEST_PREFIX.pack(api_key, version, correlation_id, len(name)) + name + b"\0"
    return b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body))


def packed_response(correlation_id: int, body: bytes) -> bytes:
    """A whole frame, with its size, around the body of a response in a flexible version."""
    return b"".join(((len(body) + 5).to_bytes(4, "big"), correlation_id.to_bytes(4, "big", signed=True), b"\0", body))


def decode_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """The header up to the client id, and where it ends: the tags behind it depend on the version, which may be
    unknown.  Raises MalformedFrame."""
    try:
        api_key, version, correlation_id, name_size = _REQUEST_PREFIX.unpack_from(frame)
        at = _REQUEST_PREFIX.size
        if name_size < 0:
            return RequestHeader(api_key, version, correlation_id, None), at
        if name_size > len(frame) - at:
            raise MalformedFrame("a client id longer than its frame")
        name = frame[at : at + name_size].decode()
    except (struct.error, UnicodeDecodeError) as problem:
        raise MalformedFrame(f"no request header: {problem}") from problem
    return RequestHeader(api_key, version, correlation_id, name), at + name_size


def decode_request_body(header: RequestHeader, frame: bytes, at: int) -> Entity:
    """The body behind a header that ended at `at`.  Raises MalformedFrame; KeyError for a version kio lacks."""
    layout = codec(header.api_key, header.version)
    at = _skip_header_tags(frame, at) if layout.flexible_request_header else at
    return _decode(layout.request_type, layout.read_request, frame, at)


def decode_response(request_type: type[Any], frame: bytes) -> tuple[int, Entity]:
    """(correlation id, body) of the response to a request of that type.  Raises MalformedFrame."""
    layout = codec(request_type.__api_key__, request_type.__version__)
    if len(frame) < 4:
        raise MalformedFrame(f"a response of {len(frame)} bytes")
    at = _skip_header_tags(frame, 4) if layout.flexible_response_header else 4
    body = _decode(layout.response_type, layout.read_response, frame, at)
    return int.from_bytes(frame[:4], "big", signed=True), body


def _decode(kind: type[Any], read: Callable[[bytes, int], tuple[Any, int]], frame: bytes, at: int) -> Entity:
    try:
        lengths_within_frame.check(kind, frame, at)
        entity, _ = read(frame, at)
    except _UNREADABLE as problem:
        raise MalformedFrame(f"{kind.__name__} version {kind.__version__}: {problem}") from problem
    return entity


def _skip_header_tags(frame: bytes, at: int) -> int:
    try:
        return lengths_within_frame.skip_tags(frame, at)
    except (IndexError, lengths_within_frame.MalformedBody) as problem:
        raise MalformedFrame(f"no header tags: {problem}") from problem


def _sized(out: io.BytesIO) -> bytes:
    size_bytes = out.tell() - 4
    out.seek(0)
    out.write(size_bytes.to_bytes(4, "big"))
    return out.getvalue()
