"""Makes a failing scenario smaller, as long as it breaks the same rule.

A scenario is deterministic, so that one play decides: nothing depends on luck.  In turn: seconds after the violation,
halves and single cards (delta debugging, Zeller and Hildebrandt 2002), shorter holds, fewer nodes, clients and
operations, plain timings.  Whenever something was left out, the attempts begin anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from checkers.base.drop_in_pieces import without_pieces
from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.world import Played, play

NODES_MIN = 3


@dataclass(slots=True)
class Smallest:
    """plays: how many it took.  finished: whether nothing smaller is left to try."""

    played: Played
    plays: int
    finished: bool


def shrink(
    original: Played, plays_max: int = 400, run: Callable[[Scenario], Played] = play, say: Callable[[str], None] = print
) -> Smallest:
    """The smallest scenario found that breaks the rule that `original` broke first."""
    best, plays, rule = original, 0, original.found[0].rule
    again = True
    while again:
        again = False
        for smaller in _smaller(best):
            if plays >= plays_max:
                return Smallest(best, plays, finished=False)
            plays += 1
            tried = run(smaller)
            if tried.found and tried.found[0].rule == rule:
                best, again = tried, True
                say(f"  {words(best.scenario)}")
                break
    return Smallest(best, plays, finished=True)


def words(scenario: Scenario) -> str:
    cards = len(scenario.cards)
    return (
        f"{cards} card{'' if cards == 1 else 's'}, {scenario.seconds:g} s, {scenario.nodes} nodes, "
        f"{scenario.processes} clients, {scenario.rate_hz:g} operations/s"
    )


def _smaller(failing: Played) -> Iterator[Scenario]:
    scenario = failing.scenario
    ends_s = math.ceil(failing.found[0].time_s)
    if ends_s < scenario.seconds:
        yield replace(scenario, seconds=float(max(1, ends_s)))
    cards = scenario.cards
    yield from (replace(scenario, cards=kept) for kept in without_pieces(cards, len(cards)))
    if scenario.nodes > NODES_MIN:
        rates = scenario.rates[:NODES_MIN]
        yield replace(scenario, nodes=NODES_MIN, rates=rates)
    if scenario.rates:
        yield replace(scenario, rates=())
    if scenario.processes > 2:
        yield replace(scenario, processes=max(2, scenario.processes // 2))
    if scenario.keys > 1:
        yield replace(scenario, keys=1)
    if scenario.rate_hz > 2:
        yield replace(scenario, rate_hz=scenario.rate_hz / 2)
    for at, card in enumerate(cards):
        if card.for_s > 0.5:
            yield replace(scenario, cards=(*cards[:at], replace(card, for_s=card.for_s / 2), *cards[at + 1 :]))
        if card.with_:
            yield replace(scenario, cards=(*cards[:at], replace(card, with_=card.with_[1:]), *cards[at + 1 :]))
    if scenario.seconds > 2:
        yield replace(scenario, seconds=float(math.floor(scenario.seconds * 0.8)))
