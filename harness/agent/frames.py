"""Frames: the protocol between harness and agent over a byte stream.

    frame  = magic (2 bytes) · header length (4) · body length (4) · header · body        all big-endian
    header = one JSON object;  body = raw bytes, often none

    to the agent    {"id": 7, "verb": "Files.read", "args": {...}} + body
    from the agent  {"id": 7, "result": {...}} + body                 the answer, or the last piece of a long answer
                    {"id": 7, "more": true} + body                    an earlier piece of a long answer
                    {"id": 7, "errno": 2, "words": "..."}             the agent refuses; its error message
                    {"event": "exit", ...}                            an event, without a request

A verb is `Class.method` of the agent (`harness.agent.process`); its arguments are passed by name.

The magic number is needed because stray output in the stream would otherwise be read as a length of a gigabyte.
"""

from __future__ import annotations

import functools
import inspect
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

_PREFIX = struct.Struct("!2sII")
_MAGIC = b"\xabK"

HEADER_BYTES_MAX = 1 << 20
BODY_BYTES_MAX = 1 << 26
PIECE_BYTES = 1 << 18
"""Maximum bytes of one piece of a long answer.  Between two pieces, other answers can be sent."""

Frame = tuple[dict[str, Any], bytes]


class BrokenStream(ConnectionError):
    """Bytes arrived that are no frame, so all later bytes of the stream are unusable."""


def encode(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return one frame.  Raises ValueError if the header or the body exceeds its limit."""
    packed = json.dumps(header, separators=(",", ":")).encode()
    if len(packed) > HEADER_BYTES_MAX or len(body) > BODY_BYTES_MAX:
        raise ValueError(
            f"a frame has at most {HEADER_BYTES_MAX} bytes of header and {BODY_BYTES_MAX} bytes of body, "
            f"not {len(packed)} and {len(body)}"
        )
    return b"".join((_PREFIX.pack(_MAGIC, len(packed), len(body)), packed, body))


class Decoder:
    """Decodes frames from bytes that arrive in arbitrary pieces.  Performs no I/O."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def torn(self) -> bool:
        """Return True if a frame has begun and not ended.  At end of file this means that the other side died while it
        wrote the frame.
        """
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes, and yield every frame that is complete.  Raises BrokenStream."""
        self._buffer += data
        at = 0
        try:
            while (end := self._end_of_frame(at)) is not None:
                _, header_size, body_size = _PREFIX.unpack_from(self._buffer, at)
                body_at = at + _PREFIX.size + header_size
                packed = bytes(self._buffer[at + _PREFIX.size : body_at])
                body = bytes(self._buffer[body_at : body_at + body_size])
                at = end
                yield _parse(packed), body
        finally:
            del self._buffer[:at]

    def _end_of_frame(self, at: int) -> int | None:
        if len(self._buffer) - at < _PREFIX.size:
            return None
        magic, header_size, body_size = _PREFIX.unpack_from(self._buffer, at)
        if magic != _MAGIC or header_size > HEADER_BYTES_MAX or body_size > BODY_BYTES_MAX:
            raise BrokenStream(f"not a frame: {bytes(self._buffer[at : at + 80])!r}")
        end: int = at + _PREFIX.size + header_size + body_size
        return end if len(self._buffer) >= end else None


def _parse(packed: bytes) -> dict[str, Any]:
    try:
        header = json.loads(packed)
    except ValueError as error:
        raise BrokenStream(f"not a frame: {packed[:80]!r}") from error
    if not isinstance(header, dict):
        raise BrokenStream(f"not a frame: {packed[:80]!r}")
    return header


# ---- verbs ---------------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])


def limit(seconds: float, *, beyond: str = "") -> Callable[[F], F]:
    """Declare the maximum time of an answer of a verb.

    seconds: the maximum, or the part of it that is added to an argument
    beyond: name of an argument of the verb, in seconds, to which `seconds` is added
    For verbs without a limit see `AgentLink.call`.
    """

    def declare(verb: F) -> F:
        verb.limit = (seconds, beyond)  # type: ignore[attr-defined]
        return verb

    return declare


def limit_of(verb: Callable[..., Any], given: Mapping[str, Any]) -> float | None:
    """Return the maximum seconds of an answer of a verb with these arguments; None if the verb has no limit."""
    seconds, beyond = getattr(verb, "limit", (None, ""))
    return seconds + given[beyond] if beyond else seconds


@functools.cache
def signature_of(verb: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(verb)


def body_of(verb: Callable[..., Any]) -> str:
    """Return the name of the parameter whose value is sent as the body of a request; "" if there is none."""
    return next((p.name for p in signature_of(verb).parameters.values() if p.annotation == "bytes"), "")
