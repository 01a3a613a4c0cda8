"""Nodes that are controllers alone and brokers alone (`process.roles`), over the wire of memory and on virtual time."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.create_topics.v5 import request as creating
from kio.schema.describe_quorum.v2 import request as describing
from kio.schema.metadata.v12 import request as asking
from node_cluster import QUICK, explained
from test_assembly import Lines, MemoryNetwork
from waiting import eventually

from simulation.disk import VolatileDisk
from system_under_test.kraft.log import small_files
from system_under_test.kraft.node import config
from system_under_test.kraft.node.assembly import KraftNode, assemble
from system_under_test.kraft.node.broker_role import CLEAN_SHUTDOWN
from system_under_test.kraft.node.config import AUTO_JOIN, BadConfig
from system_under_test.kraft.node.process import LoopClock
from system_under_test.kraft.ports import Ports
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.translate import TOPIC

CONTROLLERS, BROKERS = (1, 2, 3), (4, 5)
PEERS = {f"n{number}": [number, "memory", number] for number in CONTROLLERS}
SETTINGS = {"heartbeat_interval_s": 0.1, "session_timeout_s": 1.0, "lag_s": 0.5, "probe_interval_s": 0.1}


def settings(number: int, **more: Any) -> dict[str, Any]:
    return {
        "node_id": number,
        "name": f"n{number}",
        "cluster_id": "c",
        "listen": f"memory:{number}",
        "peers": PEERS,
        "data_dir": "none",
        "trace_dir": "none",
        "seed": 7,
        "process.roles": "controller" if number in CONTROLLERS else "broker",
        "brokers": SETTINGS,
        **more,
    }


class Cluster:
    """Three controllers and two brokers, each a process of its own."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.disks = {number: VolatileDisk() for number in (*CONTROLLERS, *BROKERS)}
        self.traces = {number: Lines() for number in self.disks}
        self.nodes: dict[int, KraftNode] = {}
        self.starts = 0
        for number, disk in self.disks.items():
            small_files.write_properties(disk, small_files.MetaProperties("c", number, UUID(int=number)))

    async def start(self, *numbers: int) -> None:
        for number in numbers:
            self.starts += 1
            chance = f"{number}/{self.starts}"
            ports = Ports(
                LoopClock(),
                self.disks[number],
                self.network,
                self.traces[number],
                lambda purpose, chance=chance: Random(f"{chance}/{purpose}"),
                lambda line: None,
            )
            self.nodes[number] = assemble(config.parse(settings(number)), ports, QUICK)
            await self.nodes[number].start()

    async def kill(self, number: int) -> None:
        node = self.nodes.pop(number)
        node.quorum._end(0)
        await node.close()

    async def stop(self, number: int) -> None:
        node = self.nodes.pop(number)
        await node.stop()
        await node.close()

    @property
    def leader(self) -> KraftNode | None:
        return next((node for node in self.nodes.values() if node.quorum.is_active()), None)

    def alive(self) -> dict[int, int]:
        """The brokers that are unfenced by the leader's image, with their epochs."""
        if self.leader is None:
            return {}
        image = self.leader.quorum.committed_image()
        return {number: broker.broker_epoch for number, broker in image.brokers.items() if not broker.fenced}

    async def close(self) -> None:
        for number in sorted(self.nodes, reverse=True):  # brokers transfer leadership to a controller
            await self.stop(number)

    def unexplained(self) -> list[str]:
        traces = {number: map(json.loads, trace.rows) for number, trace in self.traces.items()}
        return [str(stop) for stop in explained(traces).stops]


async def asked(cluster: Cluster, number: int, request: Entity) -> Any:
    """What a node answers a stock client."""
    connection = Connection("memory", number, "stock", network=cluster.network)
    try:
        return await connection.ask(request)
    finally:
        connection.close()


async def create(cluster: Cluster, broker: int, name: str) -> None:
    topic = creating.CreatableTopic(name=name, num_partitions=2, replication_factor=2, assignments=(), configs=())
    answer = await asked(cluster, broker, creating.CreateTopicsRequest(topics=(topic,)))
    assert answer.topics[0].error_code == 0, answer


@pytest.mark.virtual_time
async def test_brokers_that_are_no_controllers_observe_register_and_hand_requests_on() -> None:
    cluster = Cluster()
    await cluster.start(*CONTROLLERS, *BROKERS)
    await eventually(lambda: cluster.alive().keys() == set(BROKERS))
    await create(cluster, 4, "t")
    leader = cluster.leader
    assert leader is not None
    [topic] = leader.quorum.committed_image().topics.values()
    assert all(set(partition.replicas) == set(BROKERS) for partition in topic.partitions.values())
    await eventually(lambda: all("t" in cluster.nodes[broker].quorum.committed_image().topics for broker in BROKERS))
    for broker in BROKERS:
        shown = await asked(
            cluster, broker, asking.MetadataRequest(topics=None, include_topic_authorized_operations=False)
        )
        assert [each.node_id for each in shown.brokers] == list(BROKERS) and shown.controller_id in BROKERS
        quorum = cluster.nodes[broker].quorum
        assert quorum.role == "follower" and quorum.voters.ids == CONTROLLERS
    topics = (describing.TopicData(topic_name=TOPIC, partitions=(describing.PartitionData(partition_index=0),)),)
    quorum = (await asked(cluster, 5, describing.DescribeQuorumRequest(topics=topics))).topics[0].partitions[0]
    assert {each.replica_id for each in quorum.current_voters} == set(CONTROLLERS)
    assert {each.replica_id for each in quorum.observers} == set(BROKERS)
    await cluster.close()
    assert cluster.unexplained() == []


@pytest.mark.virtual_time
async def test_a_broker_that_no_controller_lets_go_ends_when_its_time_to_leave_is_over() -> None:
    cluster = Cluster()
    await cluster.start(*CONTROLLERS, *BROKERS)
    await eventually(lambda: cluster.alive().keys() == set(BROKERS))
    for number in CONTROLLERS:
        await cluster.kill(number)
    began_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(60.0):
        await cluster.stop(4)
    assert 10.0 <= asyncio.get_running_loop().time() - began_s < 20.0
    assert not cluster.disks[4].exists(CLEAN_SHUTDOWN)
    await cluster.kill(5)
    assert cluster.unexplained() == []


@pytest.mark.virtual_time
async def test_a_broker_that_dies_is_fenced_and_comes_back_with_a_new_epoch() -> None:
    cluster = Cluster()
    await cluster.start(*CONTROLLERS, *BROKERS)
    await eventually(lambda: cluster.alive().keys() == set(BROKERS))
    await create(cluster, 4, "t")
    before = cluster.alive()
    await cluster.kill(5)
    await eventually(lambda: cluster.alive() == {4: before[4]})
    assert cluster.leader is not None
    [topic] = cluster.leader.quorum.committed_image().topics.values()
    assert {(partition.leader, partition.isr) for partition in topic.partitions.values()} == {(4, (4,))}
    await cluster.start(5)
    await eventually(lambda: cluster.alive().keys() == set(BROKERS))
    assert cluster.alive()[4] == before[4] and cluster.alive()[5] > before[5]
    await cluster.close()
    assert cluster.unexplained() == []


@pytest.mark.virtual_time
async def test_brokers_outlive_the_controller_that_they_registered_with() -> None:
    cluster = Cluster()
    await cluster.start(*CONTROLLERS, *BROKERS)
    await eventually(lambda: cluster.alive().keys() == set(BROKERS))
    epochs, first = cluster.alive(), cluster.leader
    assert first is not None
    await cluster.kill(first.quorum.node_id)
    await eventually(lambda: cluster.leader is not None)
    await asyncio.sleep(3 * SETTINGS["session_timeout_s"])
    assert cluster.alive() == epochs, "they sent their heartbeats to the next controller"
    await cluster.stop(5)
    await eventually(lambda: cluster.alive() == {4: epochs[4]})
    assert b"brokerEpoch" in cluster.disks[5].files()[".kafka_cleanshutdown"], "a controlled shutdown is noted"
    await cluster.close()
    assert cluster.unexplained() == []


@pytest.mark.parametrize(
    ("number", "more", "why"),
    [
        (1, {"process.roles": "broker"}, "n1 is one of the voters"),
        (4, {AUTO_JOIN: True, "dynamic": True}, "must name controller"),
        (4, {"process.roles": "clerk"}, "it can name controller and broker"),
    ],
)
def test_roles_that_no_node_can_have(number: int, more: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        config.parse(settings(number, **more))


def test_a_broker_that_is_no_controller_is_no_voter() -> None:
    parsed = config.parse(settings(4))
    assert parsed.observer and not parsed.is_controller and parsed.voters == CONTROLLERS
