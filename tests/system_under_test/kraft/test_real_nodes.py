"""Real processes and a stock AdminClient (librdkafka), which must find nothing odd about them.

The AdminClient first meets a fake quorum behind the real server, then three real nodes.  Brokers and controllers in one
register, are fenced when killed, and leave in order.
"""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from fake_quorum import FakeNode, start_nodes
from kio.schema.errors import ErrorCode
from local_node import LocalNode
from own_address import HOST, free_ports
from waiting import PATIENCE_S

from system_under_test.client import Outcome, Placement, ProcessClient, Request
from system_under_test.kraft.client import connect
from system_under_test.kraft.node.broker_role import CLEAN_SHUTDOWN
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.versions import DESCRIBE_QUORUM, METADATA, requested

COMMAND = ("-m", "system_under_test.kraft", "--config")


class LoopbackCluster:
    """`start` formats and starts every node; `stop` kills what still runs.  Output goes to log/output of each node.

    more: goes into every node's configuration."""

    def __init__(self, root: Path, count: int, **more: Any) -> None:
        self._peers = {f"n{number}": [number, HOST, port] for number, port in enumerate(free_ports(count), 1)}
        self.nodes = {name: LocalNode(name, HOST, root) for name in self._peers}
        self.addresses = {name: f"{host}:{port}" for name, (_, host, port) in self._peers.items()}
        self._more = {"cluster_id": "loopback-cluster", "peers": self._peers, "seed": 1, **more}

    async def start(self) -> None:
        for name, node in self.nodes.items():
            own = {"node_id": self._peers[name][0], "name": name, "listen": self.addresses[name]}
            config = {**own, "data_dir": node.data_dir, "trace_dir": node.trace_dir, **self._more}
            await node.write(f"{node.log_dir}/node.json", json.dumps(config).encode())
            done = await node.run([*node.python, *COMMAND, f"{node.log_dir}/node.json", "--format"])
            assert done.status == 0, done.stderr
        for name in self.nodes:
            await self.start_node(name)

    async def start_node(self, name: str) -> None:
        node = self.nodes[name]
        await node.start([*node.python, *COMMAND, f"{node.log_dir}/node.json"], output=f"{node.log_dir}/output")

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.signal("KILL")


@pytest.fixture
async def nodes() -> AsyncIterator[dict[int, FakeNode]]:
    nodes = await start_nodes(3)
    nodes[1].quorum.leader_id = nodes[2].quorum.leader_id = nodes[3].quorum.leader_id = 2
    yield nodes
    gc.collect()  # clients in reference cycles would keep looking for their nodes
    for node in nodes.values():
        await node.stop()


def admin(nodes: dict[int, FakeNode], bootstrap: int = 1) -> AdminClient:
    host, port = nodes[1].quorum.brokers[bootstrap]
    return admin_at(f"{host}:{port}")


def admin_at(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "socket.timeout.ms": 30_000})


async def settle(futures: dict) -> dict:
    """The results of an AdminClient's futures, without blocking the nodes that live on this very loop."""
    return {key: await asyncio.to_thread(future.result, PATIENCE_S) for key, future in futures.items()}


async def until_ok(client: ProcessClient, request: Request) -> Outcome:
    while True:
        outcome = await client.invoke(request, 2)
        if outcome.error is None:
            return outcome
        await asyncio.sleep(0.1)


def retention(value: str) -> ConfigResource:
    entry = ConfigEntry("retention.ms", value, incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])


async def test_creates_a_topic_alters_its_config_and_describes_it(nodes: dict[int, FakeNode]) -> None:
    client = admin(nodes)
    await settle(await asyncio.to_thread(client.create_topics, [NewTopic("orders", 2, 3)]))
    orders = ConfigResource(ResourceType.TOPIC, "orders")

    before = (await settle(await asyncio.to_thread(client.describe_configs, [orders])))[orders]
    assert before["retention.ms"].value == "604800000"
    assert ConfigSource(before["retention.ms"].source) is ConfigSource.DEFAULT_CONFIG

    await settle(await asyncio.to_thread(client.incremental_alter_configs, [retention("4711")]))
    after = (await settle(await asyncio.to_thread(client.describe_configs, [orders])))[orders]
    assert after["retention.ms"].value == "4711"
    assert ConfigSource(after["retention.ms"].source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


async def test_lists_brokers_controller_and_partitions(nodes: dict[int, FakeNode]) -> None:
    client = admin(nodes)
    await settle(await asyncio.to_thread(client.create_topics, [NewTopic("orders", 2, 3)]))
    listed = await asyncio.to_thread(client.list_topics, timeout=PATIENCE_S)
    assert sorted(listed.brokers) == [1, 2, 3]
    assert listed.controller_id == 2
    partitions = listed.topics["orders"].partitions
    assert {len(partition.replicas) for partition in partitions.values()} == {3}
    assert len({partition.leader for partition in partitions.values()}) == 2, "leaders are spread"

    cluster = await asyncio.to_thread((await asyncio.to_thread(client.describe_cluster)).result, PATIENCE_S)
    assert cluster.controller.id == 2


async def test_grows_and_deletes_a_topic_through_any_node(nodes: dict[int, FakeNode]) -> None:
    client = admin(nodes, bootstrap=3)
    await settle(await asyncio.to_thread(client.create_topics, [NewTopic("orders", 2, 3), NewTopic("lines", 1, 1)]))
    await settle(await asyncio.to_thread(client.create_partitions, [NewPartitions("orders", 5)]))
    described = await settle(await asyncio.to_thread(client.describe_topics, TopicCollection(["orders"])))
    assert len(described["orders"].partitions) == 5
    with pytest.raises(KafkaException) as refused:
        await settle(await asyncio.to_thread(client.create_partitions, [NewPartitions("orders", 4)]))
    assert refused.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    await settle(await asyncio.to_thread(client.delete_topics, ["orders"]))
    assert list((await asyncio.to_thread(client.list_topics, timeout=PATIENCE_S)).topics) == ["lines"]
    with pytest.raises(KafkaException) as gone:
        await settle(await asyncio.to_thread(client.delete_topics, ["orders"]))
    assert gone.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


async def test_stores_and_lists_access_control_and_credentials(nodes: dict[int, FakeNode]) -> None:
    client = admin(nodes, bootstrap=3)
    kinds = (ResourceType.TOPIC, ResourcePatternType.PREFIXED, AclOperation.READ, AclPermissionType.ALLOW)
    orders = AclBinding(kinds[0], "ord", kinds[1], "User:a", "*", kinds[2], kinds[3])
    await settle(await asyncio.to_thread(client.create_acls, [orders]))
    topics = (ResourceType.TOPIC, "orders", ResourcePatternType.MATCH)
    wanted = AclBindingFilter(*topics, None, None, AclOperation.ANY, AclPermissionType.ANY)
    found = await asyncio.to_thread((await asyncio.to_thread(client.describe_acls, wanted)).result, PATIENCE_S)
    assert found == [orders]
    deleted = await settle(await asyncio.to_thread(client.delete_acls, [wanted]))
    assert deleted[wanted] == [orders] and nodes[2].quorum.image.state_hash == 0

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion("alice", info, b"secret", b"salt")
    await settle(await asyncio.to_thread(client.alter_user_scram_credentials, [upsertion]))
    described = await settle(await asyncio.to_thread(client.describe_user_scram_credentials, ["alice"]))
    [credential] = described["alice"].scram_credential_infos
    assert (credential.mechanism, credential.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)


async def test_the_older_alter_configs_replaces_all_overrides(nodes: dict[int, FakeNode]) -> None:
    client = admin(nodes)
    await settle(await asyncio.to_thread(client.create_topics, [NewTopic("orders", 1, 3, config={"segment.ms": "9"})]))
    orders = ConfigResource(ResourceType.TOPIC, "orders", set_config={"retention.ms": "8"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # this test is about the older API
        await settle(await asyncio.to_thread(client.alter_configs, [orders]))
    assert nodes[2].quorum.image.configs("orders") == {"retention.ms": "8"}


async def test_partitions_are_empty_as_no_node_keeps_data(nodes: dict[int, FakeNode]) -> None:
    client = admin(nodes)
    await settle(await asyncio.to_thread(client.create_topics, [NewTopic("orders", 2, 3)]))
    for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):
        wanted = {TopicPartition("orders", number): spec for number in range(2)}
        listed = await settle(await asyncio.to_thread(client.list_offsets, wanted))
        assert [result.offset for result in listed.values()] == [0, 0]


async def test_every_node_describes_the_quorum(nodes: dict[int, FakeNode]) -> None:
    for node in nodes.values():
        connection = Connection("127.0.0.1", node.quorum.brokers[node.quorum.node_id][1], "stock")
        topic = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        answer = await connection.ask(requested(DESCRIBE_QUORUM, 2, {"topics": [topic]}))
        (described,) = answer.topics[0].partitions
        assert (described.error_code, described.leader_id, len(described.current_voters)) == (0, 2, 3)
        connection.close()


@pytest.mark.parametrize("version", [10, 11])
async def test_metadata_by_topic_id_is_refused_where_kafka_does(nodes: dict[int, FakeNode], version: int) -> None:
    connection = Connection("127.0.0.1", nodes[1].quorum.brokers[1][1], "stock")
    asked = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
    asked["topics"] = [{"topic_id": uuid4(), "name": None}]
    (answer,) = (await connection.ask(requested(METADATA, version, asked))).topics
    assert (answer.error_code, answer.name) == (ErrorCode.invalid_request, "")
    connection.close()


async def test_real_nodes_serve_it_too_and_our_client_sees_what_it_wrote(tmp_path: Path) -> None:
    cluster = LoopbackCluster(tmp_path, 3)
    await cluster.start()
    ours = connect(Placement(0, "c1", follows=True, reads_only=False), cluster.addresses, {}, {})
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            await until_ok(ours, Request("create", "orders"))
            for address in cluster.addresses.values():  # every node accepts it
                client = admin_at(address)
                name = "topic-" + address.rpartition(":")[2]
                await settle(await asyncio.to_thread(client.create_topics, [NewTopic(name, 2, 3)]))
                value = address.rpartition(":")[2]
                await settle(await asyncio.to_thread(client.incremental_alter_configs, [retention(value)]))
                orders = ConfigResource(ResourceType.TOPIC, "orders")
                described = (await settle(await asyncio.to_thread(client.describe_configs, [orders])))[orders]
                assert described["retention.ms"].value == value
                assert (await until_ok(ours, Request("read", "orders"))).value == int(value)
            await until_ok(ours, Request("write", "orders", 4711))
            described = (await settle(await asyncio.to_thread(client.describe_configs, [orders])))[orders]
            assert described["retention.ms"].value == "4711"
            listed = await asyncio.to_thread(client.list_topics, timeout=PATIENCE_S)
            assert len(listed.topics) == 4
    finally:
        await ours.close()
        await cluster.stop()


BROKERS = {
    "heartbeat_interval_s": 0.3,
    "session_timeout_s": 2.0,
    "lag_s": 1.0,
    "probe_interval_s": 0.2,
    "features": {"metadata.version": 25},
}


ASK_S = 10.0
"""Of one question: the client waits for as long as that for a node that died in the middle of it."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LoopbackCluster]:
    made = LoopbackCluster(tmp_path, 3, **{"process.roles": "broker,controller", "brokers": BROKERS})
    await made.start()
    yield made
    await made.stop()


async def until(client: AdminClient, true: Callable[[ClusterMetadata], bool]) -> ClusterMetadata:
    """The first metadata of which this is true; nodes learn of a change one after another."""
    while True:
        try:
            found = await asyncio.to_thread(client.list_topics, timeout=ASK_S)
        except KafkaException:
            found = None  # a node that dies, or that does not know any broker yet
        if found is not None and true(found):
            return found
        await asyncio.sleep(0.1)


def leaders(found: ClusterMetadata) -> set[int]:
    """Of the topic's partitions; none while the node that answered does not know it."""
    return {each.leader for each in found.topics["orders"].partitions.values()} if "orders" in found.topics else set()


def in_sync(found: ClusterMetadata) -> list[set[int]]:
    return [set(each.isrs) for each in found.topics["orders"].partitions.values()] if "orders" in found.topics else []


def all_in_sync(found: ClusterMetadata) -> bool:
    return in_sync(found) == [{1, 2, 3}] * 3 and leaders(found) <= {1, 2, 3}


def is_led_without(found: ClusterMetadata, gone: int) -> bool:
    """Whether the other brokers lead every partition, and the one that is gone is no broker any more."""
    return bool(leaders(found)) and leaders(found) <= {1, 2, 3} - {gone} and gone not in found.brokers


async def test_brokers_come_die_and_leave(cluster: LoopbackCluster) -> None:
    """On a busy machine a broker may be fenced for a moment, and lose its leadership for good.  So each that dies or
    leaves is one that leads."""
    client = AdminClient({"bootstrap.servers": ",".join(cluster.addresses.values())})
    async with asyncio.timeout(2 * PATIENCE_S):
        await until(client, lambda found: set(found.brokers) == {1, 2, 3})
        futures = await asyncio.to_thread(client.create_topics, [NewTopic("orders", 3, 3)])
        await asyncio.to_thread(futures["orders"].result, PATIENCE_S)
        dies = max(leaders(await until(client, all_in_sync)))

        await cluster.nodes[f"n{dies}"].signal("KILL")
        without = await until(client, lambda found: is_led_without(found, dies))
        assert all(dies not in members for members in in_sync(without))

        await cluster.start_node(f"n{dies}")
        leaves = min(leaders(await until(client, all_in_sync)))

        leaving = cluster.nodes[f"n{leaves}"]
        await leaving.signal("TERM")
        assert leaving.process is not None and await leaving.process.wait() == 0
        assert (Path(leaving.data_dir) / CLEAN_SHUTDOWN).exists(), "it left in order, and the next start knows"
        await until(client, lambda found: is_led_without(found, leaves))
