"""The listening side of a node: connections, each answered in order, one request at a time.

    read frame -> header -> version known? -> body -> handler -> response -> next frame

A connection has a number (from 1, never reused in this process).  A fetch confirms leadership only on a connection on
which the leader wrote before (see the rules of linearizable reads).  The next request is read only after the last
answer was written.  So a client that sends has all answers to its earlier requests.

A node serves `connections_max` connections at most, well below its limit of open files.  A further one takes the place
of the connection that has been idle for longest, so that idle clients cannot keep voters out; if all are busy it is
closed at once.

A malformed frame, an unknown API or version, or a handler that fails, closes that connection with one line in the log
and harms no other.  ApiVersions in an unknown version is answered with error 35 in version 0, so that newer
clients can find a version we share (KIP-35).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from system_under_test.kraft.wire.frames import (
    Entity,
    MalformedFrame,
    codec,
    decode_request_body,
    decode_request_header,
    encode_response,
    read_frame,
)
from system_under_test.kraft.wire.versions import API_VERSIONS, SUPPORTED, advertise

log = logging.getLogger(__name__)

IDLE_LIMIT_S = 600.0
"""A connection without a request for so long is closed (Kafka's connections.max.idle.ms)."""


FILES_RESERVED = 64
"""Open files that are not connections of clients: the log, the trace, the connections to other voters."""
CONNECTIONS_MAX = 4096


def connections_limit() -> int:
    """As many as the limit of open files allows, and CONNECTIONS_MAX at most."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, min(CONNECTIONS_MAX, files - FILES_RESERVED if files > 2 * FILES_RESERVED else files // 2))


@dataclass(eq=False, slots=True)
class _Accepted:
    """One connection.  busy: a request is being answered; used_at: when the last one was, by the loop's clock."""

    number: int
    writer: asyncio.StreamWriter
    used_at: float
    busy: bool = False


@dataclass(frozen=True, slots=True)
class WireCall:
    """One request.  connection: its number; body: kio's entity of (api_key, version)."""

    connection: int
    api_key: int
    version: int
    client_id: str | None
    body: Entity


Handler = Callable[[WireCall], Awaitable[Entity | None]]
"""Answers a request with kio's response entity of the same API and version; None closes the connection unanswered."""


class Server:
    """A listening socket and its connections.  `port` is the real one where 0 was given."""

    def __init__(
        self,
        handler: Handler,
        on_disconnect: Callable[[int], None] = lambda number: None,
        connections_max: int | None = None,
    ) -> None:
        self._handler = handler
        self._connections_max = connections_limit() if connections_max is None else connections_max
        self._connections: dict[int, _Accepted] = {}
        self._on_disconnect = on_disconnect
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return cast(int, self._listener.sockets[0].getsockname()[1])

    async def listen(self, host: str, port: int) -> None:
        """Raises OSError where the address cannot be bound."""
        self._listener = await asyncio.start_server(self._accept, host, port)

    async def close(self) -> None:
        """Stop listening and drop every connection, answered or not."""
        if self._listener is not None:
            self._listener.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._connections_max and not self._make_room():
            log.warning("a connection was closed at once: %d are open, and all are busy", len(self._connections))
            writer.transport.abort()
            return
        loop = asyncio.get_running_loop()
        accepted = _Accepted(next(self._numbers), writer, loop.time())
        self._connections[accepted.number] = accepted
        task = loop.create_task(self._converse(accepted, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest; False if none is idle."""
        idle = [accepted for accepted in self._connections.values() if not accepted.busy]
        if not idle:
            return False
        oldest = min(idle, key=lambda accepted: accepted.used_at)
        del self._connections[oldest.number]
        oldest.writer.transport.abort()
        return True

    async def _converse(self, accepted: _Accepted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, loop = accepted.number, asyncio.get_running_loop()
        peer = writer.get_extra_info("peername")
        try:
            while True:
                async with asyncio.timeout(IDLE_LIMIT_S):
                    frame = await read_frame(reader)
                if frame is None:
                    return
                accepted.busy = True
                response = await self._answer(number, frame)
                if response is None:
                    return
                writer.write(response)
                await writer.drain()
                accepted.busy, accepted.used_at = False, loop.time()
        except MalformedFrame as problem:
            log.warning("connection %d from %s closed: %s", number, peer, problem)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as problem:
            log.debug("connection %d from %s ended: %r", number, peer, problem)
        except Exception:  # the boundary of a connection: no request may end the node
            log.exception("connection %d from %s closed: its request could not be handled", number, peer)
        finally:
            self._connections.pop(number, None)
            writer.transport.abort()
            self._on_disconnect(number)

    async def _answer(self, number: int, frame: bytes) -> bytes | None:
        header, at = decode_request_header(frame)
        lowest, highest = SUPPORTED.get(header.api_key, (0, -1))
        if not lowest <= header.version <= highest:
            if header.api_key == API_VERSIONS:
                return encode_response(header.correlation_id, advertise(0, error_code=35))
            raise MalformedFrame(f"API {header.api_key} version {header.version} is not spoken here")
        body = decode_request_body(header, frame, at)
        call = WireCall(number, header.api_key, header.version, header.client_id, body)
        if header.api_key == API_VERSIONS:
            response = advertise(header.version)
        else:
            response = await self._handler(call)
        if response is None:
            return None
        assert type(response) is codec(header.api_key, header.version).response_type, response
        return encode_response(header.correlation_id, response)


async def serve(
    host: str,
    port: int,
    handler: Handler,
    on_disconnect: Callable[[int], None] = lambda number: None,
    connections_max: int | None = None,
) -> Server:
    """Listen on host:port (0 = any free one).  ApiVersions is answered here, all else by `handler`.

    on_disconnect: called with the number of a connection once it is over, for any reason.
    connections_max: None = as many as the limit of open files allows."""
    server = Server(handler, on_disconnect, connections_max)
    await server.listen(host, port)
    return server
