"""Connections of a node, and of clients, to other nodes.

*Connections.*  `Connection` carries one request at a time, makes one attempt for each, and never accepts a late answer.

    closed --ask--> connecting --> asking --> open --ask--> asking --> ...
                        any failure, and a cancellation, leads back to closed

A connection whose request is not answered is always closed.  So a late answer cannot be taken for the answer to the
next request.  `sent` distinguishes two failures: if False, the request was not sent; if True, the outcome is unknown.

*Channel.*  A voter has two connections to each peer: one for fetches, one for all other requests.

The two lanes are needed because a Fetch may stay parked at the leader for half a second, and the requests of a
connection are answered in order.  A vote request after such a Fetch would be too late for its election.

    READY --(ApiVersions) request--> AWAITING_RESPONSE --answer--> READY
      ^                        | refused, reset, timeout, another correlation id, malformed
      +----retry backoff---- BACKING_OFF          (the connection is closed; the caller gets None)

A new request on a busy lane waits `patience_s` for the request in flight, and then cancels that request.  After a heal,
a vote request must not queue behind a request that will never be answered.  If several requests wait, only the newest
is sent, and the others return None.

The first request on a connection for fetches asks which versions of Fetch the peer supports: Kafka 4.0 supports 17.

An attempt to connect ends after `connect_timeout_s`, before the kernel repeats a lost SYN after its own, ever longer
pauses.  So a healed link is tried again within half a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from kio.schema.api_versions.v0.request import ApiVersionsRequest

from system_under_test.kraft.ports import Listener, Network
from system_under_test.kraft.raft.messages import FetchRequest, FetchSnapshotRequest, RaftRequest, RaftResponse
from system_under_test.kraft.wire import frames, translate
from system_under_test.kraft.wire.frames import MalformedFrame
from system_under_test.kraft.wire.versions import FETCH, SUPPORTED

log = logging.getLogger(__name__)

T = TypeVar("T")
P = TypeVar("P", bound=asyncio.Protocol)


class Hung(ConnectionError):
    """Raised if the peer closed the connection instead of answering."""


class Connection:
    """A connection that opens at the first request, and again after a failure.

    sent: True if a byte of the last request may have been sent
    connect_timeout_s: maximum seconds to connect; None for no limit.  A short limit retries a healed link before the
        kernel repeats a lost SYN.
    network: None for sockets
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

    async def ask(self, request: frames.Entity) -> frames.Entity:
        """Return the answer to a kio entity.  Raises as `exchange`."""
        encode = partial(_encode_entity, request)
        return await self.exchange(encode, partial(frames.decode_response, type(request)))

    async def exchange(self, encode: Callable[[int, str], bytes], decode: Callable[[bytes], tuple[int, T]]) -> T:
        """Send a request and return its answer.

        encode: (correlation id, client id) -> frame with its size
        decode: frame -> (correlation id, answer)

        Raises OSError (refused, reset, timed out while connecting, or Hung), MalformedFrame, or the errors of `decode`.
        The connection is closed then, and also if the caller is cancelled.
        """
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

    @property
    def is_open(self) -> bool:
        return self._open is not None and not self._open.over

    def send(self, encode: Callable[[int, str], bytes]) -> asyncio.Future[bytes] | None:
        """Send a request over the open connection, without a task.  Returns the future of the answer's frame, or None
        if no connection is open.

        The future fails as `exchange` does.  The caller passes the frame to `take`, or closes this connection if there
        is no frame.
        """
        conversation = self._open
        if conversation is None or conversation.over:
            return None
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = encode(self._correlation_id, self._client_id)
        self.sent = True
        return conversation.send(frame)

    def take(self, frame: bytes, decode: Callable[[bytes], tuple[int, T]]) -> T:
        """Return the answer to the last request.  Raises MalformedFrame, or what `decode` raises."""
        correlation_id, answer = decode(frame)
        if correlation_id != self._correlation_id:
            raise frames.MalformedFrame(
                f"an answer to request {correlation_id}, but request {self._correlation_id} was sent"
            )
        return answer

    def close(self) -> None:
        """Close the connection at once.  Bytes that are not sent yet are lost."""
        if self._open is not None:
            self._open.abort()
            self._open = None

    async def _connect(self) -> None:
        if self._open is not None and self._open.over:
            self.close()  # the peer disconnected between two requests
        if self._open is None:
            async with asyncio.timeout(self._connect_timeout_s):
                self._open = await self._network.dial(self._host, self._port, _Conversation)


def _encode_entity(request: frames.Entity, correlation_id: int, client_id: str) -> bytes:
    return frames.encode_request(correlation_id, client_id, request)


class _Conversation(asyncio.Protocol):
    """One open connection; at most one request waits for its answer."""

    def __init__(self) -> None:
        self.over = False
        self._buffer = frames.FrameBuffer()
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
        except frames.MalformedFrame as problem:
            self._fail(problem)
            return
        if frame is None:
            return
        if self._answer is None or self._answer.done():
            self._fail(frames.MalformedFrame("an answer to no request"))
        else:
            self._answer.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        within = "within an answer" if len(self._buffer) else "without an answer"
        self._fail(exc if isinstance(exc, OSError) else Hung(f"closed {within}"))

    def _fail(self, problem: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(problem)
        self.abort()


class SocketNetwork:
    """`ports.Network` on TCP sockets."""

    async def dial(self, host: str, port: int, protocol: Callable[[], P]) -> P:
        _, made = await asyncio.get_running_loop().create_connection(protocol, host, port)
        return made

    async def listen(self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> Listener:
        return SocketListener(await asyncio.get_running_loop().create_server(protocol, host, port))


class SocketListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def port(self) -> int:
        return cast(int, self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()


@dataclass(frozen=True, slots=True)
class ChannelTimes:
    """Times of a channel.

    request_s: maximum seconds for a request, including connecting
    connect_s: maximum seconds for connecting
    backoff_s: seconds of pause after a failure
    patience_s: maximum seconds that a new request waits for the request before it
    """

    request_s: float = 2.0
    connect_s: float = 0.5
    backoff_s: float = 0.02
    patience_s: float = 0.5


class Channel:
    """Both lanes to one peer.  It connects at the first request, and never raises because of the network.

    endpoint: (name, host, port) at which this node is reached; BeginQuorumEpoch and EndQuorumEpoch carry it to the peer
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        endpoint: translate.Endpoint | None = None,
        times: ChannelTimes = ChannelTimes(),
        network: Network | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._fetches, self._others = (
            _Lane(
                f"{host}:{port}",
                Connection(host, port, client_id, connect_timeout_s=times.connect_s, network=network),
                times,
            )
            for _ in range(2)
        )

    async def request(self, request: RaftRequest) -> RaftResponse | None:
        """Return the peer's answer, or None if there was none within the request timeout (connecting included)."""
        lane = self._fetches if isinstance(request, FetchRequest | FetchSnapshotRequest) else self._others
        return await lane.request(request, self._endpoint)

    def send_at_once(self, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> bool:
        """Send a Fetch like `request`, but without a task.  `answered` is called later.  Returns False if nothing was
        sent because the connection is not open or not free.
        """
        return self._fetches.send_at_once(request, answered)

    async def close(self) -> None:
        """Close both connections.  Requests in flight return None."""
        self._fetches.close()
        self._others.close()


class _Lane:
    def __init__(self, peer: str, connection: Connection, times: ChannelTimes) -> None:
        self._peer = peer
        self._connection = connection
        self._times = times
        self._in_flight: asyncio.Future[Any] | None = None  # the frame, connection or pause for which the lane waits
        self._newest = 0
        self._closed = False
        self._fetch_version = SUPPORTED[FETCH][1]

    async def request(self, request: RaftRequest, endpoint: translate.Endpoint | None) -> RaftResponse | None:
        self._newest += 1
        ticket = self._newest
        while (earlier := self._in_flight) is not None and not earlier.done():
            await asyncio.wait({earlier}, timeout=self._times.patience_s)
            if ticket != self._newest:
                return None
            if not earlier.done():
                earlier.cancel()
                await asyncio.wait({earlier})
        if self._closed:
            return None
        task = asyncio.ensure_future(self._attempt(request, endpoint))
        self._in_flight = task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        return None if task.cancelled() else task.result()

    def send_at_once(self, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> bool:
        if self._closed or (self._in_flight is not None and not self._in_flight.done()):
            return False
        frame = self._connection.send(
            partial(translate.encode_request, request, None, fetch_version=self._fetch_version)
        )
        if frame is None:
            return False
        self._newest += 1
        self._in_flight = frame
        limit = asyncio.get_running_loop().call_later(self._times.request_s, _fail, frame, TimeoutError())
        frame.add_done_callback(partial(self._arrived, request, answered, limit))
        return True

    def _arrived(
        self,
        request: RaftRequest,
        answered: Callable[[RaftResponse | None], None],
        limit: asyncio.TimerHandle,
        frame: asyncio.Future[bytes],
    ) -> None:
        """Handle the answer to a request that was sent by `send_at_once`, or its cancellation."""
        limit.cancel()
        if frame.cancelled():
            self._connection.close()
            answered(None)
            return
        try:
            response = self._connection.take(frame.result(), partial(translate.decode_response, request))
        except _NO_ANSWER as problem:
            self._connection.close()
            self._report(problem)
            backing_off = asyncio.ensure_future(asyncio.sleep(self._times.backoff_s))
            self._in_flight = backing_off
            backing_off.add_done_callback(lambda _: answered(None))
        else:
            answered(response)

    def close(self) -> None:
        self._closed = True
        if self._in_flight is not None:
            self._in_flight.cancel()
        self._connection.close()

    async def _attempt(self, request: RaftRequest, endpoint: translate.Endpoint | None) -> RaftResponse | None:
        try:
            async with asyncio.timeout(self._times.request_s):
                if isinstance(request, FetchRequest) and not self._connection.is_open:
                    await self._negotiate()
                return await self._connection.exchange(
                    partial(translate.encode_request, request, endpoint, fetch_version=self._fetch_version),
                    partial(translate.decode_response, request),
                )
        except _NO_ANSWER as problem:
            self._connection.close()
            self._report(problem)
        await asyncio.sleep(self._times.backoff_s)
        return None

    async def _negotiate(self) -> None:
        """Find the highest version of Fetch that both sides support.  Raises as `Connection.ask`."""
        answer = await self._connection.ask(ApiVersionsRequest())
        lowest, highest = SUPPORTED[FETCH]
        spoken = next((each.max_version for each in answer.api_keys if each.api_key == FETCH), highest)
        self._fetch_version = max(lowest, min(highest, spoken))

    def _report(self, problem: Exception) -> None:
        if isinstance(problem, OSError):
            log.debug("%s did not answer: %r", self._peer, problem)
        else:
            log.warning("the answer of %s is malformed: %s", self._peer, problem)


_NO_ANSWER = (MalformedFrame, translate.MalformedRpc, OSError)


def _fail(frame: asyncio.Future[bytes], problem: Exception) -> None:
    if not frame.done():
        frame.set_exception(problem)
