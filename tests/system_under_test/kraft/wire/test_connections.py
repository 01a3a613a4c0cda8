"""As many connections as a node may have, and what happens to one more."""

from __future__ import annotations

import asyncio
import contextlib
import resource

import pytest
from kio.schema.describe_quorum.v2 import request as describe
from kio.schema.describe_quorum.v2 import response as described
from kio.schema.errors import ErrorCode
from kraft_server import ask, serve

from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.server import CONNECTIONS_MAX, FILES_RESERVED, Server, WireCall, connections_limit

pytestmark = pytest.mark.virtual_time

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
