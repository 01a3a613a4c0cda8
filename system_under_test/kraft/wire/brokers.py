"""Requests from brokers and requests about partitions.  The active controller answers each with one decision: see
`admin.py`.

Kafka rejects some of these requests as a whole.  So the result of such a request is the content of the whole response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller import partition_requests
from system_under_test.kraft.controller.brokers import BrokerState, Heartbeat, Registration
from system_under_test.kraft.controller.decisions import knows_its_registration
from system_under_test.kraft.controller.features import CONTROLLERS_REGISTER_SINCE
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import Found, Result, result
from system_under_test.kraft.controller.partition_rules import AlterPartition, Election, IsrMember
from system_under_test.kraft.records import metadata
from system_under_test.kraft.wire import versions
from system_under_test.kraft.wire.quorum_service import Decision, DecisionContext
from system_under_test.kraft.wire.versions import filled

Decided = tuple[list[metadata.Record], Found]


def _decision(
    decide: Callable[[Any, DecisionContext, Image], Decided], *, at_once: bool = False, **refused: Any
) -> Decision:
    """Return a decision with one result for the whole request.

    decide: returns the records, and the fields of the response besides the error
    refused: these fields if the whole request is rejected
    """
    return Decision(decide, lambda body, why: result(refused, why), lambda found: found, at_once)


# -- Broker lifecycle


def _register(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    quorum = cluster.quorum
    if body.cluster_id != quorum.cluster_id:
        words = f"This is cluster {quorum.cluster_id}, not {body.cluster_id}."
        raise Refused(ErrorCode.inconsistent_cluster_id, words)
    request = Registration(
        body.broker_id,
        body.incarnation_id or metadata.NO_UUID,
        _endpoints(body),
        _features(body),
        body.rack,
        _directories(getattr(body, "log_dirs", ())),
        getattr(body, "previous_broker_epoch", life.UNKNOWN_EPOCH),
        getattr(body, "is_migrating_zk_broker", False),
    )
    records = life.register(image, quorum.sessions, request, quorum.next_offset, quorum.now_s())
    return records, {"broker_epoch": life.epoch_in(records)}


def _endpoints(body: Any) -> tuple[metadata.Endpoint, ...]:
    return tuple(metadata.Endpoint(each.name, each.host, each.port, each.security_protocol) for each in body.listeners)


def _features(body: Any) -> tuple[metadata.FeatureRange, ...]:
    return tuple(
        metadata.FeatureRange(each.name, each.min_supported_version, each.max_supported_version)
        for each in body.features
    )


def _directories(given: Iterable[UUID | None]) -> tuple[UUID, ...]:
    return tuple(each or metadata.NO_UUID for each in given)


def _heartbeat(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    cordoned = getattr(body, "cordoned_log_dirs", None)
    request = Heartbeat(
        body.broker_id,
        body.broker_epoch,
        body.current_metadata_offset,
        body.want_fence,
        body.want_shut_down,
        _directories(getattr(body, "offline_log_dirs", ())),
        None if cordoned is None else _directories(cordoned),
    )
    quorum = cluster.quorum
    records, state = life.heartbeat(image, quorum.sessions, request, quorum.next_offset, quorum.now_s())
    return records, {
        "is_caught_up": knows_its_registration(request.metadata_offset, request.broker_epoch, quorum.bugs),
        "is_fenced": state in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
        "should_shut_down": state is BrokerState.SHUTDOWN_NOW,
    }


def _unregister(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    return life.unregister(image, cluster.quorum.sessions, body.broker_id), {}


def _register_controller(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    if (image.metadata_version or 0) < CONTROLLERS_REGISTER_SINCE:
        raise Refused(
            ErrorCode.unsupported_version,
            "This level of metadata.version does not support registrations of controllers.",
        )
    incarnation = body.incarnation_id or metadata.NO_UUID
    number, endpoints, features = body.controller_id, _endpoints(body), _features(body)
    return [metadata.RegisterControllerRecord(number, incarnation, False, endpoints, features)], {}


def _allocate(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    records, first = partition_requests.allocate_producer_ids(image, body.broker_id, body.broker_epoch)
    return records, {"producer_id_start": first, "producer_id_len": partition_requests.PRODUCER_IDS_OF_A_BLOCK}


# -- Partitions


def _by(name: str, results: Iterable[Result], key: str, inside: str = "partitions") -> list[dict[str, Any]]:
    """Group results by one of their fields, in the order of the request.

    name, inside: fields of a group, for the common value and for its results
    """
    found: dict[Any, list[Result]] = {}
    for each in results:
        found.setdefault(each[key], []).append(each)
    return [{name: each, inside: some} for each, some in found.items()]


def _assign(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    wanted = [
        (topic.topic_id or metadata.NO_UUID, partition.partition_index, directory.id_ or metadata.NO_UUID)
        for directory in body.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]
    records, answers = partition_requests.assign_directories(
        image, body.broker_id, body.broker_epoch, wanted, cluster.quorum.bugs
    )
    placed = [{**each, "directory": directory} for each, (_, _, directory) in zip(answers, wanted, strict=True)]
    directories = _by("id_", placed, "directory", "topics")
    return records, {
        "directories": [{**each, "topics": _by("topic_id", each["topics"], "topic")} for each in directories]
    }


def _alter(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    wanted = [
        (topic.topic_id or metadata.NO_UUID, partition.partition_index, _proposal(body.broker_id, partition))
        for topic in body.topics
        for partition in topic.partitions
    ]
    records, answers = partition_requests.alter_partitions(
        image, body.broker_id, body.broker_epoch, wanted, cluster.quorum.bugs
    )
    nothing = metadata.PartitionRecord(-1, metadata.NO_UUID, (), ())
    topics = _by("topic_id", answers, "topic")
    for topic in topics:
        topic["partitions"] = [filled(each["now"] or nothing, **each) for each in topic["partitions"]]
    return records, {"topics": topics}


def _proposal(leader: int, partition: Any) -> AlterPartition:
    """Return the proposed in-sync set.  Up to version 2, the request names the members without their broker epochs."""
    if hasattr(partition, "new_isr"):
        isr = tuple(IsrMember(broker) for broker in partition.new_isr)
    else:
        isr = tuple(IsrMember(each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs)
    return AlterPartition(
        leader, partition.leader_epoch, partition.partition_epoch, isr, partition.leader_recovery_state
    )


_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def _elect(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    election = _ELECTIONS.get(getattr(body, "election_type", 0))
    if election is None:
        raise Refused(ErrorCode.invalid_request, f"There is no election of type {body.election_type}.")
    wanted = None
    if body.topic_partitions is not None:
        wanted = [(topic.topic, number) for topic in body.topic_partitions for number in topic.partitions]
    records, answers = partition_requests.elect_leaders(image, wanted, election, cluster.quorum.bugs)
    return records, {"replica_election_results": _by("topic", answers, "topic", "partition_result")}


def _reassign(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    wanted = [
        (topic.name, partition.partition_index, partition.replicas)
        for topic in body.topics
        for partition in topic.partitions
    ]
    factor_may_change = getattr(body, "allow_replication_factor_change", True)
    records, answers = partition_requests.reassign_partitions(
        image, wanted, cluster.quorum.bugs, factor_may_change=factor_may_change
    )
    return records, {"responses": _by("name", answers, "topic")}


def list_reassignments(image: Image, body: Any) -> list[Mapping[str, Any]]:
    """Return the topics of a ListPartitionReassignments response."""
    wanted = None if body.topics is None else {topic.name: topic.partition_indexes for topic in body.topics}
    found = partition_requests.reassignments(image, wanted)
    return [{"name": name, "partitions": partitions} for name, partitions in found.items()]


DECISIONS: dict[int, Decision] = {
    versions.BROKER_REGISTRATION: _decision(_register, at_once=True),
    versions.BROKER_HEARTBEAT: _decision(_heartbeat, should_shut_down=False),
    versions.UNREGISTER_BROKER: _decision(_unregister),
    versions.CONTROLLER_REGISTRATION: _decision(_register_controller),
    versions.ASSIGN_REPLICAS_TO_DIRS: _decision(_assign, directories=()),
    versions.ALLOCATE_PRODUCER_IDS: _decision(_allocate, producer_id_start=-1, producer_id_len=0),
    versions.ALTER_PARTITION: _decision(_alter, topics=()),
    versions.ELECT_LEADERS: _decision(_elect, replica_election_results=()),
    versions.ALTER_PARTITION_REASSIGNMENTS: _decision(_reassign, responses=()),
}
"""API key -> its decision."""
