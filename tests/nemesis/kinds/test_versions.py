"""Servers change between two versions of a system, and return."""

from __future__ import annotations

from random import Random

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved
from nemesis.kinds import KINDS
from system_under_test.subject import ServerVersions


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
