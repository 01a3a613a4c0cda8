"""The usual write of a client, read and answered without an entity in between (IncrementalAlterConfigs 44 v1).

Every write of a register is one, and a general codec takes a third of what the leader spends on it.  Only one form is
known here; for all else the functions return None, and kio's codec does it:

    request    one resource with one alteration, no tags, not merely validated; all strings short
    response   one resource without an error

A request is read only if it ends where its frame ends.  Tests compare what is read, and the packer's bytes, with kio's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from system_under_test.kraft.controller.configs import Alteration, Resource, ResourceResult
from system_under_test.kraft.wire.frames import RequestHeader
from system_under_test.kraft.wire.versions import INCREMENTAL_ALTER_CONFIGS

_VERSION = 1
_SHORT_MAX = 127
"""A compact length beyond it takes a second byte."""
_ONE = 2
"""A compact array of one element."""
_INT8 = struct.Struct(">b")
_END = b"\0\0\0\0"
"""Tags of the alteration and of the resource, validate_only, and tags of the request."""

_RESPONSE_HEAD = struct.Struct(">iBhBbB")
"""Throttle time, responses + 1, error, message (null), type of the resource, length of its name + 1."""


class UsualWrite(NamedTuple):
    """The fields of kio's IncrementalAlterConfigsRequest."""

    resources: tuple[Resource, ...]
    validate_only: bool = False


def read_request(header: RequestHeader, frame: bytes, at: int) -> UsualWrite | None:
    """The request of a frame whose header up to the client id ends at `at`; None if it has not the usual form."""
    if header.api_key != INCREMENTAL_ALTER_CONFIGS or header.version != _VERSION:
        return None
    try:
        if frame[at] != 0 or frame[at + 1] != _ONE:  # tags of the header; resources
            return None
        (resource_type,) = _INT8.unpack_from(frame, at + 2)
        resource, at = _text(frame, at + 3)
        if frame[at] != _ONE:
            return None
        name, at = _text(frame, at + 1)
        (operation,) = _INT8.unpack_from(frame, at)
        value, at = (None, at + 2) if frame[at + 1] == 0 else _text(frame, at + 1)
    except (IndexError, UnicodeDecodeError, struct.error, _Unusual):
        return None
    if frame[at:] != _END:
        return None
    return UsualWrite((Resource(resource_type, resource, (Alteration(name, operation, value),)),))


def pack_response(results: Sequence[ResourceResult]) -> bytes | None:
    """The body of the response; None if it has not the usual form."""
    if len(results) != 1 or results[0].error or results[0].message is not None:
        return None
    name = results[0].name.encode()
    if len(name) >= _SHORT_MAX:
        return None
    return b"".join((_RESPONSE_HEAD.pack(0, _ONE, 0, 0, results[0].type, len(name) + 1), name, b"\0\0"))


class _Unusual(ValueError):
    """A string that is null or not short."""


def _text(frame: bytes, at: int) -> tuple[str, int]:
    """A short string, and where it ends.  A frame that ends within it does not end as a usual one does."""
    length = frame[at]
    if not 0 < length <= _SHORT_MAX:
        raise _Unusual
    end = at + length
    return frame[at + 1 : end].decode(), end
