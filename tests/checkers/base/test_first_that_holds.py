"""Halving, compared with trying one number after another."""

from __future__ import annotations

import pytest

from checkers.base.shrinking import first_that_holds


@pytest.mark.parametrize("times", [0, 2, 4])
def test_it_finds_what_trying_one_after_another_finds(times: int) -> None:
    for low in range(4):
        for high in range(low, 40):
            for first in range(low, high + 1):
                tried: list[int] = []

                def holds(number: int, first: int = first, tried: list[int] = tried) -> bool:
                    tried.append(number)
                    return number >= first

                assert first_that_holds(low, high, holds, times) == first
                assert high not in tried
                assert len(tried) <= 14


def test_near_numbers_are_tried_first() -> None:
    tried: list[int] = []
    first_that_holds(0, 1_000_000, lambda n: tried.append(n) or n >= 3, 4)  # type: ignore[func-returns-value]
    assert max(tried) < 20
