"""Replication control: tables of single changes, invariants of chains of changes, and data that must survive them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Refused, changed
from system_under_test.kraft.controller.partition_rules import (
    RECOVERED,
    RECOVERING,
    AlterPartition,
    IsrMember,
    PartitionRules,
    Wanted,
    change,
    reassign,
    why_refused,
    with_broker,
    without_broker,
)
from system_under_test.kraft.records.metadata import LOST, MIGRATING, NO_LEADER, PartitionChangeRecord, PartitionRecord

TOPIC = UUID(int=7)
BROKERS = (1, 2, 3, 4, 5)


def partition_of(
    isr: tuple[int, ...], leader: int, replicas: tuple[int, ...] = (1, 2, 3), **more: object
) -> PartitionRecord:
    return PartitionRecord(
        0,
        TOPIC,
        replicas,
        isr,
        leader=leader,
        leader_epoch=5,
        partition_epoch=9,
        **more,  # type: ignore[arg-type]
    )


def rules(*alive: int, min_insync: int = 1, elr: bool = False) -> PartitionRules:
    return PartitionRules(lambda broker: broker in alive, min_insync, elr)


def after(partition: PartitionRecord, record: PartitionChangeRecord | None) -> PartitionRecord:
    assert record is not None
    return changed(partition, record)


@pytest.mark.parametrize(
    ("alive", "isr", "leader", "expected"),
    [
        pytest.param((1, 2, 3), (1, 2, 3), 2, ((1, 2, 3), 2), id="a leader that can lead stays"),
        pytest.param((2, 3), (2, 3), 1, ((2, 3), 2), id="the first replica in sync leads"),
        pytest.param((3,), (2,), 2, ((2,), NO_LEADER), id="a replica that is not in sync does not lead"),
        pytest.param((), (1,), 1, ((1,), NO_LEADER), id="without anyone alive there is no leader"),
    ],
)
def test_an_election_chooses(
    alive: tuple[int, ...], isr: tuple[int, ...], leader: int, expected: tuple[tuple[int, ...], int]
) -> None:
    partition = partition_of(isr, leader)
    record = change(partition, Wanted(), rules(*alive))
    found = partition if record is None else changed(partition, record)
    assert (found.isr, found.leader) == expected


def test_a_replica_that_is_being_removed_leads_if_no_other_is_in_sync() -> None:
    """Without a leader no replica joins the in-sync set, and so the reassignment would never end."""
    moving = partition_of((2,), NO_LEADER, (1, 3, 2), adding=(1, 3), removing=(2,))
    assert after(moving, with_broker(moving, rules(1, 2, 3))).leader == 2
    both = replace(moving, isr=(1, 2))
    assert after(both, with_broker(both, rules(1, 2, 3))).leader == 1, "one that stays comes first"


def test_a_replica_that_leaves_a_small_isr_stays_eligible() -> None:
    partition = partition_of((1, 2), 1)
    alone = after(partition, without_broker(partition, 2, rules(1, min_insync=2, elr=True)))
    assert (alone.isr, alone.elr) == ((1,), (2,))
    nobody = after(alone, without_broker(alone, 1, rules(min_insync=2, elr=True)))
    assert (nobody.isr, nobody.elr, nobody.leader) == ((), (1, 2), NO_LEADER)
    back = after(nobody, with_broker(nobody, rules(2, min_insync=2, elr=True)))
    assert (back.leader, back.isr, back.elr, back.recovery_state) == (2, (2,), (1,), RECOVERED)


def test_a_partition_without_a_leader_remembers_its_last_one() -> None:
    partition = partition_of((1,), 1)
    gone = after(partition, without_broker(partition, 1, rules(2, elr=True), lost_data=True))
    assert (gone.isr, gone.elr, gone.leader, gone.last_known_elr) == ((), None, NO_LEADER, (1,))
    back = after(gone, with_broker(gone, rules(1, elr=True)))
    assert (back.leader, back.isr, back.last_known_elr) == (1, (1,), None)


def test_directories_follow_their_replicas() -> None:
    """A snapshot with another number of directories than replicas ends Kafka's controllers and brokers."""
    partition = partition_of((1, 2), 1, (1, 2), directories=(UUID(int=101), UUID(int=102)))
    begun = after(partition, reassign(partition, (2, 3), rules(1, 2, 3)))
    assert dict(zip(begun.replicas, begun.directories, strict=True)) == {
        1: UUID(int=101),
        2: UUID(int=102),
        3: MIGRATING,
    }
    done = after(begun, change(begun, Wanted(isr=(1, 2, 3)), rules(1, 2, 3)))
    assert (done.replicas, done.directories) == ((2, 3), (UUID(int=102), MIGRATING))
    moved = after(done, change(done, Wanted(assigned={3: UUID(int=103)}), rules(1, 2, 3)))
    assert moved.directories == (UUID(int=102), UUID(int=103)) and moved.leader_epoch == done.leader_epoch
    assert change(moved, Wanted(assigned={3: UUID(int=103)}), rules(1, 2, 3)) is None


def test_older_levels_name_no_directories_and_begin_an_epoch_when_the_isr_shrinks() -> None:
    old = PartitionRules(lambda broker: True, default_directory=None, bumps_on_shrink=True)
    partition = partition_of((1, 2), 1, (1, 2))
    record = reassign(partition, (1, 2, 3), old)
    assert record is not None and record.directories is None
    shrunk = after(partition, change(partition, Wanted(isr=(1,)), old))
    assert (shrunk.leader, shrunk.leader_epoch) == (1, partition.leader_epoch + 1)


def test_a_replica_in_a_lost_directory_does_not_lead() -> None:
    lost = PartitionRules(lambda broker: True, online=lambda broker, directory: directory != LOST)
    partition = partition_of((1, 2), 1, (1, 2), directories=(LOST, UUID(int=102)))
    assert after(partition, change(partition, Wanted(), lost)).leader == 2


def test_the_last_known_leader_leads_only_if_it_is_alive() -> None:
    """Kafka forgot to look (KAFKA-19522)."""
    partition = partition_of((), NO_LEADER, last_known_elr=(2,))
    assert change(partition, Wanted(isr=()), rules(1, 3, elr=True, min_insync=2)) is None
    found = after(partition, change(partition, Wanted(isr=()), rules(2, elr=True, min_insync=2)))
    assert (found.leader, found.recovery_state) == (2, RECOVERING)


def test_a_reassignment_ends_when_all_that_it_adds_are_in_sync() -> None:
    partition = partition_of((1, 2, 3), 1)
    begun = after(partition, reassign(partition, (3, 4, 5), rules(*BROKERS)))
    assert (begun.replicas, begun.adding, begun.removing) == ((3, 4, 5, 1, 2), (4, 5), (1, 2))
    half = after(begun, change(begun, Wanted(isr=(1, 2, 3, 4)), rules(*BROKERS)))
    assert half.adding == (4, 5), "it ended before 5 was in sync (KAFKA-15665)"
    done = after(half, change(half, Wanted(isr=(1, 2, 3, 4, 5)), rules(*BROKERS)))
    assert (done.replicas, done.isr, done.adding, done.removing) == ((3, 4, 5), (3, 4, 5), (), ())
    assert done.leader == 3 and done.leader_epoch == partition.leader_epoch + 1
    lagging = after(half, change(half, Wanted(isr=(1, 2, 4, 5)), rules(*BROKERS)))
    assert (lagging.replicas, lagging.isr) == ((3, 4, 5), (4, 5)), "3, which it keeps, is away (KAFKA-19975)"


def test_a_reassignment_that_removes_more_than_it_adds_waits_for_all_that_remain() -> None:
    partition = partition_of((1, 2, 3), 1)
    begun = after(partition, reassign(partition, (3, 4), rules(*BROKERS)))
    half = after(begun, change(begun, Wanted(isr=(1, 2, 4)), rules(*BROKERS)))
    assert (half.adding, half.removing) == ((4,), (1, 2)), "3 is not in sync"
    done = after(half, change(half, Wanted(isr=(1, 2, 3, 4)), rules(*BROKERS)))
    assert (done.replicas, done.isr) == ((3, 4), (3, 4))


def test_a_cancelled_reassignment_leaves_what_was() -> None:
    partition = partition_of((1, 2, 3), 1)
    begun = after(partition, reassign(partition, (3, 4, 5), rules(*BROKERS)))
    cancelled = after(begun, reassign(begun, None, rules(*BROKERS)))
    assert set(cancelled.replicas) == {1, 2, 3} and not cancelled.adding and not cancelled.removing


def test_a_removed_replica_raises_the_leader_epoch() -> None:
    partition = partition_of((1, 2), 1)
    done = after(partition, reassign(partition, (1, 2), rules(*BROKERS)))
    assert (done.leader, done.leader_epoch, done.replicas) == (1, 6, (1, 2))


PROPOSAL = AlterPartition(1, 5, 9, (IsrMember(1), IsrMember(2)))


@pytest.mark.parametrize(
    ("proposal", "error"),
    [
        (PROPOSAL, None),
        (replace(PROPOSAL, leader_epoch=6), ErrorCode.not_controller),
        (replace(PROPOSAL, partition_epoch=10), ErrorCode.not_controller),
        (replace(PROPOSAL, leader_epoch=4), ErrorCode.fenced_leader_epoch),
        (replace(PROPOSAL, leader_epoch=4, partition_epoch=8), ErrorCode.fenced_leader_epoch),
        (replace(PROPOSAL, leader=2, partition_epoch=8), ErrorCode.invalid_request),
        (replace(PROPOSAL, partition_epoch=8), ErrorCode.invalid_update_version),
        (replace(PROPOSAL, isr=(IsrMember(1), IsrMember(4))), ErrorCode.invalid_request),
        (replace(PROPOSAL, isr=(IsrMember(2),)), ErrorCode.invalid_request),
        (replace(PROPOSAL, isr=(IsrMember(1), IsrMember(1))), ErrorCode.invalid_request),
        (replace(PROPOSAL, recovery_state=RECOVERING), ErrorCode.invalid_request),
        (replace(PROPOSAL, isr=(IsrMember(1),), recovery_state=RECOVERING), ErrorCode.invalid_request),
        (replace(PROPOSAL, isr=(IsrMember(1), IsrMember(3))), ErrorCode.ineligible_replica),
    ],
)
def test_alter_partition_is_a_compare_and_set(proposal: AlterPartition, error: ErrorCode | None) -> None:
    partition = partition_of((1, 2, 3), 1)
    assert why_refused(partition, proposal, lambda member: member.broker != 3) == error


@dataclass
class World:
    """Replicas with data.  acknowledged: how many writes were.  held: how many of them each replica's log holds."""

    partition: PartitionRecord
    min_insync: int
    elr: bool
    running: set[int] = field(default_factory=lambda: set(BROKERS))
    held: dict[int, int] = field(default_factory=lambda: dict.fromkeys(BROKERS, 0))
    acknowledged: int = 0
    lossy: bool = False

    def rules(self) -> PartitionRules:
        return PartitionRules(lambda broker: broker in self.running, self.min_insync, self.elr)

    def take(self, record: PartitionChangeRecord | None) -> None:
        if record is None:
            return
        before, now = self.partition, changed(self.partition, record)
        assert now.partition_epoch == before.partition_epoch + 1
        assert now.leader_epoch in (before.leader_epoch, before.leader_epoch + 1)
        assert set(now.isr) <= set(now.replicas) and set(now.elr or ()) <= set(now.replicas)
        assert not set(now.isr) & set(now.elr or ())
        assert now.leader == NO_LEADER or now.leader in now.isr
        assert len(now.isr) < min(self.min_insync, len(now.replicas)) or not now.elr
        assert self.elr or now.isr
        if now.leader not in (NO_LEADER, before.leader) and now.recovery_state == RECOVERED and not self.lossy:
            assert self.held[now.leader] >= self.acknowledged, "a clean election lost what was acknowledged"
        self.partition = now

    def write(self) -> None:
        leader, isr = self.partition.leader, self.partition.isr
        if leader == NO_LEADER or leader not in self.running or len(isr) < self.min_insync:
            return
        if set(isr) <= self.running:
            for broker in isr:
                self.held[broker] = self.acknowledged + 1
            self.acknowledged += 1

    def stop(self, broker: int, *, loses: bool) -> None:
        self.running.discard(broker)
        self.take(without_broker(self.partition, broker, self.rules()))
        if loses:
            self.held[broker] = 0
            # Without an ELR the last in-sync replica leads again although it lost data; the ELR prevents that.
            self.lossy = self.lossy or (not self.elr and broker in self.partition.isr)
            self.take(without_broker(self.partition, broker, self.rules(), lost_data=True))

    def start(self, broker: int) -> None:
        self.running.add(broker)
        self.take(with_broker(self.partition, self.rules()))

    def catch_up(self, broker: int) -> None:
        """The leader brings a running replica into sync, as AlterPartition does."""
        leader = self.partition.leader
        if {leader, broker} <= self.running and broker in self.partition.replicas and broker not in self.partition.isr:
            self.held[broker] = self.held[leader]
            self.take(change(self.partition, Wanted(isr=(*self.partition.isr, broker)), self.rules()))

    def shrink(self, broker: int) -> None:
        isr = tuple(replica for replica in self.partition.isr if replica != broker)
        if self.partition.leader in isr and self.partition.leader in self.running:
            self.take(change(self.partition, Wanted(isr=isr), self.rules()))

    def reassign(self, random: Random) -> None:
        target = tuple(random.sample(BROKERS, 3)) if random.random() < 0.8 else None
        with contextlib.suppress(Refused):
            self.take(reassign(self.partition, target, self.rules()))


@pytest.mark.parametrize("elr", [False, True])
@given(seed=st.integers(0, 2**32), min_insync=st.integers(1, 3))
def test_no_clean_change_loses_what_was_acknowledged(elr: bool, seed: int, min_insync: int) -> None:
    random = Random(seed)
    world = World(partition_of((1, 2, 3), 1), min_insync, elr)
    moves: list[Callable[[int], None]] = [
        lambda broker: world.write(),
        lambda broker: world.write(),
        lambda broker: world.stop(broker, loses=False),
        lambda broker: world.stop(broker, loses=elr),
        world.start,
        world.start,
        world.catch_up,
        world.catch_up,
        world.shrink,
        lambda broker: world.reassign(random),
    ]
    for _ in range(60):
        random.choice(moves)(random.choice(BROKERS))
