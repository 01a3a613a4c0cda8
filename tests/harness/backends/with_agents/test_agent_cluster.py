"""Clocks, disks and members of a cluster with agents."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.agent.disk_verbs import DiskVerbs
from harness.agent.wall_clock import ClockVerbs
from harness.backends.agent_cluster import AgentCluster
from harness.backends.backend import ClusterSpec
from harness.backends.builds import clock_library
from nemesis.cluster import CLOCK, DAMAGES, DISK, MEMBERS, CannotInject
from system_under_test.subject import Node

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler for the library that shifts clocks"
)


class Link:
    """A node whose agent refuses the verbs that are named."""

    def __init__(self, name: str, *refused: Any) -> None:
        self.name = name
        self._refused = refused

    async def ask(self, verb: Any, *_: Any) -> dict[str, Any]:
        if verb in self._refused:
            raise OSError(errno.ENOTSUP, "not on this node")
        return {}


def cluster(*wanted: str) -> AgentCluster:
    spec = ClusterSpec(run_id="r", servers=("n1", "n2", "n3"), clients=("c1",), seed=1, wanted=frozenset(wanted))
    return AgentCluster(spec)


@needs_compiler
def test_nodes_that_compile_the_library_at_once_all_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        libraries = [future.result() for future in [pool.submit(clock_library) for _ in range(8)]]
    assert set(libraries) == {libraries[0]}
    assert libraries[0].startswith(b"\x7fELF")


@needs_compiler
async def test_one_node_that_cannot_be_made_ready_is_not_hidden_by_later_nodes() -> None:
    made, node = cluster(CLOCK, DISK), cast(Any, SimpleNamespace(log_dir="/log", environment={}))
    for link in (Link("n1"), Link("n2", ClockVerbs.install, DiskVerbs.mount), Link("n3")):
        await made.install_clock(cast(Any, link), node)
        await made.data_folder(cast(Any, link), "/folder")
    assert made.lacks(CLOCK) == "n2: not on this node"
    assert made.lacks(DISK).startswith("n2: not on this node.  It needs /dev/fuse")


@pytest.mark.parametrize("capability", [CLOCK, DISK])
def test_what_the_run_was_not_made_with_is_lacking(capability: str) -> None:
    assert cluster().lacks(capability).startswith("the run was made without")


class Agent:
    """Notes the verbs that reach it."""

    name = "n1"

    def __init__(self) -> None:
        self.verbs: list[str] = []

    async def ask(self, verb: Any, *_: Any) -> None:
        self.verbs.append(verb.__qualname__)


def on_one_node() -> tuple[AgentCluster, Agent, Any]:
    wanted, damages = frozenset({DISK}), {"flip": r"\.log$"}
    cluster, agent = AgentCluster(ClusterSpec("r", ("n1",), (), 1, wanted, notices_damage=damages)), Agent()
    node = SimpleNamespace(alone=asyncio.Lock())
    cluster._links["n1"], cluster._nodes["n1"] = agent, node  # type: ignore[assignment]
    return cluster, agent, node


@pytest.mark.parametrize(
    "change",
    [lambda c: c.lose_power("n1", "lose", 7), lambda c: c.damage_disk("n1", "flip", 7)],
    ids=["power", "damage"],
)
def test_a_disk_changes_only_when_its_copy_is_done(change: Callable[[AgentCluster], Coroutine[Any, Any, None]]) -> None:
    async def during_a_copy() -> tuple[list[str], list[str]]:
        cluster, agent, node = on_one_node()
        async with node.alone:
            changing = asyncio.ensure_future(change(cluster))
            for _ in range(10):
                await asyncio.sleep(0)
            meanwhile = list(agent.verbs)
        await changing
        return meanwhile, agent.verbs

    meanwhile, afterwards = asyncio.run(during_a_copy())
    assert meanwhile == []
    assert len(afterwards) == 1


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
