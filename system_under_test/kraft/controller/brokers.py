"""Pure decisions about brokers: registration, heartbeats, fencing and shutdown (KIP-631, KIP-841, KIP-966).

    register(...)  -> (records, epoch)            the epoch is the offset of the registration's record
    heartbeat(...) -> (records, the state that the broker must enter)

    FENCED ---wants to serve, has caught up---> UNFENCED ---wants to shut down---> CONTROLLED_SHUTDOWN
       ^  |                                        |                                      |
       |  +--wants to shut down--> SHUTDOWN_NOW <--+ leads nothing                        | leads nothing, and
       +---no heartbeat for the session------------+                                      v others caught up
                                                                                     SHUTDOWN_NOW

A registration and the broker's state are records, so every controller knows them.  Only the active controller knows the
times of heartbeats.  So when a controller becomes active, the session of each unfenced broker starts again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import decisions
from system_under_test.kraft.controller.configs import MIN_INSYNC, effective_config
from system_under_test.kraft.controller.features import METADATA_VERSION, levels_of
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.partition_rules import (
    PartitionRules,
    directory_held,
    with_broker,
    without_broker,
)
from system_under_test.kraft.records import metadata

SESSION_TIMEOUT_S = 9.0
"""Kafka's broker.session.timeout.ms."""

UNKNOWN_EPOCH = -1
NOT_SHUTTING_DOWN = 0
CORDONED_SINCE = 30
"""Level of `metadata.version` from which records name the directories that accept no new replicas (KIP-1066)."""
SHRINK_IS_NO_NEW_EPOCH_SINCE = 12
"""Level of `metadata.version` from which a smaller in-sync set no longer begins a new leader epoch (KAFKA-15021)."""
FENCE, UNFENCE = 1, -1
"""Values of `fenced` in a BrokerRegistrationChangeRecord."""

UNCLEAN_ELECTION = "unclean.leader.election.enable"


class BrokerState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's registration request.

    incarnation: id that is new at each start of the process
    previous_epoch: previous broker epoch, from the file that a clean shutdown writes; UNKNOWN_EPOCH after an unclean
        shutdown (KIP-966)
    """

    broker: int
    incarnation: UUID
    endpoints: tuple[metadata.Endpoint, ...]
    features: tuple[metadata.FeatureRange, ...] = ()
    rack: str | None = None
    log_dirs: tuple[UUID, ...] = ()
    previous_epoch: int = UNKNOWN_EPOCH
    migrates: bool = False


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A broker's heartbeat request.

    metadata_offset: last metadata offset that the broker has applied
    lost_dirs: directories that the broker can no longer use
    cordoned_dirs: directories that accept no new replicas; None until the broker knows them
    """

    broker: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool = False
    wants_shutdown: bool = False
    lost_dirs: tuple[UUID, ...] = ()
    cordoned_dirs: tuple[UUID, ...] | None = None


@dataclass(slots=True)
class Session:
    """Facts about one broker that the active controller keeps in memory.

    heard_s: time of its last heartbeat, in seconds
    metadata_offset: offset in that heartbeat
    shutdown_offset: NOT_SHUTTING_DOWN, or the offset that the other brokers must reach before this broker may stop
    """

    heard_s: float
    metadata_offset: int = -1
    shutdown_offset: int = NOT_SHUTTING_DOWN


class Sessions:
    """The sessions of brokers at the active controller, created when a node becomes the active controller.

    bugs: planted bugs (`decisions.py`)
    timeout_s: maximum seconds between two heartbeats of a broker
    """

    def __init__(
        self, image: Image, now_s: float, bugs: Collection[str] = (), timeout_s: float = SESSION_TIMEOUT_S
    ) -> None:
        self.bugs = bugs
        self._timeout_s = timeout_s
        awaited = (
            number for number, broker in image.brokers.items() if decisions.expects_heartbeat(broker.fenced, bugs)
        )
        self._by_broker = {number: Session(now_s) for number in awaited}

    def of(self, broker: int, now_s: float) -> Session:
        return self._by_broker.setdefault(broker, Session(now_s))

    def live(self, broker: int, now_s: float) -> bool:
        """Return True if the broker sent a heartbeat within the last `timeout_s` seconds."""
        session = self._by_broker.get(broker)
        return session is not None and now_s < session.heard_s + self._timeout_s

    def forget(self, broker: int) -> None:
        self._by_broker.pop(broker, None)

    def next_deadline_s(self, image: Image) -> float | None:
        """Return the earliest time at which the session of an unfenced broker ends; None if there is no unfenced
        broker.
        """
        waiting = [s.heard_s for number, s in self._by_broker.items() if _is_unfenced(image, number)]
        return min(waiting) + self._timeout_s if waiting else None

    def stale(self, image: Image, now_s: float) -> list[int]:
        """Return the brokers to fence, by id."""
        return sorted(n for n in self._by_broker if _is_unfenced(image, n) and not self.live(n, now_s))

    def lowest_active_offset(self, image: Image) -> int:
        """Return the minimum offset reported by brokers that are neither fenced nor shutting down; 2^63 - 1 if there
        are none.
        """
        active = [
            session.metadata_offset
            for number, session in self._by_broker.items()
            if _is_unfenced(image, number) and not image.brokers[number].in_controlled_shutdown
        ]
        return min(active, default=2**63 - 1)


def register(
    image: Image, sessions: Sessions, request: Registration, next_offset: int, now_s: float
) -> list[metadata.Record]:
    """Return the records of a registration.

    next_offset: offset of the first of these records, which becomes the broker's epoch

    Raises Refused if another incarnation of the broker is alive, if a directory belongs to another broker, or if the
    broker does not support the cluster's level of a feature.
    """
    known = image.brokers.get(request.broker)
    if known is not None and known.incarnation_id != request.incarnation and sessions.live(request.broker, now_s):
        words = f"Another broker is registered with id {request.broker}, and its session has not expired."
        raise Refused(ErrorCode.duplicate_broker_registration, words)
    if request.migrates:
        raise Refused(ErrorCode.broker_id_not_registered, "Brokers of a ZooKeeper cluster cannot register here.")
    names_directories = directories_are_named(image)
    if names_directories:
        _require_own_directories(image, request)
    _require_features(image, request)
    again = known is not None and known.incarnation_id == request.incarnation
    epoch = decisions.epoch_of_registration(next_offset, None if known is None else known.broker_epoch, sessions.bugs)
    record = metadata.RegisterBrokerRecord(
        request.broker,
        incarnation_id=request.incarnation,
        # A repeated request of the same incarnation keeps its epoch, because the first answer was lost (KAFKA-16952).
        broker_epoch=known.broker_epoch if again and known is not None else epoch,
        endpoints=request.endpoints,
        features=request.features,
        rack=request.rack,
        fenced=known.fenced if again and known is not None else decisions.is_fenced_at_first(sessions.bugs),
        in_controlled_shutdown=known.in_controlled_shutdown if again and known is not None else False,
        log_dirs=request.log_dirs if names_directories else (),
    )
    records: list[metadata.Record] = [record]
    # A broker that was removed from the cluster may still be an eligible leader.
    unclean = known is None or request.previous_epoch != known.broker_epoch or not image.keeps_elr
    if not again:
        records += _leave(image, request.broker, sessions.bugs, lost_data=unclean)
        # At a late repetition the broker may already be unfenced, so its session continues.
        sessions.forget(request.broker)
    return records


def epoch_in(records: Iterable[metadata.Record]) -> int:
    """Return the broker epoch in the records of a registration."""
    return next(record.broker_epoch for record in records if isinstance(record, metadata.RegisterBrokerRecord))


def unregister(image: Image, sessions: Sessions, number: int) -> list[metadata.Record]:
    """Return the records that remove a broker from the cluster.  Raises Refused if the broker is not registered."""
    broker = image.brokers.get(number)
    if broker is None:
        raise Refused(ErrorCode.broker_id_not_registered, f"Broker {number} is not registered.")
    sessions.forget(number)
    return [*_leave(image, number, sessions.bugs), metadata.UnregisterBrokerRecord(number, broker.broker_epoch)]


def heartbeat(
    image: Image, sessions: Sessions, request: Heartbeat, end_offset: int, now_s: float
) -> tuple[list[metadata.Record], BrokerState]:
    """Return the records of a heartbeat, and the state that the broker must enter.

    end_offset: end of the log, including all decisions so far

    Raises Refused for a broker that is not registered, or that has another epoch.
    """
    broker = require_broker(image, request.broker, request.broker_epoch)
    session = sessions.of(request.broker, now_s)
    session.metadata_offset = request.metadata_offset
    if decisions.renews_session(sessions.bugs):
        session.heard_s = now_s
    before, after = _next_state(image, sessions, broker, request, session)
    if after is BrokerState.CONTROLLED_SHUTDOWN and before is not after:
        session.shutdown_offset = end_offset
    records = list(_transition(image, broker, before, after, sessions.bugs))
    records += _lose_directories(image, broker, request.lost_dirs, records, sessions.bugs)
    cordoned = request.cordoned_dirs
    if (image.metadata_version or 0) >= CORDONED_SINCE and cordoned is not None and cordoned != broker.cordoned_dirs:
        records.append(
            metadata.BrokerRegistrationChangeRecord(broker.broker_id, broker.broker_epoch, cordoned_dirs=cordoned)
        )
    return records, after


def fence_stale(image: Image, sessions: Sessions, now_s: float) -> list[metadata.Record]:
    """Return the records that fence the first broker, by id, whose session has ended.  Only one broker is fenced at a
    time, because decisions about the partitions of the next broker need the image that results from these records.
    """
    for number in sessions.stale(image, now_s):
        sessions.forget(number)
        broker = image.brokers[number]
        records = list(_transition(image, broker, BrokerState.UNFENCED, BrokerState.FENCED, sessions.bugs))
        return records if decisions.fences_by_record(sessions.bugs) else records[1:]
    return []


def _lose_directories(
    image: Image,
    broker: metadata.RegisterBrokerRecord,
    lost: Collection[UUID],
    decided: Collection[metadata.Record],
    bugs: Collection[str],
) -> Iterator[metadata.Record]:
    """Yield the records that remove a broker from the partitions whose replicas it has lost, and that record the
    remaining directories.

    decided: other records of the same heartbeat. If they change partitions, no record is yielded, and the next
        heartbeat, which reports the lost directories again, removes the broker.
    """
    if not directories_are_named(image):
        return
    gone = set(broker.log_dirs) & set(lost)
    if not gone or any(isinstance(each, metadata.PartitionChangeRecord) for each in decided):
        return
    number = broker.broker_id
    for topic, partition in _partitions(image):
        if number in partition.isr and directory_held(partition, number) in gone:
            yield from _without(image, topic, partition, number, bugs)
    if remaining := tuple(each for each in broker.log_dirs if each not in gone):
        yield metadata.BrokerRegistrationChangeRecord(number, broker.broker_epoch, log_dirs=remaining)


def directories_are_named(image: Image) -> bool:
    """Return True if records name the directories of replicas.  They also do if `metadata.version` is not in use."""
    return image.metadata_version is None or image.metadata_version >= metadata.DIRECTORIES_SINCE


def _require_own_directories(image: Image, request: Registration) -> None:
    if image.metadata_version is not None and not request.log_dirs:
        raise Refused(ErrorCode.invalid_registration, "A broker must name its directories.")
    if image.metadata_version is not None and any(
        each.int < metadata.RESERVED_DIRECTORIES for each in request.log_dirs
    ):
        raise Refused(ErrorCode.invalid_registration, "A directory has an id that is reserved.")
    if len(set(request.log_dirs)) != len(request.log_dirs):
        raise Refused(ErrorCode.invalid_registration, "A directory is named twice.")
    for other in image.brokers.values():
        if other.broker_id != request.broker and (shared := set(other.log_dirs) & set(request.log_dirs)):
            words = f"Directory {min(shared)} belongs to broker {other.broker_id}."
            raise Refused(ErrorCode.invalid_registration, words)


def _require_features(image: Image, request: Registration) -> None:
    """Verify that a broker supports the feature levels of the cluster.  It supports features that it does not name only
    at level 0, which means that the feature is not in use.
    """
    supported = levels_of(request.features)
    if image.metadata_version is not None and METADATA_VERSION not in supported:
        raise Refused(ErrorCode.invalid_registration, f"The features of a broker name {METADATA_VERSION}.")
    asked = {*image.features, *(set(supported) - {METADATA_VERSION})} if image.features else set()
    for name in sorted(asked):
        level = image.features.get(name, 0)
        if level not in supported.get(name, range(1)):
            words = f"Broker {request.broker} does not support {name} at level {level}."
            raise Refused(ErrorCode.unsupported_version, words)


def require_broker(image: Image, number: int, epoch: int) -> metadata.RegisterBrokerRecord:
    """Return the registration of a broker.  Raises Refused if the broker is not registered, or has another epoch."""
    broker = image.brokers.get(number)
    if broker is None:
        raise Refused(ErrorCode.broker_id_not_registered, f"Broker {number} is not registered.")
    if broker.broker_epoch != epoch:
        raise Refused(ErrorCode.stale_broker_epoch, f"Broker {number} has epoch {broker.broker_epoch}, not {epoch}.")
    return broker


def state_of(broker: metadata.RegisterBrokerRecord) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    return BrokerState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerState.UNFENCED


def rules_of(
    image: Image, topic: str, bugs: Collection[str] = (), *, but: int | None = None, also: int | None = None
) -> PartitionRules:
    """Return the rules of a topic's partitions.

    but: broker that cannot lead, regardless of its registration
    also: broker that can lead, regardless of its registration

    A decision about a change of a broker is made before the record of this change is applied.
    """

    def alive(number: int) -> bool:
        broker = image.brokers.get(number)
        if number in (but, also):
            return number == also
        return broker is not None and decisions.may_lead(broker.fenced, broker.in_controlled_shutdown, bugs)

    minimum = int(effective_config(image, topic, MIN_INSYNC))
    default_directory = partial(directory_of, image) if directories_are_named(image) else None
    bumps = image.metadata_version is not None and image.metadata_version < SHRINK_IS_NO_NEW_EPOCH_SINCE
    return PartitionRules(
        alive, minimum, image.keeps_elr, bugs, default_directory, partial(is_online, image), bumps_on_shrink=bumps
    )


def directory_of(image: Image, number: int) -> UUID:
    """Return the directory in which a broker will create a new replica: its only directory; UNASSIGNED if it has
    several or is unknown.
    """
    broker = image.brokers.get(number)
    if broker is None or len(broker.log_dirs) > 1:
        return metadata.UNASSIGNED
    return broker.log_dirs[0] if broker.log_dirs else metadata.MIGRATING


def is_online(image: Image, number: int, directory: UUID) -> bool:
    """Return True if a broker can use a directory.  An unknown or unassigned directory counts as usable."""
    broker = image.brokers.get(number)
    if directory in (metadata.UNASSIGNED, metadata.MIGRATING) or broker is None or not broker.log_dirs:
        return directory != metadata.LOST
    return directory in broker.log_dirs


def elects_unclean(image: Image, topic: str, bugs: Collection[str] = ()) -> bool:
    """Return True if a partition of the topic may get a leader that is not in sync instead of no leader."""
    return decisions.may_elect_unclean(effective_config(image, topic, UNCLEAN_ELECTION).lower() == "true", bugs)


def leads_anything(image: Image, number: int) -> bool:
    return any(partition.leader == number for _, partition in _partitions(image))


def _next_state(
    image: Image, sessions: Sessions, broker: metadata.RegisterBrokerRecord, request: Heartbeat, session: Session
) -> tuple[BrokerState, BrokerState]:
    before = state_of(broker)
    if before is BrokerState.FENCED:
        if request.wants_shutdown:
            return before, BrokerState.SHUTDOWN_NOW
        caught_up = decisions.knows_its_registration(request.metadata_offset, broker.broker_epoch, sessions.bugs)
        return before, BrokerState.UNFENCED if not request.wants_fence and caught_up else BrokerState.FENCED
    if before is BrokerState.UNFENCED:
        if request.wants_fence:
            return before, BrokerState.FENCED
        if request.wants_shutdown:
            leads = leads_anything(image, request.broker)
            return before, BrokerState.CONTROLLED_SHUTDOWN if leads else BrokerState.SHUTDOWN_NOW
        return before, before
    done = not leads_anything(image, request.broker)
    others_know = sessions.lowest_active_offset(image) >= session.shutdown_offset
    return before, BrokerState.SHUTDOWN_NOW if done and others_know else before


def _transition(
    image: Image, broker: metadata.RegisterBrokerRecord, before: BrokerState, after: BrokerState, bugs: Collection[str]
) -> Iterator[metadata.Record]:
    if before is after:
        return
    number, epoch = broker.broker_id, broker.broker_epoch
    match after:
        case BrokerState.UNFENCED:
            yield metadata.BrokerRegistrationChangeRecord(number, epoch, fenced=UNFENCE)
            yield from _join(image, number, bugs)
        case BrokerState.CONTROLLED_SHUTDOWN:
            yield metadata.BrokerRegistrationChangeRecord(number, epoch, in_controlled_shutdown=1)
            yield from _leave(image, number, bugs)
        case BrokerState.FENCED | BrokerState.SHUTDOWN_NOW if before is not BrokerState.FENCED:
            yield metadata.BrokerRegistrationChangeRecord(number, epoch, fenced=FENCE)
            yield from _leave(image, number, bugs)


def _leave(image: Image, number: int, bugs: Collection[str], *, lost_data: bool = False) -> Iterator[metadata.Record]:
    """Yield the partition changes that follow when a broker can no longer lead or be in sync."""
    for topic, partition in _partitions(image):
        if number in (*partition.isr, *(partition.elr or ()), partition.leader):
            yield from _without(image, topic, partition, number, bugs, lost_data=lost_data)


def _without(
    image: Image,
    topic: str,
    partition: metadata.PartitionRecord,
    number: int,
    bugs: Collection[str],
    *,
    lost_data: bool = False,
) -> Iterator[metadata.Record]:
    rules, unclean = rules_of(image, topic, bugs, but=number), elects_unclean(image, topic, bugs)
    record = without_broker(partition, number, rules, unclean=unclean, lost_data=lost_data)
    if record is not None:
        yield record


def _join(image: Image, number: int, bugs: Collection[str]) -> Iterator[metadata.Record]:
    """Yield the partition changes that follow when a broker is unfenced."""
    for topic, partition in _partitions(image):
        if number in partition.replicas:
            unclean = elects_unclean(image, topic, bugs)
            record = with_broker(partition, rules_of(image, topic, bugs, also=number), unclean=unclean)
            if record is not None:
                yield record


def _partitions(image: Image) -> Iterator[tuple[str, metadata.PartitionRecord]]:
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            yield topic.name, partition


def _is_unfenced(image: Image, number: int) -> bool:
    broker = image.brokers.get(number)
    return broker is not None and not broker.fenced
