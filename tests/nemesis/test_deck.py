"""Schedules: what a deck promises whatever its seed."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemesis.deck import NEMESES, TAIL_S, BadSchedule, deal, schedule_from_json, schedule_to_json
from nemesis.grudges import GRUDGES

SERVERS = ("n1", "n2", "n3", "n4", "n5")
SEEDS = st.integers(0, 2**32)
BREAKING = sorted(set(NEMESES) - {"none"})


@given(st.sampled_from(BREAKING), SEEDS)
def test_sixty_seconds_hold_at_least_four_cards_well_apart_and_all_healed(nemesis, seed):
    cards = deal(nemesis, SERVERS, 60.0, Random(seed))
    assert len(cards) >= 4
    assert [c.number for c in cards] == list(range(1, len(cards) + 1))
    assert cards[0].at_s >= 1.0
    assert cards[-1].heal_s <= 60.0 - TAIL_S + 1e-9
    assert all(3.999 <= b.at_s - a.heal_s <= 6.001 for a, b in pairwise(cards))
    assert all(4.999 <= c.heal_s - c.at_s <= 10.001 for c in cards)


@given(SEEDS)
def test_cards_against_the_leader_hold_ten_seconds(seed):
    for card in deal("partition", SERVERS, 300.0, Random(seed)):
        if GRUDGES[card.name].against_leader:
            assert card.heal_s - card.at_s == pytest.approx(10.0, abs=0.002)


@given(SEEDS)
def test_partitions_open_with_the_leader_twice_and_the_split_between(seed):
    names = [c.name for c in deal("partition", SERVERS, 60.0, Random(seed))]
    assert names[:3] == ["leader-with-c1", "leader-alone-and-split", "leader-with-c1"]


@given(SEEDS)
def test_nothing_is_dealt_twice_before_everything_was_dealt_once(seed):
    rest = set(NEMESES["partition"].rest)
    names = [c.name for c in deal("partition", SERVERS, 1000.0, Random(seed))][3:]
    assert set(names[: len(rest)]) == rest
    assert set(names[len(rest) : 2 * len(rest)]) == rest


def test_every_grudge_is_in_the_deck():
    assert set(NEMESES["partition"].opening) | set(NEMESES["partition"].rest) == set(GRUDGES)


@given(st.sampled_from(BREAKING), SEEDS, st.floats(0.0, 200.0))
def test_the_same_seed_deals_the_same_deck_and_json_keeps_it(nemesis, seed, limit_s):
    cards = deal(nemesis, SERVERS, limit_s, Random(seed))
    assert cards == deal(nemesis, SERVERS, limit_s, Random(seed))
    assert schedule_from_json(schedule_to_json(cards)) == cards
    assert all(c.heal_s <= limit_s for c in cards)


def test_different_seeds_deal_different_decks():
    assert len({tuple(deal("partition", SERVERS, 200.0, Random(seed))) for seed in range(20)}) == 20


@pytest.mark.parametrize("nemesis", BREAKING)
def test_a_few_seconds_hold_one_short_card_and_fewer_hold_none(nemesis):
    (card,) = deal(nemesis, SERVERS, 10.0, Random(1))
    assert card.heal_s <= 8.0
    assert deal(nemesis, SERVERS, 8.0, Random(1)) == []


def test_nothing_is_dealt_that_three_or_one_servers_cannot_carry():
    assert {c.name for c in deal("partition", SERVERS[:3], 2000.0, Random(3))} == set(GRUDGES)
    assert {c.name for c in deal("partition", SERVERS[:1], 200.0, Random(3))} == {"clients-from-leader"}
    assert "minority" not in {c.name for c in deal("kill", SERVERS[:1], 200.0, Random(3))}


def test_no_nemesis_deals_nothing_and_an_unknown_one_is_refused():
    assert deal("none", SERVERS, 60.0, Random(0)) == []
    with pytest.raises(ValueError, match="there is no nemesis 'flood'; there are none, partition, pause, kill"):
        deal("flood", SERVERS, 60.0, Random(0))


CARD = '{"number": 1, "kind": "partition", "name": "halves", "at_s": 2, "heal_s": 9}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "not JSON"),
        ("{}", "a JSON list of cards"),
        ("[7]", "card 1 of the schedule must have exactly the fields at_s, heal_s, kind, name, number"),
        (f"[{CARD.replace('2', 'true')}]", "card 1 of the schedule has a field of the wrong type"),
        (f"[{CARD.replace('9', '1')}]", "card 1 must begin at 0 s or later and be healed after that"),
        (f"[{CARD.replace('halves', 'thirds')}]", "card 1: there is no partition 'thirds'; there are halves"),
        (f"[{CARD.replace('partition', 'flood')}]", "card 1: there is no kind of fault 'flood'"),
        (f"[{CARD}, {CARD.replace('1', '2').replace('9', '12')}]", "card 2 begins at 2.0 s, before card 1 is healed"),
    ],
)
def test_a_broken_schedule_is_refused_in_one_sentence(text, says):
    with pytest.raises(BadSchedule, match=says):
        schedule_from_json(text)
