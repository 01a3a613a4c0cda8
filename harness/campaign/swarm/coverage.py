"""Coverage: what the seeds of a swarm have met, what none has, and storms that are aimed at that.

A point of coverage is a moment, a transition of the table of roles, or a fault with the role and the phase in which it
struck.  `aims_at` chooses faults that struck seldom in some role and phase.  `aimed` adds cards to a storm, each at a
moment at which a server has that role.  Some points cannot be met.  What was aimed at often is chosen seldom.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from harness.campaign.swarm.scenario import FAULTS, MOMENTS, Scenario
from harness.campaign.swarm.storm_of_seed import AIMED, card_of
from system_under_test.kraft.raft.states import LEGAL

PHASES = ("no leader", "new leader", "steady")
ROLES = ("leader", "follower", "candidate", "prospective", "unattached", "resigned", "dead")
AIMS = 5
"""Cards that are added to a storm."""
AIMS_OF_A_WAVE = 40

_MOMENTS_OF: Mapping[str, Sequence[str]] = {
    "leader": ("elected", "first-fetch", "first-commit", "appended", "fsync", "succeeded"),
    "follower": ("followed", "appended", "truncated", "fsync"),
    "candidate": ("campaign",),
    "prospective": ("campaign",),
    "unattached": ("started", "vote"),
    "resigned": ("resigned",),
}
"""When a server has a role."""
ALL_AIMS = tuple(f"{fault} / {role} / {phase}" for fault in AIMED for role in _MOMENTS_OF for phase in PHASES)
"""As the rows of a swarm name what struck."""


@dataclass(slots=True)
class StormCoverage:
    """Situations that were met, and how often."""

    moments: Counter[str] = field(default_factory=Counter)
    transitions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    aims: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of `work`."""
        for name in ("moments", "transitions", "faults"):
            getattr(self, name).update(json.loads(row[name]))
        self.aims.update(row.get("aims", ()))  # rows of older versions have none

    def never_met(self) -> dict[str, list[str]]:
        """Moments, transitions of the table of roles, and faults with roles, that no seed has met.

        A fault that must find a living server cannot strike a dead one; of dead ones only links are cut."""
        transitions = {f"{old} > {new}" for old, new in LEGAL if old != new}
        faults = {f"{fault} / {role}" for fault in FAULTS for role in ROLES if role != "dead"}
        met = {" / ".join(key.split(" / ")[:2]) for key in self.faults}
        phases = {f"{fault} / {phase}" for fault in FAULTS for phase in PHASES}
        met_in = {f"{key.split(' / ')[0]} / {key.split(' / ')[2]}" for key in self.faults}
        return {
            "moments": sorted(set(MOMENTS) - set(self.moments)),
            "transitions": sorted(transitions - set(self.transitions)),
            "faults and roles": sorted(faults - met),
            "faults and phases": sorted(phases - met_in),
        }

    def aims_at(self, random: Random, count: int) -> tuple[str, ...]:
        """At most so many points of ALL_AIMS that were met seldom and aimed at seldom."""
        weights = [1 / (1 + self.faults[aim] + self.aims[aim]) ** 2 for aim in ALL_AIMS]
        return tuple(dict.fromkeys(random.choices(ALL_AIMS, weights, k=count)))


def aims_of(seed: int, aims_of_wave: Sequence[str]) -> tuple[str, ...]:
    """Those of a wave that this seed takes."""
    return tuple(Random(f"{seed}/aims of wave").sample(aims_of_wave, min(AIMS, len(aims_of_wave))))


def aimed(scenario: Scenario, aims: Sequence[str]) -> Scenario:
    """The scenario with a card for each of these points."""
    random = Random(f"{scenario.seed}/aims")
    cards = []
    for aim in aims:
        fault, role, _ = aim.split(" / ")
        card = card_of(random, fault, round(random.uniform(0, max(1.0, scenario.seconds - 2)), 3))
        delay_s = round(random.choice((0.0, 0.002, 0.02)) * random.random(), 5)
        moment = random.choice(_MOMENTS_OF[role])
        cards.append(replace(card, who="it", moment=moment, nth=random.choice((1, 1, 2)), delay_s=delay_s))
    return replace(scenario, cards=tuple(sorted((*scenario.cards, *cards), key=lambda card: (card.at_s, card.fault))))
