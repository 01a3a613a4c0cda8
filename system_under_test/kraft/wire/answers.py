"""Response entities from results, in the version of the request (`types`: kio's module of that version).

Fields a version does not have are left out by `make`; everything that differs between versions beyond that is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.access import Acl, Credentials, FilterResult, QuotaResult
from system_under_test.kraft.controller.configs import ConfigSource, Described, ResourceResult
from system_under_test.kraft.controller.image import Image, Topic
from system_under_test.kraft.controller.topics import TopicResult
from system_under_test.kraft.records.metadata import NO_LEADER, PartitionRecord, QuotaEntity
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.quorum_service import QuorumInfo, QuorumService
from system_under_test.kraft.wire.translate import TOPIC as METADATA_TOPIC
from system_under_test.kraft.wire.versions import filled, make, short

TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""Operations as bits: all that there are, because nothing is refused to anybody (KIP-430)."""

NO_OPERATIONS = -(2**31)
"""The client did not request, or may not see, which operations are authorized."""

_LATEST, _EARLIEST = -1, -2
"""Values of ListOffsets in place of a timestamp."""

_TOPIC_IDS_SINCE = 12
"""Metadata has a field for topic ids since version 10, but may ask by it, with a null name, only since this one."""

LISTENER = "CONTROLLER"
"""The name of the one listener every node has."""


def of_results(response: str, field: str, result: str, **whole: Any) -> Callable[[ModuleType, Iterable[Any]], Entity]:
    """Return a function that makes the named response, whose `field` has an entity `result` for each result.

    whole: values of its other fields."""

    def respond(types: ModuleType, results: Iterable[Any]) -> Entity:
        made = tuple(filled(getattr(types, result), each) for each in results)
        return make(getattr(types, response), **{field: made}, **whole)

    return respond


create_partitions = of_results("CreatePartitionsResponse", "results", "CreatePartitionsTopicResult")
update_features = of_results(
    "UpdateFeaturesResponse", "results", "UpdatableFeatureResult", error_code=ErrorCode.none, error_message=None
)
"""From version 2 on there would be no results, and one error for all; kio knows versions 0 and 1."""
create_acls = of_results("CreateAclsResponse", "results", "AclCreationResult")
alter_user_scram_credentials = of_results(
    "AlterUserScramCredentialsResponse", "results", "AlterUserScramCredentialsResult"
)
alter_configs = of_results("AlterConfigsResponse", "responses", "AlterConfigsResourceResponse")
incremental_alter_configs = of_results("IncrementalAlterConfigsResponse", "responses", "AlterConfigsResourceResponse")


def create_topics(types: ModuleType, results: Iterable[TopicResult]) -> Entity:
    topics = (filled(types.CreatableTopicResult, each, configs=None if each.error else ()) for each in results)
    return make(types.CreateTopicsResponse, topics=tuple(topics))


def delete_topics(types: ModuleType, results: Iterable[TopicResult]) -> Entity:
    """A topic that was named by an unknown id has no name."""
    unnamed = (None if each.topic_id is not None and not each.name else each.name for each in results)
    topics = (filled(types.DeletableTopicResult, each, name=name) for each, name in zip(results, unnamed, strict=True))
    return make(types.DeleteTopicsResponse, responses=tuple(topics))


def delete_acls(types: ModuleType, results: Iterable[FilterResult]) -> Entity:
    filters = tuple(
        filled(
            types.DeleteAclsFilterResult,
            result,
            matching_acls=tuple(
                types.DeleteAclsMatchingAcl(error_code=ErrorCode.none, error_message=None, **asdict(acl))
                for acl in result.matching
            ),
        )
        for result in results
    )
    return make(types.DeleteAclsResponse, filter_results=filters)


def describe_acls(types: ModuleType, found: Iterable[Acl], error: ErrorCode, message: str | None) -> Entity:
    """found: in the order of their resources."""
    by_resource = groupby(found, key=lambda acl: (acl.resource_type, acl.resource_name, acl.pattern_type))
    resources = tuple(
        filled(
            types.DescribeAclsResource, first, acls=tuple(filled(types.AclDescription, acl) for acl in (first, *rest))
        )
        for first, *rest in (entries for _, entries in by_resource)
    )
    return make(types.DescribeAclsResponse, error_code=error, error_message=short(message), resources=resources)


def alter_client_quotas(types: ModuleType, results: Iterable[QuotaResult]) -> Entity:
    entries = tuple(filled(types.EntryData, each, entity=_quota_entity(types, each.entity)) for each in results)
    return make(types.AlterClientQuotasResponse, entries=entries)


def describe_client_quotas(
    types: ModuleType,
    found: Mapping[tuple[QuotaEntity, ...], Mapping[str, float]] | tuple[()],
    error: ErrorCode,
    message: str | None,
) -> Entity:
    entries = tuple(
        types.EntryData(
            entity=_quota_entity(types, entity),
            values=tuple(types.ValueData(key=key, value=value) for key, value in values.items()),
        )
        for entity, values in dict(found).items()
    )
    found_entries = None if error else entries
    return make(
        types.DescribeClientQuotasResponse, error_code=error, error_message=short(message), entries=found_entries
    )


def _quota_entity(types: ModuleType, entity: Iterable[QuotaEntity]) -> tuple[Entity, ...]:
    return tuple(types.EntityData(entity_type=part.type, entity_name=part.name) for part in entity)


def describe_user_scram_credentials(
    types: ModuleType, found: Iterable[Credentials], error: ErrorCode, message: str | None
) -> Entity:
    results = tuple(
        filled(
            types.DescribeUserScramCredentialsResult,
            each,
            credential_infos=tuple(types.CredentialInfo(mechanism=m, iterations=n) for m, n in each.credentials),
        )
        for each in found
    )
    return make(
        types.DescribeUserScramCredentialsResponse, error_code=error, error_message=short(message), results=results
    )


def describe_configs(
    types: ModuleType, results: Iterable[tuple[ResourceResult, Sequence[Described]]], *, synonyms: bool
) -> Entity:
    described = tuple(
        filled(
            types.DescribeConfigsResult,
            result,
            configs=tuple(_config(types, config, synonyms) for config in configs),
        )
        for result, configs in results
    )
    return make(types.DescribeConfigsResponse, results=described)


def list_config_resources(types: ModuleType, found: Sequence[tuple[int, str]] | None) -> Entity:
    """found: (type, name) of each resource; None if a type was asked for that has none here.  As in Kafka, the version
    is what does not fit then (KIP-1142)."""
    error = ErrorCode.unsupported_version if found is None else ErrorCode.none
    resources = tuple(
        make(types.ConfigResource, resource_type=number, resource_name=name) for number, name in found or ()
    )
    return make(types.ListConfigResourcesResponse, error_code=error, config_resources=resources)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address at which clients reach a broker."""

    id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool = False


def brokers_of(quorum: QuorumService, image: Image, *, fenced: bool = False) -> list[BrokerAddress]:
    """Return the brokers of the cluster, by id. fenced: those, too, that are fenced."""
    if not quorum.registers_brokers:
        return [BrokerAddress(number, host, port) for number, (host, port) in sorted(quorum.brokers.items())]
    return [
        BrokerAddress(number, broker.endpoints[0].host, broker.endpoints[0].port, broker.rack, broker.fenced)
        for number, broker in sorted(image.brokers.items())
        if broker.endpoints and (fenced or not broker.fenced)
    ]


def _controller_for_clients(quorum: QuorumService, brokers: Sequence[BrokerAddress]) -> int:
    """Return the broker to which clients send admin requests: the leader if it is one, else any, which hands them
    on.
    """
    ids = [broker.id for broker in brokers]
    if quorum.leader_id in ids or not ids:
        return _or_unknown(quorum.leader_id)
    return ids[0]


def metadata(types: ModuleType, quorum: QuorumService, image: Image, body: Any) -> Entity:
    """body: the request; without topics it asks for every topic."""
    wanted = body.topics
    alive = brokers_of(quorum, image)
    ids = frozenset(broker.id for broker in alive)
    if wanted is None:
        topics = tuple(_topic(types, topic, ids) for topic in image.topics.values())
    else:
        topics = tuple(_wanted_topic(types, image, which, ids) for which in wanted)
    if getattr(body, "include_topic_authorized_operations", False):
        topics = tuple(
            topic if topic.error_code else replace(topic, topic_authorized_operations=TOPIC_OPERATIONS)
            for topic in topics
        )
    return make(
        types.MetadataResponse,
        brokers=tuple(filled(types.MetadataResponseBroker, each) for each in alive),
        cluster_id=quorum.cluster_id,
        controller_id=_controller_for_clients(quorum, alive),
        topics=topics,
        cluster_authorized_operations=_operations_of_cluster(body),
    )


def _operations_of_cluster(body: Any) -> int:
    return CLUSTER_OPERATIONS if getattr(body, "include_cluster_authorized_operations", False) else NO_OPERATIONS


BROKERS, CONTROLLERS = 1, 2
"""`endpoint_type` of DescribeCluster (KIP-919)."""


def describe_cluster(types: ModuleType, quorum: QuorumService, image: Image, body: Any) -> Entity:
    kind = getattr(body, "endpoint_type", BROKERS)
    if kind == CONTROLLERS:
        found = [BrokerAddress(number, host, port) for number, (host, port) in sorted(quorum.brokers.items())]
        controller = _or_unknown(quorum.leader_id)
    else:
        found = brokers_of(quorum, image, fenced=getattr(body, "include_fenced_brokers", False))
        controller = _controller_for_clients(quorum, [each for each in found if not each.fenced])
    known = kind in (BROKERS, CONTROLLERS)
    return make(
        types.DescribeClusterResponse,
        error_code=ErrorCode.none if known else ErrorCode.unsupported_endpoint_type,
        error_message=None if known else f"There are no endpoints of type {kind}.",
        endpoint_type=kind,
        cluster_authorized_operations=_operations_of_cluster(body),
        cluster_id=quorum.cluster_id,
        controller_id=controller,
        brokers=tuple(filled(types.DescribeClusterBroker, each) for each in (found if known else ())),
    )


def describe_topic_partitions(
    types: ModuleType,
    image: Image,
    wanted: Sequence[str],
    cursor: tuple[str, int] | None,
    partitions_max: int,
    alive: frozenset[int],
) -> Entity:
    """Topics by name and their partitions by number, `partitions_max` at most; the cursor names the next (KIP-966).

    wanted: none = every topic.  cursor: the first (topic, partition) to answer; None: from the beginning.
    alive: the brokers that are not fenced.
    """
    kind, begin = types.DescribeTopicPartitionsResponsePartition, cursor or ("", 0)
    topics: list[Entity] = []
    left = partitions_max
    for name in sorted({name for name in wanted or image.topics if name >= begin[0]}):
        topic = image.topics.get(name)
        first = begin[1] if name == begin[0] else 0
        partitions = [] if topic is None else [topic.partitions[n] for n in sorted(topic.partitions) if n >= first]
        if left == 0:
            return _topic_partitions(types, topics, types.Cursor(topic_name=name, partition_index=first))
        topics.append(
            types.DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.none if topic is not None else ErrorCode.unknown_topic_or_partition,
                name=name,
                topic_id=None if topic is None else topic.id,
                is_internal=False,
                partitions=tuple(_partition(kind, partition, alive) for partition in partitions[:left]),
                topic_authorized_operations=NO_OPERATIONS,
            )
        )
        if len(partitions) > left:
            cursor_there = types.Cursor(topic_name=name, partition_index=partitions[left].partition)
            return _topic_partitions(types, topics, cursor_there)
        left -= len(partitions)
    return _topic_partitions(types, topics, None)


def _topic_partitions(types: ModuleType, topics: Iterable[Entity], cursor: Entity | None) -> Entity:
    return make(types.DescribeTopicPartitionsResponse, topics=tuple(topics), next_cursor=cursor)


def describe_quorum(types: ModuleType, quorum: QuorumService, wanted: Sequence[Any]) -> Entity:
    """Voters and their progress from the leader; from any other node error 6, and the leader and epoch it knows."""
    topics = tuple(
        types.TopicData(
            topic_name=topic.topic_name,
            partitions=tuple(
                _quorum_partition(types, quorum, topic.topic_name, partition.partition_index)
                for partition in topic.partitions
            ),
        )
        for topic in wanted
    )
    values: dict[str, Any] = {}
    if hasattr(types, "Node"):
        values["nodes"] = tuple(
            types.Node(node_id=node_id, listeners=(types.Listener(name=LISTENER, host=host, port=port),))
            for node_id, (host, port) in sorted(quorum.brokers.items())
        )
    return make(types.DescribeQuorumResponse, error_code=ErrorCode.none, error_message=None, topics=topics, **values)


def list_offsets(types: ModuleType, node_id: int, image: Image, wanted: Sequence[Any]) -> Entity:
    """No node keeps the data of topics yet, so that every partition is empty: it begins and ends at offset 0."""

    def answer(topic: Any, partition: Any) -> Entity:
        known = image.topics.get(topic.name)
        state = None if known is None else known.partitions.get(partition.partition_index)
        if state is None:
            error = ErrorCode.unknown_topic_or_partition
        else:
            error = ErrorCode.none if state.leader == node_id else ErrorCode.not_leader_or_follower
        named_end = partition.timestamp in (_EARLIEST, _LATEST)
        return make(
            types.ListOffsetsPartitionResponse,
            partition_index=partition.partition_index,
            error_code=error,
            timestamp=-1,
            offset=0 if not error and named_end else -1,
            leader_epoch=state.leader_epoch if state is not None and not error else -1,
        )

    topics = tuple(
        types.ListOffsetsTopicResponse(name=topic.name, partitions=tuple(answer(topic, p) for p in topic.partitions))
        for topic in wanted
    )
    return make(types.ListOffsetsResponse, topics=topics)


def _config(types: ModuleType, config: Described, with_synonyms: bool) -> Entity:
    def synonym(value: str, source: ConfigSource) -> Entity:
        return types.DescribeConfigsSynonym(name=config.name, value=value, source=source)

    synonyms = []
    if with_synonyms and config.source is not ConfigSource.DEFAULT:
        synonyms.append(synonym(config.value, config.source))
    if with_synonyms and config.default is not None:
        synonyms.append(synonym(config.default, ConfigSource.DEFAULT))
    return filled(
        types.DescribeConfigsResourceResult,
        config,
        read_only=config.source is ConfigSource.STATIC_BROKER,
        config_source=int(config.source),
        is_sensitive=False,
        synonyms=tuple(synonyms),
        config_type=int(config.type),
        documentation=None,
    )


def _wanted_topic(types: ModuleType, image: Image, which: Any, alive: frozenset[int]) -> Entity:
    topic_id, name = getattr(which, "topic_id", None), which.name
    if types.MetadataResponse.__version__ < _TOPIC_IDS_SINCE and (topic_id is not None or name is None):
        topic, name, error = None, name or "", ErrorCode.invalid_request
    elif topic_id is None:
        topic, error = image.topics.get(name), ErrorCode.unknown_topic_or_partition
    else:
        topic, error = image.topic_of(topic_id), ErrorCode.unknown_topic_id
    if topic is not None:
        return _topic(types, topic, alive)
    kind = types.MetadataResponseTopic
    return make(kind, error_code=error, name=name, topic_id=topic_id, is_internal=False, partitions=())


def _topic(types: ModuleType, topic: Topic, alive: frozenset[int]) -> Entity:
    kind = types.MetadataResponsePartition
    return make(
        types.MetadataResponseTopic,
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=False,
        partitions=tuple(_partition(kind, topic.partitions[number], alive) for number in sorted(topic.partitions)),
    )


def _partition(kind: type[Any], partition: PartitionRecord, alive: frozenset[int]) -> Entity:
    return filled(
        kind,
        partition,
        error_code=ErrorCode.none if partition.leader != NO_LEADER else ErrorCode.leader_not_available,
        eligible_leader_replicas=partition.elr or (),
        last_known_elr=partition.last_known_elr or (),
        offline_replicas=tuple(replica for replica in partition.replicas if replica not in alive),
    )


def _quorum_partition(types: ModuleType, quorum: QuorumService, topic: str, index: int) -> Entity:
    info, error, message = quorum.describe(), ErrorCode.none, None
    if topic != METADATA_TOPIC or index != 0:
        info = QuorumInfo(None, -1, None, ())
        error, message = ErrorCode.unknown_topic_or_partition, "Only the metadata partition has a quorum."
    elif info.leader_id != quorum.node_id:
        info = QuorumInfo(info.leader_id, info.leader_epoch, None, ())
        error, message = ErrorCode.not_leader_or_follower, "This node does not lead the quorum."
    return make(
        types.PartitionData,
        partition_index=index,
        error_code=error,
        error_message=message,
        leader_id=_or_unknown(info.leader_id),
        leader_epoch=info.leader_epoch,
        high_watermark=_or_unknown(info.high_watermark),
        current_voters=tuple(filled(types.ReplicaState, each) for each in info.voters),
        observers=tuple(filled(types.ReplicaState, each) for each in info.observers),
    )


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number
