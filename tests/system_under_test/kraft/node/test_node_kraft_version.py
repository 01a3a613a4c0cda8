"""The upgrade of `kraft.version` from 0 to 1: static voters become voters that can change (KIP-853)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from node_cluster import REPLICAS, VOTERS, Boot, Cluster, create, unexplained
from waiting import eventually

from system_under_test.kraft.log.log import FOLDER
from system_under_test.kraft.node.assembly import must_report
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.raft.changes import AddVoter, RaiseVersion, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.messages import Error
from system_under_test.kraft.raft.voters import VoterEntry, voter_set

pytestmark = pytest.mark.virtual_time


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
    assert words.endswith(f"that they support 1: {second} lack")
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
