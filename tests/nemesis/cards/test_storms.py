"""The storms that a run of a minute holds, over 200 seeds: the shares that docs/schedules.md states."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
from dealt import deal

from checkers.record.faults import Card
from nemesis.coverage import ELECTION_MOMENT as ELECTION
from nemesis.coverage import NEW_LEADER_MOMENT as NEW_LEADER

SERVERS = ("n1", "n2", "n3", "n4", "n5")
SEEDS = 200


@cache
def decks(nemesis: str) -> list[list[Card]]:
    return [deal(nemesis, SERVERS, 60.0, Random(seed)) for seed in range(SEEDS)]


def holds(cards, kind, name, *holds_s):
    times = [c.heal_s - c.at_s for c in cards if (c.kind, c.name) == (kind, name)]
    return sum(any(abs(time - hold_s) < 0.01 for hold_s in holds_s) for time in times)


def minority_five_times(cards):
    return holds(cards, "partition", "leader-in-minority", 3.6, 4.6) >= 5


def leader_cut_again(cards):
    return holds(cards, "partition", "leader-with-c1", 4.0) >= 4


def old_log_returns(cards):
    return any((c.kind, c.name, c.moment) == ("partition", "leader-in-minority", NEW_LEADER) for c in cards)


def names(kind, *names):
    return lambda cards: {(kind, name) for name in names} <= {(c.kind, c.name) for c in cards}


STORMS_OF_PARTITIONS = (minority_five_times, leader_cut_again, old_log_returns)


def leader_killed_again(cards):
    return holds(cards, "kill", "leader", 1.5) >= 4


def follows(kind, moment):
    return lambda cards: any((c.kind, c.moment) == (kind, moment) for c in cards)


def two_kinds_overlap(cards):
    return any(a.kind != b.kind and a.at_s <= b.at_s < a.heal_s for a in cards for b in cards)


def soon_behind_a_heal(cards):
    """A fault that begins within 1.6 s of the last heal before it."""
    gaps = [b.at_s - max(a.heal_s for a in cards if a.at_s < b.at_s) for b in cards[1:]]
    return any(0 < gap < 1.6 for gap in gaps)


def three_short_holds(cards):
    return sum(3.0 <= c.heal_s - c.at_s <= 5.0 for c in cards) >= 3


@pytest.mark.parametrize(
    ("nemesis", "storm", "percent_min"),
    [
        ("partition", minority_five_times, 30),
        ("partition", leader_cut_again, 30),
        ("partition", old_log_returns, 25),
        ("partition", lambda cards: any(storm(cards) for storm in STORMS_OF_PARTITIONS), 100),
        ("partition", follows("partition", NEW_LEADER), 100),
        ("partition", soon_behind_a_heal, 85),
        ("packets", names("packets", "rivals-late", "leader-hears-late"), 100),
        ("power", names("power", "all", "leader-at-fsync-reordered", "one-at-fsync-torn"), 100),
        ("partition", three_short_holds, 70),
        ("kill", leader_killed_again, 100),
        ("kill", follows("kill", NEW_LEADER), 100),
        ("kill", follows("kill", ELECTION), 50),
        ("pause", follows("pause", ELECTION), 100),
        ("partition,kill", two_kinds_overlap, 100),
        ("partition,kill", follows("partition", NEW_LEADER), 100),
        ("partition,kill", leader_killed_again, 40),
        ("disk,partition", follows("partition", NEW_LEADER), 100),
        ("packets,kill", leader_killed_again, 60),
    ],
)
def test_a_run_of_a_minute_holds_each_storm_as_often_as_stated(nemesis, storm, percent_min):
    assert 100 * sum(map(storm, decks(nemesis))) >= percent_min * SEEDS


def test_slow_disks_hold_while_the_second_term_begins():
    """Without slow disks the followers fetch again what they cut before anything can be lost."""
    for cards in decks("disk,partition"):
        slow = next(c for c in cards if c.name == "all-slow")
        first = next(c for c in cards if c.name == "leader-unheard")
        assert slow.at_s <= first.at_s and first.at_s + 4.0 <= slow.heal_s
