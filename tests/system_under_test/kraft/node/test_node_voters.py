"""Voters that come, go and join by themselves among nodes (KIP-853), and the upgrade of `kraft.version` from 0 to 1.

The model explains every trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from node_cluster import (
    OFTEN,
    PORT,
    REPLICAS,
    VOTERS,
    AssembledNodes,
    Boot,
    Cluster,
    create,
    fill,
    on_machines,
    set_retention,
    unexplained,
)
from waiting import eventually

from system_under_test.kraft.log.log import FOLDER
from system_under_test.kraft.log.small_files import kafka_uuid
from system_under_test.kraft.node.assembly import KraftNode, joining, must_report
from system_under_test.kraft.node.config import AUTO_JOIN
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.changes import AddVoter, RaiseVersion, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.messages import Error, ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, voter_set
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


async def report(cluster: Cluster, leader: QuorumNode, *voters: int) -> None:
    """These voters report to the leader who they are."""
    for voter in voters:
        entry = VoterEntry(cluster.key(voter))
        assert await leader.change_voters(UpdateVoter(entry)) == (Error.NONE, "")


async def raised(cluster: Cluster) -> QuorumNode:
    """The leader, once it has raised the version."""
    for _ in range(400):
        leader = await cluster.leader()
        await report(cluster, leader, *(voter for voter in VOTERS if voter != leader.node_id))
        if await leader.change_voters(RaiseVersion(1)) == (Error.NONE, ""):
            return leader
        await asyncio.sleep(0.02)
    raise AssertionError("the version was not raised")


def quorum_state(cluster: Cluster, voter: int) -> bytes:
    return cluster.disks[voter].files()[f"{FOLDER}/quorum-state"]


async def restart(cluster: Cluster, kind: Any, random: Random) -> None:
    """Every node loses power and comes back."""
    for voter in tuple(cluster.network.nodes):
        survivor = cluster.disks[voter].crash(kind, random)
        await cluster.network.nodes.pop(voter).stop(0)
        cluster.disks[voter] = survivor
    cluster.boot_all()


async def test_the_version_is_raised_once_every_voter_has_reported(boot: Boot) -> None:
    cluster = boot(replicas=REPLICAS[:4], names_disks=True)
    leader = await cluster.leader()
    first, second = (voter for voter in VOTERS if voter != leader.node_id)
    await eventually(lambda: cluster.network.nodes[4].applied_offset == leader.applied_offset)
    assert leader.kraft_version == 0
    refusals = [
        (AddVoter(VoterEntry(cluster.key(4))), Error.UNSUPPORTED_VERSION),
        (RemoveVoter(cluster.key(first)), Error.UNSUPPORTED_VERSION),
        (UpdateVoter(VoterEntry(cluster.key(4))), Error.VOTER_NOT_FOUND),
        (RaiseVersion(2), Error.INVALID_UPDATE_VERSION),
        (RaiseVersion(1), Error.INVALID_UPDATE_VERSION),
    ]
    for change, error in refusals:
        assert (await leader.change_voters(change))[0] == error
    await report(cluster, leader, first)
    _, words = await leader.change_voters(RaiseVersion(1))
    assert words.endswith(f"without reported support for kraft.version 1: {second}")
    old = VoterEntry(cluster.key(second), kraft_versions=(0, 0))
    assert await leader.change_voters(UpdateVoter(old)) == (Error.NONE, "")
    assert (await leader.change_voters(RaiseVersion(1)))[0] == Error.INVALID_UPDATE_VERSION
    await report(cluster, leader, second)
    end = leader.log.end_offset
    assert await leader.change_voters(RaiseVersion(0)) == (Error.NONE, "")
    assert await leader.change_voters(RaiseVersion(1, validates_only=True)) == (Error.NONE, "")
    assert leader.log.end_offset == end

    assert await leader.change_voters(RaiseVersion(1)) == (Error.NONE, "")
    assert leader.log.end_offset == end + 2 and leader.kraft_version == 1
    assert {entry.key for entry in leader.voters} == {cluster.key(voter) for voter in VOTERS}
    assert await leader.change_voters(RaiseVersion(1)) == (Error.NONE, "")
    assert (await leader.change_voters(RaiseVersion(0)))[0] == Error.INVALID_UPDATE_VERSION
    assert leader.log.end_offset == end + 2
    await eventually(lambda: all(node.kraft_version == 1 for node in cluster.network.nodes.values()))
    assert await leader.change_voters(AddVoter(VoterEntry(cluster.key(4)))) == (Error.NONE, "")
    assert await leader.change_voters(RemoveVoter(cluster.key(first))) == (Error.NONE, "")


async def test_after_the_upgrade_restarts_keep_it_and_quorum_state_names_directories(boot: Boot) -> None:
    cluster = boot(names_disks=True)
    await raised(cluster)
    assert all(b'"data_version":0' in quorum_state(cluster, voter) for voter in VOTERS)
    await eventually(lambda: all(node.kraft_version == 1 for node in cluster.network.nodes.values()))
    await restart(cluster, "lose", Random(1))
    leader = await cluster.leader()
    await leader.write(create("t"))
    await eventually(lambda: all(b'"data_version":1' in quorum_state(cluster, voter) for voter in VOTERS))
    assert {node.kraft_version for node in cluster.network.nodes.values()} == {1}


@pytest.mark.parametrize("kind", ["lose", "torn", "reorder"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_power_loss_in_the_upgrade_leaves_one_version_or_the_other(boot: Boot, kind: str, seed: int) -> None:
    """The power goes off at any moment of the upgrade, and the upgrade is then repeated."""
    random = Random(seed)
    cluster = boot(names_disks=True)
    leader = await cluster.leader()
    await leader.write(create("before"))
    await report(cluster, leader, *(voter for voter in VOTERS if voter != leader.node_id))
    upgrade = asyncio.ensure_future(leader.change_voters(RaiseVersion(1)))
    await asyncio.sleep(random.uniform(0, 0.02))
    done = upgrade.done() and upgrade.result()[0] == Error.NONE
    await restart(cluster, kind, random)
    await asyncio.wait({upgrade})
    leader = await cluster.leader()
    await leader.write(create("after"))
    if done:
        assert leader.kraft_version == 1, "an acknowledged upgrade is lost"
    leader = await raised(cluster)
    await eventually(lambda: all(node.kraft_version == 1 for node in cluster.network.nodes.values()))
    assert (await leader.change_voters(RemoveVoter(cluster.key(leader.node_id % 3 + 1))))[0] == Error.NONE


@pytest.mark.parametrize("bug", ["", "voters-not-truncated"])
async def test_an_upgrade_that_a_truncation_removes_never_was_but_with_the_bug(boot: Boot, bug: str) -> None:
    """A leader that is cut off raises the version."""
    cluster = boot(bug, names_disks=True)
    leader = await cluster.leader()
    await leader.write(create("t"))
    await report(cluster, leader, *(voter for voter in VOTERS if voter != leader.node_id))
    cluster.network.isolate(leader.node_id)
    upgrade = asyncio.ensure_future(leader.change_voters(RaiseVersion(1)))
    await eventually(lambda: leader.kraft_version == 1)
    second = await cluster.leader(but=leader.node_id)
    await second.write(create("u"))
    assert second.kraft_version == 0
    await eventually(lambda: leader.role != "leader")
    cluster.network.cut = set()
    await eventually(lambda: leader.applied_offset == second.applied_offset)
    assert upgrade.result()[0] == Error.NOT_LEADER_OR_FOLLOWER
    if bug:
        await cluster.close()
        (stop,) = unexplained(cluster)
        assert "that named voters was removed" in stop
    else:
        assert leader.kraft_version == 0
        await raised(cluster)
        await eventually(lambda: all(node.kraft_version == 1 for node in cluster.network.nodes.values()))


async def test_no_replica_is_added_before_every_voter_holds_the_record(boot: Boot) -> None:
    """A voter that lacks it trusts only the voters of its configuration."""
    cluster = boot(replicas=REPLICAS[:4], names_disks=True)
    leader = await cluster.leader()
    away = next(voter for voter in VOTERS if voter != leader.node_id)
    await report(cluster, leader, *(voter for voter in VOTERS if voter != leader.node_id))
    cluster.network.isolate(away)
    assert (await leader.change_voters(RaiseVersion(1)))[0] == Error.NONE
    await eventually(lambda: cluster.network.nodes[4].applied_offset == leader.applied_offset)
    joining = AddVoter(VoterEntry(cluster.key(4)))
    error, words = await leader.change_voters(joining)
    assert error == Error.REQUEST_TIMED_OUT and "not every voter holds the record" in words
    cluster.network.cut = set()
    await eventually(lambda: cluster.network.nodes[away].kraft_version == 1)
    await eventually(lambda: leader._core.high_watermark == leader.log.end_offset)
    await asyncio.sleep(0.1)
    assert (await leader.change_voters(joining))[0] == Error.NONE


ME = VoterEntry(Cluster(names_disks=True).key(1))


@pytest.mark.parametrize(
    ("role", "known", "version", "reported", "due"),
    [
        ("follower", ME, 0, False, True),
        ("follower", ME, 0, True, False),
        ("leader", ME, 0, False, False),
        ("follower", VoterEntry(Cluster(names_disks=True).key(2)), 0, False, False),
        ("follower", ME, 1, False, False),
        ("follower", VoterEntry(ME.key, kraft_versions=(0, 0)), 1, True, True),
        ("leader", ME, 1, False, False),
        ("leader", VoterEntry(ME.key, kraft_versions=(0, 0)), 1, False, True),
        ("candidate", VoterEntry(ME.key, kraft_versions=(0, 0)), 1, False, False),
    ],
)
def test_when_a_voter_reports(role: str, known: VoterEntry, version: int, reported: bool, due: bool) -> None:
    assert must_report(ME, role, voter_set([known]), version, reported=reported) == due


AT = VoterEndpoint("CONTROLLER", "n4", 9092)
JOINING = VoterEntry(ReplicaKey(4, UUID(int=4)), (AT,))
OLD = VoterEntry(ReplicaKey(4, UUID(int=1)))
OTHERS = [VoterEntry(ReplicaKey(voter)) for voter in (1, 2, 3)]


@pytest.mark.parametrize(
    ("role", "entries", "change"),
    [
        ("follower", OTHERS, AddVoter(JOINING)),
        ("follower", [*OTHERS, JOINING], None),
        ("follower", [*OTHERS, OLD], RemoveVoter(OLD.key)),
        ("follower", [*OTHERS, VoterEntry(ReplicaKey(4))], None),  # old records contain no directory
        ("unattached", OTHERS, None),
        ("leader", OTHERS, None),
    ],
)
def test_what_a_replica_asks_for(role: str, entries: list[VoterEntry], change: object) -> None:
    assert joining(JOINING, role, voter_set(entries)) == change


async def with_three_voters(cluster: AssembledNodes) -> KraftNode:
    for number in cluster.peers:
        await cluster.start(number, **of_three(cluster))
    return await cluster.leader()


def of_three(cluster: AssembledNodes) -> dict[str, Any]:
    directories = {f"n{number}": kafka_uuid(UUID(int=number)) for number in cluster.peers}
    return {"dynamic": True, "directories": directories}


@on_machines
async def test_a_controller_beyond_the_voters_joins_by_itself_and_again_with_another_disk(
    cluster: AssembledNodes,
) -> None:
    cluster.are_traces_sound = False
    leader = (await with_three_voters(cluster)).quorum
    for directory in (UUID(int=4), UUID(int=7)):
        await cluster.start(4, directory, observer=True, **{AUTO_JOIN: True}, **of_three(cluster))
        joined = ReplicaKey(4, directory)
        await eventually(lambda joined=joined: cluster.nodes[4].quorum.voters.holds(joined))
        entry = leader.voters.entry(4)
        assert leader.voters.ids == (1, 2, 3, 4)
        assert entry is not None and (entry.key, entry.endpoints[0].host) == (joined, "n4")
        await cluster.stop(4)
        cluster.machine(4).wipe()


@on_machines
async def test_a_leader_mends_its_own_entry(cluster: AssembledNodes) -> None:
    """An operator named a second endpoint, and nothing listens there."""
    leader = (await with_three_voters(cluster)).quorum
    me = leader.node_id
    right = VoterEndpoint("CONTROLLER", f"n{me}", PORT)
    wrong = VoterEntry(ReplicaKey(me, UUID(int=me)), (right, VoterEndpoint("SPARE", "elsewhere", 1)))
    assert (await cluster.of(me, leader.change_voters(UpdateVoter(wrong))))[0] == Error.NONE
    assert leader.voters.entry(me) == wrong
    await eventually(lambda: leader.voters.entry(me) == VoterEntry(wrong.key, (right,), (0, 1)))
