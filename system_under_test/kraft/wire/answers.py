"""Contents of the responses, as fields: `versions.built` makes each response in the version of its request.

`built` leaves out the fields that a version lacks.  All other differences between versions are handled here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.configs import ConfigSource, Described
from system_under_test.kraft.controller.image import Image, Topic
from system_under_test.kraft.raft.voters import LISTENER
from system_under_test.kraft.records.metadata import NO_LEADER, PartitionRecord
from system_under_test.kraft.wire.quorum_service import QuorumInfo, QuorumService
from system_under_test.kraft.wire.translate import TOPIC as METADATA_TOPIC
from system_under_test.kraft.wire.versions import Filled, filled

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Authorized operations as bits: all operations, because every client is allowed everything (KIP-430)."""

NO_OPERATIONS = -(2**31)
"""Value for a client that did not request the authorized operations."""

_LATEST, _EARLIEST = -1, -2
"""Values of a ListOffsets timestamp with a special meaning."""

_TOPIC_IDS_SINCE = 12
"""First version of Metadata that can request a topic by its id, with a null name.  The field for the id exists since
version 10.
"""


Given = Mapping[str, Any]


def list_config_resources(found: Sequence[tuple[int, str]] | None) -> Given:
    """Return the fields of a ListConfigResources response.

    found: (type, name) of each resource; None if a requested type is not supported here.  As in Kafka, the error is
        then UNSUPPORTED_VERSION (KIP-1142).
    """
    error = ErrorCode.unsupported_version if found is None else ErrorCode.none
    resources = [{"resource_type": number, "resource_name": name} for number, name in found or ()]
    return {"error_code": error, "config_resources": resources}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address at which clients reach a broker."""

    id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False


def brokers_of(quorum: QuorumService, image: Image, *, fenced: bool = False) -> list[BrokerAddress]:
    """Return the brokers of the cluster, by id.

    fenced: True to include fenced brokers
    """
    if not quorum.registers_brokers:
        return [BrokerAddress(number, host, port) for number, (host, port) in sorted(quorum.brokers.items())]
    return [
        BrokerAddress(number, broker.endpoints[0].host, broker.endpoints[0].port, broker.rack, broker.fenced)
        for number, broker in sorted(image.brokers.items())
        if broker.endpoints and (fenced or not broker.fenced)
    ]


def _controller_for_clients(quorum: QuorumService, brokers: Sequence[BrokerAddress]) -> int:
    """Return the broker to which clients should send admin requests: the leader if it is a broker, otherwise any
    broker, which forwards the requests.
    """
    ids = [broker.id for broker in brokers]
    if quorum.leader_id in ids or not ids:
        return _or_unknown(quorum.leader_id)
    return ids[0]


def metadata(quorum: QuorumService, image: Image, body: Any) -> Given:
    """Return the fields of a Metadata response.

    body: the request; without topics, it requests every topic
    """
    alive = brokers_of(quorum, image)
    ids = frozenset(broker.id for broker in alive)
    if body.topics is None:
        topics = [_topic(topic, ids) for topic in image.topics.values()]
    else:
        topics = [_wanted_topic(image, which, ids, body.__version__) for which in body.topics]
    if getattr(body, "include_topic_authorized_operations", False):
        topics = [each if "error_code" in each else {**each, **_ALL_OPERATIONS} for each in topics]
    return {
        "brokers": alive,
        "cluster_id": quorum.cluster_id,
        "controller_id": _controller_for_clients(quorum, alive),
        "topics": topics,
        "cluster_authorized_operations": _operations_of_cluster(body),
    }


_ALL_OPERATIONS = {"topic_authorized_operations": TOPIC_OPERATIONS}


def _operations_of_cluster(body: Any) -> int:
    return CLUSTER_OPERATIONS if getattr(body, "include_cluster_authorized_operations", False) else NO_OPERATIONS


BROKERS, CONTROLLERS = 1, 2
"""Values of `endpoint_type` in DescribeCluster (KIP-919)."""


def describe_cluster(quorum: QuorumService, image: Image, body: Any) -> Given:
    kind = getattr(body, "endpoint_type", BROKERS)
    if kind == CONTROLLERS:
        found = [BrokerAddress(number, host, port) for number, (host, port) in sorted(quorum.brokers.items())]
        controller = _or_unknown(quorum.leader_id)
    else:
        found = brokers_of(quorum, image, fenced=getattr(body, "include_fenced_brokers", False))
        controller = _controller_for_clients(quorum, [each for each in found if not each.fenced])
    known = kind in (BROKERS, CONTROLLERS)
    return {
        "error_code": ErrorCode.none if known else ErrorCode.unsupported_endpoint_type,
        "error_message": None if known else f"There are no endpoints of type {kind}.",
        "endpoint_type": kind,
        "cluster_authorized_operations": _operations_of_cluster(body),
        "cluster_id": quorum.cluster_id,
        "controller_id": controller,
        "brokers": found if known else (),
    }


def describe_topic_partitions(
    image: Image,
    wanted: Sequence[str],
    cursor: tuple[str, int] | None,
    partitions_max: int,
    alive: frozenset[int],
) -> Given:
    """Return topics by name and their partitions by number, at most `partitions_max` partitions.  The returned cursor
    names the next partition (KIP-966).

    wanted: names of the requested topics; empty for every topic
    cursor: the first (topic, partition) to return; None for the beginning
    alive: the brokers that are not fenced
    """
    begin = cursor or ("", 0)
    topics: list[Given] = []
    left = partitions_max
    for name in sorted({name for name in wanted or image.topics if name >= begin[0]}):
        topic = image.topics.get(name)
        first = begin[1] if name == begin[0] else 0
        partitions = [] if topic is None else [topic.partitions[n] for n in sorted(topic.partitions) if n >= first]
        if left == 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": first}}
        topics.append(
            {
                "error_code": ErrorCode.none if topic is not None else ErrorCode.unknown_topic_or_partition,
                "name": name,
                "topic_id": None if topic is None else topic.id,
                "is_internal": False,
                "partitions": [_partition(partition, alive) for partition in partitions[:left]],
                "topic_authorized_operations": NO_OPERATIONS,
            }
        )
        if len(partitions) > left:
            there = {"topic_name": name, "partition_index": partitions[left].partition}
            return {"topics": topics, "next_cursor": there}
        left -= len(partitions)
    return {"topics": topics, "next_cursor": None}


def describe_quorum(quorum: QuorumService, wanted: Sequence[Any]) -> Given:
    """Return the voters and their progress, as the leader knows them.  Any other node returns error 6, with the leader
    and the epoch that it knows.
    """
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _quorum_partition(quorum, topic.topic_name, partition.partition_index) for partition in topic.partitions
            ],
        }
        for topic in wanted
    ]
    nodes = [
        {"node_id": node_id, "listeners": [{"name": LISTENER, "host": host, "port": port}]}
        for node_id, (host, port) in sorted(quorum.brokers.items())
    ]
    return {"topics": topics, "nodes": nodes}


def list_offsets(node_id: int, image: Image, wanted: Sequence[Any]) -> Given:
    """Return the offsets of partitions.  Nodes store no data of topics, so every partition begins and ends at
    offset 0.
    """

    def answer(topic: Any, partition: Any) -> Given:
        known = image.topics.get(topic.name)
        state = None if known is None else known.partitions.get(partition.partition_index)
        if state is None:
            error = ErrorCode.unknown_topic_or_partition
        else:
            error = ErrorCode.none if state.leader == node_id else ErrorCode.not_leader_or_follower
        named_end = partition.timestamp in (_EARLIEST, _LATEST)
        return {
            "partition_index": partition.partition_index,
            "error_code": error,
            "timestamp": -1,
            "offset": 0 if not error and named_end else -1,
            "leader_epoch": state.leader_epoch if state is not None and not error else -1,
        }

    return {
        "topics": [
            {"name": topic.name, "partitions": [answer(topic, each) for each in topic.partitions]} for topic in wanted
        ]
    }


def described_config(config: Described, with_synonyms: bool) -> Filled:
    synonyms: list[Given] = []
    if with_synonyms and config.source is not ConfigSource.DEFAULT:
        synonyms.append({"name": config.name, "value": config.value, "source": config.source})
    if with_synonyms and config.default is not None:
        synonyms.append({"name": config.name, "value": config.default, "source": ConfigSource.DEFAULT})
    return filled(
        config,
        read_only=config.source is ConfigSource.STATIC_BROKER,
        config_source=int(config.source),
        is_sensitive=False,
        synonyms=synonyms,
        config_type=int(config.type),
        documentation=None,
    )


def _wanted_topic(image: Image, which: Any, alive: frozenset[int], version: int) -> Given:
    topic_id, name = getattr(which, "topic_id", None), which.name
    if version < _TOPIC_IDS_SINCE and (topic_id is not None or name is None):
        topic, name, error = None, name or "", ErrorCode.invalid_request
    elif topic_id is None:
        topic, error = image.topics.get(name), ErrorCode.unknown_topic_or_partition
    else:
        topic, error = image.topic_of(topic_id), ErrorCode.unknown_topic_id
    if topic is not None:
        return _topic(topic, alive)
    return {"error_code": error, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": ()}


def _topic(topic: Topic, alive: frozenset[int]) -> Given:
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": False,
        "partitions": [_partition(topic.partitions[number], alive) for number in sorted(topic.partitions)],
    }


def _partition(partition: PartitionRecord, alive: frozenset[int]) -> Filled:
    return filled(
        partition,
        error_code=ErrorCode.none if partition.leader != NO_LEADER else ErrorCode.leader_not_available,
        eligible_leader_replicas=partition.elr or (),
        last_known_elr=partition.last_known_elr or (),
        offline_replicas=[replica for replica in partition.replicas if replica not in alive],
    )


def _quorum_partition(quorum: QuorumService, topic: str, index: int) -> Filled:
    info, error, message = quorum.describe(), ErrorCode.none, None
    if topic != METADATA_TOPIC or index != 0:
        info = QuorumInfo(None, -1, None, ())
        error, message = ErrorCode.unknown_topic_or_partition, "Only the metadata partition has a quorum."
    elif info.leader_id != quorum.node_id:
        info = QuorumInfo(info.leader_id, info.leader_epoch, None, ())
        error, message = ErrorCode.not_leader_or_follower, "This node does not lead the quorum."
    return filled(
        info,
        partition_index=index,
        error_code=error,
        error_message=message,
        leader_id=_or_unknown(info.leader_id),
        high_watermark=_or_unknown(info.high_watermark),
        current_voters=info.voters,
    )


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number
