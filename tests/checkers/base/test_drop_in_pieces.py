"""Dropping items that a condition does not need keeps the needed ones, in order, with a limited number of tries."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from checkers.base.shrinking import drop_in_pieces, without_pieces


def without(piece: Sequence[int], rest: list[int]) -> list[int]:
    return [item for item in rest if item not in piece]


@pytest.mark.parametrize("piece_most", [None, 1, 5])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_stays_and_nothing_else(seed: int, piece_most: int | None) -> None:
    rng = Random(seed)
    items = list(range(rng.randrange(40)))
    needed = sorted(rng.sample(items, rng.randint(0, len(items))))
    left = drop_in_pieces(items, items, without, lambda rest: set(needed) <= set(rest), piece_most=piece_most)
    assert left == needed


def test_what_is_no_item_is_never_dropped() -> None:
    assert drop_in_pieces([1, 2], [0, 1, 2, 3], without, lambda rest: 2 in rest) == [0, 2, 3]


def test_large_pieces_go_first_and_attempts_are_counted() -> None:
    tried: list[list[int]] = []

    def holds(rest: list[int]) -> bool:
        tried.append(rest)
        return 6 in rest

    items = list(range(8))
    assert drop_in_pieces(items, items, without, holds, attempts_most=3) == [6, 7]
    assert tried == [[4, 5, 6, 7], [], [6, 7]]


def test_no_attempt_leaves_everything() -> None:
    assert drop_in_pieces([1, 2], [1, 2], without, lambda rest: True, attempts_most=0) == [1, 2]


def test_pieces_are_left_out_one_at_a_time() -> None:
    assert list(without_pieces("abc", 2)) == [("c",), ("a", "b"), ("b", "c"), ("a", "c"), ("a", "b")]
    assert list(without_pieces("", 0)) == []
