"""Frames: the protocol of harness and agent over a byte stream.

    frame  = magic (2 bytes) · header length (4) · body length (4) · header · body        all big-endian
    header = one JSON object;  body = raw bytes, often none

    to the agent    {"id": 7, "verb": "Files.read", "args": {...}} + body
    from the agent  {"id": 7, "result": {...}} + body                 the last (mostly only) answer
                    {"id": 7, "more": true} + body                    a piece of a long answer
                    {"id": 7, "errno": 2, "words": "..."}             the agent's refusal, in its own words
                    {"event": "exit", ...}                            answers no request

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
"""Maximum size of one piece of a long answer, so that other answers do not wait long behind it."""

Frame = tuple[dict[str, Any], bytes]


class BrokenStream(ConnectionError):
    """Bytes arrived that are no frame; all later bytes are unusable."""


def encode(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    """One frame.  Raises ValueError if header or body is beyond its limit."""
    packed = json.dumps(header, separators=(",", ":")).encode()
    if len(packed) > HEADER_BYTES_MAX or len(body) > BODY_BYTES_MAX:
        raise ValueError(
            f"a frame holds at most {HEADER_BYTES_MAX} bytes of values and {BODY_BYTES_MAX} bytes of a body, "
            f"not {len(packed)} and {len(body)}"
        )
    return b"".join((_PREFIX.pack(_MAGIC, len(packed), len(body)), packed, body))


class Decoder:
    """Decodes frames from bytes that arrive in arbitrary pieces.  Performs no I/O."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def torn(self) -> bool:
        """Return whether a frame has begun and not ended, which at end of file means that the other side died while
        writing.
        """
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that is now complete.  Raises BrokenStream."""
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
    """Declare how long an answer of a verb may take.

    beyond: name of an argument, in seconds, to which `seconds` is added.  A verb without a limit may take any time,
    provided that its agent sends something now and then (`agent_link.SILENT_S`).
    """

    def declare(verb: F) -> F:
        verb.limit = (seconds, beyond)  # type: ignore[attr-defined]
        return verb

    return declare


def limit_of(verb: Callable[..., Any], given: Mapping[str, Any]) -> float | None:
    """Return the seconds that an answer of a verb may take with these arguments; None without a limit."""
    seconds, beyond = getattr(verb, "limit", (None, ""))
    return seconds + given[beyond] if beyond else seconds


@functools.cache
def signature_of(verb: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(verb)


def body_of(verb: Callable[..., Any]) -> str:
    """Return the name of the parameter that travels as the body of a request; "" if there is none."""
    return next((p.name for p in signature_of(verb).parameters.values() if p.annotation == "bytes"), "")
