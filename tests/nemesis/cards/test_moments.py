"""Cards that wait for what an earlier fault has set off."""

from __future__ import annotations

import asyncio

import pytest
from fake_nemesis_cluster import FakeCluster, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Card
from nemesis.coverage import (
    ELECTION_MOMENT as ELECTION,
)
from nemesis.coverage import (
    MOMENT_WAIT_S,
    has_come,
)
from nemesis.coverage import (
    NEW_LEADER_MOMENT as NEW_LEADER,
)
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


async def elected(cluster: FakeCluster, at_s: float) -> None:
    await asyncio.sleep(at_s)
    cluster.leader, cluster.epoch = "n4", 4


async def played_while_one_is_elected(cluster, cards, at_s):
    (records, _), _ = await asyncio.gather(played(cluster, *cards), elected(cluster, at_s))
    return records


FIRST = Card(1, "kill", "leader", 2.0, 10.0)
SECOND = Card(2, "kill", "leader", 2.5, 10.0, after=1, moment=NEW_LEADER)


@pytest.mark.parametrize("at_s", [4.0, 6.5])
def test_the_next_leader_dies_as_soon_as_it_leads(at_s):
    cluster = FakeCluster()
    first, second = in_no_time(played_while_one_is_elected(cluster, [FIRST, SECOND], at_s))
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
    cluster = FakeCluster()
    cluster.leader = None
    first, second = in_no_time(played(cluster, FIRST, SECOND))[0]
    assert (first.achieved, second.achieved) == (Achieved.SKIPPED, Achieved.SKIPPED)
    assert second.reason == "card 1, which it follows, hit nothing"


def test_a_card_waits_on_while_the_one_that_it_follows_still_waits_for_a_leader():
    async def elections(cluster):
        await asyncio.sleep(4.0)
        cluster.leader, cluster.epoch = "n1", 4
        await asyncio.sleep(2.0)
        cluster.leader, cluster.epoch = "n2", 5

    async def both(cluster):
        (records, _), _ = await asyncio.gather(played(cluster, FIRST, SECOND), elections(cluster))
        return records

    cluster = FakeCluster()
    cluster.leader = None
    first, second = in_no_time(both(cluster))
    assert [(r.nodes, r.epoch) for r in (first, second)] == [(("n1",), 4), (("n2",), 5)]
