"""Servers change between two versions of a system, and return."""

from __future__ import annotations

import pytest
from fake_nemesis_cluster import FakeCluster, card, played
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved
from system_under_test.subject import ServerVersions


class Mixed(FakeCluster):
    """stubborn: servers that start in the version in which they were."""

    def __init__(self, stubborn: frozenset[str] = frozenset()) -> None:
        super().__init__(3)
        self.versions = ServerVersions(("1.0", "2.0"), started=dict.fromkeys(self.servers, "1.0"))
        self.stubborn, self.ran = stubborn, []

    async def restart(self, server):
        await super().restart(server)
        if server not in self.stubborn:
            self.versions.started[server] = self.versions.ordered[server]
        self.ran.append((server, self.versions.started[server]))


@pytest.mark.parametrize("target", ["one", "leader", "minority"])
def test_a_minority_runs_the_other_version_until_the_heal(target):
    cluster = Mixed()
    records, _ = in_no_time(played(cluster, card("version", target)))
    (server,) = records[0].nodes
    assert records[0].achieved is Achieved.INSTALLED
    assert cluster.ran == [(server, "2.0"), (server, "1.0")]
    assert target != "leader" or server == "n1"
    assert cluster.whole


def test_a_server_that_does_not_change_is_no_fault():
    cluster = Mixed(frozenset({"n1"}))
    records, _ = in_no_time(played(cluster, card("version", "leader")))
    assert records[0].achieved is Achieved.NOT_ACHIEVED


def test_no_second_change_begins_while_one_is_under_way():
    cluster = Mixed()
    cards = [card("version", "one", 1, 2.0, 30.0), card("version", "one", 2, 4.0, 3.0)]
    records, _ = in_no_time(played(cluster, *cards))
    assert [record.achieved for record in records] == [Achieved.INSTALLED, Achieved.SKIPPED]
