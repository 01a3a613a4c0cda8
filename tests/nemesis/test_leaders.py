"""Who leads now, out of what the nodes report.

Cards against the leader are aimed at the leader of all, and at the leader of a key, in turn.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

import pytest
from fake_nemesis_cluster import FakeCluster, Witness, card, now_ns

from nemesis.cluster import Cluster
from nemesis.coverage import leader_now
from nemesis.kind import LeaderNow
from nemesis.play import play
from nemesis.resolve import MainPhase
from system_under_test.subject import NodeStatus

SERVERS = ("n1", "n2", "n3", "n4", "n5")


def status(node, epoch, role="follower", leader=None):
    return NodeStatus(node, epoch, role, leader)


@pytest.mark.parametrize(
    ("statuses", "running", "leader"),
    [
        ([], SERVERS, None),
        ([status("n1", 5, "leader", "n1")], SERVERS, LeaderNow("n1", 5)),
        ([status("n1", 5, "leader", "n1"), status("n2", 6)], SERVERS, None),
        ([status("n2", 6, leader="n3")], SERVERS, LeaderNow("n3", 6)),
        ([status("n2", 6, leader="n3")], ("n2",), None),
        ([status("n1", 6, leader="n2"), status("n3", 6, "leader", "n3")], SERVERS, LeaderNow("n3", 6)),
        ([status("n4", 6, "leader"), status("n3", 6, "leader")], SERVERS, LeaderNow("n3", 6)),
    ],
)
def test_the_leader_is_the_one_of_the_highest_epoch_reported(statuses, running, leader):
    assert leader_now(statuses, running) == leader


pytestmark = pytest.mark.virtual_time


async def struck(cluster: FakeCluster, leader_of_key: str | None) -> list[tuple[str | None, int]]:
    async def leader_of(key: str) -> str | None:
        assert key in ("k0", "k1")
        return leader_of_key

    main = MainPhase(
        cast(Cluster, cluster), cluster.statuses, now_ns, now_ns(), asyncio.Event(), (), ("k0", "k1"), leader_of
    )
    cards = [card("kill", "leader", number=number, at_s=20.0 * number, hold_s=5.0) for number in (1, 2, 3)]
    records = await play(cards, main, Random(7), Witness(cluster).hooks)
    return [(record.leader, record.epoch) for record in records]


async def test_every_second_card_strikes_the_leader_of_a_key() -> None:
    assert [leader for leader, _ in await struck(FakeCluster(), "n4")][1] == "n4"


async def test_without_a_leader_of_all_each_card_strikes_that_of_a_key() -> None:
    cluster = FakeCluster(leader=None)
    assert await struck(cluster, "n4") == [("n4", -1)] * 3


async def test_an_unknown_leader_of_a_key_leaves_the_leader_of_all() -> None:
    assert -1 not in [epoch for _, epoch in await struck(FakeCluster(), None)]
