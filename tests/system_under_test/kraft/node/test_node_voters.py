"""Voters that come and go among nodes while a client writes (KIP-853); the model explains every trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from node_cluster import OFTEN, REPLICAS, VOTERS, Boot, Cluster, create, fill, set_retention, unexplained
from waiting import eventually

from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, VoterChange
from system_under_test.kraft.raft.messages import Error
from system_under_test.kraft.raft.voters import VoterEntry
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued

pytestmark = pytest.mark.virtual_time


OPTIONS: dict[str, Any] = {"dynamic": VOTERS, "snapshots": OFTEN, "segment_max_bytes": 1000}


async def change(cluster: Cluster, wanted: VoterChange, done: Callable[[QuorumNode], bool]) -> None:
    """Repeat a change, as an operator does, until the leader's log shows it."""
    for _ in range(400):
        leader = await cluster.leader()
        if done(leader):
            return
        await leader.change_voters(wanted)
        await asyncio.sleep(0.02)
    raise AssertionError("the voters did not change")


async def add(cluster: Cluster, voter: int) -> None:
    await change(cluster, AddVoter(VoterEntry(cluster.key(voter))), lambda leader: voter in leader._core.voters)


async def remove(cluster: Cluster, voter: int) -> None:
    await change(cluster, RemoveVoter(cluster.key(voter)), lambda leader: voter not in leader._core.voters)


class Writer:
    """Writes one value after another to the node that leads.  acknowledged: how many."""

    def __init__(self, cluster: Cluster) -> None:
        self.acknowledged = 0
        self._cluster = cluster
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        value = 0
        while True:
            value += 1
            try:
                leader = await self._cluster.leader()
                await leader.write(set_retention("t", value))
                self.acknowledged += 1
                await asyncio.sleep(0.001)  # a lone voter in memory acknowledges without advancing the clock
            except (NotQueued, LostLeadership):
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


async def test_a_cluster_grows_from_one_to_five_while_a_client_writes(boot: Boot) -> None:
    cluster = boot(replicas=REPLICAS, **OPTIONS | {"dynamic": (1,)})
    await (await cluster.leader()).write(create("t"))
    writer = Writer(cluster)
    for voter in (2, 3, 4, 5):
        await add(cluster, voter)
        before = writer.acknowledged
        await eventually(lambda before=before: writer.acknowledged > before + 3)
    await writer.stop()
    leader = await cluster.leader()
    assert {state.id for state in leader.describe().voters} == set(REPLICAS)
    assert not leader.describe().observers


async def replace_disk(cluster: Cluster, voter: int, *, own_id: bool = True) -> None:
    """A voter is stopped, and comes back with an empty disk."""
    await cluster.network.nodes.pop(voter).stop(0)
    cluster.wipe(voter, own_id=own_id)
    cluster.boot(voter)


async def test_a_wiped_voter_that_nobody_removed_is_an_observer_until_it_has_taken_its_own_place(boot: Boot) -> None:
    """Its id is that of a voter, its disk is not: it is added only after a removal."""
    cluster = boot(names_disks=True, **OPTIONS)
    await (await cluster.leader()).write(create("t"))
    old = cluster.key(3)
    await replace_disk(cluster, 3)
    leader = await cluster.leader()
    wiped = cluster.network.nodes[3]
    await eventually(lambda: wiped.applied_offset == leader.applied_offset)
    assert wiped.role == "follower" and wiped._core.voters == (1, 2, 3)
    error, _ = await leader.change_voters(AddVoter(VoterEntry(cluster.key(3))))
    assert error == Error.DUPLICATE_VOTER
    error, _ = await leader.change_voters(RemoveVoter(old))
    assert error == Error.NONE
    await add(cluster, 3)


async def test_a_wiped_voter_that_passes_for_its_old_disk_is_found_by_its_trace() -> None:
    cluster = Cluster(names_disks=True, **OPTIONS).boot_all()
    leader = await cluster.leader()
    for value in range(3):
        await leader.write(create(f"t{value}"))
    other = next(voter for voter in (1, 2, 3) if voter != leader.node_id)
    await replace_disk(cluster, other, own_id=False)
    await leader.write(create("after"))
    await cluster.close()
    (stop,) = unexplained(cluster)
    assert "epoch went back" in stop or "flushed entries lost" in stop


async def test_voters_outlive_restarts_and_snapshots(boot: Boot) -> None:
    cluster = boot(replicas=REPLICAS[:4], **OPTIONS)
    leader = await cluster.leader()
    await leader.write(create("t"))
    await add(cluster, 4)
    await remove(cluster, 3)
    leader = await cluster.leader()
    await fill(leader, 80)
    await eventually(lambda: leader.log.start_offset > 20)
    for replica in (1, 2, 3, 4):
        await cluster.network.nodes[replica].stop(0)
        cluster.boot(replica)
    assert {replica: node._core.voters for replica, node in cluster.network.nodes.items()} == dict.fromkeys(
        (1, 2, 3, 4), (1, 2, 4)
    )
    fifth = cluster.boot(5)
    leader = await cluster.leader()
    await eventually(lambda: fifth.applied_offset == leader.applied_offset)
    assert fifth._core.voters == (1, 2, 4), "it learnt them from a snapshot"
