"""Removes items while a condition still holds: large pieces first, then smaller ones.

This is the minimizing half of delta debugging (Zeller and Hildebrandt 2002).  The caller defines which items may be
removed without creating a violation, and the condition that shows that the violation is still there.

The module also finds the smallest number for which a monotone condition holds, by bisection.
"""

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
    """Return `rest` without the items that the condition does not need.

    items: removable items, in order
    rest: the object that contains the items; the condition holds for it
    without: function of (some items, object); returns the object without these items
    holds: the condition
    piece_most: number of items in the first pieces; None for half of the items.  Later pieces are half as large.
    attempts_most: maximum number of evaluations of the condition; None for no limit
    Cost: for each size of pieces, each remaining item is in one attempt.
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
    """Yield the items without one piece, for each piece of this size, then of half the size, down to one item."""
    while size:
        for begin in range(0, len(items), size):
            yield (*items[:begin], *items[begin + size :])
        size //= 2


def first_that_holds(low: int, high: int, holds: Callable[[int], bool], times: int = 0) -> int:
    """Return the smallest number in `low` .. `high` for which a monotone condition holds.

    The condition must hold for `high`; the function does not evaluate it there.

    times: factor by which the steps of the first attempts grow, from `low` on; 0 for bisection only.  A factor helps if
    small numbers are likely.
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
