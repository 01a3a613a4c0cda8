"""Frames: one request or response on a TCP connection, and the check of its body.

    frame    = int32 size | header | body
    request  = int16 api key | int16 version | int32 correlation id | nullable string client id | [tags] | body
    response = int32 correlation id | [tags] | body

Headers of flexible versions end with a section of tagged fields.  The response to ApiVersions never has this section,
because its reader does not know yet which versions the server supports (KIP-511).  Bodies are kio's entities.

*Bodies.*  A body whose lengths do not fit into its frame is rejected before it is parsed.

kio's native parser reserves memory for as many elements as an array *claims* to have.  So four hostile bytes can
request 32 GiB, and a failed allocation there aborts the process instead of raising.  So every body from a network is
first checked by a walker, which is compiled once per entity type.  A walker constructs nothing.  It only verifies that
each length fits into the remaining bytes.

    walk(body, at) -> position after the entity;   Malformed if a length is too large
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

from kio.index import KioIndexError, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError

from system_under_test.kraft.records.struct import Malformed, read_uvarint

FRAME_SIZE_MAX_BYTES = 16 << 20

Entity = Any
"""A kio entity: a frozen dataclass that knows its api key and version."""

_REQUEST_PREFIX = struct.Struct(">hhih")
_UNREADABLE = (SerialError, ValueError, TypeError, LookupError, struct.error)
"""Errors that kio raises for bytes that are no entity, or that contain unknown tagged fields."""


class MalformedFrame(ValueError):
    """Raised for bytes that are no frame, header or body of Kafka's protocol.  No more can be read from that
    connection.
    """


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None


@dataclass(frozen=True)
class Codec:
    """The types and functions that read and write one version of one API."""

    request_type: type[Any]
    response_type: type[Any]
    read_request: Callable[[bytes, int], tuple[Any, int]]
    read_response: Callable[[bytes, int], tuple[Any, int]]
    write_request: Callable[[io.BytesIO, Any], None]
    write_response: Callable[[io.BytesIO, Any], None]
    flexible_request_header: bool
    flexible_response_header: bool


@cache
def codec(api_key: int, version: int) -> Codec:
    """Raises KeyError if kio does not know the API or the version."""
    try:
        request_type = load_request_schema(api_key, version)
        response_type = load_response_schema(api_key, version)
    except KioIndexError as problem:
        raise KeyError(f"no API {api_key} in version {version}") from problem
    return Codec(
        request_type,
        response_type,
        entity_reader(request_type),
        entity_reader(response_type),
        entity_writer(request_type),
        entity_writer(response_type),
        request_type.__header_schema__.__flexible__,
        response_type.__header_schema__.__flexible__,
    )


def encode_request(correlation_id: int, client_id: str, request: Entity) -> bytes:
    """Return a whole frame, including its size."""
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
    """Return a whole frame, including its size."""
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
    """Return a whole frame, including its size, around the body of a request in a flexible version."""
    name = client_id.encode()
    header = _REQUEST_PREFIX.pack(api_key, version, correlation_id, len(name)) + name + b"\0"
    return b"".join(((len(header) + len(body)).to_bytes(4, "big"), header, body))


def packed_response(correlation_id: int, body: bytes) -> bytes:
    """Return a whole frame, including its size, around the body of a response in a flexible version."""
    return b"".join(((len(body) + 5).to_bytes(4, "big"), correlation_id.to_bytes(4, "big", signed=True), b"\0", body))


def decode_request_header(frame: bytes) -> tuple[RequestHeader, int]:
    """Return the header up to the client id, and the position after it.  The tags that follow depend on the version,
    which may be unknown.  Raises MalformedFrame.
    """
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
    """Return the body after a header whose client id ended at `at`.  Raises MalformedFrame; KeyError for a version that
    kio does not know.
    """
    layout = codec(header.api_key, header.version)
    at = _skip_header_tags(frame, at) if layout.flexible_request_header else at
    return decode(layout.request_type, layout.read_request, frame, at)


def decode_response(request_type: type[Any], frame: bytes) -> tuple[int, Entity]:
    """Return (correlation id, body) of the response to a request of that type.  Raises MalformedFrame."""
    layout = codec(request_type.__api_key__, request_type.__version__)
    if len(frame) < 4:
        raise MalformedFrame(f"a response of only {len(frame)} bytes")
    at = _skip_header_tags(frame, 4) if layout.flexible_response_header else 4
    body = decode(layout.response_type, layout.read_response, frame, at)
    return int.from_bytes(frame[:4], "big", signed=True), body


def decode(kind: type[Any], read: Callable[[bytes, int], tuple[Any, int]], frame: bytes, at: int) -> Entity:
    """Return an entity.  Raises MalformedFrame."""
    try:
        check(kind, frame, at)
        entity, _ = read(frame, at)
    except _UNREADABLE as problem:
        raise MalformedFrame(f"{kind.__name__} version {kind.__version__}: {problem}") from problem
    return entity


def _skip_header_tags(frame: bytes, at: int) -> int:
    try:
        return skip_tags(frame, at)
    except (IndexError, Malformed) as problem:
        raise MalformedFrame(f"no header tags: {problem}") from problem


class FrameBuffer:
    """Takes bytes, and returns frames without their sizes."""

    def __init__(self, size_max_bytes: int = FRAME_SIZE_MAX_BYTES) -> None:
        self._bytes: bytes | bytearray = b""  # a bytearray only while a frame is incomplete
        self._size_max_bytes = size_max_bytes

    def __len__(self) -> int:
        """Return the number of bytes that are not yet taken."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        if not self._bytes:
            self._bytes = data
            return
        if isinstance(self._bytes, bytes):
            self._bytes = bytearray(self._bytes)
        self._bytes += data

    def take(self) -> bytes | None:
        """Return the next whole frame; None if it has not arrived yet.  Raises MalformedFrame for an impossible
        size.
        """
        if len(self._bytes) < 4:
            return None
        size_bytes = int.from_bytes(self._bytes[:4], "big", signed=True)
        if not 0 < size_bytes <= self._size_max_bytes:
            raise MalformedFrame(f"a frame of {size_bytes} bytes, where 1 to {self._size_max_bytes} are possible")
        end = 4 + size_bytes
        if len(self._bytes) < end:
            return None
        frame = bytes(self._bytes[4:end])
        self._bytes = self._bytes[end:]
        return frame


def _sized(out: io.BytesIO) -> bytes:
    size_bytes = out.tell() - 4
    out.seek(0)
    out.write(size_bytes.to_bytes(4, "big"))
    return out.getvalue()


Walk = Callable[[bytes, int], int]

_FIXED_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4,
    "timedelta_i32": 4, "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16,
}  # fmt: skip


@cache
def walker(entity_type: Any) -> Walk:
    """Return the walker of a kio entity type."""
    flexible: bool = entity_type.__flexible__
    steps: list[int | Walk] = []  # an int is a run of fixed-size fields
    tagged: dict[int, Walk] = {}
    for field in fields(entity_type):
        step = _field_step(field, flexible)
        if "tag" in field.metadata:
            tagged[field.metadata["tag"]] = _as_walk(step)
        elif isinstance(step, int) and steps and isinstance(steps[-1], int):
            steps[-1] += step
        else:
            steps.append(step)

    def walk(body: bytes, at: int) -> int:
        for step in steps:
            at = at + step if type(step) is int else step(body, at)  # type: ignore[operator]
        return _walk_tags(body, at, tagged) if flexible else at

    return walk


def check(entity_type: Any, body: bytes, at: int) -> None:
    """Raise Malformed unless an entity of this type fits into `body` from `at` on.

    Bytes after the entity are ignored, as in Kafka: librdkafka's Metadata request for all topics has three such bytes.
    """
    try:
        end = walker(entity_type)(body, at)
    except IndexError as problem:
        raise Malformed(f"{entity_type.__name__}: ends within a field") from problem
    if end > len(body):
        raise Malformed(f"{entity_type.__name__}: {end - at} bytes are announced, but only {len(body) - at} are left")


def skip_tags(frame: bytes, at: int) -> int:
    """Return the position after a section of unknown tagged fields.  Raises IndexError or Malformed."""
    return _walk_tags(frame, at, {})


def _field_step(field: Field[Any], flexible: bool) -> int | Walk:
    kind, is_array, is_nullable = shape_of(field.type)
    if is_dataclass(kind):
        element: int | Walk = walker(kind)  # type: ignore[arg-type]
        if is_nullable and not is_array and "tag" not in field.metadata:
            element = _nullable(_as_walk(element))
    else:
        name = field.metadata["kafka_type"]
        element = _FIXED_BYTES.get(name) or _of_size(name, flexible)
    return _array(element, flexible) if is_array else element


def shape_of(field_type: Any) -> tuple[Any, bool, bool]:
    """Return (element type, is an array, may be null) of a field's annotation."""
    nullable = False
    if get_origin(field_type) in (UnionType, Union):
        nullable = True
        field_type = next(t for t in get_args(field_type) if t is not NoneType)
    if get_origin(field_type) is tuple:
        return shape_of(get_args(field_type)[0])[0], True, nullable
    return field_type, False, nullable


def _as_walk(step: int | Walk) -> Walk:
    return (lambda body, at: at + step) if isinstance(step, int) else step


def _nullable(walk: Walk) -> Walk:
    """Return the walk of a struct after one byte that states whether the struct is null (KIP-893)."""
    return lambda body, at: at + 1 if body[at] > 0x7F else walk(body, at + 1)


def _of_size(name: str, flexible: bool) -> Walk:
    """Return the walk of a string or byte string.  In all forms null has the length -1 or, compact, 0."""
    if name not in ("string", "bytes", "records"):
        raise NotImplementedError(f"no walker for fields of type {name}")
    if flexible:
        return _walk_compact
    return _walk_short_string if name == "string" else _walk_long_bytes


def _array(element: int | Walk, flexible: bool) -> Walk:
    def walk(body: bytes, at: int) -> int:
        if flexible:
            count, at = read_uvarint(body, at)
            count -= 1
        else:
            count, at = int.from_bytes(body[at : at + 4], "big", signed=True), at + 4
        if count > len(body) - at:  # each element takes at least one byte
            raise Malformed(f"an array of {count} elements in {len(body) - at} bytes")
        if type(element) is int:
            return at + max(count, 0) * element
        for _ in range(count):
            at = element(body, at)  # type: ignore[operator]
        return at

    return walk


def _walk_compact(body: bytes, at: int) -> int:
    size_bytes, at = read_uvarint(body, at)
    return at + max(size_bytes - 1, 0)


def _walk_short_string(body: bytes, at: int) -> int:
    return at + 2 + max(int.from_bytes(body[at : at + 2], "big", signed=True), 0)


def _walk_long_bytes(body: bytes, at: int) -> int:
    return at + 4 + max(int.from_bytes(body[at : at + 4], "big", signed=True), 0)


def _walk_tags(body: bytes, at: int, tagged: dict[int, Walk]) -> int:
    count, at = read_uvarint(body, at)
    for _ in range(count):
        tag, at = read_uvarint(body, at)
        size_bytes, at = read_uvarint(body, at)
        end = at + size_bytes
        if tag in tagged and tagged[tag](body, at) != end:
            raise Malformed(f"tagged field {tag} does not fill its {size_bytes} bytes")
        at = end
    return at
