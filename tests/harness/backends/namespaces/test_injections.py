"""A sabotaged fault is never called installed, and an honest one always is."""

from __future__ import annotations

import os

import pytest
from injections import inject_many
from test_namespaces_faults import why_not

pytestmark = [pytest.mark.namespaces, pytest.mark.skipif(why_not() != "", reason=why_not())]

NIGHTLY = int(os.environ.get("INJECTIONS", "250"))
"""For each of four clusters."""


async def test_a_few_injections() -> None:
    await _judge(24, 1)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [11, 12, 13, 14])
async def test_a_thousand_injections(seed: int) -> None:
    await _judge(NIGHTLY, seed)


async def _judge(times: int, seed: int) -> None:
    tally = await inject_many(times, seed)
    print(f"sabotaged: {dict(tally.sabotaged)}; honest: {dict(tally.honest)}")
    print("\n".join(tally.blamed))
    assert tally.wrong == []
    assert sum(tally.sabotaged.values()) >= times / 4 and sum(tally.honest.values()) >= times / 4
    assert tally.honest["installed"] >= 0.9 * sum(tally.honest.values()), tally.blamed
