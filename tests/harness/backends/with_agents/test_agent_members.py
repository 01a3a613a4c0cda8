"""Changes of the members pass from the nemesis to the subject, and are refused where the subject has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from harness.backends.agent_cluster import AgentCluster
from harness.backends.backend import ClusterSpec
from nemesis.cluster import DAMAGES, MEMBERS, CannotInject
from system_under_test.subject import Node


class Recorded:
    """Implements `Members`; a node stands for itself."""

    def __init__(self) -> None:
        self.orders: list[tuple[str, list[Any], Any]] = []

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        return frozenset(map(str, nodes))

    async def remove(self, nodes: Sequence[Node], leaving: Node) -> None:
        self.orders.append(("remove", list(nodes), leaving))

    async def add(self, nodes: Sequence[Node], joining: Node, *, wiped: bool = False) -> None:
        self.orders.append(("add wiped" if wiped else "add", list(nodes), joining))


async def test_the_subject_changes_its_members_on_the_nodes_of_the_servers() -> None:
    members = Recorded()
    cluster = AgentCluster(ClusterSpec("r", ("n1", "n2"), ("c1",), 1, members=members))
    for name in ("n1", "n2", "c1"):
        cluster._links[name], cluster._nodes[name] = cast(Any, None), cast(Any, f"node {name}")
    assert cluster.lacks(MEMBERS) == ""
    assert await cluster.members() == {"node n1", "node n2"}
    await cluster.remove_member("n2")
    await cluster.add_member("n2")
    await cluster.add_member("n1", wiped=True)
    servers = ["node n1", "node n2"]
    assert members.orders == [
        ("remove", servers, "node n2"),
        ("add", servers, "node n2"),
        ("add wiped", servers, "node n1"),
    ]


async def test_without_them_every_change_is_refused_in_words() -> None:
    cluster = AgentCluster(ClusterSpec("r", ("n1", "n2"), ("c1",), 1))
    assert "cannot change while it runs" in cluster.lacks(MEMBERS)
    with pytest.raises(CannotInject, match="cannot change while it runs"):
        await cluster.remove_member("n1")


async def test_damage_that_the_subject_does_not_notice_is_refused() -> None:
    cluster = AgentCluster(ClusterSpec("r", ("n1",), ("c1",), 1, notices_damage={"flip": "*.wal"}))
    words = {how: cluster.lacks(capability) for capability, how in DAMAGES.items()}
    assert "does not promise to notice" in words["truncate"]
    assert "does not promise to notice" not in words["flip"]
    with pytest.raises(CannotInject, match="does not promise to notice"):
        await cluster.damage_disk("n1", "wipe", 1)
