"""The arithmetic of majorities: all of it, so small that tables prove it.

Every promise of the core rests on one fact: two majorities of the same voters share a voter.  An election, a commit
and a confirmed read each ask a majority, and the shared voter carries what one of them settled to the next.
"""

from __future__ import annotations

from collections.abc import Sequence


def majority(voter_count: int) -> int:
    """The least number of voters of which any two sets must overlap."""
    return voter_count // 2 + 1


def held_by_majority(values: Sequence[int]) -> int:
    """The largest value that a majority has reached; one value per voter, in any order.

    With log ends it is the mark below which a majority holds every record (KIP-595, high watermark); with stamps of
    confirmations it is the newest read that a majority has confirmed.
    """
    return sorted(values, reverse=True)[len(values) // 2]


def is_lost(voter_count: int, refused_count: int) -> bool:
    """Whether so many voters refused that the rest are no majority any more."""
    return voter_count - refused_count < majority(voter_count)
