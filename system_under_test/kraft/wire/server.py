"""The listening side of a node: connections, each answered in order, one request at a time.

    read frame -> header -> version known? -> body -> handler -> response -> next frame

A connection has a number (from 1, never reused in this process), because a fetch counts as a confirmation of leadership
only on a connection on which the leader wrote before (see the rules of linearizable reads).  The next request is not
even read before the last answer was written, so whoever sends on a connection has seen all answers before.

A malformed frame, an unknown API or version, or a handler that fails, closes that connection with one line in the log
and harms no other.  ApiVersions in an unknown version is answered with error 35 in version 0, so that newer
clients can find a version we share (KIP-35).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
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
"""A connection that asks nothing for so long is closed (Kafka's connections.max.idle.ms)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request.  connection: its number; body: kio's entity of (api_key, version)."""

    connection: int
    api_key: int
    version: int
    client_id: str | None
    body: Entity


Handler = Callable[[Call], Awaitable[Entity | None]]
"""Answers a request with kio's response entity of the same API and version; None closes the connection unanswered."""


class Server:
    """A listening socket and its connections.  `port` is the real one where 0 was asked for."""

    def __init__(self, handler: Handler, on_disconnect: Callable[[int], None] = lambda number: None) -> None:
        self._handler = handler
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
        task = asyncio.get_running_loop().create_task(self._converse(next(self._numbers), reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        try:
            while True:
                async with asyncio.timeout(IDLE_LIMIT_S):
                    frame = await read_frame(reader)
                if frame is None:
                    return
                response = await self._answer(number, frame)
                if response is None:
                    return
                writer.write(response)
                await writer.drain()
        except MalformedFrame as problem:
            log.warning("connection %d from %s closed: %s", number, peer, problem)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as problem:
            log.debug("connection %d from %s ended: %r", number, peer, problem)
        except Exception:  # the boundary of a connection: no request may end the node
            log.exception("connection %d from %s closed: its request could not be handled", number, peer)
        finally:
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
        call = Call(number, header.api_key, header.version, header.client_id, body)
        if header.api_key == API_VERSIONS:
            response = advertise(header.version)
        else:
            response = await self._handler(call)
        if response is None:
            return None
        assert type(response) is codec(header.api_key, header.version).response_type, response
        return encode_response(header.correlation_id, response)


async def serve(
    host: str, port: int, handler: Handler, on_disconnect: Callable[[int], None] = lambda number: None
) -> Server:
    """Listen on host:port (0 = any free one).  ApiVersions is answered here, all else by `handler`.

    on_disconnect: told the number of a connection once it is over, whatever ended it."""
    server = Server(handler, on_disconnect)
    await server.listen(host, port)
    return server
