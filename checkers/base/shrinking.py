"""Removes items while a condition still holds: large pieces first, then smaller ones.

This is the minimizing half of delta debugging (Zeller and Hildebrandt 2002). The caller defines which items may be
removed without creating a violation, and the condition that shows that the violation is still there.

The smallest number for which a monotone condition holds, found by halving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Rest = TypeVar("Rest")


def drop_in_pieces(
    items: Sequence[Item],
    rest: Rest,
    without: Callable[[Sequence[Item], Rest], Rest],
    holds: Callable[[Rest], bool],
    *,
    piece_most: int | None = None,
    attempts_most: int | None = None,
) -> Rest:
    """Return the remainder of `rest` without the items that the condition does not need.

    items: removable items, in order. rest: the whole; the condition holds for it.
    without: returns a rest without a piece of the items. holds: the condition.
    piece_most: the size of the first pieces; half of the items if it is None.  Later pieces are half as large.
    attempts_most: maximum number of tries of the condition; None: no limit.  Cost: each size of pieces tries each item
    that is left once.
    """
    size = max(1, len(items) // 2) if piece_most is None else piece_most
    left, attempts = list(items), 0
    while left:
        needed: list[Item] = []
        for begin in range(0, len(left), size):
            if attempts == attempts_most:
                return rest
            piece, attempts = left[begin : begin + size], attempts + 1
            smaller = without(piece, rest)
            if holds(smaller):
                rest = smaller
            else:
                needed += piece
        left = needed
        if size == 1:
            break
        size = max(1, size // 2)
    return rest


def without_pieces(items: Sequence[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """Yield the items without each piece of this size, then without each piece of half the size, down to one."""
    while size:
        for begin in range(0, len(items), size):
            yield (*items[:begin], *items[begin + size :])
        size //= 2


def first_that_holds(low: int, high: int, holds: Callable[[int], bool], times: int = 0) -> int:
    """Return the smallest number in `low` .. `high` for which a monotone condition holds.

    The condition must hold for `high`: the function does not try it.

    times: if small numbers are likely, give a factor.  They are tried first, in steps that grow by this factor.
    """
    step = 1
    while times and low < high:
        at = min(high - 1, low + step - 1)
        if holds(at):
            high = at
            break
        low, step = at + 1, times * step
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high
