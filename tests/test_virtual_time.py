"""The loop whose clock jumps: it waits for sockets, never for time, and notices what can never happen."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time

DAY_S = 86400.0


@pytest.mark.virtual_time
async def test_a_day_passes_at_once_and_timers_keep_their_order() -> None:
    order = []

    async def after(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append((seconds, asyncio.get_running_loop().time()))

    await asyncio.gather(after(2 * DAY_S), after(1.0), after(DAY_S))
    assert order == [(1.0, 1.0), (DAY_S, DAY_S), (2 * DAY_S, 2 * DAY_S)]


@pytest.mark.virtual_time
async def test_what_is_on_its_way_through_a_socket_arrives_before_a_timer() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with asyncio.timeout(0.001):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
    writer.close()
    server.close()


def test_a_wait_for_what_never_happens_fails() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with pytest.raises(AssertionError, match="never happen"):
        virtual_time.run(never())
