"""Calls: an answer, or one reason why there is none, and never the answer of an earlier call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.loop import Process, SimulatedLoop
from simulation.network import SimulatedNetwork


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
    async def script(world: World) -> None:
        lane = world.lane()
        for what in ("one", "two"):
            lane.call(what, world.got.append)
            await asyncio.sleep(0.1)

    world = World(Echo())
    assert world.run(script) == ["one", "two"]
    assert world.network.number() == 2, "one connection was made"


def test_nobody_listens() -> None:
    async def script(world: World) -> None:
        world.lane().call("one", world.got.append)
        await asyncio.sleep(0.1)

    assert World(None).run(script) == [NoAnswer("refused", sent=False)]


def test_a_link_that_is_cut_before_the_call_keeps_it_from_being_sent() -> None:
    async def script(world: World) -> None:
        world.network.cut({("b", "a")})
        world.lane().call("one", world.got.append)
        await asyncio.sleep(1.0)

    world = World(Echo())
    assert world.run(script) == [NoAnswer("cannot connect", sent=False)]
    assert world.echo is not None
    assert world.echo.was_asked == []


def test_a_late_answer_does_not_answer_the_next_call_and_what_stalled_arrives_after_the_heal() -> None:
    async def script(world: World) -> None:
        lane = world.lane(call_s=0.5)
        lane.call("zero", world.got.append)
        await asyncio.sleep(0.1)
        world.network.cut({("a", "b")})
        lane.call("one", world.got.append)
        await asyncio.sleep(0.6)
        world.network.cut(())
        lane.call("two", world.got.append)
        await asyncio.sleep(1.0)

    world = World(Echo())
    assert world.run(script) == ["zero", NoAnswer("late", sent=True), "two"]
    assert world.echo is not None
    assert sorted(world.echo.was_asked) == ["one", "two", "zero"], "a packet of the past"
    assert len(world.echo.ended) == 1


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
    async def script(world: World) -> None:
        lane = world.lane()
        lane.call("one", world.got.append)
        await asyncio.sleep(0.1)
        world.loop.kill(world.b)
        world.network.died(world.b)
        await asyncio.sleep(0.1)

    assert World(Echo(delay_s=5.0)).run(script) == [NoAnswer("broken", sent=True)]

    async def other(world: World) -> None:
        world.lane().call("one", world.got.append)
        await asyncio.sleep(0.1)
        world.loop.kill(world.a)
        world.network.died(world.a)
        await asyncio.sleep(0.1)

    world = World(Echo(delay_s=5.0))
    assert world.run(other) == []
    assert world.echo is not None
    assert len(world.echo.ended) == 1


def test_a_rejected_link_refuses_and_resets() -> None:
    async def script(world: World) -> None:
        lane = world.lane()
        lane.call("zero", world.got.append)
        await asyncio.sleep(0.1)
        world.network.cut({("a", "b")}, reject={("a", "b")})
        for what in ("one", "two"):
            lane.call(what, world.got.append)
            await asyncio.sleep(0.1)

    refused, reset = NoAnswer("refused", sent=False), NoAnswer("broken", sent=True)
    assert World(Echo()).run(script) == ["zero", reset, refused]
