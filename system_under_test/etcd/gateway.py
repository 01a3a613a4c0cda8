"""One HTTP/1.1 connection to etcd's JSON gateway: one request at a time, one attempt each.

What matters is not HTTP but *knowing what may have happened*.  `NotSent` is raised only while not a byte of the request
has been handed to the kernel.  After that every failure is `NoUsableAnswer`: the server may have executed the request.
A connection that is found closed before sending is opened anew.  This is no retry: no request was sent on it.

Needs only the standard library: it runs on client nodes.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

ANSWER_BYTES_MAX = 1 << 24
"""A set of 100,000 elements; no answer that this client expects is longer."""
_HEADERS_MAX = 64


class NotSent(ConnectionError):
    """The request never left: it certainly did not happen."""


class NoUsableAnswer(ConnectionError):
    """The request may have arrived and no usable answer came: its outcome is unknown."""


class Rejected(RuntimeError):
    """etcd answered with an error.  What that proves depends on the request."""


class BadAnswer(ValueError):
    """What came is no answer of etcd's gateway."""


class Gateway:
    """Cancelling `post` (a timeout) leaves a connection on which an answer may still come: call `close` then."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.sent = False
        """Whether the last `post` handed anything to the kernel: a caller needs it after a timeout."""

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of one request.  Raises NotSent, NoUsableAnswer, or Rejected with etcd's own words."""
        self.sent = False
        reader, writer = await self._open()
        packed = json.dumps(body, separators=(",", ":")).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Length: {len(packed)}\r\n\r\n"
        self.sent = True
        try:
            writer.write(head.encode() + packed)
            await writer.drain()
            status, answer = await _read_answer(reader)
        except (OSError, EOFError, ValueError) as problem:
            self.close()
            raise NoUsableAnswer(_said(problem)) from problem
        if status != 200:
            self.close()
            raise Rejected(str(answer.get("error") or answer.get("message") or f"HTTP status {status}"))
        return answer

    def close(self) -> None:
        """Close at once: an answer that comes later is dropped."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and (self._streams[0].at_eof() or self._streams[1].is_closing()):
            self.close()
        if self._streams is None:
            try:
                self._streams = await asyncio.open_connection(self._host, self._port, limit=ANSWER_BYTES_MAX)
            except OSError as problem:
                raise NotSent(_said(problem)) from problem
        return self._streams


def to_gateway(text: str) -> str:
    """Keys and values travel in base64."""
    return base64.b64encode(text.encode()).decode()


def from_gateway(encoded: str) -> str:
    """Raises ValueError if it is no base64 of a text."""
    return base64.b64decode(encoded, validate=True).decode()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    """Status and JSON body.  Raises EOFError if the connection ends within it, ValueError if it is no such answer."""
    version, status, *_ = (await _line(reader)).split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise BadAnswer("not an HTTP answer")
    length, chunked = None, False
    for _ in range(_HEADERS_MAX):
        line = await _line(reader)
        if not line:
            break
        name, _, value = line.partition(":")
        if name.lower() == "content-length":
            length = int(value)
        elif name.lower() == "transfer-encoding":
            chunked = "chunked" in value
    else:
        raise BadAnswer("too many headers")
    if chunked:
        body = await _read_chunks(reader)
    elif length is not None and 0 <= length <= ANSWER_BYTES_MAX:
        body = await reader.readexactly(length)
    else:
        raise BadAnswer("an answer without a usable length")
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise BadAnswer("not a JSON object")
    return int(status), answer


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await _line(reader)).partition(";")[0], 16):
        if size < 0 or len(body) + size > ANSWER_BYTES_MAX:
            raise BadAnswer("too long an answer")
        body += await reader.readexactly(size)
        await _line(reader)
    while await _line(reader):
        continue  # trailers
    return bytes(body)


async def _line(reader: asyncio.StreamReader) -> str:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the connection was closed within an answer")
    return line.strip().decode("latin-1")


def _said(problem: BaseException) -> str:
    """Few different words: they become a column of the history."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror.partition(" (")[0].lower()
    if isinstance(problem, EOFError | OSError):
        return "the connection was closed"
    return str(problem) if isinstance(problem, BadAnswer) else "an answer that makes no sense"
