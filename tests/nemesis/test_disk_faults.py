"""Faults of disks: damaged files of dead servers, and power losses that are aimed at an fsync."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved
from nemesis.kinds.disks import AT_FSYNC_S_MAX
from nemesis.play import heal_all
from system_under_test.subject import NodeGone


class RottenDisks(FakeCluster):
    """harmless: damage that changes nothing.  repaired: damage that is undone at once.
    refuses: servers whose files are damaged end when they are started.  empty: there is no file to damage."""

    harmless = repaired = empty = False
    refuses = True

    def __init__(self, **lies: Any) -> None:
        super().__init__(**lies)
        self.damaged: dict[str, str] = {}
        self.seeds: dict[str, int] = {}

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        self._ordered(f"damage {how}", server)
        assert self.states[server] == "dead" or server in self.immortal
        if self.empty:
            raise OSError(errno.ENOENT, f"{server}: no file with content matches *.log")
        self.damaged[server] = how
        self.seeds[server] = seed

    async def disk_damage(self, server: str) -> Mapping[str, Any]:
        if server not in self.damaged:
            return {}
        after = "whole" if self.harmless else self.damaged[server]
        now = "whole" if self.repaired else after
        return {"seed": self.seeds[server], "before": "whole", "after": after, "now": now}

    async def probe_disk(self, server: str) -> Mapping[str, Any]:
        return dict.fromkeys(("open", "write", "fsync", "read"), "") | {"fsync_s": 0.0}

    async def restart(self, server: str) -> None:
        await super().restart(server)
        if self.refuses and server in self.damaged:
            self.states[server] = "dead"


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("target", ["one-flip", "leader-flip", "minority-flip", "one-truncate", "one-wipe"])
def test_a_server_goes_down_its_file_is_damaged_and_it_may_stay_down(target: str, refuses: bool) -> None:
    cluster = RottenDisks(refuses=refuses)
    (record,), _ = in_no_time(played(cluster, card("damage", target)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    assert sorted(cluster.damaged) == list(record.nodes)
    assert {cluster.states[n] for n in record.nodes} == {"dead" if refuses else "running"}
    assert record.killed == frozenset(), "the last heal does not start it once more"
    assert in_no_time(heal_all(cluster, record.killed)).verdict == "as ordered"


@pytest.mark.parametrize("lie", ["harmless", "repaired"])
def test_damage_that_is_not_on_the_disk_is_not_achieved(lie: str) -> None:
    (record,), _ = in_no_time(played(RottenDisks(**{lie: True}), card("damage", "one-flip")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "damage on its disk ordered 1 to 1: it is 0" in record.reason


@pytest.mark.parametrize(
    ("target", "achieved"), [("one-truncate", Achieved.SKIPPED), ("minority-flip", Achieved.NOT_ACHIEVED)]
)
def test_where_there_is_nothing_to_damage_the_card_of_one_server_is_skipped(target: str, achieved: Achieved) -> None:
    """The files of a server that was wiped just before hold nothing yet.  Of several, another one may be damaged."""
    cluster = RottenDisks(empty=True)
    (record,), _ = in_no_time(played(cluster, card("damage", target)))
    assert record.achieved is achieved
    assert "no file with content" in record.reason
    assert set(cluster.states.values()) == {"running"}


def test_once_a_minority_is_hit_only_the_same_servers_are_hit_again() -> None:
    cards = [card("damage", "one-flip", number, 20.0 * number) for number in range(1, 9)]
    records, _ = in_no_time(played(RottenDisks(refuses=False), *cards))
    assert {r.achieved for r in records} == {Achieved.INSTALLED}
    assert len({node for r in records for node in r.nodes}) == 2
    assert not any(r.over_budget for r in records)


def test_a_system_that_does_not_promise_to_notice_the_damage_is_spared() -> None:
    cluster = RottenDisks(missing={"damage: truncate": "it notices no truncation"})
    records, _ = in_no_time(played(cluster, card("damage", "one-truncate"), card("damage", "one-flip", 2, 20.0)))
    assert [(r.achieved, r.reason) for r in records] == [
        (Achieved.SKIPPED, "it notices no truncation"),
        (Achieved.INSTALLED, ""),
    ]


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
