"""Clusters of nodes in one process, closed when their test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from node_cluster import VOTERS, Boot, Cluster, unexplained


@pytest.fixture
async def boot() -> AsyncIterator[Boot]:
    """Boot a cluster with these planted bugs; its nodes are `replicas`, the other options are those of `Cluster`.

    In the end the model must explain the traces of every cluster without planted bugs."""
    booted: list[Cluster] = []

    def boot(*bugs: str, replicas: tuple[int, ...] = VOTERS, **options: Any) -> Cluster:
        booted.append(Cluster(frozenset(bugs) - {""}, **options))
        return booted[-1].boot_all(replicas)

    yield boot
    for cluster in booted:
        await cluster.close()
        if not cluster.bugs and cluster.are_traces_sound:
            assert unexplained(cluster) == []


@pytest.fixture
async def cluster(boot: Boot) -> Cluster:
    return boot()
