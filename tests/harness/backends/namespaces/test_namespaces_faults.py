"""Disks, clocks and packets of real nodes on the backend namespaces: each fault shows in its probe, and goes again."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator

import pytest
from waiting import PATIENCE_S

from harness.backends.backend import ClusterSpec
from harness.backends.namespaces_backend import NamespacesBackend, why_unavailable
from nemesis.cluster import CLOCK, DISK, PACKETS, Link


def why_not() -> str:
    """What this machine lacks for these tests; "" if nothing."""
    if reason := why_unavailable():
        return f"needs network namespaces: {reason}"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    return "" if shutil.which("cc") or shutil.which("gcc") else "needs a C compiler"


pytestmark = [pytest.mark.namespaces, pytest.mark.skipif(why_not() != "", reason=why_not())]


@pytest.fixture
async def cluster() -> AsyncIterator[NamespacesBackend]:
    made = NamespacesBackend(ClusterSpec(f"faults{os.getpid()}", ("n1", "n2"), ("c1",), 1, frozenset({DISK, CLOCK})))
    try:
        await made.create(lambda words: None)
        yield made
    finally:
        await made.destroy()


async def test_every_fault_of_a_node_shows_in_its_probe_and_is_mended(cluster: NamespacesBackend) -> None:
    assert [cluster.lacks(capability) for capability in (DISK, CLOCK, PACKETS)] == ["", "", ""]
    node = cluster.node("n1")
    append = 'cd "$1"; while :; do date >>log; done'
    await node.start(["sh", "-c", append, "sh", node.data_dir])
    while not await node.read(f"{node.data_dir}/log"):
        continue
    await cluster.lose_power("n1", "lose", 1)
    assert await node.state() == "dead"
    assert await node.read(f"{node.data_dir}/log") == b""
    loss = await cluster.power_loss("n1")
    assert (loss["fsynced_kept"], loss["not_fsynced_kept"]) == (1, 0)

    await cluster.behave_disk("n1", [{"operations": ["write"], "error": "ENOSPC"}], 1)
    await cluster.set_clock("n2", 500.0, 1.0)
    await cluster.node("n2").start(["sleep", "1000"])
    await cluster.impair({("n1", "n2"): {"loss": 1.0}}, 1)
    assert (await cluster.probe_disk("n1"))["open"] == "ENOSPC"
    read = await cluster.read_clock("n2")
    assert read["heeded"] and abs(read["ahead_s"] - 500.0) < 30
    assert (await cluster.try_link(("n1", "n2"), 20, 0.001, 0.1))["received"] == 0
    await carries(cluster, ("n2", "n1"))

    await cluster.mend()
    assert (await cluster.probe_disk("n1"))["open"] == ""
    assert abs((await cluster.read_clock("n2"))["ahead_s"]) < 30
    await carries(cluster, ("n1", "n2"))


async def test_a_server_that_ignores_its_order_to_stop_is_killed(
    cluster: NamespacesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.backends.agent_cluster.STOP_LIMIT_S", 0.5)
    node = cluster.node("n1")
    deaf = 'trap "touch $1/asked" TERM; touch $1/deaf; while :; do sleep 0.01; done'
    await node.start(["sh", "-c", deaf, "sh", node.data_dir])
    while not (await node.run(["ls", node.data_dir])).stdout.count(b"deaf"):
        continue
    await cluster.stop("n1")
    while await node.state() != "dead":
        continue
    assert b"asked" in (await node.run(["ls", node.data_dir])).stdout


async def carries(cluster: NamespacesBackend, link: Link) -> None:
    """Something of a burst arrives.  A busy machine may deliver the first bursts too late to be counted."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await cluster.try_link(link, 20, 0.001, 0.1))["received"]:
            continue
