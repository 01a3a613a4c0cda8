"""A voter's own connections to one peer: one for fetches, one for everything else.

Why two lanes: a fetch may stay parked at the leader for half a second, and a connection is answered in order.  A vote
behind it would be late for its election.  Each lane is one TCP connection and carries one request at a time:

    READY --(ApiVersions) request--> AWAITING_RESPONSE --answer--> READY
      ^                        | refused, reset, timeout, another correlation id, malformed
      +----retry backoff---- BACKING_OFF          (the connection is closed; the caller gets None)

A request without an answer always costs the connection, so a late answer has nowhere to arrive.  A newer request on a
busy lane waits `patience_s` for the one in flight, then gives that one up.  After a heal a vote must not queue behind
a request that will never be answered.  Of several that wait only the newest is sent; the others get None.

The first request of a connection for fetches asks which versions of Fetch the peer speaks: a Kafka of 4.0 speaks 17.

Connecting is given up after `connect_timeout_s`, before the kernel repeats a lost SYN after its own, ever longer
pauses: a healed link is tried again within half a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kio.schema.api_versions.v0.request import ApiVersionsRequest

from system_under_test.kraft.ports import Network
from system_under_test.kraft.raft.messages import FetchRequest, FetchSnapshotRequest, RaftRequest, RaftResponse
from system_under_test.kraft.wire import translate
from system_under_test.kraft.wire.frames import MalformedFrame
from system_under_test.kraft.wire.server import Connection, TimeLimit, TimeLimits
from system_under_test.kraft.wire.versions import FETCH, SUPPORTED

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelTimes:
    """request_s: of a request, connecting included.  connect_s: of connecting alone.  backoff_s: the pause after a
    failure.  patience_s: how long a newer request waits for the one before it."""

    request_s: float = 2.0
    connect_s: float = 0.5
    backoff_s: float = 0.02
    patience_s: float = 0.5


class Channel:
    """Both lanes towards one peer.  Connects with the first request; never raises for what the network does.

    endpoint: where this node's own clients find it, (name, host, port); epoch RPCs carry it to the peer.
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
        """The peer's answer, or None if there was none within the request timeout (connecting included)."""
        lane = self._fetches if isinstance(request, FetchRequest | FetchSnapshotRequest) else self._others
        return await lane.request(request, self._endpoint)

    def send_at_once(self, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> bool:
        """Act like `request`, for a Fetch and without a task; `answered` is called later.  False if nothing was sent,
        because the connection is not open or not free."""
        return self._fetches.send_at_once(request, answered)

    async def close(self) -> None:
        """Drop both connections; requests in flight get None."""
        self._fetches.close()
        self._others.close()


class _Lane:
    def __init__(self, peer: str, connection: Connection, times: ChannelTimes) -> None:
        self._peer = peer
        self._connection = connection
        self._times = times
        self._in_flight: asyncio.Future[Any] | None = None  # what it waits for: a frame, a connection, a pause
        self._limits = TimeLimits()  # of requests that are sent at once
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
        limit = self._limits.begin(self._times.request_s, partial(_fail, frame, TimeoutError()))
        frame.add_done_callback(partial(self._arrived, request, answered, limit))
        return True

    def _arrived(
        self,
        request: RaftRequest,
        answered: Callable[[RaftResponse | None], None],
        limit: TimeLimit,
        frame: asyncio.Future[bytes],
    ) -> None:
        """A request that was sent at once has its answer, or was given up."""
        limit.end()
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
        self._limits.close()
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
        """Find the highest version of Fetch that both sides speak.  Raises as `Connection.ask`."""
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
