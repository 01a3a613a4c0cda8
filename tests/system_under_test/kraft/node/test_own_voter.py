"""Controllers that make themselves voters (`controller.quorum.auto.join.enable`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from node_cluster import REPLICAS, VOTERS, Boot, Cluster, create
from waiting import eventually

from system_under_test.kraft.node.assembly import OwnVoter, joining
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.messages import Error, ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, voter_set
from system_under_test.kraft.wire import admin as wire_voters
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.quorum_service import NotQueued

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


def joined_by(cluster: Cluster, replica: int, asked: list[str]) -> OwnVoter:
    """The requests reach the leader by the wire's own reading of them."""

    async def send(request: Entity, timeout_s: float) -> Any:
        body: Any = request
        asked.append(type(request).__name__)
        if len(asked) == 1:
            raise NotQueued("the first one finds no leader")
        change = wire_voters.CHANGES[type(request).__api_key__](body)
        error, words = await (await cluster.leader()).change_voters(change)
        return SimpleNamespace(error_code=int(error), error_message=words)

    node = cluster.network.nodes[replica]
    at = VoterEndpoint("CONTROLLER", f"n{replica}", 9092)
    joined = OwnVoter(node, at, send, lambda words: None, joins=True, every_s=0.05)
    joined.start()
    return joined


@pytest.mark.virtual_time
async def test_a_replica_becomes_a_voter_and_again_with_another_disk(boot: Boot) -> None:
    cluster = boot(replicas=REPLICAS[:4], dynamic=VOTERS, names_disks=True)
    await (await cluster.leader()).write(create("t"))
    asked: list[str] = []
    join = joined_by(cluster, 4, asked)
    await eventually(lambda: cluster.network.nodes[4].voters.holds(cluster.key(4)))
    assert set(asked) == {"AddRaftVoterRequest"}
    join.close()

    await cluster.network.nodes.pop(4).stop(0)
    cluster.wipe(4)
    cluster.boot(4)
    asked.clear()
    join = joined_by(cluster, 4, asked)
    await eventually(lambda: cluster.network.nodes[4].voters.holds(cluster.key(4)))
    assert set(asked) == {"RemoveRaftVoterRequest", "AddRaftVoterRequest"}
    leader = await cluster.leader()
    assert leader.voters.entry(4) is not None and leader.voters.ids == (1, 2, 3, 4)
    join.close()


@pytest.mark.virtual_time
async def test_a_leader_mends_its_own_entry(boot: Boot) -> None:
    """An operator has named an endpoint at which nobody listens."""
    cluster = boot(dynamic=VOTERS, names_disks=True)
    leader = await cluster.leader()
    await leader.write(create("t"))
    wrong = VoterEntry(cluster.key(leader.node_id), (VoterEndpoint("CONTROLLER", "elsewhere", 1),))
    assert (await leader.change_voters(UpdateVoter(wrong)))[0] == Error.NONE
    asked: list[str] = []
    own = joined_by(cluster, leader.node_id, asked)
    right = (VoterEndpoint("CONTROLLER", f"n{leader.node_id}", 9092),)

    def mended() -> bool:
        entry = leader.voters.entry(leader.node_id)
        return entry is not None and entry.endpoints == right

    await eventually(mended)
    assert set(asked) == {"UpdateRaftVoterRequest"}
    own.close()
