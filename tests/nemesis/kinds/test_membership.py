"""Members that leave and come back, proven by what the system itself reports; and rolling restarts."""

from __future__ import annotations

from random import Random

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from nemesis.catalog import KINDS
from nemesis.faults import Achieved, Card


class Changing(FakeCluster):
    """deaf: changes of the members have no effect.  quits: a removed server ends itself."""

    def __init__(self) -> None:
        super().__init__()
        self.deaf = False
        self.quits = True
        self.now = set(self.servers)

    async def members(self) -> frozenset[str]:
        return frozenset(self.now)

    async def remove_member(self, server: str) -> None:
        self._ordered("remove", server)
        if not self.deaf:
            self.now.discard(server)
            self.states[server] = "dead" if self.quits else self.states[server]

    async def add_member(self, server: str) -> None:
        self._ordered("add", server)
        assert self.states[server] == "dead", "only a dead server's disk can be wiped"

    async def restart(self, server: str) -> None:
        await super().restart(server)
        self.now.add(server)


@pytest.mark.parametrize("quits", [True, False])
@pytest.mark.parametrize("target", ["leader", "one", "one-dead", "leader-dead"])
def test_a_removed_server_comes_back_as_a_new_member(target: str, quits: bool) -> None:
    cluster = Changing()
    cluster.quits = quits
    (record,), _ = in_no_time(played(cluster, card("membership", target)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    (node,) = record.nodes
    assert [o for o in cluster.orders if o.split()[0] in ("remove", "add", "restart")] == [
        f"remove {node}",
        f"add {node}",
        f"restart {node}",
    ]
    assert cluster.whole and cluster.now == set(cluster.servers)


def test_no_change_begins_while_another_one_is_under_way() -> None:
    cluster = Changing()
    cards = card("membership", "one", 1, 2.0, 6.0), card("membership", "one-dead", 2, 5.0, 6.0)
    records, _ = in_no_time(played(cluster, *cards))
    assert [r.achieved for r in records] == [Achieved.INSTALLED, Achieved.SKIPPED]
    assert cluster.whole and cluster.now == set(cluster.servers)


def test_a_server_that_stays_a_member_is_not_achieved() -> None:
    cluster = Changing()
    cluster.deaf = True
    (record,), _ = in_no_time(played(cluster, card("membership", "one")))
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert "is a member ordered 0 to 0: it is 1" in record.reason
    assert cluster.whole


def test_a_system_without_changes_of_members_is_spared() -> None:
    cluster = Changing()
    cluster.missing = {"members": "its members cannot change"}
    (record,), _ = in_no_time(played(cluster, card("membership", "one")))
    assert (record.achieved, record.reason) == (Achieved.SKIPPED, "its members cannot change")


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
