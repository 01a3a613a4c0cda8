"""Connections between processes: late, cut, reset, half-open, and in order whatever happens.

A call gets an answer, or one reason why there is none, and never the answer of an earlier call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.calls import Lane, LaneTimes, NoAnswer
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


def test_a_server_of_the_documentation_of_asyncio_serves_until_it_is_closed() -> None:
    servers: list[asyncio.Server] = []

    async def serve() -> None:
        server = await asyncio.start_server(echo, "b", 1)
        servers.append(server)
        async with server:
            await server.serve_forever()

    async def work(network: SimulatedNetwork) -> list[str]:
        process, client = Process("b"), Process("a")
        ends, serving = ["served", "closed"], []
        for end in ends:
            serving.append(process.spawn(serve()))
            await asyncio.sleep(1.0)
            _, writer = await dialled(client)
            assert writer.get_extra_info("sockname")[0] == "a" and servers[-1].is_serving()
            if end == "served":
                serving[-1].cancel()
            else:
                servers[-1].close()
            await asyncio.sleep(1.0)
            with pytest.raises(ConnectionRefusedError):
                await dialled(client)
        return [end for end, task in zip(ends, serving, strict=True) if task.cancelled()]

    assert simulated(work) == ["served", "closed"]


@pytest.mark.parametrize("address", ["0.0.0.0", "", None, "127.0.0.1"])
def test_a_server_that_listens_everywhere_listens_on_its_own_host(address: str | None) -> None:
    async def work(network: SimulatedNetwork) -> list[bytes]:
        answers = []
        for host in ("a", "b"):
            process = Process(host)
            await process.spawn(asyncio.start_server(echo, address, 1))
            for to in (host, "localhost"):
                reader, writer = await process.spawn(asyncio.open_connection(to, 1))
                writer.write(f"{host}\n".encode())
                answers.append(await reader.readline())
        return answers

    assert simulated(work) == [b"a\n", b"a\n", b"b\n", b"b\n"]


def test_a_client_that_writes_nothing_more_still_gets_the_answer() -> None:
    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.read())
        writer.close()

    async def work(network: SimulatedNetwork) -> bytes:
        await serving(whole)
        reader, writer = await dialled(Process("a"))
        writer.write(b"hello")
        writer.write_eof()
        return await reader.read()

    assert simulated(work) == b"got hello"


@pytest.mark.parametrize(
    "method", ["create_datagram_endpoint", "create_unix_server", "subprocess_exec", "sock_connect"]
)
def test_what_is_not_simulated_is_said(method: str) -> None:
    async def work(network: SimulatedNetwork) -> None:
        getattr(asyncio.get_running_loop(), method)(None)

    with pytest.raises(NotImplementedError, match="only streams are simulated"):
        simulated(work)


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


class Echo:
    """Answers what it was asked, `delay_s` later; keeps what it was asked and which connections ended."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.was_asked: list[Any] = []
        self.ended: list[int] = []

    def asked(self, connection: int, what: Any, reply: Callable[[Any], None]) -> None:
        self.was_asked.append(what)
        asyncio.get_running_loop().call_later(self.delay_s, reply, what)

    def gone(self, connection: int) -> None:
        self.ended.append(connection)


class World:
    def __init__(self, echo: Echo | None) -> None:
        self.loop = SimulatedLoop()
        self.network = SimulatedNetwork(self.loop, Random(1))
        self.a, self.b = Process("a"), Process("b")
        self.echo = echo
        self.got: list[Any] = []

    def lane(self, **options: Any) -> Lane:
        return self.a.context.run(lambda: Lane(self.network, "b", 9, LaneTimes(**{"call_s": 2.0, **options})))

    def run(self, script: Callable[[World], Coroutine[Any, Any, None]]) -> list[Any]:
        if self.echo is not None:
            self.b.context.run(self.network.listen, self.echo, "b", 9)
        self.loop.run(script(self))
        return self.got


Step = str | float | Callable[[World], object]
"""What to call, how many seconds to wait, or what to do with the world."""


def talked(*steps: Step, echo: Echo | None = None, listens: bool = True, **options: Any) -> World:
    """The world after one lane's calls and waits."""

    async def script(world: World) -> None:
        lane = world.lane(**options)
        for step in steps:
            if isinstance(step, str):
                lane.call(step, world.got.append)
            elif isinstance(step, float):
                await asyncio.sleep(step)
            else:
                step(world)

    world = World((echo or Echo()) if listens else None)
    world.run(script)
    return world


def cuts(*links: tuple[str, str], reject: bool = False) -> Step:
    return lambda world: world.network.cut(set(links), reject=set(links) if reject else ())


def dies(host: str) -> Step:
    def die(world: World) -> None:
        process = getattr(world, host)
        world.loop.kill(process)
        world.network.died(process)

    return die


def test_an_answer_leaves_once_its_handler_has_computed() -> None:
    """The caller computes for answers, too: the second call begins once it is done with the first."""

    async def script(world: World) -> None:
        world.b.costs, world.a.costs = {"read": 0.3}, {"str": 1.0}
        lane = world.lane()
        lane.call(("read", "k"), lambda answer: world.got.append((answer, round(world.loop.time(), 1))))
        await asyncio.sleep(0.5)
        lane.call("free for the callee", lambda answer: world.got.append((answer, round(world.loop.time(), 1))))
        world.a.spawn(at_once(world))
        await asyncio.sleep(2.0)

    async def at_once(world: World) -> None:
        await asyncio.sleep(0.1)
        world.got.append(("timer", round(world.loop.time(), 1)))

    world = World(Echo())
    assert world.run(script) == [(("read", "k"), 0.3), ("free for the callee", 0.5), ("timer", 1.5)]


def test_a_call_is_answered_and_the_next_uses_the_same_connection() -> None:
    world = talked("one", 0.1, "two", 0.1)
    assert world.got == ["one", "two"]
    assert world.network.number() == 2, "one connection was made"


def test_nobody_listens() -> None:
    assert talked("one", 0.1, listens=False).got == [NoAnswer("refused", sent=False)]


def test_a_link_that_is_cut_before_the_call_keeps_it_from_being_sent() -> None:
    echo = Echo()
    assert talked(cuts(("b", "a")), "one", 1.0, echo=echo).got == [NoAnswer("cannot connect", sent=False)]
    assert echo.was_asked == []


def test_a_late_answer_does_not_answer_the_next_call_and_what_stalled_arrives_after_the_heal() -> None:
    echo = Echo()
    world = talked("zero", 0.1, cuts(("a", "b")), "one", 0.6, cuts(), "two", 1.0, echo=echo, call_s=0.5)
    assert world.got == ["zero", NoAnswer("late", sent=True), "two"]
    assert sorted(echo.was_asked) == ["one", "two", "zero"], "a packet of the past"
    assert len(echo.ended) == 1


def test_of_calls_that_wait_only_the_newest_is_sent_and_the_one_on_its_way_is_given_up() -> None:
    async def script(world: World) -> None:
        lane = world.lane(patience_s=0.2)
        for what in ("one", "two", "three"):
            lane.call(what, lambda answer, what=what: world.got.append((what, answer)))  # type: ignore[misc]
        await asyncio.sleep(0.4)
        assert world.echo is not None
        world.echo.delay_s = 0.0
        await asyncio.sleep(2.0)

    got = World(Echo(delay_s=5.0)).run(script)
    assert got[:2] == [("two", NoAnswer("given up", sent=False)), ("one", NoAnswer("given up", sent=True))]
    assert got[2][0] == "three"


def test_a_dead_callee_breaks_the_call_and_a_dead_caller_is_gone() -> None:
    assert talked("one", 0.1, dies("b"), 0.1, echo=Echo(5.0)).got == [NoAnswer("broken", sent=True)]
    echo = Echo(5.0)
    assert talked("one", 0.1, dies("a"), 0.1, echo=echo).got == []
    assert len(echo.ended) == 1


def test_a_rejected_link_refuses_and_resets() -> None:
    refused, reset = NoAnswer("refused", sent=False), NoAnswer("broken", sent=True)
    world = talked("zero", 0.1, cuts(("a", "b"), reject=True), "one", 0.1, "two", 0.1)
    assert world.got == ["zero", reset, refused]
