"""What the model takes, and what it answers: one trace row, and whether a step of the protocol explains it."""

from __future__ import annotations

from typing import NamedTuple


class Blocked(NamedTuple):
    """missing: the fact that no row has shown.  At least `needed` of the nodes in `suppliers` have to show it.

    shown: what rows do show of it, as a clause, or "".
    """

    missing: str
    suppliers: tuple[str, ...]
    needed: int = 1
    shown: str = ""


class Unexplained(NamedTuple):
    """kind: of the violation.  why: what contradicts the row.  expected: the rule."""

    kind: str
    why: str
    expected: str


Answer = Blocked | Unexplained | None


class NotModelled(Exception):
    """The traces hold something that the model cannot replay; the message names it."""


def malformed(why: str) -> Unexplained:
    """The row contradicts the rows before it, under any protocol."""
    return Unexplained("row contradicts the rows before it", why, "a row that follows from the rows before it")
