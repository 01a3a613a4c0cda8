"""The requests of brokers and about partitions, as decisions of the active controller: see `admin.py`.

Kafka refuses some of them as a whole.  So the results of such a request are an `Answer`: one error, and what was
decided if there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller import partition_requests
from system_under_test.kraft.controller.brokers import BrokerState, Heartbeat, Registration
from system_under_test.kraft.controller.decisions import knows_its_registration
from system_under_test.kraft.controller.features import CONTROLLERS_REGISTER_SINCE
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.partition_rules import AlterPartition, Election, IsrMember
from system_under_test.kraft.records import metadata
from system_under_test.kraft.wire import versions
from system_under_test.kraft.wire.quorum_service import Decision, DecisionContext
from system_under_test.kraft.wire.versions import Filled, filled, taken


@dataclass(frozen=True, slots=True)
class Answer:
    """found: what was decided, None if the whole request was refused."""

    error: ErrorCode
    message: str | None
    found: Any


Decided = tuple[list[metadata.Record], Answer]


def _refused(body: Any, why: Refused) -> Answer:
    return Answer(why.error, why.message, None)


def _ok(found: Any) -> Answer:
    return Answer(ErrorCode.none, None, found)


def _plain(answer: Answer) -> Answer:
    """An answer that says nothing but whether the request was refused."""
    return answer


# -- Broker lifecycle


def _register(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    quorum = cluster.quorum
    if body.cluster_id != quorum.cluster_id:
        words = f"This is cluster {quorum.cluster_id}, not {body.cluster_id}."
        raise Refused(ErrorCode.inconsistent_cluster_id, words)
    request = Registration(
        body.broker_id,
        body.incarnation_id or metadata.NO_UUID,
        tuple(taken(metadata.Endpoint, each) for each in body.listeners),
        tuple(taken(metadata.FeatureRange, each) for each in body.features),
        body.rack,
        tuple(each or metadata.NO_UUID for each in getattr(body, "log_dirs", ())),
        getattr(body, "previous_broker_epoch", life.UNKNOWN_EPOCH),
        getattr(body, "is_migrating_zk_broker", False),
    )
    records = life.register(image, quorum.sessions, request, quorum.next_offset, quorum.now_s())
    return records, _ok(life.epoch_in(records))


def _registered(answer: Answer) -> Filled:
    return filled(answer, broker_epoch=life.UNKNOWN_EPOCH if answer.found is None else answer.found)


def _heartbeat(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    cordoned = getattr(body, "cordoned_log_dirs", None)
    request = Heartbeat(
        body.broker_id,
        body.broker_epoch,
        body.current_metadata_offset,
        body.want_fence,
        body.want_shut_down,
        tuple(each or metadata.NO_UUID for each in getattr(body, "offline_log_dirs", ())),
        None if cordoned is None else tuple(each or metadata.NO_UUID for each in cordoned),
    )
    quorum = cluster.quorum
    records, state = life.heartbeat(image, quorum.sessions, request, quorum.next_offset, quorum.now_s())
    caught_up = knows_its_registration(request.metadata_offset, request.broker_epoch, quorum.bugs)
    return records, _ok((state, caught_up))


def _beaten(answer: Answer) -> Filled:
    state, caught_up = answer.found or (BrokerState.FENCED, False)
    return filled(
        answer,
        is_caught_up=caught_up,
        is_fenced=state in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW),
        should_shut_down=state is BrokerState.SHUTDOWN_NOW,
    )


def _unregister(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    return life.unregister(image, cluster.quorum.sessions, body.broker_id), _ok(())


def _register_controller(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    if (image.metadata_version or 0) < CONTROLLERS_REGISTER_SINCE:
        raise Refused(ErrorCode.unsupported_version, "The level of metadata.version has no such registrations.")
    endpoints = tuple(taken(metadata.Endpoint, each) for each in body.listeners)
    features = tuple(taken(metadata.FeatureRange, each) for each in body.features)
    incarnation = body.incarnation_id or metadata.NO_UUID
    return [metadata.RegisterControllerRecord(body.controller_id, incarnation, False, endpoints, features)], _ok(())


def _allocate(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    records, first = partition_requests.allocate_producer_ids(image, body.broker_id, body.broker_epoch)
    return records, _ok(first)


def _allocated(answer: Answer) -> Filled:
    refused = answer.found is None
    length = 0 if refused else partition_requests.PRODUCER_IDS_OF_A_BLOCK
    return filled(answer, producer_id_start=-1 if refused else answer.found, producer_id_len=length)


# -- Partitions


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
    return records, _ok(list(zip(wanted, answers, strict=True)))


def _assigned(answer: Answer) -> Filled:
    found: dict[UUID, dict[UUID, list[Any]]] = {}
    for (topic, number, directory), each in answer.found or ():
        partition = {"partition_index": number, "error_code": each.error}
        found.setdefault(directory, {}).setdefault(topic, []).append(partition)
    return filled(
        answer,
        directories=[
            {"id_": each, "topics": [{"topic_id": key, "partitions": some} for key, some in topics.items()]}
            for each, topics in found.items()
        ],
    )


def _alter(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    wanted = [
        (topic.topic_id or metadata.NO_UUID, partition.partition_index, _proposal(body.broker_id, partition))
        for topic in body.topics
        for partition in topic.partitions
    ]
    records, answers = partition_requests.alter_partitions(
        image, body.broker_id, body.broker_epoch, wanted, cluster.quorum.bugs
    )
    return records, _ok(answers)


def _proposal(leader: int, partition: Any) -> AlterPartition:
    """Up to version 2 the members of the in-sync set come without their epochs."""
    if hasattr(partition, "new_isr"):
        isr = tuple(IsrMember(broker) for broker in partition.new_isr)
    else:
        isr = tuple(IsrMember(each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs)
    return AlterPartition(
        leader, partition.leader_epoch, partition.partition_epoch, isr, partition.leader_recovery_state
    )


def _altered(answer: Answer) -> Filled:
    topics = [
        {"topic_id": key, "partitions": [_altered_partition(each) for each in some]} for key, some in _by_topic(answer)
    ]
    return filled(answer, topics=topics)


def _by_topic(answer: Answer) -> Iterator[tuple[Any, list[partition_requests.PartitionAnswer]]]:
    """Yield each topic of an answer with its partitions, in the order of the request."""
    found: dict[UUID | str, list[partition_requests.PartitionAnswer]] = {}
    for each in answer.found or ():
        found.setdefault(each.topic, []).append(each)
    yield from found.items()


def _altered_partition(answer: partition_requests.PartitionAnswer) -> Filled:
    now = answer.now or metadata.PartitionRecord(answer.partition, metadata.NO_UUID, (), ())
    return filled(now, error_code=answer.error)


_ELECTIONS = {0: Election.PREFERRED, 1: Election.UNCLEAN}


def _elect(body: Any, cluster: DecisionContext, image: Image) -> Decided:
    election = _ELECTIONS.get(getattr(body, "election_type", 0))
    if election is None:
        raise Refused(ErrorCode.invalid_request, f"There is no election of type {body.election_type}.")
    wanted = None
    if body.topic_partitions is not None:
        wanted = [(topic.topic, number) for topic in body.topic_partitions for number in topic.partitions]
    records, answers = partition_requests.elect_leaders(image, wanted, election, cluster.quorum.bugs)
    return records, _ok(answers)


def _elected(answer: Answer) -> Filled:
    topics = [{"topic": name, "partition_result": some} for name, some in _by_topic(answer)]
    return filled(answer, replica_election_results=topics)


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
    return records, _ok(answers)


def _reassigned(answer: Answer) -> Filled:
    responses = [{"name": name, "partitions": some} for name, some in _by_topic(answer)]
    return filled(answer, allow_replication_factor_change=True, responses=responses)


def list_reassignments(
    found: Mapping[str, Sequence[metadata.PartitionRecord]] | tuple[()], error: ErrorCode, message: str | None
) -> Mapping[str, Any]:
    """Return the answer of ListPartitionReassignments."""
    topics = [{"name": name, "partitions": partitions} for name, partitions in dict(found).items()]
    return {"error_code": error, "error_message": message, "topics": topics}


DECISIONS: dict[int, Decision] = {
    versions.BROKER_REGISTRATION: Decision(_register, _refused, _registered, at_once=True),
    versions.BROKER_HEARTBEAT: Decision(_heartbeat, _refused, _beaten),
    versions.UNREGISTER_BROKER: Decision(_unregister, _refused, _plain),
    versions.CONTROLLER_REGISTRATION: Decision(_register_controller, _refused, _plain),
    versions.ASSIGN_REPLICAS_TO_DIRS: Decision(_assign, _refused, _assigned),
    versions.ALLOCATE_PRODUCER_IDS: Decision(_allocate, _refused, _allocated),
    versions.ALTER_PARTITION: Decision(_alter, _refused, _altered),
    versions.ELECT_LEADERS: Decision(_elect, _refused, _elected),
    versions.ALTER_PARTITION_REASSIGNMENTS: Decision(_reassign, _refused, _reassigned),
}
"""API key -> how it is decided."""
