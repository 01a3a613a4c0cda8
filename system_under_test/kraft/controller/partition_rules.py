"""Replication control: pure rules for changes of a partition's replicas, in-sync set and leader (KIP-631, KIP-455,
KIP-966).

    change(partition, wanted, rules) -> PartitionChangeRecord | None
    why_refused(partition, request, rules) -> the error of an AlterPartition, or None

Terms.  *ISR*: the in-sync replicas, which have all acknowledged records.  *ELR*: the eligible leader replicas.  A
replica that leaves an ISR below `min.insync.replicas` joins the ELR: while the ISR is that small, no record is
acknowledged, so the replica still has all acknowledged records.  *Target replicas*: the replicas that remain after a
reassignment.

Order of one change, as in Kafka:

    finish a reassignment -> ELR -> election -> leader epoch -> record -> None if nothing changed

The order matters: an election must use the new in-sync set, and replicas whose disks may have lost data must leave the
ELR before any of them can lead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from uuid import UUID

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import decisions
from system_under_test.kraft.controller.image import Refused, changed
from system_under_test.kraft.records.metadata import (
    LEADER_UNCHANGED,
    MIGRATING,
    NO_LEADER,
    PartitionChangeRecord,
    PartitionRecord,
)

RECOVERED = 0
RECOVERING = 1
"""Values of `recovery_state`: a leader elected uncleanly first recovers its own state (KIP-704)."""

ANY_BROKER_EPOCH = -1
"""Broker epoch in an AlterPartition of a leader that does not know the epoch of a follower."""


class Election(Enum):
    """Types of elections.

    ONLINE keeps the leader if it can lead.  PREFERRED elects the first replica if it can lead.  UNCLEAN is like ONLINE,
    but elects a replica that is not in sync if no other can lead.
    """

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@dataclass(frozen=True, slots=True)
class PartitionRules:
    """The inputs of decisions other than the partition itself.

    alive: returns True if a broker can lead: it is registered, not fenced, and not shutting down
    min_insync: `min.insync.replicas` of the topic
    elr: True if eligible leader replicas are kept (KIP-966)
    bugs: planted bugs (`decisions.py`)
    default_directory: returns the directory of a new replica on a broker; None if records do not name directories
    online: returns True if a broker can use a directory
    bumps_on_shrink: True if a smaller in-sync set begins a new leader epoch
    """

    alive: Callable[[int], bool]
    min_insync: int = 1
    elr: bool = False
    bugs: Collection[str] = ()
    default_directory: Callable[[int], UUID] | None = lambda broker: MIGRATING
    online: Callable[[int, UUID], bool] = lambda broker, directory: True
    bumps_on_shrink: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """Wanted changes of a partition; None leaves a field unchanged.

    isr: new in-sync set
    replicas, removing, adding: new state of a reassignment
    unclean_shutdown: brokers that may have lost data
    assigned: broker -> directory of its replica
    """

    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    recovery_state: int | None = None
    election: Election = Election.ONLINE
    unclean_shutdown: frozenset[int] = frozenset()
    assigned: Mapping[int, UUID] = field(default_factory=dict)


def change(partition: PartitionRecord, wanted: Wanted, rules: PartitionRules) -> PartitionChangeRecord | None:
    """Return the record that changes the partition to the wanted state; None if it already has that state."""
    target = replace(
        partition,
        isr=partition.isr if wanted.isr is None else wanted.isr,
        replicas=partition.replicas if wanted.replicas is None else wanted.replicas,
        removing=partition.removing if wanted.removing is None else wanted.removing,
        adding=partition.adding if wanted.adding is None else wanted.adding,
        recovery_state=partition.recovery_state if wanted.recovery_state is None else wanted.recovery_state,
    )
    target = _finish_reassignment(target, rules.bugs)
    target = _with_elr(partition, target, wanted.unclean_shutdown, rules)
    target = _elect(partition, target, wanted.election, rules)
    if not target.isr and not rules.elr:
        target = replace(target, isr=partition.isr)  # keep the last replica that had all acknowledged records
    if rules.default_directory is not None:
        target = _with_directories(partition, target, wanted.assigned, rules.default_directory)
    # A removed replica must not believe that it is still in sync.
    removed = set(partition.replicas) - set(target.replicas)
    shrunk = rules.bumps_on_shrink and set(partition.isr) - set(target.isr)
    names_leader = target.leader != partition.leader or bool(removed or shrunk)
    if rules.elr and names_leader:
        target = _with_last_leader(partition, target)
    return _difference(partition, target, leader=target.leader if names_leader else None)


def directory_held(partition: PartitionRecord, broker: int) -> UUID:
    """Return the directory of a broker's replica; MIGRATING if the partition does not name it."""
    held = dict(zip(partition.replicas, partition.directories, strict=True)) if partition.directories else {}
    return held.get(broker, MIGRATING)


def _with_directories(
    before: PartitionRecord,
    target: PartitionRecord,
    assigned: Mapping[int, UUID],
    default: Callable[[int], UUID],
) -> PartitionRecord:
    """Return the partition with one directory for each replica: the assigned directory, else the current one, or the
    default for a new replica.
    """
    held = before.directories or (MIGRATING,) * len(before.replicas)
    known = {**dict(zip(before.replicas, held, strict=True)), **assigned}
    directories = tuple(known[each] if each in known else default(each) for each in target.replicas)
    return target if directories == held else replace(target, directories=directories)


def _with_last_leader(before: PartitionRecord, target: PartitionRecord) -> PartitionRecord:
    """Return the partition with its lost leader as the last known leader, because no other replica can have
    acknowledged more.
    """
    if target.leader != NO_LEADER:
        return replace(target, last_known_elr=None)
    if before.leader == NO_LEADER or before.last_known_elr:
        return target
    return replace(target, last_known_elr=(before.leader,))


def _finish_reassignment(target: PartitionRecord, bugs: Collection[str]) -> PartitionRecord:
    """End the reassignment once all added replicas are in sync (KAFKA-15665).

    A kept replica may be out of sync (KAFKA-19975), unless the reassignment removes more replicas than it adds.
    """
    if not target.adding and not target.removing:
        return target
    remaining = tuple(replica for replica in target.replicas if replica not in target.removing)
    in_sync = tuple(replica for replica in target.isr if replica not in target.removing)
    needed = remaining if len(target.removing) > len(target.adding) else target.adding
    if not decisions.reassignment_is_done(needed, in_sync, bugs):
        return target
    return replace(target, replicas=remaining, isr=in_sync, removing=(), adding=())


def _with_elr(
    before: PartitionRecord, target: PartitionRecord, unclean_shutdown: Collection[int], rules: PartitionRules
) -> PartitionRecord:
    if not rules.elr or len(target.isr) >= min(rules.min_insync, len(target.replicas)):
        return replace(target, elr=None)
    lost = decisions.lost_replicas(unclean_shutdown, rules.bugs)
    eligible = _ordered({*(before.elr or ()), *before.isr} - set(target.isr) - lost, target.replicas)
    return replace(target, elr=eligible or None)


def _elect(
    before: PartitionRecord, target: PartitionRecord, election: Election, rules: PartitionRules
) -> PartitionRecord:
    """Return the target with its leader, and with the in-sync set that follows from this leader."""

    def alive(replica: int) -> bool:
        return rules.alive(replica) and rules.online(replica, directory_held(before, replica))

    def can_lead(replica: int) -> bool:
        return alive(replica) and (replica in target.isr or (not target.isr and replica in (target.elr or ())))

    # A replica that a reassignment removes may lead, too, because without a leader no reassignment ends.
    staying = tuple(replica for replica in target.replicas if replica not in target.removing)
    candidates = (*staying, *(replica for replica in target.replicas if replica in target.removing))
    if election is Election.PREFERRED and candidates and can_lead(candidates[0]):
        return _led_by(target, candidates[0])
    if target.leader != NO_LEADER and target.leader in target.replicas and can_lead(target.leader):
        return target
    for replica in candidates:
        if can_lead(replica):
            return _led_by(target, replica)
    last_known = target.last_known_elr or ()
    nobody_left = rules.elr and not target.isr and not target.elr and len(last_known) == 1
    if nobody_left and decisions.last_known_may_lead(alive(last_known[0]), rules.bugs):
        return _uncleanly_led_by(target, last_known[0])
    if election is Election.UNCLEAN:
        for replica in candidates:
            if alive(replica):
                return _uncleanly_led_by(target, replica)
    return replace(target, leader=NO_LEADER)


def _led_by(target: PartitionRecord, leader: int) -> PartitionRecord:
    if leader in target.isr:
        return replace(target, leader=leader)
    rest = tuple(replica for replica in target.elr or () if replica != leader)
    return replace(target, leader=leader, isr=(leader,), elr=rest or None)


def _uncleanly_led_by(target: PartitionRecord, leader: int) -> PartitionRecord:
    """Return the target with its unclean leader as the only in-sync replica.  Data of other replicas beyond this
    leader's log is lost.
    """
    return replace(target, leader=leader, isr=(leader,), elr=None, last_known_elr=None, recovery_state=RECOVERING)


def _difference(before: PartitionRecord, after: PartitionRecord, leader: int | None) -> PartitionChangeRecord | None:
    """Return the record of the difference between two states of a partition; None if they are equal.

    leader: leader that the record names; None to name none, so that the leader epoch does not change
    """

    def differs(name: str) -> bool:
        return bool(getattr(before, name) != getattr(after, name))

    record = PartitionChangeRecord(
        before.partition,
        before.topic_id,
        isr=after.isr if differs("isr") else None,
        leader=LEADER_UNCHANGED if leader is None else leader,
        replicas=after.replicas if differs("replicas") else None,
        directories=after.directories if differs("directories") else None,
        removing=after.removing if differs("removing") else None,
        adding=after.adding if differs("adding") else None,
        recovery_state=after.recovery_state if differs("recovery_state") else -1,
        elr=(after.elr or ()) if differs("elr") else None,
        last_known_elr=(after.last_known_elr or ()) if differs("last_known_elr") else None,
    )
    if record == PartitionChangeRecord(before.partition, before.topic_id):
        return None
    settled = changed(before, record)
    assert replace(settled, leader_epoch=0, partition_epoch=0) == replace(after, leader_epoch=0, partition_epoch=0)
    return record


def _ordered(replicas: Iterable[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the replicas in the order of `order`."""
    wanted = set(replicas)
    return tuple(replica for replica in order if replica in wanted)


# -- AlterPartition: a leader reports its in-sync set (KIP-497)


@dataclass(frozen=True, slots=True)
class IsrMember:
    """A member of a proposed in-sync set.

    broker_epoch: broker epoch that the leader knows, or ANY_BROKER_EPOCH (KIP-903)
    """

    broker: int
    broker_epoch: int = ANY_BROKER_EPOCH


@dataclass(frozen=True, slots=True)
class AlterPartition:
    """A leader's proposal of an in-sync set.  Its epochs are the leader's current view, and make the proposal a
    compare-and-set.
    """

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[IsrMember, ...]
    recovery_state: int = RECOVERED


def why_refused(
    partition: PartitionRecord,
    request: AlterPartition,
    is_eligible: Callable[[IsrMember], bool],
    bugs: Collection[str] = (),
) -> ErrorCode | None:
    """Return the error that refuses the proposal; None if the proposal is acceptable.  The order of the checks is
    Kafka's.

    is_eligible: returns True if the broker is registered with this epoch, not fenced, and not shutting down

    If the epoch of the proposal is newer than ours, *this controller* is behind: another controller wrote that epoch
    (KAFKA-14154).
    """
    if request.leader_epoch > partition.leader_epoch or request.partition_epoch > partition.partition_epoch:
        return ErrorCode.not_controller
    if request.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    isr = [member.broker for member in request.isr]
    if request.leader != partition.leader:
        return ErrorCode.invalid_request
    if decisions.proposal_is_old(request.partition_epoch, partition.partition_epoch, bugs):
        return ErrorCode.invalid_update_version
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or request.leader not in isr:
        return ErrorCode.invalid_request
    if request.recovery_state == RECOVERING and len(isr) > 1:
        return ErrorCode.invalid_request
    if partition.recovery_state == RECOVERED and request.recovery_state == RECOVERING:
        return ErrorCode.invalid_request
    if not all(map(is_eligible, request.isr)):
        return ErrorCode.ineligible_replica
    return None


# -- Effects of a broker's events on its partitions


def without_broker(
    partition: PartitionRecord, broker: int, rules: PartitionRules, *, unclean: bool = False, lost_data: bool = False
) -> PartitionChangeRecord | None:
    """Return the change of a partition when a broker is fenced or shuts down.

    unclean: True if the topic allows unclean elections
    lost_data: True if the broker restarted after an unclean shutdown, so that it also leaves the ELR
    """
    isr = tuple(replica for replica in partition.isr if replica != broker)
    wanted = Wanted(
        isr=isr,
        election=Election.UNCLEAN if unclean else Election.ONLINE,
        unclean_shutdown=frozenset({broker}) if lost_data else frozenset(),
    )
    return change(partition, wanted, rules)


def with_broker(
    partition: PartitionRecord, rules: PartitionRules, *, unclean: bool = False
) -> PartitionChangeRecord | None:
    """Return the change of a partition when a broker can lead again; None unless the partition had no leader and gets
    one.
    """
    if partition.leader != NO_LEADER:
        return None
    return change(partition, Wanted(election=Election.UNCLEAN if unclean else Election.ONLINE), rules)


def reassign(
    partition: PartitionRecord, target: Sequence[int] | None, rules: PartitionRules
) -> PartitionChangeRecord | None:
    """Begin a reassignment to `target`, or cancel the current one (None): KIP-455.

    Until the reassignment ends, the partition has both the old and the new replicas.  Replicas that an unfinished
    reassignment was adding are removed at once, unless they are in the target.  Raises Refused if no in-sync replica
    would remain.
    """
    before = tuple(replica for replica in partition.replicas if replica not in partition.adding)
    wanted = before if target is None else tuple(target)
    isr = tuple(replica for replica in partition.isr if replica in before or replica in wanted)
    if partition.isr and not isr:
        words = f"Only the replicas {partition.isr} are in sync, and none of them would remain."
        raise Refused(ErrorCode.invalid_replica_assignment, words)
    return change(
        partition,
        Wanted(
            isr=isr,
            replicas=(*wanted, *(replica for replica in before if replica not in wanted)),
            removing=tuple(replica for replica in before if replica not in wanted),
            adding=tuple(replica for replica in wanted if replica not in before),
        ),
        rules,
    )
