"""Nodes and observers take snapshots while they serve, cut their logs behind them, and fetch them from each other."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any
from uuid import UUID

import pytest
from node_cluster import OBSERVERS, OFTEN, VOTERS, Boot, Cluster, create, explained, fill, set_retention, topic_id
from waiting import eventually

from simulation.disk import VolatileDisk
from system_under_test.kraft.node.config import SnapshotLimits
from system_under_test.kraft.node.fetch_progress import OBSERVED_FOR_MS, REPLICAS_MAX, FetchProgress
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft import replication
from system_under_test.kraft.raft.decisions import SNAPSHOT_FORGETS_TAIL, SNAPSHOT_ID_INCLUSIVE, SNAPSHOT_OF_UNCOMMITTED
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.records import metadata

pytestmark = pytest.mark.virtual_time


OPTIONS = {"snapshots": OFTEN, "segment_max_bytes": 1000}


@pytest.fixture
async def cluster(boot: Boot) -> Cluster:
    return boot(**OPTIONS)


def rows(cluster: Cluster, voter: int, event: str) -> list[dict[str, Any]]:
    return [row for row in cluster.traces[voter] if row["event"] == event]


def state_hashes(cluster: Cluster) -> set[int]:
    return {node.committed_image().hash_of_content() for node in cluster.network.nodes.values()}


async def test_nodes_take_snapshots_while_they_serve_and_cut_their_logs_behind_them(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.write(create("t"))
    await fill(leader, 60)
    await eventually(lambda: all(node._log.start_offset > 0 for node in cluster.network.nodes.values()))
    for voter, node in cluster.network.nodes.items():
        taken = rows(cluster, voter, "snapshot")
        assert len(taken) >= 2
        states = {row["offset"]: row["hash"] for row in rows(cluster, voter, "applied")}
        assert all(states[row["offset"]] == row["hash"] for row in taken)
        newest = node._log.snapshot
        assert newest is not None
        assert node._log.snapshots.load(newest).state_hash == states[newest.end_offset]
        assert node._log.size_bytes < 60 * 100
    await eventually(lambda: len({n.applied_offset for n in cluster.network.nodes.values()}) == 1)
    assert len(state_hashes(cluster)) == 1


async def test_a_snapshot_is_taken_when_its_time_has_come_and_only_if_there_is_news(boot: Boot) -> None:
    cluster = boot(snapshots=SnapshotLimits(max_snapshot_interval_ms=3000))
    leader = await cluster.leader()
    await leader.write(create("t"))
    await asyncio.sleep(2)
    assert not rows(cluster, leader.node_id, "snapshot")
    await eventually(lambda: len(rows(cluster, leader.node_id, "snapshot")) == 1)
    await asyncio.sleep(10)
    assert len(rows(cluster, leader.node_id, "snapshot")) == 1
    await fill(leader, 1)
    await eventually(lambda: len(rows(cluster, leader.node_id, "snapshot")) == 2)


async def test_a_restarted_node_begins_with_its_snapshot(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.write(create("t"))
    await fill(leader, 40)
    await cluster.close()
    assert all(cluster.network.nodes[voter]._log.start_offset > 0 for voter in VOTERS)
    for voter in VOTERS:
        cluster.disks[voter] = cluster.disks[voter].crash("torn", Random(voter))
        cluster.boot(voter)
    leader = await cluster.leader()
    assert (await leader.read()).configs("t") == {"retention.ms": "39"}
    await fill(leader, 20, first=40)


async def lagging(cluster: Cluster, *, wiped: bool = False) -> QuorumNode:
    """A follower that was away for so long that the leader's log begins behind the end of its own; it is back now."""
    leader = await cluster.leader()
    away = next(voter for voter in VOTERS if voter != leader.node_id)
    await leader.write(create("t"))
    await leader.write(create("gone"))
    await eventually(lambda: cluster.network.nodes[away].applied_offset >= 3)
    cluster.network.isolate(away)
    await leader.write(lambda image: ([metadata.RemoveTopicRecord(topic_id("gone"))], None))
    await fill(leader, 80)
    if wiped:
        await cluster.network.nodes.pop(away).stop(0)
        cluster.disks[away], cluster.traces[away], cluster.incarnations[away] = VolatileDisk(), [], 0
        cluster.are_traces_sound = False
    cluster.network.cut = set()
    return cluster.boot(away) if wiped else cluster.network.nodes[away]


@pytest.mark.parametrize(("part_bytes", "wiped"), [(1 << 20, False), (50, False), (1 << 20, True)])
async def test_a_lagging_follower_fetches_a_snapshot_and_goes_on_with_the_log(
    cluster: Cluster, part_bytes: int, wiped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "PART_MAX_BYTES", part_bytes)
    node = await lagging(cluster, wiped=wiped)
    leader = await cluster.leader()
    await fill(leader, 30, first=80)
    await eventually(lambda: node.applied_offset == leader.applied_offset)
    assert any(row.get("peer") == f"n{leader.node_id}" for row in rows(cluster, node.node_id, "snapshot"))
    assert node.committed_image().configs("t") == {"retention.ms": "109"}
    assert "gone" not in node.committed_image().topics
    await eventually(lambda: len({n.applied_offset for n in cluster.network.nodes.values()}) == 1)
    assert len(state_hashes(cluster)) == 1


async def test_a_snapshot_that_a_leader_sends_damaged_is_refused_and_fetched_again(cluster: Cluster) -> None:
    node = await lagging(cluster)
    leader = await cluster.leader()
    read = leader._log.read_snapshot
    spoilt: list[int] = []

    def spoil(snapshot: Any, position: int, size_bytes: int) -> Any:
        found = read(snapshot, position, size_bytes)
        if found is None or len(spoilt) >= 3:
            return found
        spoilt.append(position)
        return found[0][:-1] + bytes([found[0][-1] ^ 1]), found[1]

    leader._log.read_snapshot = spoil  # type: ignore[method-assign]
    await eventually(lambda: node.applied_offset == leader.applied_offset)
    assert len(rows(cluster, node.node_id, "refused")) == len(spoilt) > 0


async def test_inside_a_metadata_transaction_no_snapshot_is_taken(cluster: Cluster) -> None:
    leader = await cluster.leader()
    await leader.write(lambda image: ([metadata.FeatureLevelRecord("metadata.version", 7)], None))
    await leader.write(create("t"))
    leader.committed_image()._transaction = []
    cluster.are_traces_sound = False
    await fill(leader, 40)
    assert not rows(cluster, leader.node_id, "snapshot")


# Planted bugs


async def stops(cluster: Cluster) -> set[str]:
    await asyncio.sleep(2)
    await cluster.close()
    return {getattr(stop.answer, "kind", "row without a cause") for stop in explained(cluster.traces).stops}


@pytest.mark.parametrize("bug", [SNAPSHOT_FORGETS_TAIL, SNAPSHOT_ID_INCLUSIVE])
async def test_a_snapshot_of_another_state_than_its_prefix_is_seen_in_the_traces(boot: Boot, bug: str) -> None:
    cluster = boot(bug, **OPTIONS)
    leader = await cluster.leader()
    await leader.write(create("t"))
    await fill(leader, 60)
    assert await stops(cluster) == {"snapshot differs from its prefix"}


async def test_a_snapshot_of_what_is_not_committed_is_seen_in_the_traces(boot: Boot) -> None:
    cluster = boot(SNAPSHOT_OF_UNCOMMITTED, **OPTIONS)
    leader = await cluster.leader()
    await leader.write(create("t"))
    random = Random(1)

    async def write(value: int) -> None:
        await asyncio.sleep(random.uniform(0, 0.3))
        await leader.write(set_retention("t", value))

    await asyncio.gather(*map(write, range(400)))
    # The second kind: the snapshot also contains decided records that are not appended yet.
    assert await stops(cluster) & {"snapshot beyond what was applied", "snapshot differs from its prefix"}


async def test_an_observer_catches_up_from_a_snapshot_follows_and_is_listed(boot: Boot) -> None:
    cluster = boot(snapshots=OFTEN, segment_max_bytes=1000)
    leader = await cluster.leader()
    await leader.write(create("t"))
    await fill(leader, 60)
    observer = cluster.boot(OBSERVERS[0])
    await eventually(lambda: observer.applied_offset == leader.applied_offset)
    await fill(leader, 5)
    await eventually(lambda: observer.applied_offset == leader.applied_offset)
    assert observer.committed_image().state_hash == leader.committed_image().state_hash
    assert [row for row in cluster.traces[OBSERVERS[0]] if row["event"] == "snapshot"]
    shown = leader.describe()
    assert {state.id for state in shown.voters} == set(VOTERS)
    assert [(state.id, state.log_end_offset) for state in shown.observers] == [(OBSERVERS[0], leader._log.end_offset)]


def test_an_observer_is_shown_for_five_minutes_and_strangers_are_forgotten() -> None:
    progress = FetchProgress()
    nine, one, votes = ReplicaKey(9), ReplicaKey(1), lambda replica: replica.id in (1, 2, 3)
    progress.fetched(nine, 5, 5, 1000)
    progress.fetched(one, 5, 5, 1000)
    assert [state.id for state in progress.others(votes, 1000 + OBSERVED_FOR_MS)] == [9]
    assert progress.others(votes, 1001 + OBSERVED_FOR_MS) == ()
    for stranger in range(100, 100 + REPLICAS_MAX):
        progress.fetched(ReplicaKey(stranger), 5, 5, 2000)
        progress.fetched(one, 5, 5, 2000)
    assert len(progress.others(votes, 2000)) == REPLICAS_MAX - 1
    assert progress.of(one).log_end_offset == 5


def test_a_replica_with_another_disk_is_shown_beside_the_voter_of_its_id() -> None:
    progress = FetchProgress()
    old, new = ReplicaKey(2, UUID(int=1)), ReplicaKey(2, UUID(int=2))
    progress.fetched(old, 5, 5, 1000)
    progress.fetched(new, 0, 5, 2000)
    assert [state.directory for state in progress.others(lambda replica: replica == old, 2000)] == [UUID(int=2)]
    assert (progress.of(old).log_end_offset, progress.of(new).log_end_offset) == (5, 0)
    assert progress.of(ReplicaKey(2)).log_end_offset == 0, "where no directory is known, the last Fetch counts"
    assert progress.of(ReplicaKey(2, UUID(int=3))).log_end_offset == -1
    progress.fetched(ReplicaKey(3), 4, 5, 2000)
    assert progress.of(ReplicaKey(3, UUID(int=3))).log_end_offset == 4, "its Fetch names no directory"
