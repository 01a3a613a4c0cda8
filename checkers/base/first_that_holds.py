"""The smallest number for which a monotone condition holds, found by halving."""

from __future__ import annotations

from collections.abc import Callable


def first_that_holds(low: int, high: int, holds: Callable[[int], bool], times: int = 0) -> int:
    """The smallest number in `low` .. `high` for which a monotone condition holds.

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
