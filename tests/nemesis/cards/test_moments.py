"""Cards that wait for what an earlier fault has set off."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest
from dealt import deal
from fake_nemesis_cluster import FakeCluster, now_ns, played, played_while
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Card, FaultRecord
from nemesis.cluster import Beacons
from nemesis.coverage import ELECTION_MOMENT as ELECTION
from nemesis.coverage import MOMENT_WAIT_S, has_come
from nemesis.coverage import NEW_LEADER_MOMENT as NEW_LEADER
from nemesis.kinds import dealt_by
from nemesis.measure import Hooks
from nemesis.play import play
from nemesis.resolve import MainPhase
from system_under_test.subject import NodeStatus

SERVERS = ("n1", "n2", "n3")


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
    assert has_come(ELECTION, 3, statuses(*reports), SERVERS) is election
    assert has_come(NEW_LEADER, 3, statuses(*reports), SERVERS) is new_leader


def test_a_dead_leader_of_a_later_epoch_is_no_new_leader():
    reports = statuses(("n3", 4, "follower", "n2"))
    assert not has_come(NEW_LEADER, 3, reports, ("n1", "n3"))


def electing(cluster: FakeCluster, leader: str, epoch: int):
    return lambda: vars(cluster).update(leader=leader, epoch=epoch)


FIRST = Card(1, "kill", "leader", 2.0, 10.0)
SECOND = Card(2, "kill", "leader", 2.5, 10.0, after=1, moment=NEW_LEADER)


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
