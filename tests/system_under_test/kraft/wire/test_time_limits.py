"""A limit rings once, never early and at most a tick late, and not after its end."""

from __future__ import annotations

import asyncio

import pytest

from system_under_test.kraft.wire.server import TICK_S, TimeLimits

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("limit_s", [0.0, 0.01, TICK_S, 0.333, 30.0])
async def test_a_limit_rings_once_and_within_a_tick(limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    rang: list[float] = []
    began = loop.time()
    limit = TimeLimits().begin(limit_s, lambda: rang.append(loop.time() - began))
    await asyncio.sleep(limit_s + 10 * TICK_S)
    assert len(rang) == 1 and limit_s <= rang[0] <= limit_s + TICK_S * 1.01
    assert not limit.end(), "it has rung"


async def test_a_limit_that_is_ended_does_not_ring() -> None:
    limits, rang = TimeLimits(), []
    first, second = (limits.begin(1.0, lambda number=number: rang.append(number)) for number in (1, 2))
    assert first.end() and not first.end()
    await asyncio.sleep(2.0)
    assert rang == [2] and not second.end()


async def test_a_limit_can_end_another_one_of_its_tick() -> None:
    limits, rang = TimeLimits(), []
    limits.begin(1.0, lambda: rang.append(other.end()))
    other = limits.begin(1.0, lambda: rang.append("other"))
    await asyncio.sleep(2.0)
    assert rang == [True]


async def test_nothing_rings_after_close() -> None:
    limits, rang = TimeLimits(), []
    limits.begin(1.0, lambda: rang.append(1))
    limits.close()
    await asyncio.sleep(2.0)
    assert rang == []
