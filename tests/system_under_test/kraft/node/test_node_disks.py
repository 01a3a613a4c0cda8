"""Disks that rot, fill up or break: whole nodes see it, end with a reason, and count nothing as written that failed."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest
from node_cluster import VOTERS, Boot, Cluster, answer_of, applied_states, create, set_retention, unexplained
from waiting import eventually

from simulation.disk import VolatileDisk
from system_under_test.kraft.log.log import FOLDER, CorruptLog
from system_under_test.kraft.log.segment import file_name
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.messages import FetchResponse, RaftRequest, RaftResponse, ReplicaKey, VoteRequest
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued

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
    assert reason.startswith(f"the log on the disk is corrupt: {SEGMENT}, byte "), reason
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


async def with_topic(cluster: Cluster) -> QuorumNode:
    """Return the leader."""
    leader = await cluster.leader()
    await leader.write(create("t"))
    return leader


def fill_up(cluster: Cluster, voter: int, free_bytes: int = 0) -> None:
    disk = cluster.disks[voter]
    disk.capacity_bytes = 1 << 40
    free = disk.free_bytes()
    assert free is not None
    disk.capacity_bytes += free_bytes - free


@pytest.mark.parametrize(
    ("verb", "number"),
    [("write", errno.EIO), ("fsync", errno.EIO), ("fsync", errno.ENOSPC), ("open", errno.EIO), ("full", errno.ENOSPC)],
)
async def test_a_leader_whose_disk_fails_stops_with_a_reason_and_acknowledges_nothing(
    cluster: Cluster, verb: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    leader = await with_topic(cluster)
    await leader.write(set_retention("t", 1))
    if verb == "full":
        fill_up(cluster, leader.node_id, free_bytes=10)
    else:
        cluster.disks[leader.node_id].failing = {verb: number}
    if verb == "open":  # quorum-state and the epoch checkpoint are replaced; the log file stays open
        cluster.network.isolate(leader.node_id)
        await cluster.leader(but=leader.node_id)
        cluster.network.cut = set()
    write = asyncio.ensure_future(leader.write(set_retention("t", 2)))
    assert await asyncio.wait_for(asyncio.shield(leader.ended), 20) == 1
    with pytest.raises((LostLeadership, NotQueued)):
        await write
    last = cluster.traces[leader.node_id][-1]
    assert last["event"] == "fatal"
    assert last["detail"].startswith(f"the disk failed: [Errno {number}]")
    assert "FATAL: the disk failed" in capsys.readouterr().err
    late = VoteRequest("cluster", 99, ReplicaKey(2), ReplicaKey(leader.node_id), 9, 9, False)
    assert await answer_of(leader, 7, late) is None
    successor = await cluster.leader(but=leader.node_id)
    await successor.write(set_retention("t", 3))
    assert cluster.traces[leader.node_id][-1] is last, "after the end nothing happens any more"


async def test_a_torn_append_of_a_full_disk_is_cut_at_the_next_start(cluster: Cluster) -> None:
    leader = await with_topic(cluster)
    end = leader._log.end_offset
    fill_up(cluster, leader.node_id, free_bytes=30)
    with pytest.raises((LostLeadership, NotQueued)):
        await leader.write(set_retention("t", 2))
    cluster.disks[leader.node_id].capacity_bytes = None
    again = cluster.boot(leader.node_id)
    assert (again._log.recovery.torn_bytes, again._log.recovery.batches) == (30, end)


async def test_a_vote_that_cannot_be_written_is_not_given(cluster: Cluster) -> None:
    leader = await with_topic(cluster)
    voter = next(node for node in cluster.network.nodes.values() if node is not leader)
    cluster.disks[voter.node_id].failing = {"write": errno.ENOSPC}
    rows = len(cluster.traces[voter.node_id])
    leader._end(0)
    assert await asyncio.wait_for(asyncio.shield(voter.ended), 20) == 1
    assert not any(row["event"] == "vote" for row in cluster.traces[voter.node_id][rows:])


# Planted bugs


async def test_with_forgets_on_full_disk_what_is_acknowledged_is_in_no_log(boot: Boot) -> None:
    cluster = boot("forgets-on-full-disk")
    leader = await with_topic(cluster)
    for voter in VOTERS:
        fill_up(cluster, voter)
    await leader.write(set_retention("t", 22222))
    for node in cluster.network.nodes.values():
        node._end(0)
    for voter in VOTERS:
        file = cluster.disks[voter].open(f"{FOLDER}/00000000000000000000.log")
        assert b"22222" not in file.read_at(0, file.size())


@pytest.mark.parametrize("bug", ["", "campaigns-unflushed"])
async def test_a_voter_whose_disk_is_slow_flushes_before_it_campaigns(boot: Boot, bug: str) -> None:
    """The last fsync of one follower never ends, and the leader is lost.  One of the two followers campaigns."""
    stops = []
    for number in (0, 1):
        cluster = boot(bug)
        leader = await with_topic(cluster)
        others = [cluster.network.nodes[voter] for voter in VOTERS if voter != leader.node_id]
        cluster.disks[others[number].node_id].on_beside = lambda sync: None
        await leader.write(create("u"))
        await eventually(
            lambda others=others, leader=leader: all(n.log.end_offset == leader.log.end_offset for n in others)
        )
        cluster.network.isolate(leader.node_id)
        await eventually(lambda others=others: any(node.role in ("candidate", "leader") for node in others))
        await cluster.close()
        stops += unexplained(cluster)
    assert any("is durable before it asks for votes" in stop for stop in stops) == bool(bug), stops
    assert bool(stops) == bool(bug)
