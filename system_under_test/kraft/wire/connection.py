"""The requesting side of a connection: one request at a time, one attempt each, and never a late answer.

    closed --ask--> connecting --> asking --> open --ask--> asking --> ...
                        any failure, and being cancelled, leads back to closed

A request without an answer always costs the connection, so that a late answer has nowhere to arrive and
can never answer the next request.  `sent` distinguishes two failures: nothing left this machine, or the outcome is
unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from system_under_test.kraft.ports import Network
from system_under_test.kraft.wire.frames import Entity, MalformedFrame, decode_response, encode_request
from system_under_test.kraft.wire.network import FrameBuffer, SocketNetwork

T = TypeVar("T")


class Hung(ConnectionError):
    """The peer closed the connection instead of answering."""


class Connection:
    """Connects with the first request, and again after a failure.

    sent: of the last request, whether a byte of it may have left.  connect_timeout_s: None = as long as the caller
    lets it take; a short one tries a healed link again before the kernel's slow retries of a lost SYN do.
    network: None = sockets.
    """

    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        *,
        connect_timeout_s: float | None = None,
        network: Network | None = None,
    ) -> None:
        self.sent = False
        self._host = host
        self._port = port
        self._client_id = client_id
        self._connect_timeout_s = connect_timeout_s
        self._network = network or SocketNetwork()
        self._correlation_id = 0
        self._open: _Conversation | None = None

    async def ask(self, request: Entity) -> Entity:
        """The answer to a kio entity; see `exchange`."""
        encode = partial(_encode_entity, request)
        return await self.exchange(encode, partial(decode_response, type(request)))

    async def exchange(self, encode: Callable[[int, str], bytes], decode: Callable[[bytes], tuple[int, T]]) -> T:
        """The answer.  encode: correlation id, client id -> frame with its size.
        decode: frame -> correlation id, answer.

        Raises OSError (refused, reset, timed out while connecting; Hung among them), MalformedFrame, or what `decode`
        raises; the connection is then closed, as it is when the caller gives up."""
        self.sent = False
        answered = False
        try:
            await self._connect()
            sending = self.send(encode)
            if sending is None:
                raise Hung("closed before the request")
            answer = self.take(await sending, decode)
            answered = True
            return answer
        finally:
            if not answered:
                self.close()

    def send(self, encode: Callable[[int, str], bytes]) -> asyncio.Future[bytes] | None:
        """Send a request over the open connection, without a task: the future of the frame that answers it, or None if
        no connection is open.  It fails as `exchange` does.  The caller hands the frame to `take`, and closes this
        connection if it gets none."""
        conversation = self._open
        if conversation is None or conversation.over:
            return None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = encode(self._correlation_id, self._client_id)
        self.sent = True
        return conversation.send(frame)

    def take(self, frame: bytes, decode: Callable[[bytes], tuple[int, T]]) -> T:
        """The answer to the last request.  Raises MalformedFrame, or what `decode` raises."""
        correlation_id, answer = decode(frame)
        if correlation_id != self._correlation_id:
            raise MalformedFrame(f"an answer to request {correlation_id} where {self._correlation_id} was sent")
        return answer

    def close(self) -> None:
        """At once; what was not yet sent is lost."""
        if self._open is not None:
            self._open.abort()
            self._open = None

    async def _connect(self) -> None:
        if self._open is not None and self._open.over:
            self.close()  # the peer left between two requests
        if self._open is None:
            async with asyncio.timeout(self._connect_timeout_s):
                self._open = await self._network.dial(self._host, self._port, _Conversation)


def _encode_entity(request: Entity, correlation_id: int, client_id: str) -> bytes:
    return encode_request(correlation_id, client_id, request)


class _Conversation(asyncio.Protocol):
    """One open connection; at most one request waits for its answer."""

    def __init__(self) -> None:
        self.over = False
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None

    def send(self, frame: bytes) -> asyncio.Future[bytes]:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(frame)
        return self._answer

    def abort(self) -> None:
        self.over = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport

    def data_received(self, data: bytes) -> None:
        self._buffer.feed(data)
        try:
            frame = self._buffer.take()
        except MalformedFrame as problem:
            self._fail(problem)
            return
        if frame is None:
            return
        if self._answer is None or self._answer.done():
            self._fail(MalformedFrame("an answer to no request"))
        else:
            self._answer.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        within = "within an answer" if len(self._buffer) else "without an answer"
        self._fail(exc if isinstance(exc, OSError) else Hung(f"closed {within}"))

    def _fail(self, problem: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(problem)
        self.abort()
