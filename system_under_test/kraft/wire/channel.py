"""A voter's own connections to one peer: one for fetches, one for everything else.

Why two lanes: a fetch may stay parked at the leader for half a second, and a connection is answered in order, so a vote
behind it would be late for its election.  Each lane is one TCP connection and carries one request at a time:

    READY --request--> AWAITING_RESPONSE --answer--> READY
      ^                        | refused, reset, timeout, another correlation id, malformed
      +----retry backoff---- BACKING_OFF          (the connection is closed; the caller gets None)

A request without an answer always costs the connection, so a late answer has nowhere to arrive.  A newer request on a
busy lane waits `patience_s` for the one in flight, then gives that one up: after a heal a vote must not queue behind
a request that went into the void.  Of several that wait only the newest is sent; the others get None at once.

Connecting is given up after `connect_timeout_s`, well below the kernel's first retries of a lost SYN pile up, so that a
healed link is tried again within half a second.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from enum import Enum

from system_under_test.kraft.raft.messages import FetchRequest, RaftRequest, RaftResponse
from system_under_test.kraft.wire import translate
from system_under_test.kraft.wire.frames import MalformedFrame, decode_response, encode_request, read_frame

log = logging.getLogger(__name__)


class ChannelState(Enum):
    """Of one lane (Kafka keeps the same three per node)."""

    READY = "ready"
    AWAITING_RESPONSE = "awaiting response"
    BACKING_OFF = "backing off"


class Channel:
    """Both lanes towards one peer.  Connects when first asked; never raises for what the network does.

    endpoint: where this node's own clients find it, (name, host, port); told to the peer in epoch RPCs.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        endpoint: tuple[str, str, int] | None = None,
        request_timeout_s: float = 2.0,
        connect_timeout_s: float = 0.5,
        retry_backoff_s: float = 0.02,
        patience_s: float = 0.5,
    ) -> None:
        self._endpoint = endpoint
        self._fetches, self._others = (
            _Lane(host, port, client_id, request_timeout_s, connect_timeout_s, retry_backoff_s, patience_s)
            for _ in range(2)
        )

    async def request(self, request: RaftRequest) -> RaftResponse | None:
        """The peer's answer, or None if there was none within the request timeout (measured from the sending)."""
        lane = self._fetches if isinstance(request, FetchRequest) else self._others
        return await lane.request(request, self._endpoint)

    def states(self) -> tuple[ChannelState, ChannelState]:
        """(of the fetch lane, of the other)."""
        return self._fetches.state, self._others.state

    async def close(self) -> None:
        """Drop both connections; requests in flight get None."""
        self._fetches.close()
        self._others.close()


class _Lane:
    def __init__(
        self,
        host: str,
        port: int,
        client_id: str,
        request_timeout_s: float,
        connect_timeout_s: float,
        retry_backoff_s: float,
        patience_s: float,
    ) -> None:
        self.state = ChannelState.READY
        self._peer = (host, port)
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._retry_backoff_s = retry_backoff_s
        self._patience_s = patience_s
        self._correlation_ids = itertools.count(1)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._in_flight: asyncio.Task[RaftResponse | None] | None = None
        self._newest = 0
        self._closed = False

    async def request(self, request: RaftRequest, endpoint: tuple[str, str, int] | None) -> RaftResponse | None:
        self._newest += 1
        ticket = self._newest
        while self._in_flight is not None:
            earlier = self._in_flight
            await asyncio.wait({earlier}, timeout=self._patience_s)
            if ticket != self._newest:
                return None
            if not earlier.done():
                earlier.cancel()
                await asyncio.wait({earlier})
        if self._closed:
            return None
        task = asyncio.ensure_future(self._attempt(request, endpoint))
        self._in_flight = task
        task.add_done_callback(self._landed)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        return None if task.cancelled() else task.result()

    def close(self) -> None:
        self._closed = True
        if self._in_flight is not None:
            self._in_flight.cancel()
        self._disconnect()

    def _landed(self, task: asyncio.Task[RaftResponse | None]) -> None:
        if self._in_flight is task:
            self._in_flight = None

    async def _attempt(self, request: RaftRequest, endpoint: tuple[str, str, int] | None) -> RaftResponse | None:
        response = None
        try:
            self.state = ChannelState.AWAITING_RESPONSE
            connection = await self._connect()
            async with asyncio.timeout(self._request_timeout_s):
                response = await self._exchange(connection, request, endpoint)
        except (MalformedFrame, translate.MalformedRpc) as problem:
            log.warning("no sense in the answer of %s:%d: %s", *self._peer, problem)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as problem:
            log.debug("%s:%d did not answer: %r", *self._peer, problem)
        finally:
            if response is None:
                self._disconnect()
            self.state = ChannelState.READY
        if response is None:
            self.state = ChannelState.BACKING_OFF
            await asyncio.sleep(self._retry_backoff_s)
            self.state = ChannelState.READY
        return response

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._connection is not None and self._connection[0].at_eof():
            self._disconnect()  # the peer left while nothing was asked
        if self._connection is None:
            async with asyncio.timeout(self._connect_timeout_s):
                self._connection = await asyncio.open_connection(*self._peer)
        return self._connection

    async def _exchange(
        self,
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        request: RaftRequest,
        endpoint: tuple[str, str, int] | None,
    ) -> RaftResponse | None:
        reader, writer = connection
        correlation_id = next(self._correlation_ids) & 0x7FFFFFFF
        entity = translate.request_to_wire(request, endpoint)
        writer.write(encode_request(correlation_id, self._client_id, entity))
        await writer.drain()
        frame = await read_frame(reader)
        if frame is None:
            return None
        answered, body = decode_response(type(entity), frame)
        if answered != correlation_id:
            raise MalformedFrame(f"an answer to request {answered} where {correlation_id} was asked")
        return translate.response_from_wire(request, body)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection[1].transport.abort()
            self._connection = None
