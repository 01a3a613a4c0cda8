"""Nodes that are controllers alone and brokers alone (`process.roles`), over the wire of memory and on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from assembled_nodes import AssembledNodes, fields, on_machines
from waiting import eventually

from system_under_test.kraft.node import config
from system_under_test.kraft.node.broker_role import CLEAN_SHUTDOWN
from system_under_test.kraft.node.config import AUTO_JOIN, BadConfig
from system_under_test.kraft.wire.translate import TOPIC
from system_under_test.kraft.wire.versions import CREATE_TOPICS, DESCRIBE_QUORUM, METADATA, requested

CONTROLLERS, BROKERS = (1, 2, 3), (4, 5)
SETTINGS = {"heartbeat_interval_s": 0.1, "session_timeout_s": 1.0, "lag_s": 0.5, "probe_interval_s": 0.1}


def role(number: int) -> dict[str, Any]:
    return {"process.roles": "controller" if number in CONTROLLERS else "broker", "brokers": SETTINGS}


async def started(cluster: AssembledNodes) -> None:
    for number in (*CONTROLLERS, *BROKERS):
        await cluster.start(number, **role(number))
    await eventually(lambda: alive(cluster).keys() == set(BROKERS))


def alive(cluster: AssembledNodes) -> dict[int, int]:
    """The brokers that are unfenced by the leader's image, with their epochs."""
    if cluster.active is None:
        return {}
    image = cluster.active.quorum.committed_image()
    return {number: broker.broker_epoch for number, broker in image.brokers.items() if not broker.fenced}


async def create(cluster: AssembledNodes, broker: int, name: str) -> None:
    topic = {"name": name, "num_partitions": 2, "replication_factor": 2, "assignments": (), "configs": ()}
    answer = await cluster.ask(broker, requested(CREATE_TOPICS, 5, {"topics": [topic]}))
    assert answer.topics[0].error_code == 0, answer


@on_machines
async def test_brokers_that_are_no_controllers_observe_register_and_hand_requests_on(cluster: AssembledNodes) -> None:
    await started(cluster)
    await create(cluster, 4, "t")
    leader = cluster.active
    assert leader is not None
    [topic] = leader.quorum.committed_image().topics.values()
    assert all(set(partition.replicas) == set(BROKERS) for partition in topic.partitions.values())
    await eventually(lambda: all("t" in cluster.nodes[broker].quorum.committed_image().topics for broker in BROKERS))
    for broker in BROKERS:
        asked = {"topics": None, "include_topic_authorized_operations": False}
        shown = await cluster.ask(broker, requested(METADATA, 12, asked))
        assert [each.node_id for each in shown.brokers] == list(BROKERS) and shown.controller_id in BROKERS
        quorum = cluster.nodes[broker].quorum
        assert quorum.role == "follower" and quorum.voters.ids == CONTROLLERS
    asked = {"topics": [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}]}
    quorum = (await cluster.ask(5, requested(DESCRIBE_QUORUM, 2, asked))).topics[0].partitions[0]
    assert {each.replica_id for each in quorum.current_voters} == set(CONTROLLERS)
    assert {each.replica_id for each in quorum.observers} == set(BROKERS)


@on_machines
async def test_a_broker_that_no_controller_lets_go_ends_when_its_time_to_leave_is_over(cluster: AssembledNodes) -> None:
    await started(cluster)
    for number in CONTROLLERS:
        cluster.kill(number)
    began_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(60.0):
        await cluster.stop(4)
    assert 10.0 <= asyncio.get_running_loop().time() - began_s < 20.0
    assert not cluster.machine(4).disk.exists(CLEAN_SHUTDOWN)
    cluster.kill(5)


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
        config.parse(fields(number, **role(number) | more))


def test_a_broker_that_is_no_controller_is_no_voter() -> None:
    parsed = config.parse(fields(4, **role(4)))
    assert parsed.observer and not parsed.is_controller and parsed.voters == CONTROLLERS
