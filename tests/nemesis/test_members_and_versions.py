"""Members leave and come back, proven by what the system reports; servers change between versions, and return."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Card, Fault
from nemesis.kinds import KINDS
from system_under_test.subject import ServerVersions


class Changing(FakeCluster):
    """deaf: changes of the members have no effect.  quits: a removed server ends itself."""

    deaf, quits = False, True

    def __init__(self, **lies: Any) -> None:
        super().__init__(**lies)
        self.now = set(self.servers)
        self.fewest = len(self.now)

    async def members(self) -> frozenset[str]:
        return frozenset(self.now)

    async def remove_member(self, server: str) -> None:
        self._ordered("remove", server)
        if not self.deaf:
            self.now.discard(server)
            self.fewest = min(self.fewest, len(self.now))
            self.states[server] = "dead" if self.quits else self.states[server]

    async def add_member(self, server: str, *, wiped: bool = False) -> None:
        self._ordered("add wiped" if wiped else "add", server)
        assert self.states[server] == "dead", "only a dead server's disk can be wiped"

    async def restart(self, server: str) -> None:
        await super().restart(server)
        self.now.add(server)


@pytest.mark.parametrize("quits", [True, False])
@pytest.mark.parametrize("target", ["leader", "one", "one-dead", "leader-dead"])
def test_a_removed_server_comes_back_as_a_new_member(target: str, quits: bool) -> None:
    cluster = Changing(quits=quits)
    (record,), _ = in_no_time(played(cluster, card("membership", target)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    (node,) = record.nodes
    assert [o for o in cluster.orders if o.split()[0] in ("remove", "add", "restart")] == [
        f"remove {node}",
        f"add {node}",
        f"restart {node}",
    ]
    assert cluster.whole and cluster.now == set(cluster.servers)


class SlowToJoin(Changing):
    """A server that was added is a member only some time after it was started."""

    joins_after_s: float

    async def restart(self, server: str) -> None:
        await FakeCluster.restart(self, server)
        asyncio.get_running_loop().call_later(self.joins_after_s, self.now.add, server)


def test_a_change_waits_until_the_one_before_is_complete_and_holds_as_long() -> None:
    cluster = SlowToJoin(joins_after_s=3.0)
    cards = card("membership", "one", 1, 2.0, 6.0), card("membership", "one-dead", 2, 5.0, 4.0)
    (first, second), _ = in_no_time(played(cluster, *cards))
    assert [first.achieved, second.achieved] == [Achieved.INSTALLED, Achieved.INSTALLED]
    assert 11.0 <= second.injected_ns / 1e9 <= 12.0, "healed at 8 s, a member again at 11 s"
    assert second.heal_ordered_ns - second.injected_ns == pytest.approx(4e9, abs=2e8)
    assert second.card == cards[1], "the record holds the card as it was dealt"
    assert cluster.now == set(cluster.servers)


def test_a_system_that_never_gets_ready_is_changed_no_more() -> None:
    cluster = SlowToJoin(joins_after_s=1000.0)
    cards = card("membership", "one", 1, 2.0, 6.0), card("membership", "one-dead", 2, 13.0, 4.0)
    (first, second), _ = in_no_time(played(cluster, *cards))
    assert second.achieved is Achieved.SKIPPED
    words = f"the system was not ready within 12 s: {first.nodes[0]} had not come back as a member"
    assert second.reason == words


class Leaderless(Changing):
    """Nobody leads before `leads` is set, and so nobody knows the members."""

    leads = False

    async def members(self) -> frozenset[str]:
        if not self.leads:
            raise OSError("no server leads")
        return await super().members()


@pytest.mark.parametrize("leads_after_s", [5.0, 1000.0])
def test_a_server_comes_back_once_the_cluster_has_a_leader_again(leads_after_s: float) -> None:
    """Another fault has parted the cluster."""

    async def heal(cluster: Leaderless) -> None:
        asyncio.get_running_loop().call_later(leads_after_s, setattr, cluster, "leads", True)
        fault = Fault("membership", "n1 removed", ("n1",), settings={"killed": False, "wiped": False, "out": ["n1"]})
        await KINDS["membership"].heal(SimpleNamespace(cluster=cluster), fault)  # type: ignore[arg-type]

    cluster = Leaderless()
    cluster.now.discard("n1")
    cluster.states["n1"] = "dead"
    if leads_after_s > 100:
        with pytest.raises(OSError, match="no server leads"):
            in_no_time(heal(cluster))
    else:
        in_no_time(heal(cluster))
    assert ("n1" in cluster.now) == (leads_after_s < 100)


class LeaderlessOnceKilled(Changing):
    """Another fault holds a second server, so a majority is gone with the first that is killed."""

    async def members(self) -> frozenset[str]:
        if "dead" in self.states.values():
            raise OSError("no server leads")
        return await super().members()


def test_a_change_that_nobody_can_be_asked_for_is_skipped() -> None:
    cluster = LeaderlessOnceKilled()
    (record,), _ = in_no_time(played(cluster, card("membership", "one-dead")))
    assert record.achieved is Achieved.SKIPPED
    assert "no leader answered to remove" in record.reason and "no server leads" in record.reason
    assert not [order for order in cluster.orders if order.startswith("remove")]


def test_a_server_that_stays_a_member_is_not_achieved() -> None:
    cluster = Changing(deaf=True)
    (record,), _ = in_no_time(played(cluster, card("membership", "one")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "is a member ordered 0 to 0: it is 1" in record.reason
    assert cluster.whole


def test_a_rolling_restart_stops_every_server_once() -> None:
    cluster = FakeCluster()
    steps = KINDS["stop"].deck.figures["rolling-restart"].steps(Random(4), len(cluster.servers))
    cards = [
        Card(number, "stop", step.target, 2.0 + step.after_s, 2.0 + step.after_s + step.hold_s)
        for number, step in enumerate(steps, 1)
    ]
    records, _ = in_no_time(played(cluster, *cards))
    assert {r.achieved for r in records} == {Achieved.INSTALLED}
    assert sorted(node for r in records for node in r.nodes) == list(cluster.servers)
    assert cluster.whole


@pytest.mark.parametrize("target", ["one-wiped", "leader-wiped"])
def test_a_wiped_server_comes_back_with_an_empty_disk(target: str) -> None:
    cluster = Changing()
    (record,), _ = in_no_time(played(cluster, card("membership", target)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    (node,) = record.nodes
    changes = [o for o in cluster.orders if o.split()[0] in ("kill", "remove", "add", "restart")]
    assert changes[:2] == [f"kill {node}", f"remove {node}"]
    assert changes[-2:] == [f"add wiped {node}", f"restart {node}"]
    assert cluster.whole and cluster.now == set(cluster.servers)


def test_every_server_is_replaced_and_the_next_one_only_when_the_one_before_is_a_member() -> None:
    cluster = SlowToJoin(joins_after_s=1.0)
    (record,), _ = in_no_time(played(cluster, card("membership", "each-wiped", 1, 2.0, 20.0)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    assert sorted(record.nodes) == list(cluster.servers)
    changes = [o for o in cluster.orders if o.split()[0] in ("remove", "add", "restart")]
    assert changes == [f"{order} {node}" for node in record.nodes for order in ("remove", "add wiped", "restart")], (
        "one change at a time"
    )
    assert cluster.fewest == len(cluster.servers) - 1
    assert cluster.whole and cluster.now == set(cluster.servers)


def test_a_cluster_shrinks_to_one_member_and_grows_again() -> None:
    cluster = SlowToJoin(joins_after_s=0.5)
    (record,), _ = in_no_time(played(cluster, card("membership", "all-but-one", 1, 2.0, 8.0)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    assert len(record.nodes) == len(cluster.servers) - 1
    assert cluster.fewest == 1
    assert cluster.whole and cluster.now == set(cluster.servers)


class Mixed(FakeCluster):
    """stubborn: servers that start in the version in which they were.  refuses: it does not raise its levels."""

    def __init__(self, stubborn: frozenset[str] = frozenset(), *names: str, refuses: bool = False) -> None:
        super().__init__(3)
        self.versions = ServerVersions(names or ("1.0", "2.0"), self.not_ready, self.raise_levels)
        self.stubborn, self.refuses, self.ran = stubborn, refuses, []
        self.lagging = 0

    async def not_ready(self):
        self.lagging -= 1
        return "n1 is not in sync" if self.lagging >= 0 else ""

    async def raise_levels(self):
        if self.refuses:
            raise OSError("a broker does not support level 33")
        self.ran.append(("all", "levels"))

    async def restart(self, server):
        await super().restart(server)
        if server not in self.stubborn:
            self.versions.started[server] = self.versions.ordered[server]
        self.ran.append((server, self.versions.of(server)))


@pytest.mark.parametrize("target", ["one", "leader", "minority"])
def test_a_minority_runs_the_other_version_until_the_heal(target):
    cluster = Mixed()
    records, _ = in_no_time(played(cluster, card("version", target)))
    (server,) = records[0].nodes
    assert records[0].achieved is Achieved.INSTALLED
    assert cluster.ran == [(server, "2.0"), (server, "1.0")]
    assert target != "leader" or server == "n1"
    assert cluster.whole


@pytest.mark.parametrize(("kind", "target"), [("version", "one"), ("upgrade", "server-1")])
def test_no_second_change_begins_while_one_is_under_way(kind, target):
    cluster = Mixed()
    cards = [card("version", "one", 1, 2.0, 40.0), card(kind, target, 2, 8.0, 3.0)]
    records, _ = in_no_time(played(cluster, *cards))
    assert [record.achieved for record in records] == [Achieved.INSTALLED, Achieved.SKIPPED]
    assert set(cluster.versions.ordered.values()) == {"1.0"}


def upgraded(cluster: Mixed, rounds: int = 1):
    figure = KINDS["upgrade"].deck.figures["rolling-upgrade"]
    steps = figure.steps(Random(4), 3)
    cards = [
        card("upgrade", step.target, 3 * turn + place + 1, 40.0 * turn + step.after_s, step.hold_s)
        for turn in range(rounds)
        for place, step in enumerate(steps)
    ]
    return in_no_time(played(cluster, *cards))[0]


def test_a_rolling_upgrade_takes_each_server_through_each_version_and_then_raises_the_levels():
    cluster = Mixed(frozenset(), "1.0", "2.0", "3.0")
    records = upgraded(cluster, 3)
    assert [record.achieved for record in records] == [Achieved.INSTALLED] * 6 + [Achieved.SKIPPED] * 3
    assert "3.0, the last version" in records[-1].reason
    servers = [node for record in records[:3] for node in record.nodes]
    assert sorted(servers) == ["n1", "n2", "n3"]
    expected = [(server, version) for version in ("2.0", "3.0") for server in servers]
    assert cluster.ran == [*expected, ("all", "levels")]
    assert cluster.whole


def test_a_server_is_spared_only_while_the_others_are_in_sync():
    cluster = Mixed()
    cluster.lagging = 10**6
    records = upgraded(cluster)
    assert {record.achieved for record in records} == {Achieved.SKIPPED}
    assert "n1 is not in sync" in records[0].reason
    assert cluster.ran == []


def test_an_upgrade_whose_levels_are_refused_is_not_proven():
    records = upgraded(Mixed(refuses=True))
    assert [record.achieved for record in records] == [Achieved.INSTALLED, Achieved.INSTALLED, Achieved.NOT_ACHIEVED]


def test_a_server_that_starts_in_its_old_version_was_not_changed():
    records, _ = in_no_time(played(Mixed(frozenset({"n1"})), card("version", "leader")))
    assert records[0].achieved is Achieved.NOT_ACHIEVED
    records = upgraded(Mixed(frozenset({"n1"})))
    assert sorted((r.nodes[0], str(r.achieved)) for r in records)[0] == ("n1", str(Achieved.NOT_ACHIEVED))
