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
