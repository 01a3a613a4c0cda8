"""Controllers that make themselves voters (`controller.quorum.auto.join.enable`)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from assembled_nodes import PORT, AssembledNodes, on_machines
from waiting import eventually

from system_under_test.kraft.log.small_files import kafka_uuid
from system_under_test.kraft.node.assembly import KraftNode, joining
from system_under_test.kraft.node.config import AUTO_JOIN
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.messages import Error, ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, voter_set

AT = VoterEndpoint("CONTROLLER", "n4", 9092)
ME = VoterEntry(ReplicaKey(4, UUID(int=4)), (AT,))
OLD = VoterEntry(ReplicaKey(4, UUID(int=1)))
OTHERS = [VoterEntry(ReplicaKey(voter)) for voter in (1, 2, 3)]


@pytest.mark.parametrize(
    ("role", "entries", "change"),
    [
        ("follower", OTHERS, AddVoter(ME)),
        ("follower", [*OTHERS, ME], None),
        ("follower", [*OTHERS, OLD], RemoveVoter(OLD.key)),
        ("follower", [*OTHERS, VoterEntry(ReplicaKey(4))], None),  # old records contain no directory
        ("unattached", OTHERS, None),
        ("leader", OTHERS, None),
    ],
)
def test_what_a_replica_asks_for(role: str, entries: list[VoterEntry], change: object) -> None:
    assert joining(ME, role, voter_set(entries)) == change


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
