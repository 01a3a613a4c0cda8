"""A power loss that is aimed at an fsync happens at an fsync, or not at all."""

from __future__ import annotations

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved
from nemesis.kinds.disks import AT_FSYNC_S_MAX
from system_under_test.subject import NodeGone


class FakeDisks(FakeCluster):
    """The servers in `idle` fsync nothing."""

    def __init__(self, **lies):
        super().__init__(**lies)
        self.armed = dict.fromkeys(self.servers, 0)
        self.losses = {}

    async def arm_disk(self, server, operation, nth):
        self._ordered("arm" if nth else "disarm", server)
        self.armed[server] = nth

    async def disk_reached(self, server):
        return bool(self.armed[server]) and server not in self.idle

    async def lose_power(self, server, kept, seed):
        await self._set("lose power", server, "dead")
        self.armed[server] = 0
        self.losses[server] = {"seed": seed, "fsynced_kept": 1, "not_fsynced_kept": 0, "undone": 2, "used": 1}
        self.losses[server] |= {"oldest_ms": 140, "bytes lost of wal/0.log": 96}

    async def power_loss(self, server):
        return self.losses.get(server, {})


def test_a_leader_loses_its_power_at_an_fsync():
    cluster = FakeDisks()
    (record,), _ = in_no_time(played(cluster, card("power", "leader-at-fsync")))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    shown = record.measured[-2].values
    assert {words.partition(" ")[2]: value for words, value in shown.items()}.items() >= {
        "bytes lost of wal/0.log": 96.0, "age of the oldest write lost_ms": 140.0,
    }.items()  # fmt: skip
    assert cluster.orders.index("arm n1") < cluster.orders.index("lose power n1")
    assert cluster.whole


def test_a_leader_that_fsyncs_nothing_keeps_its_power_and_nothing_is_left_behind():
    cluster = FakeDisks(idle={"n1"})
    (record,), _ = in_no_time(played(cluster, card("power", "leader-at-fsync")))
    assert record.achieved is Achieved.SKIPPED
    assert record.reason.startswith("n1 fsynced ") and record.reason.endswith(f" for {AT_FSYNC_S_MAX:g} s")
    assert record.injected_ns == -1
    assert not any(order.startswith("lose power") for order in cluster.orders)
    assert not any(order.startswith("cut") and order != "cut 0" for order in cluster.orders)
    assert cluster.armed["n1"] == 0
    assert cluster.whole


def test_a_power_loss_that_fails_leaves_no_fsync_held():
    cluster = FakeDisks()

    async def lose_power(server, kept, seed):
        raise NodeGone("the agent does not answer")

    cluster.lose_power = lose_power
    (record,), _ = in_no_time(played(cluster, card("power", "leader-at-fsync")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert cluster.armed["n1"] == 0
    assert cluster.whole


@pytest.mark.parametrize("target", ["leader", "leader-torn"])
def test_no_other_power_loss_waits_for_an_fsync(target):
    cluster = FakeDisks(idle={"n1", "n2", "n3", "n4", "n5"})
    (record,), _ = in_no_time(played(cluster, card("power", target)))
    assert record.achieved is Achieved.INSTALLED
    assert not any(order.startswith("arm") for order in cluster.orders)


def test_a_power_loss_of_a_server_that_keeps_its_data_elsewhere_counts_for_nothing():
    cluster = FakeDisks()

    async def power_loss(server):
        return cluster.losses[server] | {"used": 0} if server in cluster.losses else {}

    cluster.power_loss = power_loss
    (record,), _ = in_no_time(played(cluster, card("power", "leader")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "n1: its server has written to this disk ordered 1 to 1: it is 0" in record.reason
