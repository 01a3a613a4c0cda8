"""Damage: bits that rot on a disk or on the way, seen by whole nodes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from node_cluster import VOTERS, Boot, Cluster, applied_states, create, set_retention
from waiting import eventually

from simulation.disk import VolatileDisk
from system_under_test.kraft.log.log import FOLDER, CorruptLog
from system_under_test.kraft.log.segment import file_name
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.messages import FetchResponse, RaftRequest, RaftResponse

pytestmark = pytest.mark.virtual_time

SEGMENT = f"{FOLDER}/{file_name(0)}"


def flip(disk: VolatileDisk, needle: bytes) -> None:
    """Flip one bit of the only place where `needle` stands in the log."""
    file = disk.open(SEGMENT)
    content = file.read_at(0, file.size())
    at = content.index(needle)
    file.write_at(at, bytes([content[at] ^ 1]))
    file.fsync()


async def until_equal(value: int, *nodes: QuorumNode) -> None:
    await eventually(lambda: all(node.committed_image().configs("t") == {"retention.ms": str(value)} for node in nodes))


async def test_a_leader_finds_its_own_rot_and_its_followers_live_on(boot: Boot) -> None:
    """A CRC mismatch in a fetch ended the followers, and the leader went on."""
    cluster = boot(cache_max_bytes=1)
    leader = await cluster.leader()
    away = next(node for node in cluster.network.nodes.values() if node is not leader)
    away._end(0)
    await leader.write(create("t"))
    for value in range(11111, 11121):
        await leader.write(set_retention("t", value))
    flip(cluster.disks[leader.node_id], b"11115")
    back = cluster.boot(away.node_id)
    assert await asyncio.wait_for(asyncio.shield(leader.ended), 10) == 1
    reason = cluster.traces[leader.node_id][-1]["detail"]
    assert reason.startswith(f"the log on the disk is damaged: {SEGMENT}, byte "), reason
    successor = await cluster.leader(but=leader.node_id)
    await successor.write(set_retention("t", 5))
    others = [node for node in cluster.network.nodes.values() if node.node_id != leader.node_id]
    await until_equal(5, *others)
    assert back in others
    assert not any(node.ended.done() for node in others)
    with pytest.raises(CorruptLog, match="a readable batch follows it"):
        cluster.boot(leader.node_id)


async def test_a_follower_refuses_a_batch_damaged_on_the_way_and_reports_it_once(cluster: Cluster) -> None:
    original = cluster.network.pass_on
    rotting = True

    async def pass_on(sender: int, peer: int, request: RaftRequest) -> RaftResponse | None:
        response = await original(sender, peer, request)
        if isinstance(response, FetchResponse) and response.batches and rotting and sender == victim:
            last = response.batches[-1]
            damaged = replace(last, body=last.body[:-3] + bytes([last.body[-3] ^ 4]) + last.body[-2:])
            return response._replace(batches=(*response.batches[:-1], damaged))
        return response

    cluster.network.pass_on = pass_on  # type: ignore[method-assign]
    victim = 0
    leader = await cluster.leader()
    victim = next(voter for voter in VOTERS if voter != leader.node_id)
    await leader.write(create("t"))
    await leader.write(set_retention("t", 1))
    await eventually(lambda: any(row["event"] == "refused" for row in cluster.traces[victim]))
    await asyncio.sleep(0.1)
    rotting = False
    node = cluster.network.nodes[victim]
    await until_equal(1, node)
    assert not node.ended.done()
    refused = [row for row in cluster.traces[victim] if row["event"] == "refused"]
    assert len({row["offset"] for row in refused}) == len(refused), "each once, also if it was fetched many times"
    assert (refused[0]["peer"], "CRC" in refused[0]["detail"]) == (f"n{leader.node_id}", True)


async def rotten_while_down(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.write(create("t"))
    for value in (11111, 22222, 33333):
        await leader.write(set_retention("t", value))
    victim = next(node for node in cluster.network.nodes.values() if node is not leader)
    await until_equal(33333, victim)
    victim._end(0)
    flip(cluster.disks[victim.node_id], b"22222")
    cluster.boot(victim.node_id)
    await leader.write(set_retention("t", 44444))
    await until_equal(44444, cluster.network.nodes[victim.node_id])


async def test_a_flipped_bit_of_a_node_that_is_down_keeps_it_down(cluster: Cluster) -> None:
    with pytest.raises(CorruptLog, match="a readable batch follows it"):
        await rotten_while_down(cluster)


async def test_with_accepts_corrupt_batch_the_applied_states_differ(boot: Boot) -> None:
    cluster = boot("accepts-corrupt-batch")
    await rotten_while_down(cluster)
    assert max(map(len, applied_states(cluster).values())) == 2
