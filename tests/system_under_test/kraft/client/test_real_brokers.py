"""Three real processes, brokers and controllers in one: they register, are fenced when killed, and leave in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic
from loopback_cluster import LoopbackCluster
from waiting import PATIENCE_S

from system_under_test.kraft.node.broker_role import CLEAN_SHUTDOWN
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.versions import API_VERSIONS, requested

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


async def test_every_node_shows_the_finalized_features(cluster: LoopbackCluster) -> None:
    request = requested(API_VERSIONS, 3, {"client_software_name": "k", "client_software_version": "1"})
    async with asyncio.timeout(2 * PATIENCE_S):
        for address in cluster.addresses.values():
            host, _, port = address.rpartition(":")
            while not (shown := await ask(host, int(port), request)).finalized_features:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            [feature] = shown.finalized_features
            assert (feature.name, feature.min_version_level, feature.max_version_level) == ("metadata.version", 25, 25)
            assert shown.finalized_features_epoch > 0


async def ask(host: str, port: int, request: Any) -> Any:
    connection = Connection(host, port, "stock")
    while True:
        try:
            return await connection.ask(request)
        except OSError:
            await asyncio.sleep(0.1)  # the node does not listen yet
        finally:
            connection.close()


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
