"""Schedules: what a deck promises for every seed.

The storms that a run of a minute holds, over 200 seeds: the shares that docs/schedules.md states.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from random import Random

import pytest
from dealt import deal
from hypothesis import given
from hypothesis import strategies as st

from checkers.record.faults import Card
from nemesis.coverage import ELECTION_MOMENT as ELECTION
from nemesis.coverage import NEW_LEADER_MOMENT as NEW_LEADER
from nemesis.deck import LEAD_IN_S, TAIL_S
from nemesis.kinds import KINDS
from nemesis.kinds.partition import GRUDGES

SERVERS = ("n1", "n2", "n3", "n4", "n5")
SEEDS = st.integers(0, 2**32)
BREAKING = sorted(KINDS)
SEVERAL = ["partition,kill", "kill,pause,partition", ",".join(KINDS)]


@given(st.sampled_from(BREAKING + SEVERAL), SEEDS)
def test_sixty_seconds_hold_many_cards_all_healed(nemesis, seed):
    cards = deal(nemesis, SERVERS, 60.0, Random(seed))
    assert len(cards) >= 5
    assert [c.number for c in cards] == list(range(1, len(cards) + 1))
    assert min(c.at_s for c in cards) == LEAD_IN_S
    assert max(c.heal_s for c in cards) <= 60.0 - TAIL_S + 0.002
    assert all(c.at_s < c.heal_s for c in cards)
    assert all(c.like < c.number for c in cards if c.like)
    assert nemesis in ("past", "fsyncgate") or all(cards[c.like - 1].name == c.name for c in cards if c.like)


@given(SEEDS)
def test_partitions_open_with_the_leader_the_split_and_two_terms_under_one_cut(seed):
    cards = deal("partition", SERVERS, 60.0, Random(seed))
    assert [c.name for c in cards[:4]] == ["leader-with-c1", "leader-alone-and-split", "leader-unheard", "leader-deaf"]
    assert [round(c.heal_s - c.at_s, 2) for c in cards[:4]] == [9.0, 6.0, 10.0, 9.5]
    assert (cards[3].after, cards[3].moment) == (3, NEW_LEADER)
    assert all(2.5 <= b.at_s - a.heal_s <= 4.0 for a, b in pairwise(cards[:3]))


@given(SEEDS)
def test_cards_of_one_kind_overlap_only_within_a_figure(seed):
    cards = [card for card in deal("kill", SERVERS, 300.0, Random(seed)) if not card.moment]
    assert all(b.at_s - a.heal_s >= 0.45 for a, b in pairwise(cards))
    assert any(b.at_s - a.heal_s < 1.5 for a, b in pairwise(cards)), "a fault soon after a heal"


@given(SEEDS)
def test_a_leader_whose_clock_is_wrong_is_soon_cut_off_too(seed):
    clock, partition, *_ = deal("clock,partition", SERVERS, 60.0, Random(seed))
    assert [c.name for c in (clock, partition)] == ["leader-slow", "leader-with-c1"]
    assert clock.at_s <= partition.at_s <= clock.at_s + 4.0
    assert clock.heal_s >= partition.at_s + 6.0


@given(st.sampled_from(["partition,packets", "packets,power,pause"]), SEEDS)
def test_links_are_never_impaired_while_links_are_cut(nemesis, seed):
    cards = deal(nemesis, SERVERS, 200.0, Random(seed))
    impaired = [c for c in cards if c.kind == "packets"]
    cut = [c for c in cards if c.kind in ("partition", "power")]
    assert impaired and cut
    assert not [(a, b) for a in impaired for b in cut if a.at_s < b.heal_s and b.at_s < a.heal_s]


@given(st.sampled_from(SEVERAL), SEEDS)
def test_never_do_faults_of_three_kinds_overlap(nemesis, seed):
    cards = deal(nemesis, SERVERS, 200.0, Random(seed))
    for card in cards:
        assert len({c.kind for c in cards if c.at_s <= card.at_s < c.heal_s}) <= 2


@given(SEEDS)
def test_nothing_is_dealt_twice_before_everything_was_dealt_once(seed):
    deck = KINDS["partition"].deck
    cards = deal("partition", SERVERS, 2000.0, Random(seed))[4:]
    plain = set(deck.rest) - set(deck.figures)
    of_figures = {"leader-with-c1", "leader-in-minority", "halves", "one-node", "leader-unheard", "leader-deaf"}
    of_figures |= {"leader-with-clients"}
    names = [c.name for c in cards if c.name not in of_figures]
    first = names[: len(plain - of_figures)]
    assert set(first) == plain - of_figures


def test_every_grudge_is_in_the_deck():
    deck = KINDS["partition"].deck
    assert {name for name, _ in deck.opening} | set(deck.rest) == set(GRUDGES) | set(deck.figures)


def test_figures_are_dealt_whole():
    names = {}
    for seed in range(20):
        for card in deal("partition", SERVERS, 300.0, Random(seed)):
            names.setdefault(card.name, []).append(card)
    repeated = [c for c in names["halves"] if c.like]
    assert repeated, "halves flap: the same fault again"
    holds_s = {round(c.heal_s - c.at_s, 2) for c in names["leader-in-minority"]}
    assert {3.6, 4.6} <= holds_s


@given(st.sampled_from(BREAKING + SEVERAL), SEEDS, st.floats(0.0, 200.0))
def test_the_same_seed_deals_the_same_deck(nemesis, seed, limit_s):
    cards = deal(nemesis, SERVERS, limit_s, Random(seed))
    assert cards == deal(nemesis, SERVERS, limit_s, Random(seed))
    assert all(c.heal_s <= limit_s for c in cards)


@pytest.mark.parametrize("nemesis", [name for name in BREAKING if not KINDS[name].parts])
def test_a_few_seconds_hold_one_short_card_and_fewer_hold_none(nemesis):
    (card,) = deal(nemesis, SERVERS, 10.0, Random(1))
    assert card.heal_s <= 8.0
    assert deal(nemesis, SERVERS, 8.0, Random(1)) == []


def test_nothing_is_dealt_that_three_or_one_servers_cannot_carry():
    assert {c.name for c in deal("partition", SERVERS[:3], 3000.0, Random(3))} == set(GRUDGES)
    assert {c.name for c in deal("partition", SERVERS[:1], 200.0, Random(3))} == {"clients-from-leader"}
    assert "minority" not in {c.name for c in deal("kill", SERVERS[:1], 200.0, Random(3))}


@pytest.mark.parametrize("nemesis", BREAKING)
def test_a_system_that_reports_no_leader_gets_no_card_that_names_one(nemesis):
    cards = deal(nemesis, SERVERS, 300.0, Random(2), lacking=["leaders"])
    assert len(cards) > 20
    assert not any(KINDS[c.kind].targets[c.name].against_leader for c in cards)


def test_without_leaders_the_power_is_lost_at_fsyncs_first_and_writes_are_torn_and_reordered():
    """A single server that answers after each fsync has nothing pending at any other moment."""
    names = [card.name for card in deal("power", SERVERS[:1], 60.0, Random(4), lacking=["leaders"])]
    assert names[:3] == ["one-at-fsync-torn", "one-at-fsync-reordered", "all"]
    led = [card.name for card in deal("power", SERVERS, 60.0, Random(4))]
    assert led[0] == "leader"
    usual, without = (deal("power", SERVERS, 600.0, Random(4), lacking=lacking) for lacking in ([], ["fsyncs"]))
    assert any("at-fsync" in card.name for card in usual)
    assert without and not any("at-fsync" in card.name for card in without)


SEED_COUNT = 200


@cache
def decks(nemesis: str) -> list[list[Card]]:
    return [deal(nemesis, SERVERS, 60.0, Random(seed)) for seed in range(SEED_COUNT)]


def holds(cards, kind, name, *holds_s):
    times = [c.heal_s - c.at_s for c in cards if (c.kind, c.name) == (kind, name)]
    return sum(any(abs(time - hold_s) < 0.01 for hold_s in holds_s) for time in times)


def minority_five_times(cards):
    return holds(cards, "partition", "leader-in-minority", 3.6, 4.6) >= 5


def leader_cut_again(cards):
    return holds(cards, "partition", "leader-with-c1", 4.0) >= 4


def old_log_returns(cards):
    return any((c.kind, c.name, c.moment) == ("partition", "leader-in-minority", NEW_LEADER) for c in cards)


def named(kind, *named):
    return lambda cards: {(kind, name) for name in named} <= {(c.kind, c.name) for c in cards}


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
        ("packets", named("packets", "rivals-late", "leader-hears-late"), 100),
        ("power", named("power", "all", "leader-at-fsync-reordered", "one-at-fsync-torn"), 100),
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
    assert 100 * sum(map(storm, decks(nemesis))) >= percent_min * SEED_COUNT


def test_slow_disks_hold_while_the_second_term_begins():
    """Without slow disks the followers fetch again what they cut before anything can be lost."""
    for cards in decks("disk,partition"):
        slow = next(c for c in cards if c.name == "all-slow")
        first = next(c for c in cards if c.name == "leader-unheard")
        assert slow.at_s <= first.at_s and first.at_s + 4.0 <= slow.heal_s
