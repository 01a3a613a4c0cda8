"""Observers among nodes: they follow the log, DescribeQuorum lists them, and no majority counts them."""

from __future__ import annotations

from uuid import UUID

import pytest
from node_cluster import OBSERVERS, OFTEN, VOTERS, Boot, create, fill
from waiting import eventually

from system_under_test.kraft.node.fetch_progress import OBSERVED_FOR_MS, REPLICAS_MAX, FetchProgress
from system_under_test.kraft.raft.messages import ReplicaKey

pytestmark = pytest.mark.virtual_time


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
