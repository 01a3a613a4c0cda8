"""Requests that change partitions, and duties of the active controller: pure decisions over the image, with the rules
of `partition_rules.py`.

alter_partitions(image, leader, ...) -> (records, one answer per partition)   a leader's in-sync sets (KIP-497)
elect_leaders(image, wanted, ...)    -> (records, one answer per partition)   KIP-183, KIP-460
reassign_partitions(image, wanted)   -> (records, one answer per partition)   KIP-455
reassignments(image, wanted)         -> the reassignments in progress
assign_directories(image, broker, ...) -> (records, one answer per partition)  KIP-858
allocate_producer_ids(image, ...)    -> (records, the first id of a block)     KIP-730

*Duties.*  Periodic tasks of the active controller, with their times.
They are pure, too: the node sets a timer and appends the records.

duties = Duties(image, now_s, settings)     when a node becomes the active controller
duties.next_due_s(image)                    when `perform` has something to do
duties.perform(image, now_s) -> records     of one duty that is due; then call `next_due_s` again

abort       a metadata transaction that the previous controller has not ended is aborted
bootstrap   feature levels are written, if the log contains none
fencing     a broker whose session has ended is fenced, one at a time
balance     partitions whose first replica can lead again get this replica as their leader, if too many have another one
no-op       after a while without records, an empty record shows brokers that their metadata is fresh
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import brokers, partition_rules
from system_under_test.kraft.controller.decisions import is_this_incarnation, may_be_in_sync
from system_under_test.kraft.controller.features import ELR_VERSION, elr_safety
from system_under_test.kraft.controller.image import Image, Refused, Topic, changed
from system_under_test.kraft.controller.one_by_one import Found, Result, one_by_one
from system_under_test.kraft.records import metadata

PRODUCER_IDS_OF_A_BLOCK = 1000
PRODUCER_IDS_END = 2**63 - 1 - PRODUCER_IDS_OF_A_BLOCK


def about_partition(which: tuple[Any, ...]) -> Found:
    """Return the fields that identify a partition in a result.  Kafka has two names for the number of a partition.

    which: topic, number, and other fields
    """
    topic, number, *_ = which
    return {"topic": topic, "partition_index": number, "partition_id": number, "now": None}


def _changed(
    partition: metadata.PartitionRecord, record: metadata.PartitionChangeRecord | None
) -> tuple[list[metadata.Record], Found]:
    """Return the records of a partition's change, and the state of the partition after the change."""
    if record is None:
        return [], {"now": partition}
    return [record], {"now": changed(partition, record)}


def alter_partitions(
    image: Image,
    broker: int,
    broker_epoch: int,
    wanted: Sequence[tuple[UUID, int, partition_rules.AlterPartition]],
    bugs: Collection[str] = (),
) -> tuple[list[metadata.Record], list[Result]]:
    """Decide on the in-sync sets that a leader proposes, partition by partition.

    wanted: (topic id, partition, proposal) of each partition

    Raises Refused if the broker is not registered with this epoch, or if a partition is named twice.
    """
    brokers.require_broker(image, broker, broker_epoch)
    _require_each_once((topic_id, number) for topic_id, number, _ in wanted)

    def decide(each: tuple[UUID, int, partition_rules.AlterPartition]) -> tuple[list[metadata.Record], Found]:
        topic_id, number, proposal = each
        topic, partition = _by_id(image, topic_id, number)
        error = partition_rules.why_refused(partition, proposal, lambda member: _is_eligible(image, member, bugs), bugs)
        if error is not None:
            raise Refused(error, "")
        isr = tuple(member.broker for member in proposal.isr)
        aim = partition_rules.Wanted(isr=isr, recovery_state=proposal.recovery_state)
        return _changed(partition, partition_rules.change(partition, aim, brokers.rules_of(image, topic.name, bugs)))

    return one_by_one(wanted, about_partition, decide)


def _is_eligible(image: Image, member: partition_rules.IsrMember, bugs: Collection[str]) -> bool:
    broker = image.brokers.get(member.broker)
    if broker is None or not may_be_in_sync(broker.fenced, broker.in_controlled_shutdown, bugs):
        return False
    any_epoch = member.broker_epoch == partition_rules.ANY_BROKER_EPOCH
    return any_epoch or is_this_incarnation(member.broker_epoch, broker.broker_epoch, bugs)


def elect_leaders(
    image: Image,
    wanted: Sequence[tuple[str, int]] | None,
    election: partition_rules.Election,
    bugs: Collection[str] = (),
) -> tuple[list[metadata.Record], list[Result]]:
    """Elect a leader for each partition that needs an election.

    wanted: (topic, partition) of each partition; None for all partitions

    A partition needs a preferred election if its first replica does not lead, and an unclean election if it has no
    leader.  For all partitions (None), those that need no election have no result.  Raises Refused if a partition is
    named twice.
    """
    _require_each_once(wanted or ())
    preferred = election is partition_rules.Election.PREFERRED

    def needs_none(partition: metadata.PartitionRecord) -> bool:
        return partition.leader == partition.replicas[0] if preferred else partition.leader != metadata.NO_LEADER

    def decide(which: tuple[str, int]) -> tuple[list[metadata.Record], Found]:
        partition = _existing(image, *which)
        if needs_none(partition):
            raise Refused(ErrorCode.election_not_needed, "The partition already has this leader.")
        record = partition_rules.change(
            partition, partition_rules.Wanted(election=election), brokers.rules_of(image, which[0], bugs)
        )
        records, found = _changed(partition, record)
        leader = found["now"].leader
        if preferred and leader != partition.replicas[0]:
            words = "The preferred replica is not in sync, or its broker is not available."
            raise Refused(ErrorCode.preferred_leader_not_available, words)
        if leader == metadata.NO_LEADER:
            raise Refused(ErrorCode.eligible_leaders_not_available, "No replica of the partition is available.")
        return records, found

    if wanted is None:
        wanted = [which for which in _all(image) if not needs_none(_existing(image, *which))]
    return one_by_one(wanted, about_partition, decide)


def reassign_partitions(
    image: Image,
    wanted: Sequence[tuple[str, int, Sequence[int] | None]],
    bugs: Collection[str] = (),
    *,
    factor_may_change: bool = True,
) -> tuple[list[metadata.Record], list[Result]]:
    """Begin, change or cancel reassignments.  Raises Refused if a partition is named twice.

    wanted: (topic, partition, replicas) of each partition; replicas None to cancel its reassignment
    factor_may_change: True if a reassignment may change the number of replicas
    """
    _require_each_once((name, number) for name, number, _ in wanted)

    def decide(each: tuple[str, int, Sequence[int] | None]) -> tuple[list[metadata.Record], Found]:
        name, number, replicas = each
        partition = _existing(image, name, number)
        _check_target(image, partition, replicas, factor_may_change)
        return _changed(partition, partition_rules.reassign(partition, replicas, brokers.rules_of(image, name, bugs)))

    return one_by_one(wanted, about_partition, decide)


def reassignments(
    image: Image, wanted: Mapping[str, Sequence[int]] | None
) -> dict[str, list[metadata.PartitionRecord]]:
    """Return the partitions whose reassignment is in progress, by topic.

    wanted: topic -> partition numbers; None for all partitions
    """
    found: dict[str, list[metadata.PartitionRecord]] = {}
    for name, number in _all(image):
        partition = image.topics[name].partitions[number]
        asked = wanted is None or number in wanted.get(name, ())
        if asked and (partition.adding or partition.removing):
            found.setdefault(name, []).append(partition)
    return found


def assign_directories(
    image: Image, broker: int, broker_epoch: int, wanted: Sequence[tuple[UUID, int, UUID]], bugs: Collection[str] = ()
) -> tuple[list[metadata.Record], list[Result]]:
    """Record the directories of replicas that a broker reports (KIP-858).

    wanted: (topic id, partition, directory) of each replica

    A replica in a directory that the broker has lost leaves the in-sync set.  Raises Refused like `alter_partitions`,
    and if records do not name directories.
    """
    if not brokers.directories_are_named(image):
        raise Refused(ErrorCode.unsupported_version, "Records at this level of metadata.version have no directories.")
    brokers.require_broker(image, broker, broker_epoch)

    def decide(each: tuple[UUID, int, UUID]) -> tuple[list[metadata.Record], Found]:
        topic_id, number, directory = each
        topic, partition = _by_id(image, topic_id, number)
        if broker not in partition.replicas:
            raise Refused(ErrorCode.not_leader_or_follower, "")
        lost = not brokers.is_online(image, broker, directory)
        isr = tuple(replica for replica in partition.isr if not lost or replica != broker)
        election = (
            partition_rules.Election.UNCLEAN
            if lost and brokers.elects_unclean(image, topic.name, bugs)
            else partition_rules.Election.ONLINE
        )
        rules = brokers.rules_of(image, topic.name, bugs, but=broker if lost else None)
        aim = partition_rules.Wanted(isr=isr, election=election, assigned={broker: directory})
        return _changed(partition, partition_rules.change(partition, aim, rules))

    return one_by_one(wanted, about_partition, decide)


def allocate_producer_ids(image: Image, broker: int, broker_epoch: int) -> tuple[list[metadata.Record], int]:
    """Allocate a block of PRODUCER_IDS_OF_A_BLOCK unused ids, and return its first id.

    The broker must receive the block only after the record is committed, because otherwise a successor could allocate
    the block again.  Raises Refused if the broker is not registered with this epoch, or if no ids are left.
    """
    brokers.require_broker(image, broker, broker_epoch)
    held = list(image.table(metadata.ProducerIdsRecord).values())
    first = held[0].next_producer_id if held else 0
    if first > PRODUCER_IDS_END:
        raise Refused(ErrorCode.unknown_server_error, "All producer ids have been allocated.")
    return [metadata.ProducerIdsRecord(broker, broker_epoch, first + PRODUCER_IDS_OF_A_BLOCK)], first


def _check_target(
    image: Image, partition: metadata.PartitionRecord, replicas: Sequence[int] | None, factor_may_change: bool
) -> None:
    """Raise Refused if the partition cannot get these replicas."""
    if replicas is None:
        if not partition.adding and not partition.removing:
            raise Refused(ErrorCode.no_reassignment_in_progress, "No reassignment of the partition is in progress.")
        return
    if not replicas or len(set(replicas)) != len(replicas):
        words = f"The replicas of a partition must be one or more different brokers, not {list(replicas)}."
        raise Refused(ErrorCode.invalid_replica_assignment, words)
    if unknown := [broker for broker in replicas if broker not in image.brokers]:
        raise Refused(ErrorCode.invalid_replica_assignment, f"Broker {unknown[0]} is not registered.")
    factor = sum(replica not in partition.adding for replica in partition.replicas)
    if not factor_may_change and len(replicas) != factor:
        words = f"The partition has {factor} replicas, but the request names {len(replicas)}."
        raise Refused(ErrorCode.invalid_replication_factor, words)


def _require_each_once(partitions: Iterable[tuple[str | UUID, int]]) -> None:
    """Raise Refused if a partition is named more than once."""
    for (topic, number), times in Counter(partitions).items():
        if times > 1:
            words = f"Partition {number} of {topic} is named {times} times in the request."
            raise Refused(ErrorCode.invalid_request, words)


def _existing(image: Image, name: str, number: int) -> metadata.PartitionRecord:
    topic = image.topics.get(name)
    partition = None if topic is None else topic.partitions.get(number)
    if partition is None:
        words = f"There is no partition {number} of a topic '{name}'."
        raise Refused(ErrorCode.unknown_topic_or_partition, words)
    return partition


def _by_id(image: Image, topic_id: UUID, number: int) -> tuple[Topic, metadata.PartitionRecord]:
    """Return the topic and the state of a partition.  Raises Refused if one of them does not exist."""
    topic = image.topic_of(topic_id)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_id, "")
    if number not in topic.partitions:
        raise Refused(ErrorCode.unknown_topic_or_partition, "")
    return topic, topic.partitions[number]


def _all(image: Image) -> Iterator[tuple[str, int]]:
    for topic in image.topics.values():
        for number in sorted(topic.partitions):
            yield topic.name, number


ELECTIONS_MAX = 1000
"""Maximum number of elections in one round of balancing."""


@dataclass(frozen=True, slots=True)
class DutySettings:
    """Kafka's settings broker.session.timeout.ms, leader.imbalance.check.interval.seconds,
    leader.imbalance.per.broker.percentage and metadata.max.idle.interval.ms.  None disables a duty.
    """

    session_timeout_s: float = brokers.SESSION_TIMEOUT_S
    features: Mapping[str, int] = field(default_factory=dict)
    """Feature levels that the first active controller writes (Kafka's bootstrap metadata)."""
    balance_interval_s: float | None = 300.0
    imbalance_max: float = 0.1
    no_op_interval_s: float | None = 0.5


NO_DUTIES = DutySettings(balance_interval_s=None, no_op_interval_s=None)
"""Settings for a cluster whose brokers do not register."""


class Duties:
    """The duties of an active controller.

    bugs: planted bugs (`decisions.py`)
    """

    def __init__(self, image: Image, now_s: float, settings: DutySettings, bugs: Collection[str] = ()) -> None:
        self.sessions = brokers.Sessions(image, now_s, bugs, settings.session_timeout_s)
        self._settings = settings
        self._bugs = bugs
        self._balance_at_s = now_s + (settings.balance_interval_s or math.inf)
        self._no_op_at_s = now_s + (settings.no_op_interval_s or math.inf)

    def appended(self, now_s: float) -> None:
        """Note that a record was written, so that no no-op record is needed for a while."""
        self._no_op_at_s = now_s + (self._settings.no_op_interval_s or math.inf)

    def next_due_s(self, image: Image) -> float:
        """Return the time of the next task; infinity if there is none."""
        if (self._settings.features and not image.features) or image.in_transaction:
            return -math.inf
        fencing_s = self.sessions.next_deadline_s(image)
        return min(math.inf if fencing_s is None else fencing_s, self._balance_at_s, self._no_op_at_s)

    def perform(self, image: Image, now_s: float) -> list[metadata.Record]:
        if image.in_transaction:  # opened by an earlier controller; this one writes each decision as one atomic batch
            return [metadata.AbortTransactionRecord("Controller failover")]
        if self._settings.features and not image.features:
            levels = self._settings.features
            keeps_elr = levels.get(ELR_VERSION, 0) > 0
            records: list[metadata.Record] = [
                metadata.FeatureLevelRecord(name, level) for name, level in levels.items()
            ]
            return [*records, *(elr_safety(image) if keeps_elr else ())]
        records = brokers.fence_stale(image, self.sessions, now_s)
        if not records and now_s >= self._balance_at_s:
            self._balance_at_s = now_s + (self._settings.balance_interval_s or math.inf)
            records = self._balance(image)
        if not records and now_s >= self._no_op_at_s:
            self.appended(now_s)
            records = [metadata.NoOpRecord()]
        return records

    def _balance(self, image: Image) -> list[metadata.Record]:
        preferred: Counter[int] = Counter()
        elsewhere: dict[int, list[tuple[str, int]]] = {}
        for topic in image.topics.values():
            for partition in topic.partitions.values():
                preferred[partition.replicas[0]] += 1
                if partition.leader != partition.replicas[0]:
                    elsewhere.setdefault(partition.replicas[0], []).append((topic.name, partition.partition))
        wanted = [
            which
            for broker, partitions in sorted(elsewhere.items())
            if len(partitions) > preferred[broker] * self._settings.imbalance_max
            for which in sorted(partitions)
        ]
        return elect_leaders(image, wanted[:ELECTIONS_MAX], partition_rules.Election.PREFERRED, self._bugs)[0]
