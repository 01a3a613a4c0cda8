"""What faults have met, look by look, and the deck that deals what they have not."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from fake_nemesis_cluster import FakeCluster, Witness, now_ns
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Fault
from nemesis.coverage import (
    ALL_VOTED,
    BOTH_SIDES,
    ELECTION,
    FOLLOWER,
    LEADER,
    LEADERLESS,
    LED,
    NEW_LEADER,
    OLD_ENTRIES,
    SECOND_TERM,
    TOGETHER,
    TWO_LEADERS,
    Cell,
    FaultCoverage,
    Look,
)
from nemesis.deck import Dealer
from nemesis.play import play
from nemesis.resolve import MainPhase
from system_under_test.subject import NodeStatus

SERVERS = ("n1", "n2", "n3")
FIVE = (*SERVERS, "n4", "n5")
KILL_N1 = Fault("kill", "n1 killed", ("n1",))
CUT_N1 = Fault("partition", "n1 cut", cut=frozenset({("n1", "n2"), ("n2", "n1"), ("n1", "n3"), ("n3", "n1")}))


def status(node, epoch, role, leader=None, mark=0, end=0, **more):
    return NodeStatus(node, epoch, role, leader, mark, end, **more)


CALM = [status("n1", 1, "leader", "n1"), status("n2", 1, "follower", "n1"), status("n3", 1, "follower", "n1")]
SEARCHING = [status("n2", 1, "prospective", "n1"), status("n3", 1, "follower", "n1")]
LED_BY_2 = [status("n2", 2, "leader", "n2"), status("n3", 2, "follower", "n2")]


def seen(*looks):
    coverage = FaultCoverage()
    for statuses, faults in looks:
        coverage.see(Look(SERVERS, ("c1", "c2"), statuses, dict(enumerate(faults, 1))))
    return coverage


def test_a_dead_leader_meets_one_phase_after_another():
    coverage = seen(
        (CALM, []), (CALM[1:], [KILL_N1]), (SEARCHING, [KILL_N1]), (LED_BY_2, [KILL_N1]), (LED_BY_2, [KILL_N1])
    )
    assert dict(coverage.met) == {
        Cell("kill", LEADER, ELECTION): 2,
        Cell("kill", LEADER, NEW_LEADER): 1,
        Cell("kill", LEADER, LED): 1,
    }


def test_the_role_is_that_of_the_moment_when_the_fault_began():
    at_search = [*SEARCHING, status("n1", 1, "unattached")]
    coverage = seen((CALM, []), (at_search, []), (LED_BY_2, [KILL_N1]))
    assert {cell.role for cell in coverage.met} == {LEADERLESS}
    assert {cell.role for cell in seen((LED_BY_2 + CALM[:1], []), (LED_BY_2, [Fault("kill", "", ("n3",))])).met} == {
        FOLLOWER
    }


def test_an_election_between_two_looks_is_not_missed():
    passed = [status("n2", 2, "leader", "n2", campaigned=True), LED_BY_2[1]]
    coverage = seen((CALM, []), (passed, [KILL_N1]))
    assert {cell.phase for cell in coverage.met} == {ELECTION, NEW_LEADER}


@pytest.mark.parametrize(
    ("name", "looks"),
    [
        (SECOND_TERM, [(CALM, []), (LED_BY_2, [CUT_N1]), ([status("n3", 3, "leader", "n3")], [CUT_N1])]),
        (TWO_LEADERS, [(CALM, []), ([CALM[0], *LED_BY_2], [CUT_N1])]),
        (OLD_ENTRIES, [(CALM, []), ([status("n2", 2, "leader", "n2", None, 3), CALM[0]], [CUT_N1])]),
        (BOTH_SIDES, [(CALM, []), (CALM, [CUT_N1])]),
        (ALL_VOTED, [(CALM, []), ([status(s, 2, "follower", "n2", voted_epoch=2) for s in SERVERS], [CUT_N1])]),
        (TOGETHER, [(CALM, []), (CALM, [CUT_N1, KILL_N1])]),
    ],
)
def test_situations_are_found_as_soon_as_they_are_there_and_not_before(name, looks):
    assert seen(*looks).situations[name] == 1
    assert seen(*looks[:-1]).situations[name] == 0
    without_faults = seen(*[(statuses, []) for statuses, _ in looks])
    assert not without_faults.met and not without_faults.situations


def test_a_side_without_a_client_is_no_side_with_a_reader():
    alone = Fault("partition", "n1 alone", cut=frozenset((a, b) for a, b in [("n1", "c1"), ("c2", "n1")]))
    assert seen((CALM, []), (CALM, [alone])).situations[BOTH_SIDES] == 0


def test_what_a_system_does_not_report_is_not_called_unmet():
    plain = [NodeStatus("n1", 1, "leader", "n1"), NodeStatus("n2", 1, "follower", "n1")]
    situations = seen((plain, []), (plain, [KILL_N1])).so_far().situations
    assert situations[OLD_ENTRIES] is situations[ALL_VOTED] is None
    assert situations[SECOND_TERM] == 0


def test_the_deck_deals_what_has_not_been_met():
    """Behind the opening and the storm.  What the play before aims at counts as met, so two plays are looked at."""
    phases = (LED, ELECTION, NEW_LEADER)
    leaders_hit = {Cell("kill", LEADER, phase): 1 for phase in phases}
    others_hit = {Cell("kill", role, phase): 1 for role in (FOLLOWER, LEADERLESS) for phase in phases}
    for seed in range(20):
        rng = Random(seed)
        dealer = Dealer("kill", FIVE, 300.0, rng)
        plays = [dealer.next(leaders_hit) for _ in range(5)]
        assert [card.moment for card in plays[4]] == ["", "election"]
        dealer = Dealer("kill", FIVE, 300.0, rng)
        plays = [dealer.next(others_hit) for _ in range(6)]
        assert any(card.name.startswith("leader") for cards in plays[4:] for card in cards)


def test_equal_coverage_deals_equal_cards():
    def dealt(met):
        dealer = Dealer("partition,kill", FIVE, 120.0, Random(4))
        while dealer.next(met):
            pass
        return dealer.cards

    assert dealt({}) == dealt({})
    assert dealt({}) != dealt(
        {Cell(kind, LEADER, phase): 1 for kind in ("partition", "kill") for phase in (LED, ELECTION, NEW_LEADER)}
    )


def test_a_run_deals_as_it_goes_and_plays_every_card():
    """The toy: five servers of which the leader's successor is elected 2 s after the leader died."""

    async def run():
        cluster, witness, coverage = FakeCluster(), None, FaultCoverage()
        witness = Witness(cluster)
        dealer = Dealer("kill", cluster.servers, 60.0, Random(2))
        records = {}

        async def statuses():
            reports = await cluster.statuses()
            in_force = {r.card.number: r.fault for r in records.values() if r.injected_ns >= 0 > r.heal_ordered_ns}
            coverage.see(Look(cluster.servers, cluster.clients, reports, in_force))
            return reports

        async def elect():
            while True:
                await asyncio.sleep(0.25)
                await statuses()
                if cluster.states[cluster.leader] == "dead":
                    await asyncio.sleep(2.0)
                    up = [s for s in cluster.servers if cluster.states[s] == "running"]
                    if up:
                        cluster.leader, cluster.epoch = up[0], cluster.epoch + 1

        hooks = witness.hooks
        hooks = type(hooks)(lambda r: records.__setitem__(r.card.number, r), hooks.before_heal)
        electing = asyncio.ensure_future(elect())
        main = MainPhase(cluster, statuses, now_ns, now_ns())
        played = await play((), main, Random(1), hooks, deal_next=lambda: dealer.next(coverage.met))
        electing.cancel()
        return cluster, dealer, coverage, played

    cluster, dealer, coverage, played = in_no_time(run())
    assert [record.card for record in played] == dealer.cards
    assert len(played) >= 6 and cluster.whole
    assert sum(record.achieved is Achieved.INSTALLED for record in played) >= len(played) - 2
    assert {cell.phase for cell in coverage.met} == {LED, ELECTION, NEW_LEADER}
    assert {LEADER, FOLLOWER} <= {cell.role for cell in coverage.met}


def test_a_card_that_fails_ends_the_dealing_at_once():
    async def run():
        cluster = FakeCluster()
        witness = Witness(cluster)

        def broken(record):
            raise RuntimeError("the disk of the harness is full")

        hooks = type(witness.hooks)(broken, witness.before_heal)
        dealer = Dealer("kill", cluster.servers, 60.0, Random(2))
        with pytest.raises(RuntimeError, match="disk of the harness"):
            main = MainPhase(cluster, cluster.statuses, now_ns, now_ns())
            await play((), main, Random(1), hooks, deal_next=dealer.next)
        return cluster, asyncio.get_running_loop().time()

    cluster, ended_s = in_no_time(run())
    assert cluster.whole and ended_s < 15.0
