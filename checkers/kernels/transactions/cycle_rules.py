"""What a cycle must satisfy besides its kinds of edges, as automata that read it edge by edge, the broken edge first.

ANY            one state
ONE_RW         how many rw there were: 0 or 1
NOT_ADJACENT   2 * how many rw there were, up to two, and one more if the last edge was one
"""

from __future__ import annotations

from checkers.kernels.jit import inner_kernel
from checkers.kernels.transactions.dependencies import PASS, RW

ANY, ONE_RW, NOT_ADJACENT = 0, 1, 2
"""What a cycle must satisfy besides its kinds of edges: nothing; one rw exactly; two or more, no two adjacent."""

STATES = {ANY: 1, ONE_RW: 2, NOT_ADJACENT: 6}
"""How many states the automaton of each rule has."""


@inner_kernel
def begin(rule: int, kind: int) -> int:
    """The state after the broken edge itself."""
    if kind != RW or rule == ANY:
        return 0
    return 1 if rule == ONE_RW else 3


@inner_kernel
def step(rule: int, state: int, kind: int) -> int:
    """The state after one more edge, or -1 where the rule forbids it."""
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
    """Whether a path that came back to the broken edge in this state is a cycle under the rule."""
    if rule == ANY:
        return True
    if rule == ONE_RW:
        return state == 1
    return state >= 4 and (first_kind != RW or state % 2 == 0)
