"""What the controller decides: which records, which errors.  Every decision is replayed into the image it came from."""

from __future__ import annotations

from itertools import count
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.create_partitions.v3.request import CreatePartitionsAssignment
from kio.schema.create_topics.v7.request import CreatableReplicaAssignment
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.configs import (
    BROKER_LOGGER,
    CLIENT_METRICS,
    DEFINITIONS,
    OF_BROKERS,
    STATIC_OF_BROKERS,
    VALUE_MAX_BYTES,
    Alteration,
    ConfigOperation,
    ConfigSource,
    OfBroker,
    Resource,
    alter_configs,
    describe_configs,
    list_resources,
    why_invalid,
)
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.one_by_one import Result
from system_under_test.kraft.controller.topics import (
    RECORDS_MAX,
    MorePartitions,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    of_ids,
)
from system_under_test.kraft.records.metadata import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE

BROKERS = (1, 2, 3, 4, 5)
THROTTLED = "follower.replication.throttled.replicas"


def set_to(value: str | None, name: str = "retention.ms") -> Alteration:
    return Alteration(name, ConfigOperation.SET, value)


def topic(name: str, partitions: int = -1, factor: int = -1, **configs: str | None) -> NewTopic:
    """configs: by name, with _ for each dot."""
    wanted = [set_to(value, config.replace("_", ".")) for config, value in configs.items()]
    return NewTopic(name, partitions, factor, configs=wanted)


def assigned(name: str, assignments: dict[int, tuple[int, ...]], partitions: int = -1, factor: int = -1) -> NewTopic:
    rows = [CreatableReplicaAssignment(partition_index=n, broker_ids=ids) for n, ids in assignments.items()]
    return NewTopic(name, partitions, factor, rows)


def create(image: Image, *topics: NewTopic) -> list[Result]:
    numbers = count(1 + 1000 * len(image.topics))
    records, results = create_topics(image, topics, of_ids(BROKERS), lambda: UUID(int=next(numbers)))
    for record in records:
        image.apply(record)
    return results


def alter(image: Image, *alterations: Alteration, topic: str = "orders", kind: int = TOPIC_RESOURCE) -> tuple:
    """(number of records, error)."""
    records, results = alter_configs(image, [Resource(kind, topic, alterations)])
    for record in records:
        image.apply(record)
    return len(records), results[0]["error_code"]


@pytest.fixture
def image() -> Image:
    image = Image()
    assert create(image, NewTopic("orders", 1, 3))[0]["error_code"] == ErrorCode.none
    return image


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 4))
def test_replicas_are_dealt_round_robin(partitions: int, factor: int, before: int) -> None:
    image = Image()
    create(image, *(NewTopic(f"earlier-{i}", 1, 1) for i in range(before)))
    (result,) = create(image, NewTopic("t", partitions, factor))
    assert (result["num_partitions"], result["replication_factor"]) == (partitions, factor)
    made = image.topics["t"].partitions
    assert sorted(made) == list(range(partitions))
    for partition in made.values():
        assert len(set(partition.replicas)) == factor and set(partition.replicas) <= set(BROKERS)
        assert partition.isr == partition.replicas and partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    leaders = [partition.leader for partition in made.values()]
    assert max(map(leaders.count, BROKERS)) - min(map(leaders.count, BROKERS)) <= 1


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (NewTopic("orders", 1, 3), ErrorCode.topic_already_exists),
        (NewTopic("", 1, 3), ErrorCode.invalid_topic_exception),
        (NewTopic("..", 1, 3), ErrorCode.invalid_topic_exception),
        (NewTopic("a b", 1, 3), ErrorCode.invalid_topic_exception),
        (NewTopic("ä", 1, 3), ErrorCode.invalid_topic_exception),
        (NewTopic("x" * 250, 1, 3), ErrorCode.invalid_topic_exception),
        (NewTopic("t", 0, 3), ErrorCode.invalid_partitions),
        (NewTopic("t", -2, 3), ErrorCode.invalid_partitions),
        (NewTopic("t", RECORDS_MAX + 1, 3), ErrorCode.policy_violation),
        (NewTopic("t", 1, 0), ErrorCode.invalid_replication_factor),
        (NewTopic("t", 1, 6), ErrorCode.invalid_replication_factor),
        (topic("t", 1, 3, retention_ms="soon"), ErrorCode.invalid_config),
        (topic("t", 1, 3, no_such_config="1"), ErrorCode.invalid_config),
        (topic("t", 1, 3, retention_ms=None), ErrorCode.invalid_config),
        (assigned("t", {0: (1,)}, 1, 3), ErrorCode.invalid_request),
        (assigned("t", {1: (1,)}), ErrorCode.invalid_replica_assignment),
        (assigned("t", {0: (1, 1)}), ErrorCode.invalid_replica_assignment),
        (assigned("t", {0: (9,)}), ErrorCode.invalid_replica_assignment),
        (assigned("t", {0: (1,), 1: (1, 2)}), ErrorCode.invalid_replica_assignment),
        (NewTopic("__cluster_metadata", 1, 1), ErrorCode.invalid_request),
        (NewTopic("t", configs=[set_to("5")] * 2), ErrorCode.invalid_request),
        (NewTopic("t", assignments=assigned("t", {0: (1,)}).assignments * 2), ErrorCode.invalid_request),
    ],
)
def test_a_topic_that_cannot_be_leaves_no_record(image: Image, wanted: NewTopic, error: ErrorCode) -> None:
    before = image.state_hash
    (result,) = create(image, wanted)
    assert result["error_code"] == error
    assert result["error_message"]
    assert image.state_hash == before


def test_names_that_metrics_cannot_tell_apart_collide(image: Image) -> None:
    create(image, NewTopic("a.b", 1, 1))
    assert create(image, NewTopic("a_b", 1, 1))[0]["error_code"] == ErrorCode.invalid_topic_exception


def test_each_topic_of_a_request_is_judged_by_itself(image: Image) -> None:
    results = create(image, NewTopic("new", 2, 2), NewTopic("orders", 1, 1), NewTopic("twice"), NewTopic("twice"))
    assert [each["error_code"] for each in results] == [
        ErrorCode.none,
        ErrorCode.topic_already_exists,
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
    ]
    assert sorted(image.topics) == ["new", "orders"]


def test_defaults_configs_and_assignments_by_hand(image: Image) -> None:
    create(image, NewTopic("plain"), assigned("hand", {0: (3, 1), 1: (1, 3)}))
    create(image, topic("short", retention_ms="5"))
    assert len(image.topics["plain"].partitions[0].replicas) == 1
    assert image.topics["hand"].partitions[1].replicas == (1, 3)
    assert image.configs("short") == {"retention.ms": "5"}


def test_set_delete_and_what_changes_nothing(image: Image) -> None:
    assert alter(image, set_to("5")) == (1, ErrorCode.none)
    assert image.configs("orders") == {"retention.ms": "5"}
    assert alter(image, set_to("5")) == (0, ErrorCode.none), "as in Kafka, an unchanged SET makes no record"
    assert alter(image, Alteration("retention.ms", ConfigOperation.DELETE)) == (1, ErrorCode.none)
    assert alter(image, Alteration("retention.ms", ConfigOperation.DELETE)) == (0, ErrorCode.none)
    assert image.configs("orders") == {}


@pytest.mark.parametrize(
    ("alterations", "error"),
    [
        ((set_to("soon"),), ErrorCode.invalid_config),
        ((set_to("-2"),), ErrorCode.invalid_config),
        ((set_to("1_000"),), ErrorCode.invalid_config),
        ((set_to(str(2**63)),), ErrorCode.invalid_config),
        ((set_to(None),), ErrorCode.invalid_config),
        ((set_to("1", "no.such.config"),), ErrorCode.invalid_config),
        ((set_to("1048575", "segment.bytes"),), ErrorCode.invalid_config),  # Kafka 4.0 requires at least 1 MiB
        ((Alteration("retention.ms", ConfigOperation.APPEND, "1"),), ErrorCode.invalid_config),
        ((Alteration("no.such.config", ConfigOperation.SUBTRACT, "1"),), ErrorCode.invalid_config),
        ((Alteration("cleanup.policy", ConfigOperation.APPEND, "shred"),), ErrorCode.invalid_config),
        ((Alteration("cleanup.policy", ConfigOperation.APPEND, None),), ErrorCode.invalid_config),
        ((Alteration("cleanup.policy", ConfigOperation.SUBTRACT, "delete"),), ErrorCode.invalid_config),
        ((Alteration(THROTTLED, ConfigOperation.APPEND, "1"),), ErrorCode.invalid_config),
        ((Alteration(THROTTLED, ConfigOperation.APPEND, "1:1," * 9_000 + "1:1"),), ErrorCode.invalid_config),
        ((Alteration("retention.ms", 9, "1"),), ErrorCode.invalid_request),
        ((set_to("1"), set_to("2")), ErrorCode.invalid_request),
        ((set_to("1", "segment.ms"), set_to("soon")), ErrorCode.invalid_config),
    ],
)
def test_a_bad_alteration_spoils_all_of_its_resource(
    image: Image, alterations: tuple[Alteration, ...], error: ErrorCode
) -> None:
    assert alter(image, *alterations) == (0, error)
    assert image.configs("orders") == {}


def test_members_are_appended_to_lists_once_and_in_order_and_taken_away(image: Image) -> None:
    def change(operation: ConfigOperation, value: str, name: str = THROTTLED) -> tuple[int, str | None]:
        records, error = alter(image, Alteration(name, operation, value))
        assert error == ErrorCode.none
        return records, image.configs("orders").get(name)

    assert change(ConfigOperation.APPEND, "7:0") == (1, "7:0")
    assert change(ConfigOperation.APPEND, "3:0,7:0") == (1, "7:0,3:0")
    assert change(ConfigOperation.APPEND, "3:0") == (0, "7:0,3:0"), "a member that is there makes no record"
    assert change(ConfigOperation.SUBTRACT, "7:0,9:0") == (1, "3:0")
    assert change(ConfigOperation.SUBTRACT, "3:0") == (1, "")
    assert change(ConfigOperation.APPEND, "compact", "cleanup.policy") == (1, "delete,compact"), "behind the default"


def test_a_list_does_not_outgrow_what_can_be_described(image: Image) -> None:
    members = [f"{number}:0" for number in range(VALUE_MAX_BYTES // 6)]
    full = ",".join(members)[:VALUE_MAX_BYTES].rpartition(",")[0]
    assert alter(image, Alteration(THROTTLED, ConfigOperation.SET, full)) == (1, ErrorCode.none)
    refused = alter(image, Alteration(THROTTLED, ConfigOperation.APPEND, "99999999:0"))
    assert refused == (0, ErrorCode.invalid_config)
    assert image.configs("orders")[THROTTLED] == full


def test_a_config_without_override_is_described_as_default(image: Image) -> None:
    (described,) = describe_configs(image, "orders", ["retention.ms"])
    assert (described.value, described.source) == ("604800000", ConfigSource.DEFAULT)
    alter(image, set_to("5"))
    (described,) = describe_configs(image, "orders", ["retention.ms", "retention.ms", "no.such.config"])
    assert (described.value, described.source) == ("5", ConfigSource.TOPIC)
    assert [config.name for config in describe_configs(image, "orders", None)] == sorted(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_default_is_itself_allowed(name: str) -> None:
    assert why_invalid(name, DEFINITIONS[name].default) is None


def grow(image: Image, *wanted: MorePartitions) -> list[tuple[str, ErrorCode]]:
    records, results = create_partitions(image, wanted, of_ids(BROKERS))
    for record in records:
        image.apply(record)
    return [(result["name"], result["error_code"]) for result in results]


def more(count: int, replicas: tuple[int, ...]) -> MorePartitions:
    """One partition more, with its replicas."""
    return MorePartitions("orders", count, [CreatePartitionsAssignment(broker_ids=replicas)])


def test_partitions_are_added_behind_those_that_exist(image: Image) -> None:
    before = dict(image.topics["orders"].partitions)
    assert grow(image, MorePartitions("orders", 3)) == [("orders", ErrorCode.none)]
    partitions = image.topics["orders"].partitions
    assert sorted(partitions) == [0, 1, 2] and partitions[0] == before[0]
    assert {len(set(partition.replicas)) for partition in partitions.values()} == {3}
    assert grow(image, more(4, (5, 4, 3))) == [("orders", ErrorCode.none)]
    assert image.topics["orders"].partitions[3].replicas == (5, 4, 3)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (MorePartitions("orders", 1), ErrorCode.invalid_partitions),
        (MorePartitions("orders", 0), ErrorCode.invalid_partitions),
        (MorePartitions("none", 2), ErrorCode.unknown_topic_or_partition),
        (more(3, (1, 2, 3)), ErrorCode.invalid_replica_assignment),
        (more(2, (1, 2)), ErrorCode.invalid_replica_assignment),
        (more(2, (1, 2, 9)), ErrorCode.invalid_replica_assignment),
        (more(2, ()), ErrorCode.invalid_replica_assignment),
        (MorePartitions("orders", RECORDS_MAX + 5), ErrorCode.policy_violation),
    ],
)
def test_partitions_that_cannot_be_added(image: Image, wanted: MorePartitions, error: ErrorCode) -> None:
    before = image.state_hash
    assert grow(image, wanted) == [(wanted.name, error)]
    assert image.state_hash == before


def delete(image: Image, *wanted: str | UUID) -> list[tuple[str, ErrorCode]]:
    records, results = delete_topics(image, wanted)
    for record in records:
        image.apply(record)
    return [(result["name"], result["error_code"]) for result in results]


def test_topics_are_deleted_by_name_or_id_and_can_be_created_again(image: Image) -> None:
    create(image, NewTopic("lines", 1, 1))
    alter(image, set_to("7"))
    assert delete(image, "orders", image.topics["lines"].id) == [("orders", ErrorCode.none), ("lines", ErrorCode.none)]
    assert not image.topics and image.state_hash == 0
    create(image, NewTopic("orders", 1, 1))
    assert not image.configs("orders"), "the configs of the old topic came back"


def test_deletions_that_are_refused(image: Image) -> None:
    stranger = UUID(int=99)
    assert delete(image, "none", stranger) == [
        ("none", ErrorCode.unknown_topic_or_partition),
        (None, ErrorCode.unknown_topic_id),
    ]
    twice = delete(image, "orders", image.topics["orders"].id)
    assert twice == [("orders", ErrorCode.invalid_request), (None, ErrorCode.invalid_request)]
    assert "orders" in image.topics


def test_brokers_and_groups_have_configs_of_their_own(image: Image) -> None:
    assert alter(image, set_to("9", "background.threads"), topic="1", kind=BROKER_RESOURCE) == (1, ErrorCode.none)
    assert alter(image, set_to("5", "background.threads"), topic="", kind=BROKER_RESOURCE) == (1, ErrorCode.none)
    appended = Alteration("log.cleanup.policy", ConfigOperation.APPEND, "compact")
    assert alter(image, appended, topic="1", kind=BROKER_RESOURCE) == (1, ErrorCode.none)
    assert alter(image, set_to("50000", "consumer.session.timeout.ms"), topic="g", kind=GROUP_RESOURCE)[1] == 0
    names = ["background.threads", "log.cleanup.policy", "num.io.threads"]
    first = describe_configs(image, "1", names, BROKER_RESOURCE)
    assert [(each.value, each.source) for each in first] == [
        ("9", ConfigSource.BROKER),
        ("delete,compact", ConfigSource.BROKER),
        ("8", ConfigSource.DEFAULT),
    ]
    [other, *_] = describe_configs(image, "2", names, BROKER_RESOURCE)
    assert (other.value, other.source) == ("5", ConfigSource.DEFAULT_BROKER)
    [common, *_] = describe_configs(image, "", names, BROKER_RESOURCE)
    assert (common.value, common.source) == ("5", ConfigSource.DEFAULT_BROKER)


def test_what_a_broker_was_started_with_is_described_and_cannot_be_altered(image: Image) -> None:
    broker = OfBroker(1, "host", 9092, "r1")
    described = {each.name: each for each in describe_configs(image, "1", None, BROKER_RESOURCE, broker)}
    listeners = described["advertised.listeners"]
    assert (listeners.value, listeners.source) == ("PLAINTEXT://host:9092", ConfigSource.STATIC_BROKER)
    assert described["node.id"].value == described["broker.id"].value == "1"
    assert described["broker.rack"].value == "r1"
    assert list(described) == sorted(described) and set(OF_BROKERS) < set(described)
    [rack] = describe_configs(image, "1", ["broker.rack"], BROKER_RESOURCE, broker)
    assert rack.value == "r1"
    assert "broker.rack" not in [each.name for each in describe_configs(image, "1", None, BROKER_RESOURCE)]
    for name in STATIC_OF_BROKERS:
        assert alter(image, set_to("2", name), topic="1", kind=BROKER_RESOURCE) == (0, ErrorCode.invalid_request)
    assert alter(image, set_to("2", "node.id"))[1] == ErrorCode.invalid_config, "a topic has no such config"


def test_resources_are_listed_by_their_type(image: Image) -> None:
    alter(image, set_to("50000", "consumer.session.timeout.ms"), topic="g", kind=GROUP_RESOURCE)
    alter(image, set_to("9", "background.threads"), topic="1", kind=BROKER_RESOURCE)
    brokers = {"1", "2"}
    everything = [
        (TOPIC_RESOURCE, "orders"),
        (BROKER_RESOURCE, "1"),
        (BROKER_RESOURCE, "2"),
        (BROKER_LOGGER, "1"),
        (BROKER_LOGGER, "2"),
        (GROUP_RESOURCE, "g"),
    ]
    assert list_resources(image, (), brokers) == everything
    for kind in (TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER, CLIENT_METRICS, GROUP_RESOURCE):
        assert list_resources(image, (kind,), brokers) == [each for each in everything if each[0] == kind]
    assert list_resources(image, (TOPIC_RESOURCE, 5), brokers) is None


@pytest.mark.parametrize(
    ("kind", "name", "config", "error"),
    [
        (BROKER_RESOURCE, "1", "retention.ms", ErrorCode.invalid_config),
        (BROKER_RESOURCE, "n1", "background.threads", ErrorCode.invalid_request),
        (GROUP_RESOURCE, "", "consumer.session.timeout.ms", ErrorCode.invalid_request),
        (8, "x", "level", ErrorCode.invalid_request),
        (4, "orders", "retention.ms", ErrorCode.invalid_request),
        (TOPIC_RESOURCE, "nowhere", "retention.ms", ErrorCode.unknown_topic_or_partition),
    ],
)
def test_configs_that_a_resource_cannot_have(image: Image, kind: int, name: str, config: str, error: ErrorCode) -> None:
    assert alter(image, set_to("9", config), topic=name, kind=kind) == (0, error)
