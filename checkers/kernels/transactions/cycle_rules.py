"""The rules that a cycle must satisfy besides its kinds of edges.  Each is an automaton that reads the edges in order.

The broken edge comes first.  The states are:

ANY            one state
ONE_RW         the number of rw so far: 0 or 1
NOT_ADJACENT   2 * the number of rw so far, up to two; plus one if the last edge was an rw
"""

from __future__ import annotations

from checkers.kernels.jit import inner_kernel
from checkers.kernels.transactions.dependencies import PASS, RW

ANY, ONE_RW, NOT_ADJACENT = 0, 1, 2
"""The rules: no condition; exactly one rw; two or more rw, of which no two are adjacent."""

STATES = {ANY: 1, ONE_RW: 2, NOT_ADJACENT: 6}
"""The number of states of the automaton of each rule."""


@inner_kernel
def begin(rule: int, kind: int) -> int:
    """Return the state after the broken edge."""
    if kind != RW or rule == ANY:
        return 0
    return 1 if rule == ONE_RW else 3


@inner_kernel
def step(rule: int, state: int, kind: int) -> int:
    """Return the state after one more edge, or -1 if the rule forbids the edge."""
    if rule == ANY or kind == PASS:
        return state
    if rule == ONE_RW:
        if kind != RW:
            return state
        return 1 if state == 0 else -1
    if kind != RW:
        return state - state % 2
    if state % 2 == 1:
        return -1
    return 5 if state >= 2 else 3


@inner_kernel
def fulfils(rule: int, state: int, first_kind: int) -> bool:
    """Whether a path that returns to the broken edge in this state is a cycle under the rule."""
    if rule == ANY:
        return True
    if rule == ONE_RW:
        return state == 1
    return state >= 4 and (first_kind != RW or state % 2 == 0)
