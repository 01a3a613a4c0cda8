"""A sabotaged fault is never called installed, and an honest one always is."""

from __future__ import annotations

import asyncio
import os

import pytest
from injections import Tally, inject_many
from test_namespaces_faults import why_not

pytestmark = [pytest.mark.namespaces, pytest.mark.skipif(why_not() != "", reason=why_not())]

NIGHTLY = int(os.environ.get("INJECTIONS", "250"))
"""For each of four clusters."""


async def test_a_few_injections() -> None:
    """Into two clusters at once: most of the time is the length of faults."""
    await _judge(12, 1, 2)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [11, 12, 13, 14])
async def test_a_thousand_injections(seed: int) -> None:
    await _judge(NIGHTLY, seed)


async def _judge(times: int, *seeds: int) -> None:
    """times: of each cluster."""
    tally = Tally()
    for each in await asyncio.gather(*(inject_many(times, seed) for seed in seeds)):
        tally += each
    print(f"sabotaged: {dict(tally.sabotaged)}; honest: {dict(tally.honest)}")
    print("\n".join(tally.blamed))
    assert tally.wrong == []
    least = times * len(seeds) / 4
    assert sum(tally.sabotaged.values()) >= least and sum(tally.honest.values()) >= least
    assert tally.honest["installed"] >= 0.9 * sum(tally.honest.values()), tally.blamed
