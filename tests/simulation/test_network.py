"""Connections between processes: late, cut, reset, half-open, and in order whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.loop import Process, SimulatedLoop
from simulation.network import Impairment, SimulatedNetwork

A_TO_B, B_TO_A = ("a", "b"), ("b", "a")


def simulated(work: Callable[[SimulatedNetwork], Coroutine[Any, Any, Any]], seed: int = 1) -> Any:
    loop = SimulatedLoop()
    network = SimulatedNetwork(loop, Random(seed))
    return loop.run(work(network))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def serving(handler: Callable[..., Awaitable[None]] = echo) -> Process:
    """A process on host b that listens."""
    process = Process("b")
    await process.spawn(asyncio.start_server(handler, "b", 1))
    return process


async def dialled(process: Process) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await process.spawn(asyncio.open_connection("b", 1))


def test_stock_streams_of_asyncio_talk_over_it() -> None:
    async def work(network: SimulatedNetwork) -> bytes:
        await serving()
        reader, writer = await dialled(Process("a"))
        writer.write(b"hello\n")
        return await reader.readline()

    assert simulated(work) == b"hello\n"


def test_nobody_listens_and_the_connection_is_refused() -> None:
    async def work(network: SimulatedNetwork) -> None:
        with pytest.raises(ConnectionRefusedError):
            await dialled(Process("a"))

    simulated(work)


@pytest.mark.parametrize("link", [A_TO_B, B_TO_A])
def test_a_link_cut_one_way_stalls_and_what_was_sent_arrives_after_the_heal(link: tuple[str, str]) -> None:
    async def work(network: SimulatedNetwork) -> None:
        await serving()
        reader, writer = await dialled(Process("a"))
        network.cut({link})
        writer.write(b"one\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await reader.readline()
        writer.write(b"two\n")
        network.cut(set())
        async with asyncio.timeout(1.5):
            assert [await reader.readline(), await reader.readline()] == [b"one\n", b"two\n"]

    simulated(work)


def test_a_rejected_link_resets_connections_and_refuses_new_ones() -> None:
    async def work(network: SimulatedNetwork) -> None:
        await serving()
        process = Process("a")
        reader, writer = await dialled(process)
        network.cut({A_TO_B}, reject={A_TO_B})
        writer.write(b"one\n")
        with pytest.raises(ConnectionResetError):
            await reader.readline()
        with pytest.raises(ConnectionRefusedError):
            await dialled(process)

    simulated(work)


def test_the_kernel_closes_the_connections_of_a_dead_process_unless_the_news_is_lost() -> None:
    async def work(network: SimulatedNetwork) -> None:
        server, client = await serving(), Process("a")
        reader, _ = await dialled(client)
        await dialled(client)
        network.loop.kill(server)
        network.died(server)
        assert await reader.read() == b""
        server = await serving()
        half_open, _ = await dialled(client)
        network.cut({B_TO_A})
        network.loop.kill(server)
        network.died(server)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await half_open.read()

    simulated(work)


@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["send", "cut", "cut back", "heal", "impair"])), max_size=40),
)
def test_a_connection_never_loses_repeats_or_reorders(seed: int, steps: list[tuple[float, str]]) -> None:
    async def work(network: SimulatedNetwork) -> tuple[list[bytes], list[bytes]]:
        await serving()
        reader, writer = await dialled(Process("a"))
        sent: list[bytes] = []
        for wait_s, step in steps:
            await asyncio.sleep(wait_s)
            if step == "send":
                sent.append(b"%d\n" % len(sent))
                writer.write(sent[-1])
            elif step == "impair":
                network.impaired = {A_TO_B: Impairment(0.3, 0.1, 0.2), B_TO_A: Impairment(0.3, rate_bytes_per_s=50)}
            else:
                network.cut({"cut": {A_TO_B}, "cut back": {B_TO_A}, "heal": set()}[step])
        network.cut(set())
        async with asyncio.timeout(3600):
            return sent, [await reader.readline() for _ in sent]

    sent, received = simulated(work, seed)
    assert received == sent
