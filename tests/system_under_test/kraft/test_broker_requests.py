"""Brokers over the wire: they register, send heartbeats, report their in-sync sets and leave; the rest are errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from fake_quorum import FakeNode, FakeQuorum
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.features import LevelWanted, update_features
from system_under_test.kraft.controller.partition_requests import NO_DUTIES, Duties
from system_under_test.kraft.records.metadata import (
    NO_LEADER,
    UNASSIGNED,
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
)
from system_under_test.kraft.wire import versions as api
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import decode_response, encode_request
from system_under_test.kraft.wire.versions import requested

PATIENCE = timedelta(seconds=30)


def a_topic(name: str, factor: int) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": factor, "assignments": (), "configs": ()}


class Wire:
    """A controller whose brokers register, and a connection to it."""

    def __init__(self, node: FakeNode, port: int) -> None:
        self.quorum = node.quorum
        self._connection = Connection("127.0.0.1", port, "krucible-test")

    async def ask(self, key: int, version: int, **values: Any) -> Any:
        return await self._connection.ask(requested(key, version, values))

    async def register(self, broker: int, incarnation: int = 1, **changes: Any) -> Any:
        values = {
            "broker_id": broker,
            "cluster_id": "fake",
            "incarnation_id": UUID(int=incarnation),
            "listeners": [{"name": "PLAINTEXT", "host": f"n{broker}", "port": 9092, "security_protocol": 0}],
            "features": (),
            "rack": f"r{broker}",
            "is_migrating_zk_broker": False,
            "log_dirs": (UUID(int=100 + broker),),
            "previous_broker_epoch": -1,
        }
        return await self.ask(api.BROKER_REGISTRATION, 3, **(values | changes))

    async def beat(self, broker: int, *, epoch: int | None = None, offset: int = 1 << 30, **wants: bool) -> Any:
        known = self.quorum.image.brokers[broker].broker_epoch if epoch is None else epoch
        flags = {"want_fence": False, "want_shut_down": False} | wants
        return await self.ask(
            api.BROKER_HEARTBEAT, 0, broker_id=broker, broker_epoch=known, current_metadata_offset=offset, **flags
        )

    async def create(self, name: str, factor: int = 3, *, validate_only: bool = False) -> Any:
        topics = [a_topic(name, factor)]
        answer = await self.ask(api.CREATE_TOPICS, 7, topics=topics, timeout=PATIENCE, validate_only=validate_only)
        return answer.topics[0]

    def partition(self, topic: str = "orders") -> PartitionRecord:
        return self.quorum.image.topics[topic].partitions[0]

    async def alter(self, *isr: tuple[int, int], **changes: int) -> Any:
        """What the leader of the partition proposes: members and their epochs."""
        held = self.partition()
        data = {
            "partition_index": 0,
            "new_isr_with_epochs": [{"broker_id": b, "broker_epoch": e} for b, e in isr],
            "leader_recovery_state": 0,
            "leader_epoch": held.leader_epoch,
            "partition_epoch": held.partition_epoch,
        }
        leader = self.quorum.image.brokers[held.leader]
        answer = await self.ask(
            api.ALTER_PARTITION,
            3,
            broker_id=leader.broker_id,
            broker_epoch=leader.broker_epoch,
            topics=[{"topic_id": held.topic_id, "partitions": [data | changes]}],
        )
        return answer.topics[0].partitions[0]

    def member(self, broker: int) -> tuple[int, int]:
        return broker, self.quorum.image.brokers[broker].broker_epoch


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    quorum = FakeQuorum()
    quorum.duties = Duties(quorum.image, quorum.time_s, NO_DUTIES)
    node = FakeNode(quorum)
    port = await node.start()
    quorum.brokers = {1: ("127.0.0.1", port)}
    yield Wire(node, port)
    await node.stop()


async def three(wire: Wire) -> Wire:
    for broker in (1, 2, 3):
        await wire.register(broker)
        assert not (await wire.beat(broker)).is_fenced
    assert (await wire.create("orders")).error_code == ErrorCode.none
    return wire


async def test_the_epoch_of_a_broker_is_the_offset_of_its_record(wire: Wire) -> None:
    await wire.register(1)
    answer = await wire.register(2)
    assert (answer.error_code, answer.broker_epoch) == (ErrorCode.none, 1)
    assert len(wire.quorum.log) == 2
    assert wire.quorum.image.brokers[2].rack == "r2"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cluster_id": "other"}, ErrorCode.inconsistent_cluster_id),
        ({"broker": 2, "log_dirs": (UUID(int=101),)}, ErrorCode.invalid_registration),
    ],
)
async def test_registrations_that_cannot_be(wire: Wire, changes: dict[str, Any], error: ErrorCode) -> None:
    await wire.register(1)
    await wire.beat(1)
    answer = await wire.register(**({"broker": 1} | changes))
    assert (answer.error_code, answer.broker_epoch) == (error, -1)
    assert len(wire.quorum.log) == 2


async def test_heartbeats_unfence_refuse_and_stop(wire: Wire) -> None:
    await wire.register(1)
    early = await wire.beat(1, offset=-1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    on_time = await wire.beat(1, offset=0)
    assert (on_time.is_caught_up, on_time.is_fenced) == (True, False)
    assert (await wire.beat(1, epoch=7)).error_code == ErrorCode.stale_broker_epoch
    assert (await wire.beat(9, epoch=7)).error_code == ErrorCode.broker_id_not_registered
    assert (await wire.beat(1, want_shut_down=True)).should_shut_down


async def test_topics_need_brokers_that_are_alive(wire: Wire) -> None:
    assert (await wire.create("orders", 1)).error_code == ErrorCode.invalid_replication_factor
    await wire.register(1)
    assert (await wire.create("orders", 1)).error_code == ErrorCode.invalid_replication_factor, "it is fenced"
    await wire.beat(1)
    await wire.register(2)
    assert (await wire.create("orders", 2)).error_code == ErrorCode.none
    assert (wire.partition().replicas, wire.partition().isr) == ((1, 2), (1,))


async def test_a_topic_that_is_only_checked_is_not_created(wire: Wire) -> None:
    checked = await (await three(wire)).create("later", 3, validate_only=True)
    assert (checked.error_code, checked.num_partitions) == (ErrorCode.none, 1)
    assert (await wire.create("later", 4, validate_only=True)).error_code == ErrorCode.invalid_replication_factor
    assert "later" not in wire.quorum.image.topics


async def test_clients_see_the_brokers_that_are_not_fenced(wire: Wire) -> None:
    await three(wire)
    await wire.beat(2, want_fence=True)
    metadata = await wire.ask(
        api.METADATA,
        9,
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert metadata.topics[0].topic_authorized_operations.bit_count() == 8
    assert metadata.cluster_authorized_operations.bit_count() == 7
    assert [(broker.node_id, broker.host) for broker in metadata.brokers] == [(1, "n1"), (3, "n3")]
    assert metadata.topics[0].partitions[0].offline_replicas == (2,)
    for kind, fenced, expected in ((1, False, [1, 3]), (1, True, [1, 2, 3]), (2, False, [1])):
        cluster = await wire.ask(
            api.DESCRIBE_CLUSTER,
            2,
            include_cluster_authorized_operations=False,
            endpoint_type=kind,
            include_fenced_brokers=fenced,
        )
        assert [broker.broker_id for broker in cluster.brokers] == expected
    unknown = await wire.ask(api.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=3)
    assert unknown.error_code == ErrorCode.unsupported_endpoint_type


async def test_an_in_sync_set_is_a_compare_and_set(wire: Wire) -> None:
    await three(wire)
    members = [wire.member(broker) for broker in (1, 2, 3)]
    first = await wire.alter(*members[:2])
    assert (first.error_code, first.isr, first.partition_epoch) == (ErrorCode.none, (1, 2), 1)
    again = await wire.alter(*members[:2], partition_epoch=0)
    assert again.error_code == ErrorCode.invalid_update_version
    assert (await wire.alter(*members)).isr == (1, 2, 3)


async def test_the_preferred_leader_is_elected_again(wire: Wire) -> None:
    await three(wire)
    leader = wire.partition().leader
    await wire.beat(leader, want_fence=True)
    assert wire.partition().leader not in (leader, NO_LEADER)
    await wire.beat(leader)

    async def elect(kind: int, topic: str = "orders") -> Any:
        wanted = [{"topic": topic, "partitions": [0]}]
        return await wire.ask(api.ELECT_LEADERS, 2, election_type=kind, topic_partitions=wanted, timeout=PATIENCE)

    async def preferred(topic: str = "orders") -> int:
        answer = await elect(0, topic)
        return int(answer.replica_election_results[0].partition_result[0].error_code)

    assert await preferred() == ErrorCode.preferred_leader_not_available, "it is not in sync"
    await wire.alter(*(wire.member(broker) for broker in (1, 2, 3)))
    assert [await preferred(), await preferred()] == [ErrorCode.none, ErrorCode.election_not_needed]
    assert await preferred("none") == ErrorCode.unknown_topic_or_partition
    assert wire.partition().leader == leader
    assert (await elect(7)).error_code == ErrorCode.invalid_request


async def test_a_reassignment_goes_on_until_its_replicas_are_in_sync(wire: Wire) -> None:
    await three(wire)
    await wire.register(4)
    await wire.beat(4)
    leader = wire.partition().leader
    kept = sorted({1, 2, 3} - {leader})

    async def reassign(replicas: tuple[int, ...] | None) -> int:
        topics = [{"name": "orders", "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        answer = await wire.ask(api.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=PATIENCE, topics=topics)
        return int(answer.responses[0].partitions[0].error_code)

    async def under_way() -> list[tuple[tuple[int, ...], ...]]:
        answer = await wire.ask(api.LIST_PARTITION_REASSIGNMENTS, 0, timeout=PATIENCE, topics=None)
        return [(each.adding_replicas, each.removing_replicas) for topic in answer.topics for each in topic.partitions]

    assert await reassign(None) == ErrorCode.no_reassignment_in_progress
    assert await reassign((leader, kept[0], 4)) == ErrorCode.none
    assert await under_way() == [((4,), (kept[1],))]
    await wire.alter(*(wire.member(broker) for broker in (1, 2, 3, 4)))
    assert await under_way() == []
    assert wire.partition().replicas == (leader, kept[0], 4)


async def test_producer_ids_come_in_blocks_that_nobody_had(wire: Wire) -> None:
    await three(wire)
    firsts = []
    for broker in (1, 2, 1):
        epoch = wire.quorum.image.brokers[broker].broker_epoch
        answer = await wire.ask(api.ALLOCATE_PRODUCER_IDS, 0, broker_id=broker, broker_epoch=epoch)
        assert answer.error_code == ErrorCode.none
        firsts.append(range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len))
    assert len(set().union(*firsts)) == 3000
    stale = await wire.ask(api.ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=99)
    assert (stale.error_code, stale.producer_id_len) == (ErrorCode.stale_broker_epoch, 0)


async def test_a_broker_that_is_unregistered_leads_nothing(wire: Wire) -> None:
    await three(wire)
    leader = wire.partition().leader
    answer = await wire.ask(api.UNREGISTER_BROKER, 0, broker_id=leader)
    assert answer.error_code == ErrorCode.none
    assert leader not in wire.quorum.image.brokers
    assert wire.partition().leader not in (leader, NO_LEADER)
    assert (await wire.ask(api.UNREGISTER_BROKER, 0, broker_id=leader)).error_code == ErrorCode.broker_id_not_registered


async def level(wire: Wire, number: int) -> None:
    for name, held in (("metadata.version", number), ("eligible.leader.replicas.version", 1)):
        wire.quorum.image.apply(FeatureLevelRecord(name, held))


def feature(name: str, lowest: int, highest: int) -> dict[str, Any]:
    return {"name": name, "min_supported_version": lowest, "max_supported_version": highest}


FEATURES = [feature("metadata.version", 7, 33), feature("eligible.leader.replicas.version", 0, 1)]


async def register_at_level(wire: Wire, broker: int, *directories: int, **changes: Any) -> Any:
    log_dirs = [UUID(int=each) for each in directories]
    return await wire.register(broker, **({"features": FEATURES, "log_dirs": log_dirs} | changes))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"log_dirs": ()}, ErrorCode.invalid_registration),
        ({"log_dirs": (UUID(int=99),)}, ErrorCode.invalid_registration),
        ({"features": ()}, ErrorCode.invalid_registration),
        ({"is_migrating_zk_broker": True}, ErrorCode.broker_id_not_registered),
    ],
)
async def test_a_registration_is_as_strict_as_kafkas(wire: Wire, changes: dict[str, Any], error: ErrorCode) -> None:
    await level(wire, 33)
    assert (await register_at_level(wire, 1, 101, **changes)).error_code == error


async def test_a_broker_says_where_its_replicas_are_and_what_it_has_lost(wire: Wire) -> None:
    await level(wire, 33)
    for broker in (1, 2):
        await register_at_level(wire, broker, 100 * broker + 1, 100 * broker + 2)
        await wire.beat(broker)
    image = wire.quorum.image
    image.apply(TopicRecord("t", UUID(int=7)))
    image.apply(
        PartitionRecord(0, UUID(int=7), (1, 2), (1, 2), leader=1, leader_epoch=0, directories=(UNASSIGNED,) * 2)
    )

    async def assign(directory: int, topic: int = 7) -> Any:
        topics = [{"topic_id": UUID(int=topic), "partitions": [{"partition_index": 0}]}]
        rows = [{"id_": UUID(int=directory), "topics": topics}]
        epoch = image.brokers[1].broker_epoch
        answer = await wire.ask(api.ASSIGN_REPLICAS_TO_DIRS, 0, broker_id=1, broker_epoch=epoch, directories=rows)
        return answer.directories[0].topics[0].partitions[0].error_code

    assert await assign(101, topic=8) == ErrorCode.unknown_topic_id
    assert await assign(101) == ErrorCode.none
    held = image.topics["t"].partitions[0]
    assert (held.directories, held.leader, held.isr) == ((UUID(int=101), UNASSIGNED), 1, (1, 2))
    values = {"want_fence": False, "want_shut_down": False, "current_metadata_offset": 1 << 30}
    epoch = image.brokers[1].broker_epoch
    lost = {"offline_log_dirs": (UUID(int=101),), "cordoned_log_dirs": (UUID(int=102),)}
    await wire.ask(api.BROKER_HEARTBEAT, 2, broker_id=1, broker_epoch=epoch, **values, **lost)
    held, broker = image.topics["t"].partitions[0], image.brokers[1]
    assert (held.leader, held.isr, broker.log_dirs) == (2, (2,), (UUID(int=102),))
    assert (broker.cordoned_dirs, broker.fenced) == ((UUID(int=102),), False)


async def test_a_controller_registers_and_is_asked_for_what_it_supports(wire: Wire) -> None:
    await level(wire, 25)
    answer = await wire.ask(
        api.CONTROLLER_REGISTRATION,
        0,
        controller_id=2,
        incarnation_id=UUID(int=5),
        zk_migration_ready=False,
        listeners=[{"name": "CONTROLLER", "host": "n2", "port": 9093, "security_protocol": 0}],
        features=[feature("metadata.version", 7, 25)],
    )
    assert answer.error_code == ErrorCode.none
    _, [result] = update_features(wire.quorum.image, [LevelWanted("metadata.version", 26)], 0, controllers=(2,))
    assert (
        result["error_code"] == ErrorCode.invalid_update_version and "Controller 2 does not" in result["error_message"]
    )
    _, [result] = update_features(wire.quorum.image, [LevelWanted("group.version", 1)], 0, controllers=(2, 3))
    assert "Controller 2 does not support group.version" in result["error_message"]
    _, [result] = update_features(wire.quorum.image, [LevelWanted("metadata.version", 25)], 0, controllers=(2, 3))
    assert "Controller 3 has not registered" in result["error_message"]


PRINCIPAL = b"\0\0\x05User\x0aANONYMOUS\0\0"


@pytest.mark.parametrize(
    ("principal", "inner", "error"),
    [
        (PRINCIPAL, (api.CREATE_TOPICS, 7), ErrorCode.none),
        (PRINCIPAL[:-3], (api.CREATE_TOPICS, 7), ErrorCode.principal_deserialization_failure),
        (b"", (api.CREATE_TOPICS, 7), ErrorCode.principal_deserialization_failure),
        (PRINCIPAL, (api.BROKER_HEARTBEAT, 1), ErrorCode.invalid_request),
        (PRINCIPAL, (api.CREATE_TOPICS, 99), ErrorCode.unsupported_version),
    ],
)
async def test_a_broker_hands_on_a_request_of_its_client(
    wire: Wire, principal: bytes, inner: tuple[int, int], error: ErrorCode
) -> None:
    """Kafka's brokers wrap them (KIP-590): without it no admin request through a broker succeeds."""
    await wire.register(1)
    await wire.beat(1)
    request = requested(api.CREATE_TOPICS, 7, {"topics": [a_topic("wrapped", 1)], "timeout": PATIENCE})
    frame = bytearray(encode_request(77, "client", request)[4:])
    frame[:4] = inner[0].to_bytes(2, "big") + inner[1].to_bytes(2, "big")
    answer = await wire.ask(
        api.ENVELOPE, 0, request_data=bytes(frame), request_principal=principal, client_host_address=b"\x7f\0\0\x01"
    )
    assert answer.error_code == error
    if error == ErrorCode.none:
        number, created = decode_response(type(request), answer.response_data)
        assert (number, created.topics[0].error_code, "wrapped" in wire.quorum.image.topics) == (77, 0, True)
