"""A whole schedule at once, as a run deals it that meets what its cards aim at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from checkers.record.faults import Card
from nemesis.deck import Dealer


def deal(
    nemesis: str,
    servers: Sequence[str],
    time_limit_s: float,
    rng: Random,
    *,
    lacking: Collection[str] = (),
    holds: float = 1.0,
) -> list[Card]:
    """The schedule of a run that meets what its cards aim at; arguments as of `Dealer`.

    Equal arguments (and state of `rng`) give equal schedules.
    """
    dealer = Dealer(nemesis, servers, time_limit_s, rng, lacking=lacking, holds=holds)
    while dealer.next():
        pass
    return dealer.cards
