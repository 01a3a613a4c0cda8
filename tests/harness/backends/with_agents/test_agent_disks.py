"""Disks of a run's nodes: what changes a disk waits while the disk is being copied."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from harness.backends.agent_cluster import AgentCluster
from harness.backends.backend import ClusterSpec
from nemesis.cluster import DISK


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
