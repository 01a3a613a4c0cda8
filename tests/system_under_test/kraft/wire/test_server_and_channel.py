"""A server and what talks to it: order on a connection, malformed frames, channels that never wait behind the dead.

As many connections as a node may have, and what happens to one more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
from collections.abc import AsyncIterator
from functools import partial

import pytest
from kio.schema.describe_quorum.v2 import request as describe
from kio.schema.describe_quorum.v2 import response as described
from kio.schema.errors import ErrorCode
from kraft_server import ask, read_frame, serve
from waiting import eventually

from system_under_test.kraft.raft import messages
from system_under_test.kraft.wire import frames, translate
from system_under_test.kraft.wire.channel import Channel, ChannelTimes
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.server import (
    CONNECTIONS_MAX,
    FILES_RESERVED,
    Reply,
    Server,
    WireCall,
    connections_limit,
)
from system_under_test.kraft.wire.versions import SUPPORTED

pytestmark = pytest.mark.virtual_time


FETCH = messages.FetchRequest("c", messages.ReplicaKey(2), 3, 100, 3, 99, 500)
VOTE = messages.VoteRequest("c", 4, messages.ReplicaKey(2), messages.ReplicaKey(1), 3, 100, pre_vote=True)
BEGIN = messages.BeginQuorumEpochRequest("c", 2, 4, messages.ReplicaKey(1))

PATIENCE_S, BACKOFF_S = 0.1, 0.05


class Peer:
    """A voter that answers as it is ordered, behind a real server.  heard: (connection, request), in order."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, messages.RaftRequest]] = []
        self.delay_s: dict[type, float] = {}
        self.silent = False

    async def __call__(self, call: WireCall) -> object:
        request = translate.request_from_wire(call.api_key, call.body)
        self.heard.append((call.connection, request))
        await asyncio.sleep(self.delay_s.get(type(request), 0.0))
        if self.silent:
            return None
        match request:
            case messages.FetchRequest():
                return translate.response_to_wire(
                    request, messages.FetchResponse(messages.Error.NONE, 1, 3, request.fetch_offset)
                )
            case messages.VoteRequest():
                return translate.response_to_wire(
                    request, messages.VoteResponse(messages.Error.NONE, None, request.epoch, True, True)
                )
            case _:
                return translate.response_to_wire(request, messages.EpochResponse(messages.Error.NONE, None, 4))


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
async def server(peer: Peer) -> AsyncIterator[Server]:
    server = await serve("127.0.0.1", 0, peer)
    yield server
    await server.close()


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[Channel]:
    channel = Channel(
        "127.0.0.1",
        server.port,
        client_id="krucible-n2",
        times=ChannelTimes(request_s=0.5, patience_s=PATIENCE_S, backoff_s=BACKOFF_S),
    )
    yield channel
    await channel.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_requests_of_a_connection_are_answered_one_after_another(server: Server, peer: Peer) -> None:
    peer.delay_s = {messages.FetchRequest: 0.1}
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for number, request in enumerate((FETCH, VOTE)):
        writer.write(frames.encode_request(number, "test", translate.request_to_wire(request)))
    await asyncio.sleep(0.05)
    assert [type(request) for _, request in peer.heard] == [messages.FetchRequest], "the vote is not even read yet"
    for number in range(2):
        frame = await read_frame(reader)
        assert frame is not None and int.from_bytes(frame[:4], "big") == number
    writer.close()


async def test_connections_are_numbered_from_one_and_never_again(server: Server, peer: Peer) -> None:
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await ask(reader, writer, 1, translate.request_to_wire(VOTE))
        await ask(reader, writer, 2, translate.request_to_wire(VOTE))
        writer.close()
    assert [connection for connection, _ in peer.heard] == [1, 1, 2, 2, 3, 3]


async def test_the_end_of_a_connection_is_reported(peer: Peer) -> None:
    ended: list[int] = []
    server = await serve("127.0.0.1", 0, peer, ended.append)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()
    await asyncio.sleep(0.05)
    assert ended == [1]
    await server.close()


async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(bytes.fromhex("0000000b 0012 0063 00000007 0001 61".replace(" ", "")))
    frame = await read_frame(reader)
    assert frame is not None
    answered, body = frames.decode_response(frames.codec(18, 0).request_type, frame)
    assert (answered, body.error_code) == (7, 35)
    assert {key.api_key for key in body.api_keys} == set(SUPPORTED)
    modern = frames.codec(18, 4).request_type(client_software_name="k", client_software_version="1")
    assert (await ask(reader, writer, 8, modern)).error_code == 0  # type: ignore[attr-defined]
    writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        bytes.fromhex("ffffffff"),
        bytes.fromhex("7fffffff"),
        b"GET / HTTP/1.0\r\n\r\n",
        bytes.fromhex("00000009 0003 0063 00000001 ff".replace(" ", "")),
        bytes.fromhex("0000000b 9999 0000 00000001 ffff 00".replace(" ", "")),
        bytes.fromhex("00000010 0003 000c 00000001 ffff 00 ffffffff0f".replace(" ", "")),
    ],
)
async def test_garbage_closes_its_connection_with_one_line_and_harms_no_other(
    server: Server, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    other = await asyncio.open_connection("127.0.0.1", server.port)
    with caplog.at_level(logging.WARNING):
        writer.write(garbage)
        assert await asyncio.wait_for(reader.read(), 2) == b""
    assert len(caplog.records) == 1
    assert "closed" in caplog.text and "Traceback" not in caplog.text
    await ask(*other, 1, translate.request_to_wire(VOTE))
    other[1].close()


async def test_a_handler_that_fails_costs_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(call: WireCall) -> object:
        raise RuntimeError("a mistake of ours")

    server = await serve("127.0.0.1", 0, fail)
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frames.encode_request(1, "test", translate.request_to_wire(VOTE)))
        assert await asyncio.wait_for(reader.read(), 2) == b""
    assert "a mistake of ours" in caplog.text
    await server.close()


async def test_a_reply_leaves_at_once_and_one_that_fails_harms_no_other(peer: Peer) -> None:
    """A commit answers many requests.  The answer of the first one cannot be encoded."""
    held: list[Reply] = []
    server = await serve("127.0.0.1", 0, peer, take_at_once=lambda *request: not held.append(request[-1]))
    streams = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    for _, writer in streams:
        writer.write(frames.encode_request(1, "test", translate.request_to_wire(FETCH)))
    await eventually(lambda: len(held) == 3)
    made: list[int] = []

    def encode(number: int) -> bytes:
        made.append(number)
        return fetch_answer(number)

    held[0](lambda: bytes(-1))
    for number in (1, 2):
        held[number](partial(encode, number))
    assert made == [1, 2], "before the loop runs again"
    answers = [await read_frame(reader) for reader, _ in streams[1:]]
    assert [correlation_id(answer) for answer in answers] == [1, 2]
    assert await streams[0][0].read() == b"", "closed unanswered"
    await server.close()


async def test_a_reply_does_not_begin_the_next_request_before_the_loop_runs_again(peer: Peer) -> None:
    """The node that replies may be in the middle of a list of effects."""
    held: list[Reply] = []
    server = await serve("127.0.0.1", 0, peer, take_at_once=lambda *request: not held.append(request[-1]))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(frames.encode_request(n, "test", translate.request_to_wire(FETCH)) for n in (1, 2)))
    await eventually(lambda: len(held) == 1)
    held[0](partial(fetch_answer, 1))
    assert len(held) == 1
    await eventually(lambda: len(held) == 2)
    held[1](partial(fetch_answer, 2))
    assert [correlation_id(await read_frame(reader)) for _ in range(2)] == [1, 2]
    writer.close()
    await server.close()


async def test_requests_may_be_answered_while_they_are_taken(peer: Peer) -> None:
    """One of them has a damaged body, which is answered by the end of its connection."""
    numbers = iter(range(1, 10))

    def answer(connection: int, header: frames.RequestHeader, frame: bytes, at: int, reply: Reply) -> bool:
        number = next(numbers)
        if number == 3:
            raise frames.MalformedFrame("damaged")
        reply(partial(fetch_answer, number))
        return True

    server = await serve("127.0.0.1", 0, peer, take_at_once=answer)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(frames.encode_request(n, "test", translate.request_to_wire(FETCH)) for n in (1, 2, 3)))
    assert [correlation_id(await read_frame(reader)) for _ in range(2)] == [1, 2]
    assert await reader.read() == b""
    await eventually(lambda: not server.connections)
    assert peer.heard == [], "none has a task"
    await server.close()


def fetch_answer(number: int) -> bytes:
    return frames.encode_response(
        number, translate.response_to_wire(FETCH, messages.FetchResponse(messages.Error.NONE, 1, 3))
    )


def correlation_id(answer: bytes | None) -> int:
    assert answer is not None
    return int.from_bytes(answer[:4], "big")


async def test_a_channel_carries_every_rpc_over_two_connections(channel: Channel, peer: Peer) -> None:
    assert await channel.request(FETCH) == messages.FetchResponse(messages.Error.NONE, 1, 3, 100)
    assert await channel.request(VOTE) == messages.VoteResponse(messages.Error.NONE, None, 4, True, True)
    assert await channel.request(BEGIN) == messages.EpochResponse(messages.Error.NONE, None, 4)
    assert await channel.request(FETCH) is not None
    assert [connection for connection, _ in peer.heard] == [1, 2, 2, 1], "nothing waits behind a parked fetch"


async def test_no_answer_in_time_is_none_and_costs_the_connection(channel: Channel, peer: Peer) -> None:
    peer.delay_s = {messages.FetchRequest: 0.6}
    assert await channel.request(FETCH) is None
    peer.delay_s = {}
    assert await channel.request(FETCH) is not None
    assert [connection for connection, _ in peer.heard] == [1, 2]


async def test_a_peer_that_is_not_there_is_none_after_the_backoff(channel: Channel, server: Server) -> None:
    await server.close()
    began = now()
    assert await channel.request(VOTE) is None
    assert now() - began >= BACKOFF_S


async def test_a_closed_connection_is_made_again_before_anything_is_sent(channel: Channel, peer: Peer) -> None:
    assert await channel.request(VOTE) is not None
    peer.silent = True
    assert await channel.request(VOTE) is None
    peer.silent = False
    assert await channel.request(VOTE) is not None


async def test_a_newer_request_gives_up_the_one_that_hangs(channel: Channel, peer: Peer) -> None:
    peer.delay_s = {messages.VoteRequest: 10.0}
    voting = asyncio.ensure_future(channel.request(VOTE))
    await asyncio.sleep(0.02)
    began = now()
    superseded = asyncio.ensure_future(channel.request(VOTE))
    await asyncio.sleep(0)
    assert await channel.request(BEGIN) == messages.EpochResponse(messages.Error.NONE, None, 4)
    assert now() - began == pytest.approx(PATIENCE_S), "it waited for its patience, and no longer"
    assert await voting is None
    assert await superseded is None
    assert [type(request) for _, request in peer.heard] == [messages.VoteRequest, messages.BeginQuorumEpochRequest]


async def test_a_newer_request_follows_an_answer_at_once(channel: Channel, peer: Peer) -> None:
    peer.delay_s = {messages.VoteRequest: 0.03}
    vote, begin = await asyncio.gather(channel.request(VOTE), channel.request(BEGIN))
    assert vote is not None and begin is not None
    assert [connection for connection, _ in peer.heard] == [1, 1]


async def test_a_fetch_is_sent_at_once_over_a_connection_that_is_open_and_free(channel: Channel, peer: Peer) -> None:
    answers: list[object] = []
    assert not channel.send_at_once(FETCH, answers.append), "no connection is open yet"
    assert await channel.request(FETCH) is not None
    assert channel.send_at_once(FETCH, answers.append)
    assert not channel.send_at_once(FETCH, answers.append), "one request at a time"
    assert await channel.request(FETCH) is not None
    assert answers == [messages.FetchResponse(messages.Error.NONE, 1, 3, 100)]
    assert [connection for connection, _ in peer.heard] == [1, 1, 1]


@pytest.mark.parametrize("ended_by", ["its time", "the peer", "a newer request"])
async def test_a_fetch_that_was_sent_at_once_gets_none_and_costs_the_connection(
    channel: Channel, peer: Peer, ended_by: str
) -> None:
    answers: list[object] = []
    assert await channel.request(FETCH) is not None
    peer.silent = ended_by == "the peer"
    peer.delay_s = {} if peer.silent else {messages.FetchRequest: 10.0}
    assert channel.send_at_once(FETCH, answers.append)
    if ended_by == "a newer request":
        await eventually(lambda: len(peer.heard) == 2)
    else:
        await eventually(lambda: bool(answers))
        assert answers == [None]
        assert not channel.send_at_once(FETCH, answers.append), "the connection is gone"
    peer.silent, peer.delay_s = False, {}
    assert await channel.request(FETCH) is not None
    assert answers == [None]
    assert [connection for connection, _ in peer.heard] == [1, 1, 2]


async def test_closing_answers_none_to_all_that_wait(channel: Channel, peer: Peer) -> None:
    answers: list[object] = []
    assert await channel.request(FETCH) is not None
    peer.delay_s = {messages.FetchRequest: 10.0}
    assert channel.send_at_once(FETCH, answers.append)
    voting = asyncio.ensure_future(channel.request(VOTE))
    await asyncio.sleep(0)
    await channel.close()
    await eventually(lambda: bool(answers))
    assert answers == [None] and not channel.send_at_once(FETCH, answers.append)
    assert await voting is None and await channel.request(VOTE) is None


QUESTION = describe.DescribeQuorumRequest(topics=())


async def answer(call: WireCall) -> Entity:
    return described.DescribeQuorumResponse(error_code=ErrorCode.none, error_message=None, topics=(), nodes=())


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(1.0)  # so that connections differ in their time of last use
    return (await ask(reader, writer, 1, QUESTION)).error_code == ErrorCode.none


async def opened(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


async def test_a_further_connection_takes_the_place_of_the_one_idle_for_longest() -> None:
    """136 connections ended a process that may open 128 files."""
    server = await serve("127.0.0.1", 0, answer, connections_max=3)
    kept = [await opened(server) for _ in range(3)]
    for reader, writer in kept:
        assert await answered(reader, writer)
    assert await answered(*kept[0])
    further = await opened(server)
    assert await answered(*further)
    with contextlib.suppress(ConnectionResetError):
        assert await kept[1][0].read() == b"", "it was idle for longest"
    for reader, writer in (kept[0], kept[2], further):
        assert await answered(reader, writer)
        writer.close()
    await server.close()


async def test_where_all_connections_are_busy_a_further_one_is_closed() -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(call: WireCall) -> Entity:
        reached.set()
        await go_on.wait()
        return await answer(call)

    server = await serve("127.0.0.1", 0, slow, connections_max=1)
    busy = await opened(server)
    waiting = asyncio.ensure_future(answered(*busy))
    await reached.wait()
    reader, writer = await opened(server)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    go_on.set()
    assert await waiting
    busy[1].close()
    writer.close()
    await server.close()


def test_connections_leave_files_for_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, expected in ((128, 64), (1024, 1024 - FILES_RESERVED), (1 << 20, CONNECTIONS_MAX)):
        monkeypatch.setattr(resource, "getrlimit", lambda what, files=files: (files, files))
        assert connections_limit() == expected
