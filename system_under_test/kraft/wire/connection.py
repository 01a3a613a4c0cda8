"""The requesting side of a connection: one request at a time, one attempt each, and never a late answer.

    closed --ask--> connecting --> asking --> open --ask--> asking --> ...
                        any failure, and being cancelled, leads back to closed

A request without an answer always costs the connection, so that a late answer has nowhere to arrive and
can never answer the next request.  `sent` distinguishes two failures: nothing left this machine, or the outcome is
unknown.
"""

from __future__ import annotations

import asyncio

from system_under_test.kraft.wire.frames import Entity, MalformedFrame, decode_response, encode_request, read_frame


class Hung(ConnectionError):
    """The peer closed the connection instead of answering."""


class Connection:
    """Connects with the first request, and again after a failure.

    sent: of the last request, whether a byte of it may have left.  connect_timeout_s: None = as long as the caller
    lets it take; a short one tries a healed link again before the kernel's slow retries of a lost SYN do.
    """

    def __init__(self, host: str, port: int, client_id: str, *, connect_timeout_s: float | None = None) -> None:
        self.sent = False
        self._host = host
        self._port = port
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._correlation_id = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Entity) -> Entity:
        """The answer.  Raises OSError (refused, reset, timed out while connecting; Hung among them) or MalformedFrame;
        the connection is then closed, as it is when the caller gives up."""
        self.sent = False
        answered = False
        try:
            reader, writer = await self._open()
            self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
            frame = encode_request(self._correlation_id, self._client_id, request)
            self.sent = True
            writer.write(frame)
            answer = await self._read(reader, type(request))
            answered = True
            return answer
        except asyncio.IncompleteReadError as problem:
            raise Hung("closed within an answer") from problem
        finally:
            if not answered:
                self.close()

    def close(self) -> None:
        """At once; what was not yet sent is lost."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None:
            reader, writer = self._streams
            if reader.at_eof() or reader.exception() is not None or writer.transport.is_closing():
                self.close()  # the peer left between two requests
        if self._streams is None:
            async with asyncio.timeout(self._connect_timeout_s):
                self._streams = await asyncio.open_connection(self._host, self._port)
        return self._streams

    async def _read(self, reader: asyncio.StreamReader, request: type) -> Entity:
        frame = await read_frame(reader)
        if frame is None:
            raise Hung("closed without an answer")
        correlation_id, answer = decode_response(request, frame)
        if correlation_id != self._correlation_id:
            raise MalformedFrame(f"an answer to request {correlation_id} where {self._correlation_id} was sent")
        return answer
