"""What faults have met, look by look; the deck deals what they have not; cards wait for what a fault set off."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest
from dealt import deal
from fake_nemesis_cluster import FakeCluster, Witness, now_ns, played, played_while
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Card, Fault, FaultRecord
from nemesis.cluster import Beacons
from nemesis.coverage import (
    ALL_VOTED,
    BOTH_SIDES,
    ELECTION,
    ELECTION_MOMENT,
    FOLLOWER,
    LEADER,
    LEADERLESS,
    LED,
    MOMENT_WAIT_S,
    NEW_LEADER,
    NEW_LEADER_MOMENT,
    OLD_ENTRIES,
    SECOND_TERM,
    TOGETHER,
    TWO_LEADERS,
    Cell,
    FaultCoverage,
    Look,
    has_come,
)
from nemesis.deck import Dealer
from nemesis.kinds import dealt_by
from nemesis.measure import Hooks
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


def statuses(*rows):
    return [NodeStatus(node, epoch, role, leader) for node, epoch, role, leader in rows]


@pytest.mark.parametrize(
    ("reports", "election", "new_leader"),
    [
        ([("n1", 3, "leader", "n1"), ("n2", 3, "follower", "n1")], False, False),
        ([("n2", 3, "follower", "n1"), ("n3", 3, "prospective", None)], True, False),
        ([("n2", 4, "unattached", None), ("n3", 4, "candidate", None)], True, False),
        ([("n1", 3, "leader", "n1"), ("n2", 4, "leader", "n2"), ("n3", 4, "follower", "n2")], True, True),
        ([("n3", 4, "follower", "n2")], True, True),
    ],
)
def test_moments_are_what_the_nodes_report_and_no_clock(reports, election, new_leader):
    assert has_come(ELECTION_MOMENT, 3, statuses(*reports), SERVERS) is election
    assert has_come(NEW_LEADER_MOMENT, 3, statuses(*reports), SERVERS) is new_leader


def test_a_dead_leader_of_a_later_epoch_is_no_new_leader():
    reports = statuses(("n3", 4, "follower", "n2"))
    assert not has_come(NEW_LEADER_MOMENT, 3, reports, ("n1", "n3"))


def electing(cluster: FakeCluster, leader: str, epoch: int):
    return lambda: vars(cluster).update(leader=leader, epoch=epoch)


FIRST = Card(1, "kill", "leader", 2.0, 10.0)
SECOND = Card(2, "kill", "leader", 2.5, 10.0, after=1, moment=NEW_LEADER_MOMENT)


@pytest.mark.parametrize("at_s", [4.0, 6.5])
def test_the_next_leader_dies_as_soon_as_it_leads(at_s):
    cluster = FakeCluster()
    first, second = played_while(cluster, FIRST, SECOND, acts={at_s: electing(cluster, "n4", 4)})
    assert (first.nodes, second.nodes) == (("n1",), ("n4",))
    assert at_s <= second.injected_ns / 1e9 <= at_s + 0.2
    assert second.achieved is Achieved.INSTALLED
    assert second.heal_ordered_ns == pytest.approx(10e9, abs=1e6)
    assert cluster.whole


def test_a_moment_that_never_comes_skips_the_card_and_names_it():
    _, second = in_no_time(played(FakeCluster(), FIRST, SECOND))[0]
    assert second.achieved is Achieved.SKIPPED
    assert second.reason == f"there was no new leader within {MOMENT_WAIT_S:.0f} s"


def test_a_card_that_follows_one_that_hit_nothing_is_skipped():
    first, second = in_no_time(played(FakeCluster(leader=None), FIRST, SECOND))[0]
    assert (first.achieved, second.achieved) == (Achieved.SKIPPED, Achieved.SKIPPED)
    assert second.reason == "card 1, which it follows, hit nothing"


def test_a_card_waits_on_while_the_one_that_it_follows_still_waits_for_a_leader():
    cluster = FakeCluster(leader=None)
    elections = {4.0: electing(cluster, "n1", 4), 6.0: electing(cluster, "n2", 5)}
    first, second = played_while(cluster, FIRST, SECOND, acts=elections)
    assert [(r.nodes, r.epoch) for r in (first, second)] == [(("n1",), 4), (("n2",), 5)]


# ---- composite faults, and heals that wait ------------------------------------------------------------------------


class LinkedCluster(FakeCluster):
    """A cluster whose links can be held and delayed; what is held is heard by no trial and no beacon."""

    def __init__(self) -> None:
        super().__init__(3)
        self.impaired = {}

    async def impair(self, links, seed):
        self.orders.append(f"impair {len(links)}")
        self.impaired = {link: dict(it) for link, it in links.items()}

    async def try_link(self, link, datagrams, interval_s, wait_s):
        it = self.impaired.get(link, {})
        late_s = it.get("delay_s", 0.0)
        await asyncio.sleep(datagrams * interval_s + wait_s)
        came = 0 if it.get("hold") or late_s > wait_s else datagrams
        delays = {"delay_ms": late_s * 1e3, "least_delay_ms": late_s * 1e3}
        return {"sent": datagrams, "received": came, "repeated": 0, "reordered": 0, **delays}

    async def arrived(self, first, last):
        held = {link for link, it in self.impaired.items() if it.get("hold") or it.get("delay_s", 0.0) > 1.0}
        seen = await super().arrived(first, last)
        return {link: Beacons(it.sent, 0) if link in held else it for link, it in seen.items()}


async def played_on(cluster: LinkedCluster, cards, events=()) -> list[FaultRecord]:
    """Play the cards.  events: (seconds, "acknowledge" or the name of the next leader)."""
    acknowledged = 0

    async def happen() -> None:
        nonlocal acknowledged
        for at_s, what in events:
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            if what == "acknowledge":
                acknowledged += 1
            else:
                cluster.leader, cluster.epoch = what, cluster.epoch + 1

    async def no_copy(record: FaultRecord) -> None:
        raise AssertionError("a heal that waits for a moment waits for no copy")

    main = MainPhase(cluster, cluster.statuses, now_ns, now_ns(), acknowledged=lambda: acknowledged)
    hooks = Hooks(lambda record: None, no_copy)
    records, _ = await asyncio.gather(play(cards, main, Random(1), hooks), happen())
    return records


PAST = [
    Card(1, "packets", "leader-heard-late", 2.0, 12.0, until="healed", until_of=3, until_s=1.0),
    Card(2, "packets", "leader-hears-held", 4.0, 11.0, like=1, until="healed", until_of=3, until_s=0.1),
    Card(3, "pause", "leader", 4.0, 10.0, like=1, until="acknowledged", until_of=3, until_s=0.5),
]


def test_the_past_is_played_back_once_the_successor_has_answered():
    cluster = LinkedCluster()
    events = [(4.5, "acknowledge"), (6.0, "n2"), (6.5, "acknowledge")]
    late, held, paused = in_no_time(played_on(cluster, PAST, events))
    assert [r.achieved for r in (late, held, paused)] == [Achieved.INSTALLED] * 3
    assert {r.nodes for r in (late, held, paused)} == {("n1",)}
    assert abs(held.injected_ns - paused.injected_ns) < 50e6
    assert 7.0e9 <= paused.heal_ordered_ns <= 7.1e9
    assert 0.1e9 <= held.heal_ordered_ns - paused.healed_ns <= 0.15e9
    assert 1.0e9 <= late.heal_ordered_ns - paused.healed_ns <= 1.05e9
    assert cluster.whole and not cluster.impaired


def test_parts_keep_their_distance_where_the_first_one_is_late():
    cluster = LinkedCluster()
    cluster.leader = None
    chained = [PAST[0], replace(PAST[1], at_s=3.0), replace(PAST[2], at_s=3.1, like=2)]
    late, held, paused = in_no_time(played_on(cluster, chained, [(4.0, "n1"), (8.0, "n2"), (8.2, "acknowledge")]))
    assert late.injected_ns >= 3.9e9
    assert held.injected_ns - late.injected_ns == pytest.approx(1e9, abs=20e6)
    assert paused.injected_ns - held.injected_ns == pytest.approx(0.1e9, abs=20e6)
    assert paused.achieved is Achieved.INSTALLED


def test_a_heal_whose_moment_never_comes_is_due_at_its_time():
    _, held, paused = in_no_time(played_on(LinkedCluster(), PAST, [(4.5, "acknowledge")]))
    assert paused.achieved is Achieved.INSTALLED
    assert paused.heal_ordered_ns == pytest.approx(10e9, abs=20e6)
    assert held.heal_ordered_ns <= 10.2e9


@pytest.mark.parametrize("target", ["leader-hears-held", "leader-hears-late"])
def test_a_cut_around_links_that_are_held_or_late_is_proven(target):
    cards = [Card(1, "packets", target, 2.0, 12.0), Card(2, "partition", "clients-from-leader", 4.0, 8.0)]
    records, _ = in_no_time(played(LinkedCluster(), *cards))
    assert [(r.achieved, r.reason) for r in records] == [(Achieved.INSTALLED, "")] * 2


@pytest.mark.parametrize("nemesis", ["past", "short", "moment", "fsyncgate"])
def test_decks_of_several_kinds_deal_cards_of_their_parts(nemesis):
    for seed in range(20):
        cards = deal(nemesis, SERVERS, 60.0, Random(seed))
        assert {card.kind for card in cards} == set(dealt_by(nemesis).split(","))
        assert all(card.until_of <= len(cards) for card in cards)
    assert nemesis != "short" or 15 <= len(cards) <= 40


# ---- lines that servers print --------------------------------------------------------------------------------------

AT_LINE = Card(1, "pause", "leader", 2.0, 5.0, line="elected")


def played_at_lines(card: Card, lines, moments=None) -> FaultRecord:
    async def run() -> list[FaultRecord]:
        cluster = FakeCluster(lines=lines)
        main = MainPhase(cluster, cluster.statuses, now_ns, now_ns(), moments=moments or {})
        return await play([card], main, Random(1), Hooks(lambda record: None, lambda record: asyncio.sleep(0)))

    (record,) = in_no_time(run())
    return record


def test_the_server_that_prints_the_line_is_hit_at_once_and_for_as_long_as_the_card_says():
    record = played_at_lines(AT_LINE, {"n3": [(1.0, "elected"), (7.0, "I was elected in term 5"), (8.0, "elected")]})
    assert (record.nodes, record.achieved) == (("n3",), Achieved.INSTALLED)
    assert 7.0e9 <= record.injected_ns <= 7.005e9
    assert record.heal_ordered_ns == pytest.approx(10e9, abs=0.1e9)
    assert record.words.endswith("once n3 had printed 'I was elected in term 5'")


@pytest.mark.parametrize(("role", "at_s"), [("leader", 4.0), ("follower", 3.0)])
def test_the_line_of_a_role_hits_the_leader(role, at_s):
    lines = {"n1": [(4.0, "elected")], "n2": [(3.0, "elected")]}
    record = played_at_lines(replace(AT_LINE, line_of=role), lines)
    assert record.nodes == ("n1",)
    assert record.injected_ns / 1e9 == pytest.approx(at_s, abs=0.005)


def test_the_nth_line_counts_and_a_line_may_be_a_moment_of_the_system():
    lines = {"n2": [(3.0, "became leader"), (4.0, "other"), (6.0, "became leader")]}
    for name in ("new", "any"):
        record = played_at_lines(replace(AT_LINE, line=name, line_nth=2), lines, {"new": "became leader"})
        assert record.injected_ns / 1e9 == pytest.approx(6.0, abs=0.005)


def test_a_line_that_nobody_prints_skips_the_card():
    record = played_at_lines(AT_LINE, {"n2": [(3.0, "other")]})
    assert (record.achieved, record.reason) == (Achieved.SKIPPED, "no server printed 'elected' within 20 s")
