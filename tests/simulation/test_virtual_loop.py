"""Virtual time, and the gate of a process: it is paused, kept busy and killed without a line of its own about it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from simulation.loop import OWNER, Deadlock, Process, SimulatedLoop


def simulated(work: Coroutine[Any, Any, Any]) -> Any:
    return SimulatedLoop().run(work)


def loop() -> SimulatedLoop:
    found = asyncio.get_running_loop()
    assert isinstance(found, SimulatedLoop)
    return found


async def ticking(seen: list[float]) -> None:
    """A program that knows nothing of the simulation."""
    while True:
        await asyncio.sleep(1.0)
        seen.append(asyncio.get_running_loop().time())


def test_a_day_passes_at_once() -> None:
    async def day() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert simulated(day()) == 86_400


def test_timers_of_one_moment_run_in_the_order_in_which_they_were_set() -> None:
    async def work() -> list[int]:
        order: list[int] = []
        for number in range(50):
            asyncio.get_running_loop().call_later(1.0, order.append, number)
        await asyncio.sleep(1.0)
        return order

    assert simulated(work()) == list(range(50))


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [
        ((2.5, "pause", 10.0, "resume", 1.6), [1.0, 2.0, 12.5, 13.5]),  # the timer of the third second rang late
        ((0.5, ("occupy", 4.0), "pause", 1.0, "resume", 3.1), [4.5]),
        ((0.5, ("occupy", float("inf")), 5.0, "pause", "resume", 5.0, "kill"), []),
    ],
    ids=["paused", "busy, and paused meanwhile", "never done"],
)
def test_a_process_stands_still_while_it_is_paused_or_busy(steps: tuple[Any, ...], ticks: list[float]) -> None:
    async def work() -> list[float]:
        seen: list[float] = []
        process = Process("n1")
        process.spawn(ticking(seen))
        for step in steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                name, *arguments = (step,) if isinstance(step, str) else step
                getattr(loop(), name)(process, *arguments)
        return seen

    assert simulated(work()) == ticks


def test_a_handler_that_costs_processor_time_holds_up_what_comes_next() -> None:
    """The second message is handled when the first is done; a kind that is not named costs nothing."""

    async def work() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []
        process = Process("n1")
        process.costs = {"dear": 0.5}

        def handle(kind: str) -> None:
            loop().handles(process, kind)
            seen.append((kind, loop().time()))

        for at_s, kind in ((1.0, "dear"), (1.1, "cheap"), (1.2, "dear"), (3.0, "cheap"), (3.1, "cheap")):
            loop().post(at_s, process, handle, kind)
        await asyncio.sleep(5.0)
        return seen

    assert simulated(work()) == [("dear", 1.0), ("cheap", 1.5), ("dear", 1.5), ("cheap", 3.0), ("cheap", 3.1)]


def test_nothing_of_a_killed_process_ever_runs_again_not_even_its_finally() -> None:
    async def work() -> list[str]:
        seen: list[str] = []

        async def dies() -> None:
            try:
                await asyncio.sleep(1.0)
                seen.append("it went on")
            finally:
                seen.append("it cleaned up")

        process = Process("n1")
        process.spawn(dies())
        await asyncio.sleep(0.5)
        loop().kill(process)
        await asyncio.sleep(10.0)
        return list(seen)

    assert simulated(work()) == []


def test_tasks_of_a_process_belong_to_it_and_to_no_other() -> None:
    async def work() -> list[str]:
        async def host() -> str:
            return await asyncio.create_task(inner())

        async def inner() -> str:
            owner = OWNER.get()
            return "nobody" if owner is None else owner.host

        return [await Process("n1").spawn(host()), await Process("n2").spawn(host()), await inner()]

    assert simulated(work()) == ["n1", "n2", "nobody"]


def test_what_no_task_awaits_goes_to_the_process_that_raised_it() -> None:
    async def work() -> list[str]:
        seen: list[str] = []
        processes = [Process("n1"), Process("n2")]
        for process in processes:
            process.on_exception = lambda context, host=process.host: seen.append(
                f"{host}: {context['exception']}, handled by {OWNER.get() and OWNER.get().host}"
            )

        async def fails() -> None:
            asyncio.get_running_loop().call_soon(lambda: 1 // 0)

        await processes[1].spawn(fails())
        await asyncio.sleep(0)
        return seen

    assert simulated(work()) == ["n2: integer division or modulo by zero, handled by n2"]


def test_what_a_killed_process_will_never_await_is_not_reported_when_the_run_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a server that is killed while it is told that it leads no more.  Its objects refer to each other."""

    async def work() -> None:
        process = Process("n1")

        async def asks() -> None:
            answer: asyncio.Future[None] = loop().create_future()
            itself: list[object] = [answer]
            itself.append(itself)
            answer.set_exception(ValueError("it leads no more"))
            await asyncio.sleep(1.0)
            await answer

        process.spawn(asks())
        await asyncio.sleep(0.5)
        loop().kill(process)

    simulated(work())
    gc.collect()
    assert caplog.records == []


def test_waiting_for_what_cannot_happen_is_an_error_and_no_hang() -> None:
    with pytest.raises(Deadlock):
        simulated(asyncio.Event().wait())


def test_a_thread_would_leave_virtual_time_so_its_work_is_done_at_once() -> None:
    async def work() -> tuple[int, float]:
        return await asyncio.to_thread(sum, [1, 2]), asyncio.get_running_loop().time()

    assert simulated(work()) == (3, 0.0)
