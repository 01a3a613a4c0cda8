"""The listening side of a node: connections, each answered in order, one request at a time.

    bytes -> frame -> header -> version known? -> body -> handler -> response -> next frame

Each connection has a number, from 1, which is never reused in this process.  A Fetch confirms leadership only if the
leader wrote an answer on the same connection before (see linearizable reads in `raft/states.py`).  A connection reads
its next request only after it has written the last answer.

A node serves at most `connections_max` connections, well below its limit of open files.  A further connection replaces
the connection that has been idle for longest, so that idle clients cannot keep voters out.  If all connections are
busy, the further connection is closed at once.

Requests of voters, and writes of clients, need no task (`TakeAtOnce`).

A malformed frame, an unknown API or version, or a failing handler closes its connection with one line in the log, and
affects no other connection.  ApiVersions in an unknown version is answered with error 35 in version 0, so that newer
clients can find a common version (KIP-35).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache

from system_under_test.kraft.ports import Listener, Network
from system_under_test.kraft.wire import frames
from system_under_test.kraft.wire.versions import API_VERSIONS, FEATURES_SINCE, SUPPORTED, Finalized, advertise

log = logging.getLogger(__name__)

IDLE_LIMIT_S = 600.0
"""Seconds without a request after which a connection is closed (Kafka's connections.max.idle.ms)."""

BUFFERED_MAX_BYTES = 1 << 16
"""Maximum bytes that a client may send ahead while its last request is being answered.  Beyond that, reading pauses."""

FILES_RESERVED = 64
"""Number of open files reserved for other uses than client connections: the log, the trace, the connections to other
voters.
"""
CONNECTIONS_MAX = 4096


def connections_limit() -> int:
    """Return the number of connections that the limit of open files allows, at most CONNECTIONS_MAX."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(CONNECTIONS_MAX, files - FILES_RESERVED if files > 2 * FILES_RESERVED else files // 2))


@dataclass(frozen=True, slots=True)
class WireCall:
    """One request.

    connection: number of the connection
    body: kio's entity of (api_key, version)
    """

    connection: int
    api_key: int
    version: int
    client_id: str | None
    body: frames.Entity


Handler = Callable[[WireCall], Awaitable[frames.Entity | None]]
"""Function that answers a request with kio's response entity of the same API and version.  None closes the connection
without an answer.
"""

Reply = Callable[[Callable[[], bytes]], None]
"""Function that answers a request, once.  Its argument returns the frame of the answer."""

TakeAtOnce = Callable[[int, frames.RequestHeader, bytes, int, Reply], bool]
"""Function that takes a request without a task, or returns False.  Its arguments are the connection's number, the
header, the frame, the position in it where the header's client id ends, and the Reply.  Raises MalformedFrame.
"""


class Server:
    """A listening socket and its connections.

    port: the real port, if 0 was passed
    finalized: returns the feature levels that ApiVersions shows; called at each request
    """

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
        """Begin to listen.  Raises OSError if the address cannot be bound."""
        self._listener = await network.listen(host, port, lambda: _Accepted(self))

    async def close(self) -> None:
        """Stop listening, and close every connection, even if a request is not answered yet."""
        if self._listener is not None:
            self._listener.close()
        ends = [accepted.end() for accepted in tuple(self.connections.values())]
        await asyncio.gather(*(end for end in ends if end is not None), return_exceptions=True)

    def admit(self, accepted: _Accepted) -> int | None:
        """Return the number of a new connection; None if there is no room for it."""
        if len(self.connections) >= self._connections_max and not self._make_room():
            log.warning("closed a new connection: %d connections are open, and all are busy", len(self.connections))
            return None
        number = next(self._numbers)
        self.connections[number] = accepted
        return number

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest.  Returns False if none is idle."""
        idle = [accepted for accepted in self.connections.values() if not accepted.busy]
        if not idle:
            return False
        min(idle, key=lambda accepted: accepted.used_at).end()
        return True


class _Accepted(asyncio.Protocol):
    """One connection.

    number: 0 until the connection is admitted
    used_at: time at which its last request ended, on the loop's clock

    One request is handled at a time.  Bytes that arrive meanwhile wait in the buffer; beyond BUFFERED_MAX_BYTES they
    wait in the network.
    """

    def __init__(self, server: Server) -> None:
        self.number = 0
        self.used_at = 0.0
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._buffer = frames.FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._answering: asyncio.Task[None] | None = None
        self._taken = False  # a request without a task of its own is being answered
        self._idle: asyncio.TimerHandle | None = None
        self._peer_reads = True
        self._pauses = False
        self._at_end = False

    @property
    def busy(self) -> bool:
        return self._answering is not None or self._taken

    def end(self) -> asyncio.Task[None] | None:
        """Close the connection now.  Returns the cancelled task that was answering its request, if there is one."""
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
        """Handle the end of the peer's requests.  Requests that have arrived are answered before the connection is
        closed.
        """
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
        """Begin the next whole request, unless a request is being answered or the peer does not read its answers."""
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
        """Handle a request at once, or start a task for it."""
        take = self._server.take_at_once
        try:
            header, at = frames.decode_request_header(frame)
            lowest, highest = SUPPORTED.get(header.api_key, (0, -1))
            spoken = lowest <= header.version <= highest
            self._taken = True  # set first, because it may be answered before `take` returns
            if not (spoken and take is not None and take(self.number, header, frame, at, self._reply)):
                self._taken = False
                self._answering = self._loop.create_task(self._answer(header, frame, at, spoken=spoken))
        except frames.MalformedFrame as problem:
            self._drop(problem)
        except Exception:  # noqa: BLE001 - the boundary of a connection: no request may end the node
            self._abort_unhandled()

    def _reply(self, encode: Callable[[], bytes]) -> None:
        """Send the answer to a request that was taken without a task, at once, because a lone client waits for it.

        The next request begins when the loop runs again: the caller may be in the middle of other work.
        """
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
        """Return the frame of the response, or None.

        spoken: True if the version of this API is supported
        """
        if not spoken:
            if header.api_key == API_VERSIONS:
                return _without_features(header.correlation_id, 0, error_code=35)
            raise frames.MalformedFrame(f"API {header.api_key} version {header.version} is not supported")
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
        """Close an idle connection.  There is one timer per connection, which is set again only when it fires."""
        due = self.used_at + IDLE_LIMIT_S if not self.busy else self._loop.time() + IDLE_LIMIT_S
        if due <= self._loop.time():
            self.end()
        else:
            self._idle = self._loop.call_at(due, self._watch_idleness)


def _without_features(correlation_id: int, version: int, error_code: int = 0) -> bytes:
    """Return the frame of an ApiVersions response without features."""
    frame = _versions_alone(version, error_code)
    return b"".join((frame[:4], correlation_id.to_bytes(4, "big", signed=True), frame[8:]))


@lru_cache(16)
def _versions_alone(version: int, error_code: int) -> bytes:
    return frames.encode_response(0, advertise(version, Finalized(), error_code))
