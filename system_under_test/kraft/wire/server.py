"""Connections of a node: its server, its own requests, the network port on asyncio's sockets, and time limits.

*Server.*  The listening side of a node: connections, each answered in order, one request at a time.

    bytes -> frame -> header -> version known? -> body -> handler -> response -> next frame

A connection has a number (from 1, never reused in this process).  A fetch confirms leadership only on a connection on
which the leader wrote before (see the rules of linearizable reads).  The next request is read only after the last
answer was written.  So a client that sends has all answers to its earlier requests.

A node serves `connections_max` connections at most, well below its limit of open files.  A further one takes the place
of the connection that has been idle for longest, so that idle clients cannot keep voters out; if all are busy it is
closed at once.

Requests of voters, and writes of clients, are taken at once, without a task for each (`TakeAtOnce`).

A malformed frame, an unknown API or version, or a handler that fails, closes that connection with one line in the log
and harms no other.  ApiVersions in an unknown version is answered with error 35 in version 0, so that newer
clients can find a version we share (KIP-35).

*Connections.*  `Connection` is the requesting side: one request at a time, one attempt each, and never a late answer.

    closed --ask--> connecting --> asking --> open --ask--> asking --> ...
                        any failure, and being cancelled, leads back to closed

A request without an answer always costs the connection, so that a late answer has nowhere to arrive and
can never answer the next request.  `sent` distinguishes two failures: nothing left this machine, or the outcome is
unknown.

*Network port.*  On asyncio's own sockets; it turns a stream of bytes into frames.

*Time limits.*  A timing wheel, as nearly all requests are answered long before their limits.

A timer of the loop for each request costs as much as half of a request's other bookkeeping.  Here the limits that end
within the same TICK_S share one timer; to begin and to end a limit costs one entry in a dictionary each.  A limit rings
up to TICK_S late, and never early.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar, cast

from system_under_test.kraft.ports import Listener, Network
from system_under_test.kraft.wire import frames
from system_under_test.kraft.wire.versions import API_VERSIONS, FEATURES_SINCE, SUPPORTED, Finalized, advertise

log = logging.getLogger(__name__)

IDLE_LIMIT_S = 600.0
"""A connection without a request for so long is closed (Kafka's connections.max.idle.ms)."""

BUFFERED_MAX_BYTES = 1 << 16
"""Bytes that a client may send ahead while its last request is being answered; then reading pauses."""

FILES_RESERVED = 64
"""Open files that are not connections of clients: the log, the trace, the connections to other voters."""
CONNECTIONS_MAX = 4096


def connections_limit() -> int:
    """Return as many as the limit of open files allows, and CONNECTIONS_MAX at most."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(CONNECTIONS_MAX, files - FILES_RESERVED if files > 2 * FILES_RESERVED else files // 2))


@dataclass(frozen=True, slots=True)
class WireCall:
    """One request.  connection: its number; body: kio's entity of (api_key, version)."""

    connection: int
    api_key: int
    version: int
    client_id: str | None
    body: frames.Entity


Handler = Callable[[WireCall], Awaitable[frames.Entity | None]]
"""Answers a request with kio's response entity of the same API and version; None closes the connection unanswered."""

Reply = Callable[[Callable[[], bytes]], None]
"""Answers a request, once, with what makes the frame of the answer."""

TakeAtOnce = Callable[[int, frames.RequestHeader, bytes, int, Reply], bool]
"""Takes a request without a task, or returns False.  It gets the connection's number, the header, the frame, and where
in it the header up to the client id ends.  Raises MalformedFrame."""


class Server:
    """A listening socket and its connections.  `port` is the real one where 0 was given.

    finalized: the levels of features that ApiVersions shows, at each request."""

    def __init__(
        self,
        handler: Handler,
        on_disconnect: Callable[[int], None] = lambda number: None,
        connections_max: int | None = None,
        take_at_once: TakeAtOnce | None = None,
        finalized: Callable[[], Finalized] = Finalized,
    ) -> None:
        self.handler = handler
        self.finalized = finalized
        self.take_at_once = take_at_once
        self.on_disconnect = on_disconnect
        self.connections: dict[int, _Accepted] = {}
        self._connections_max = connections_limit() if connections_max is None else connections_max
        self._numbers = itertools.count(1)
        self._listener: Listener | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    async def listen(self, network: Network, host: str, port: int) -> None:
        """Raises OSError where the address cannot be bound."""
        self._listener = await network.listen(host, port, lambda: _Accepted(self))

    async def close(self) -> None:
        """Stop listening and drop every connection, answered or not."""
        if self._listener is not None:
            self._listener.close()
        ends = [accepted.end() for accepted in tuple(self.connections.values())]
        await asyncio.gather(*(end for end in ends if end is not None), return_exceptions=True)

    def admit(self, accepted: _Accepted) -> int | None:
        """The number of a new connection; None if there is no room for it."""
        if len(self.connections) >= self._connections_max and not self._make_room():
            log.warning("a connection was closed at once: %d are open, and all are busy", len(self.connections))
            return None
        number = next(self._numbers)
        self.connections[number] = accepted
        return number

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest; False if none is idle."""
        idle = [accepted for accepted in self.connections.values() if not accepted.busy]
        if not idle:
            return False
        min(idle, key=lambda accepted: accepted.used_at).end()
        return True


class _Accepted(asyncio.Protocol):
    """One connection.  number: 0 until it is admitted.  used_at: when its last request ended, by the loop's clock.

    One request at a time: what arrives meanwhile waits in the buffer, and beyond BUFFERED_MAX_BYTES in the network.
    """

    def __init__(self, server: Server) -> None:
        self.number = 0
        self.used_at = 0.0
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None
        self._taken = False  # a request without a task is being answered
        self._idle: asyncio.TimerHandle | None = None
        self._peer_reads = True
        self._pauses = False
        self._at_end = False

    @property
    def busy(self) -> bool:
        return self._answering is not None or self._taken

    def end(self) -> asyncio.Task[None] | None:
        """Drop the connection now; the task that was answering, which is cancelled."""
        self._server.connections.pop(self.number, None)
        if self._transport is not None:
            self._transport.abort()
        if self._answering is not None:
            self._answering.cancel()
        return self._answering

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport
        number = self._server.admit(self)
        if number is None:
            transport.abort()  # type: ignore[attr-defined]
            return
        self.number, self.used_at = number, self._loop.time()
        self._watch_idleness()

    def data_received(self, data: bytes) -> None:
        self._buffer.feed(data)
        if self.busy and not self._pauses and len(self._buffer) > BUFFERED_MAX_BYTES and self._transport is not None:
            self._pauses = True
            self._transport.pause_reading()
        self._next()

    def eof_received(self) -> bool:
        """The peer sends no more.  What it has sent is answered before the connection is closed."""
        self._at_end = True
        return self.busy

    def pause_writing(self) -> None:
        self._peer_reads = False

    def resume_writing(self) -> None:
        self._peer_reads = True
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if not self.number:
            return
        self.end()
        if exc is not None or len(self._buffer):
            log.debug("connection %d ended: %r, %d bytes of a frame", self.number, exc, len(self._buffer))
        self._server.on_disconnect(self.number)

    # Requests

    def _next(self) -> None:
        """Begin with the next whole request, unless one is being answered or the peer does not read its answers."""
        if self.busy or not self._peer_reads or self._transport is None or self._transport.is_closing():
            return
        try:
            frame = self._buffer.take()
        except frames.MalformedFrame as problem:
            self._drop(problem)
            return
        if frame is not None:
            self._begin(frame)
        elif self._pauses:
            self._pauses = False
            self._transport.resume_reading()

    def _begin(self, frame: bytes) -> None:
        """Take a request at once, or begin a task for it."""
        take = self._server.take_at_once
        try:
            header, at = frames.decode_request_header(frame)
            lowest, highest = SUPPORTED.get(header.api_key, (0, -1))
            spoken = lowest <= header.version <= highest
            self._taken = True  # before it is taken: it may be answered before `take` returns
            if not (spoken and take is not None and take(self.number, header, frame, at, self._reply)):
                self._taken = False
                self._answering = self._loop.create_task(self._answer(header, frame, at, spoken=spoken))
        except frames.MalformedFrame as problem:
            self._drop(problem)
        except Exception:  # noqa: BLE001 - the boundary of a connection: no request may end the node
            self._abort_unhandled()

    def _reply(self, encode: Callable[[], bytes]) -> None:
        """Send the reply to the request that was handled synchronously, without delay: a lone client waits for it.

        The next request begins when the loop runs again, because the caller may be in the middle of something."""
        assert self._transport is not None
        self._taken, self.used_at = False, self._loop.time()
        if self._transport.is_closing():
            return
        try:
            self._transport.write(encode())
        except Exception:  # noqa: BLE001 - the boundary of a connection: no request may end the node
            self._abort_unhandled()
        if self._at_end or self._pauses or len(self._buffer):
            self._loop.call_soon(self._go_on)

    def _abort_unhandled(self) -> None:
        assert self._transport is not None
        log.exception("connection %d closed: its request could not be handled", self.number)
        self._transport.abort()

    async def _answer(self, header: frames.RequestHeader, frame: bytes, at: int, *, spoken: bool) -> None:
        assert self._transport is not None
        try:
            response = await self._response(header, frame, at, spoken=spoken)
            if response is None:
                self._transport.abort()
            elif not self._transport.is_closing():
                self._transport.write(response)
        except frames.MalformedFrame as problem:
            self._drop(problem)
        except Exception:  # noqa: BLE001 - the boundary of a connection: no request may end the node
            self._abort_unhandled()
        finally:
            self._answering, self.used_at = None, self._loop.time()
        self._go_on()

    def _go_on(self) -> None:
        assert self._transport is not None
        self._next()
        if self._at_end and not self.busy:
            self._transport.close()

    async def _response(self, header: frames.RequestHeader, frame: bytes, at: int, *, spoken: bool) -> bytes | None:
        """spoken: whether the version of this API is supported."""
        if not spoken:
            if header.api_key == API_VERSIONS:
                return _without_features(header.correlation_id, 0, error_code=35)
            raise frames.MalformedFrame(f"API {header.api_key} version {header.version} is not spoken here")
        body = frames.decode_request_body(header, frame, at)
        call = WireCall(self.number, header.api_key, header.version, header.client_id, body)
        if header.api_key == API_VERSIONS and header.version < FEATURES_SINCE:
            return _without_features(header.correlation_id, header.version)
        if header.api_key == API_VERSIONS:
            response = advertise(header.version, self._server.finalized())
        else:
            response = await self._server.handler(call)
        if response is None:
            return None
        assert type(response) is frames.codec(header.api_key, header.version).response_type, response
        return frames.encode_response(header.correlation_id, response)

    def _drop(self, problem: frames.MalformedFrame) -> None:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        log.warning("connection %d from %s closed: %s", self.number, peer, problem)
        self._transport.abort()

    def _watch_idleness(self) -> None:
        """One timer per connection, which is set again only when it rings."""
        due = self.used_at + IDLE_LIMIT_S if not self.busy else self._loop.time() + IDLE_LIMIT_S
        if due <= self._loop.time():
            self.end()
        else:
            self._idle = self._loop.call_at(due, self._watch_idleness)


def _without_features(correlation_id: int, version: int, error_code: int = 0) -> bytes:
    """The frame of an ApiVersions response without features."""
    frame = _versions_alone(version, error_code)
    return b"".join((frame[:4], correlation_id.to_bytes(4, "big", signed=True), frame[8:]))


@lru_cache(16)
def _versions_alone(version: int, error_code: int) -> bytes:
    return frames.encode_response(0, advertise(version, Finalized(), error_code))


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

    async def ask(self, request: frames.Entity) -> frames.Entity:
        """The answer to a kio entity; see `exchange`."""
        encode = partial(_encode_entity, request)
        return await self.exchange(encode, partial(frames.decode_response, type(request)))

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

    @property
    def is_open(self) -> bool:
        return self._open is not None and not self._open.over

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
            raise frames.MalformedFrame(f"an answer to request {correlation_id} where {self._correlation_id} was sent")
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


def _encode_entity(request: frames.Entity, correlation_id: int, client_id: str) -> bytes:
    return frames.encode_request(correlation_id, client_id, request)


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


P = TypeVar("P", bound=asyncio.Protocol)


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


class FrameBuffer:
    """Bytes in, frames without their sizes out."""

    def __init__(self, size_max_bytes: int = frames.FRAME_SIZE_MAX_BYTES) -> None:
        self._bytes: bytes | bytearray = b""  # a bytearray only while a frame is in parts
        self._size_max_bytes = size_max_bytes

    def __len__(self) -> int:
        """Bytes that are not taken yet."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        if not self._bytes:
            self._bytes = data
            return
        if isinstance(self._bytes, bytes):
            self._bytes = bytearray(self._bytes)
        self._bytes += data

    def take(self) -> bytes | None:
        """The next whole frame; None if it has not arrived yet.  Raises MalformedFrame for an impossible size."""
        if len(self._bytes) < 4:
            return None
        size_bytes = int.from_bytes(self._bytes[:4], "big", signed=True)
        if not 0 < size_bytes <= self._size_max_bytes:
            raise frames.MalformedFrame(f"a frame of {size_bytes} bytes")
        end = 4 + size_bytes
        if len(self._bytes) < end:
            return None
        frame = bytes(self._bytes[4:end])
        self._bytes = self._bytes[end:]
        return frame


TICK_S = 0.05

_Ring = Callable[[], None]


class TimeLimit:
    """One limit that runs; made by `TimeLimits.begin`."""

    __slots__ = ("_ring", "_running")

    def __init__(self, running: dict[TimeLimit, None], ring: _Ring) -> None:
        self._running = running
        self._ring = ring
        running[self] = None

    def end(self) -> bool:
        """End the limit.  False if it was over already: it has rung, or was ended before."""
        return self._running.pop(self, self) is None

    def expire(self) -> None:
        """Ring, unless the limit is over."""
        if self.end():
            self._ring()


class TimeLimits:
    """By the clock of the loop that runs."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wheel: dict[int, dict[TimeLimit, None]] = {}

    def begin(self, limit_s: float, ring: _Ring) -> TimeLimit:
        """`ring` is called once, after limit_s, unless the limit is ended before.  limit_s: not negative."""
        tick = math.ceil((self._loop.time() + limit_s) / TICK_S)
        running = self._wheel.get(tick)
        if running is None:
            running = self._wheel[tick] = {}
            self._loop.call_at(tick * TICK_S, self._turn, tick)
        return TimeLimit(running, ring)

    def close(self) -> None:
        """End all limits."""
        for running in self._wheel.values():
            running.clear()

    def _turn(self, tick: int) -> None:
        for limit in list(self._wheel.pop(tick)):
            limit.expire()
