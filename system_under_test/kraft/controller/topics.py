"""Decisions that create, extend and delete topics: pure functions of the image.

    create_topics(image, wanted, ...)      -> (records, one result per topic)
    create_partitions(image, wanted, ...)  -> (records, one result per topic)
    delete_topics(image, wanted)           -> (records, one result per topic)

There is a separate decision about each topic, and the records of accepted topics form one atomic batch: for each topic
its Topic record, its Config records, and then its Partition records.  Replicas are placed topic by topic; each topic
begins one broker after the previous topic.  Replicas on live brokers start in sync, and the first of these replicas
leads.  A deleted topic's partitions and configs are removed with it, by one record.

Placement.  Replicas of a partition are spread over racks, one rack after another.  Live brokers come first.  A fenced
broker gets a replica only if there are too few live brokers, and its replica is not in sync.  The first replica leads.
From partition to partition, the placement begins one rack further, and within a rack one broker further, so that
leaders are spread evenly.  (Kafka begins at a random rack and broker; here `first` determines the begin, so that a run
can be repeated.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import configs as configuration
from system_under_test.kraft.controller.brokers import directories_are_named, directory_of
from system_under_test.kraft.controller.image import Image, Refused, Topic
from system_under_test.kraft.controller.one_by_one import Found, Result, one_by_one
from system_under_test.kraft.records import metadata

NAME_MAX_CHARACTERS = 249
RECORDS_MAX = 10_000
"""Maximum number of records of one request, which must fit into one atomic batch (Kafka's MAX_RECORDS_PER_USER_OP)."""
DEFAULT_PARTITIONS = 1
DEFAULT_REPLICATION_FACTOR = 1
RESERVED = "__cluster_metadata"

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class NewTopic(NamedTuple):
    """The fields of kio's CreatableTopic.  -1 stands for the default."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Any] = ()
    configs: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """The fields of kio's CreatePartitionsTopic.

    count: number of all partitions after the request
    assignments: replicas of each new partition; None to assign them automatically
    """

    name: str
    count: int
    assignments: Sequence[Any] | None = None


def create_topics(
    image: Image, wanted: Sequence[NewTopic], brokers: Iterable[PlacementCandidate], new_id: Callable[[], UUID]
) -> tuple[list[metadata.Record], list[Result]]:
    """Create topics.

    wanted: entries of the request, or objects with the same fields
    new_id: returns a fresh topic id at each call
    """
    candidates = list(brokers)
    numbers = count(len(image.topics))

    def decide(topic: NewTopic) -> tuple[list[metadata.Record], Found]:
        named = [each.partition_index for each in topic.assignments] + [each.name for each in topic.configs]
        if len(set(named)) != len(named):
            raise Refused(ErrorCode.invalid_request, "A partition or a config of the topic is named more than once.")
        _check_name(image, topic.name)
        if topic.assignments:
            placed = _assigned(topic, candidates)
        else:
            placed = _placed(topic.num_partitions, topic.replication_factor, candidates, next(numbers))
        topic_id, overrides = new_id(), _overrides(topic)
        records: list[metadata.Record] = [metadata.TopicRecord(topic.name, topic_id)]
        for name, value in overrides.items():
            records.append(metadata.ConfigRecord(metadata.TOPIC_RESOURCE, topic.name, name, value))
        records += [_partition(number, topic_id, replicas, candidates) for number, replicas in enumerate(placed)]
        counts = {"num_partitions": len(placed), "replication_factor": len(placed[0])}
        return records, {"topic_id": topic_id, "configs": (), **counts}

    return one_by_one(wanted, about_topic, decide, named=_name, what="topic", records_max=RECORDS_MAX)


_name = attrgetter("name")


def about_topic(topic: Any) -> Found:
    """Return the fields that identify a topic in a result.

    topic: entry of a request that names topics
    """
    return {"name": topic.name, "topic_id": None, "configs": None}


def create_partitions(
    image: Image, wanted: Sequence[MorePartitions], brokers: Iterable[PlacementCandidate]
) -> tuple[list[metadata.Record], list[Result]]:
    """Add partitions after the existing ones."""
    candidates = list(brokers)

    def decide(more: MorePartitions) -> tuple[list[metadata.Record], Found]:
        known = image.topics.get(more.name)
        if known is None:
            raise Refused(ErrorCode.unknown_topic_or_partition, f"There is no topic '{more.name}'.")
        first = len(known.partitions)
        placed = _placed_more(more, first, len(known.partitions[0].replicas), candidates)
        return [_partition(first + i, known.id, replicas, candidates) for i, replicas in enumerate(placed)], {}

    return one_by_one(wanted, about_topic, decide, named=_name, what="topic", records_max=RECORDS_MAX)


def about_deletion(which: str | UUID) -> Found:
    """Return the fields that identify a topic in the result of a deletion.  A topic with an unknown id has no name."""
    return {"name": which, "topic_id": None} if isinstance(which, str) else {"name": None, "topic_id": which}


def delete_topics(image: Image, wanted: Sequence[str | UUID]) -> tuple[list[metadata.Record], list[Result]]:
    """Delete topics by name or by id."""

    def found(which: str | UUID) -> Topic | None:
        return image.topics.get(which) if isinstance(which, str) else image.topic_of(which)

    def decide(which: str | UUID) -> tuple[list[metadata.Record], Found]:
        topic = found(which)
        if topic is None and isinstance(which, str):
            raise Refused(ErrorCode.unknown_topic_or_partition, f"There is no topic '{which}'.")
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_id, "There is no topic with this id.")
        return [metadata.RemoveTopicRecord(topic.id)], {"name": topic.name, "topic_id": topic.id}

    return one_by_one(
        wanted, about_deletion, decide, named=lambda which: (topic := found(which)) and topic.id, what="topic"
    )


def _placed_more(
    more: MorePartitions, first: int, factor: int, brokers: Sequence[PlacementCandidate]
) -> list[tuple[int, ...]]:
    """Return the replicas of the new partitions.

    first: number of the first new partition
    factor: number of replicas of each partition
    """
    added = more.count - first
    if added <= 0:
        words = f"The topic already has {first} partitions, and the request asks for {more.count}; none can be removed."
        raise Refused(ErrorCode.invalid_partitions, words)
    if more.assignments is None:
        return _placed(added, factor, brokers, first)
    if len(more.assignments) != added:
        words = f"The request adds {added} partitions, but assigns replicas to {len(more.assignments)}."
        raise Refused(ErrorCode.invalid_replica_assignment, words)
    placed = _usable([tuple(each.broker_ids) for each in more.assignments], brokers)
    if len(placed[0]) != factor:
        words = f"The partitions of the topic have {factor} replicas, but the request assigns {len(placed[0])}."
        raise Refused(ErrorCode.invalid_replica_assignment, words)
    return placed


def _check_name(image: Image, name: str) -> None:
    def illegal(why: str) -> Refused:
        return Refused(ErrorCode.invalid_topic_exception, f"Topic name is illegal: it {why}.")

    if not name:
        raise illegal("is empty")
    if name in (".", ".."):
        raise illegal("is . or ..")
    if len(name) > NAME_MAX_CHARACTERS:
        raise illegal(f"has {len(name)} characters, more than {NAME_MAX_CHARACTERS}")
    if not _LEGAL_NAME.fullmatch(name):
        raise illegal("contains a character other than ASCII letters, digits, '.', '_' and '-'")
    if name == RESERVED:
        raise Refused(ErrorCode.invalid_request, f"{RESERVED} is the quorum's own topic.")
    if name in image.topics:
        raise Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    if "." in name or "_" in name:  # metric names use both characters for the same thing
        twin = next((other for other in image.topics if other.replace(".", "_") == name.replace(".", "_")), None)
        if twin is not None:
            message = f"Topic '{name}' collides with '{twin}': '.' and '_' are the same in metric names."
            raise Refused(ErrorCode.invalid_topic_exception, message)


def _placed(partitions: int, factor: int, brokers: Sequence[PlacementCandidate], first: int) -> list[tuple[int, ...]]:
    """Return the replicas of every partition, in the order of partitions.  The numbers may be -1, which stands for the
    default.
    """
    partitions = DEFAULT_PARTITIONS if partitions == -1 else partitions
    factor = DEFAULT_REPLICATION_FACTOR if factor == -1 else factor
    if partitions < 1:
        raise Refused(ErrorCode.invalid_partitions, "Number of partitions must be larger than 0, or -1.")
    if factor < 1:
        raise Refused(ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0, or -1.")
    if partitions > RECORDS_MAX:
        raise Refused(ErrorCode.policy_violation, f"One request may create at most {RECORDS_MAX} records.")
    return spread(partitions, factor, brokers, first)


def _assigned(topic: NewTopic, brokers: Sequence[PlacementCandidate]) -> list[tuple[int, ...]]:
    """Return the replicas that the request assigns to every partition of a topic."""
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        message = "With replicas assigned by hand, number of partitions and replication factor must both be -1."
        raise Refused(ErrorCode.invalid_request, message)
    given = {each.partition_index: tuple(each.broker_ids) for each in topic.assignments}
    return _usable([given.get(partition, ()) for partition in range(len(given))], brokers)


def _usable(placed: list[tuple[int, ...]], brokers: Sequence[PlacementCandidate]) -> list[tuple[int, ...]]:
    """Return `placed` unchanged.  Raises Refused if a partition cannot have these replicas."""
    if not all(placed):
        message = "Assigned partitions must be numbered from 0 without gaps, each with at least one replica."
        raise Refused(ErrorCode.invalid_replica_assignment, message)
    known, alive = {broker.id for broker in brokers}, {broker.id for broker in brokers if broker.alive}
    for partition, replicas in enumerate(placed):
        message = ""
        if len(set(replicas)) != len(replicas) or not set(replicas) <= known:
            message = f"Partition {partition} names a broker twice, or one that does not exist: {list(replicas)}."
        elif len(replicas) != len(placed[0]):
            message = "All partitions must have the same number of replicas."
        elif not alive & set(replicas):
            message = f"All brokers of partition {partition} are fenced or shutting down: {list(replicas)}."
        if message:
            raise Refused(ErrorCode.invalid_replica_assignment, message)
    return placed


def _overrides(topic: NewTopic) -> dict[str, str]:
    for config in topic.configs:
        if problem := configuration.why_invalid(config.name, config.value):
            raise Refused(ErrorCode.invalid_config, problem)
    return {config.name: config.value for config in topic.configs}


def _partition(
    number: int, topic_id: UUID, replicas: tuple[int, ...], brokers: Sequence[PlacementCandidate]
) -> metadata.PartitionRecord:
    fenced = {broker.id for broker in brokers if not broker.alive}
    directories = {broker.id: broker.directory for broker in brokers if broker.directory is not None}
    isr = tuple(replica for replica in replicas if replica not in fenced)
    return metadata.PartitionRecord(
        number,
        topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(directories[each] for each in replicas if each in directories),
    )


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A broker that can get replicas.

    alive: True if the broker is neither fenced nor shutting down
    directory: directory of new replicas; None if records do not name directories
    """

    id: int
    rack: str | None = None
    alive: bool = True
    directory: UUID | None = metadata.UNASSIGNED


def of_ids(ids: Iterable[int]) -> list[PlacementCandidate]:
    """Return brokers of which only the id is known."""
    return [PlacementCandidate(number) for number in ids]


def registered(image: Image) -> list[PlacementCandidate]:
    """Return every registered broker that has a directory for new replicas."""
    return [
        PlacementCandidate(
            broker.broker_id,
            broker.rack,
            not broker.fenced and not broker.in_controlled_shutdown,
            directory_of(image, broker.broker_id) if directories_are_named(image) else None,
        )
        for broker in image.brokers.values()
        if not broker.cordoned_dirs or set(broker.log_dirs) - set(broker.cordoned_dirs)
    ]


def spread(partitions: int, factor: int, brokers: Sequence[PlacementCandidate], first: int) -> list[tuple[int, ...]]:
    """Return the replicas of this number of partitions.

    first: number of the first partition, counted over all topics

    Raises Refused if there are too few brokers, or if none is alive.
    """
    if factor > len(brokers):
        message = f"Replication factor {factor} is larger than the number of brokers, {len(brokers)}."
        raise Refused(ErrorCode.invalid_replication_factor, message)
    if not any(broker.alive for broker in brokers):
        raise Refused(ErrorCode.invalid_replication_factor, "All brokers are currently fenced.")
    groups = [_by_rack(brokers, alive=alive) for alive in (True, False)]
    placed = []
    for partition in range(first, first + partitions):
        replicas: list[int] = []
        for racks in groups:
            replicas += _taken(racks, factor - len(replicas), partition)
        placed.append(tuple(replicas))
    return placed


def _by_rack(brokers: Iterable[PlacementCandidate], *, alive: bool) -> list[list[int]]:
    racks: dict[str, list[int]] = {}
    for broker in sorted(brokers, key=lambda each: (each.rack or "", each.id)):
        if broker.alive == alive:
            racks.setdefault(broker.rack or "", []).append(broker.id)
    return list(racks.values())


def _taken(racks: Sequence[Sequence[int]], wanted: int, partition: int) -> list[int]:
    """Return up to `wanted` brokers, one rack after another.  The begin moves on with the number of the partition."""
    found: list[int] = []
    size = max(map(len, racks), default=0)
    for turn in range(size):
        for step in range(len(racks)):
            rack = racks[(partition + step) % len(racks)]
            if turn < len(rack) and len(found) < wanted:
                found.append(rack[(partition // len(racks) + turn) % len(rack)])
    return found
