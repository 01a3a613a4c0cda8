"""The life of brokers: registered, unfenced, fenced, shut down; and requests that change their partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller import decisions
from system_under_test.kraft.controller.brokers import SESSION_TIMEOUT_S, BrokerState, Heartbeat, Registration, Sessions
from system_under_test.kraft.controller.configs import MIN_INSYNC
from system_under_test.kraft.controller.features import (
    ELR_VERSION,
    SUPPORTED,
    LevelWanted,
    supported_ranges,
    update_features,
    why_not_served,
)
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import Result
from system_under_test.kraft.controller.partition_requests import (
    alter_partitions,
    elect_leaders,
    reassign_partitions,
)
from system_under_test.kraft.controller.partition_rules import RECOVERING, AlterPartition, Election, IsrMember
from system_under_test.kraft.records import metadata
from system_under_test.kraft.records.metadata import NO_LEADER, FeatureLevelRecord, PartitionRecord, Record, encode

BROKERS = (1, 2, 3)
ORDERS = UUID(int=7)


@dataclass
class Controller:
    """An active controller: its image, its log's end, its clock, and what it remembers of brokers."""

    image: Image = field(default_factory=Image)
    end_offset: int = 100
    now_s: float = 1000.0
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.image, self.now_s)

    def take(self, records: Iterable[metadata.Record]) -> list[metadata.Record]:
        taken = list(records)
        for record in taken:
            self.image.replay(metadata.encode(record))
            self.end_offset += 1
        return taken

    def register(self, broker: int, incarnation: int = 1, previous_epoch: int = -1) -> int:
        request = Registration(
            broker,
            UUID(int=incarnation),
            (metadata.Endpoint("PLAINTEXT", f"n{broker}", 9092),),
            features=supported_ranges(),
            previous_epoch=previous_epoch,
        )
        self.take(life.register(self.image, self.sessions, request, self.end_offset, self.now_s))
        return self.image.brokers[broker].broker_epoch

    def beat(self, broker: int, *, behind: int = 0, epoch: int | None = None, **wants: bool) -> BrokerState:
        known = self.image.brokers[broker].broker_epoch if epoch is None else epoch
        request = Heartbeat(broker, known, self.end_offset - 1 - behind, **wants)
        records, state = life.heartbeat(self.image, self.sessions, request, self.end_offset, self.now_s)
        self.take(records)
        return state

    def with_topic(self, min_insync: int = 1) -> Controller:
        for broker in BROKERS:
            self.register(broker)
            assert self.beat(broker) is BrokerState.UNFENCED
        self.take(
            [
                metadata.TopicRecord("orders", ORDERS),
                metadata.ConfigRecord(metadata.TOPIC_RESOURCE, "orders", MIN_INSYNC, str(min_insync)),
            ]
        )
        for number in range(3):
            replicas = (BROKERS * 2)[number : number + 3]
            partition = metadata.PartitionRecord(
                number, ORDERS, replicas, replicas, leader=replicas[0], leader_epoch=0, partition_epoch=0
            )
            self.take([partition])
        return self

    def leaders(self) -> list[int]:
        return [partition.leader for _, partition in sorted(self.image.topics["orders"].partitions.items())]


def test_a_broker_must_know_its_own_registration_and_no_more() -> None:
    """To know the end of a busy log would be too much: it moves on (KAFKA-13959)."""
    controller = Controller()
    epoch = controller.register(1)
    controller.end_offset += 1000
    assert controller.beat(1, behind=controller.end_offset - epoch) is BrokerState.FENCED
    assert controller.beat(1, behind=controller.end_offset - epoch - 1) is BrokerState.UNFENCED


def test_a_second_incarnation_waits_for_the_end_of_the_session() -> None:
    controller = Controller().with_topic()
    with pytest.raises(Refused) as refused:
        controller.register(1, incarnation=2)
    assert refused.value.error == ErrorCode.duplicate_broker_registration
    controller.now_s += SESSION_TIMEOUT_S
    epoch = controller.register(1, incarnation=2)
    assert controller.image.brokers[1].broker_epoch == epoch and controller.image.brokers[1].fenced
    assert 1 not in controller.leaders()


def test_a_request_that_was_repeated_and_comes_late_leaves_the_session() -> None:
    """The answer to the first one was lost (KAFKA-16952), the second one was answered, and the broker serves."""
    controller = Controller().with_topic()
    epoch = controller.image.brokers[1].broker_epoch
    assert controller.register(1, incarnation=1) == epoch
    known = controller.image.brokers[1]
    assert (known.broker_epoch, known.fenced) == (epoch, False)
    controller.now_s += SESSION_TIMEOUT_S
    assert 1 in controller.sessions.stale(controller.image, controller.now_s), "it would never be fenced"


def test_one_that_was_unregistered_comes_back_without_what_it_may_have_lost() -> None:
    """No registration shows any more which incarnation left cleanly, so its replicas count as incomplete (KIP-966)."""
    controller = Controller().with_topic(min_insync=3)
    controller.take([FeatureLevelRecord(ELR_VERSION, 1)])
    controller.take(life.unregister(controller.image, controller.sessions, 1))
    eligible = [partition.elr for partition in controller.image.topics["orders"].partitions.values()]
    assert eligible == [(1,)] * 3, "it may still hold everything"
    controller.register(1, incarnation=2)
    partitions = controller.image.topics["orders"].partitions.values()
    assert [partition.elr for partition in partitions] == [None] * 3
    assert [partition.leader for partition in partitions] == [2, 2, 3]


def test_a_silent_broker_is_fenced_and_leads_nothing() -> None:
    controller = Controller().with_topic()
    deadline = controller.sessions.next_deadline_s(controller.image)
    assert deadline == controller.now_s + SESSION_TIMEOUT_S
    controller.now_s = deadline - 1
    controller.beat(2), controller.beat(3)
    assert life.fence_stale(controller.image, controller.sessions, controller.now_s) == []
    controller.now_s = deadline
    controller.take(life.fence_stale(controller.image, controller.sessions, controller.now_s))
    assert controller.image.brokers[1].fenced and controller.leaders() == [2, 2, 3]
    assert life.fence_stale(controller.image, controller.sessions, controller.now_s) == []


def test_a_new_controller_gives_each_broker_a_whole_session() -> None:
    controller = Controller().with_topic()
    controller.now_s += 3600
    controller.sessions = Sessions(controller.image, controller.now_s)
    assert controller.sessions.stale(controller.image, controller.now_s) == []
    assert controller.sessions.next_deadline_s(controller.image) == controller.now_s + SESSION_TIMEOUT_S


def test_two_planted_bugs_of_sessions_change_who_is_fenced_and_when() -> None:
    controller = Controller().with_topic()
    begun_s = controller.now_s
    controller.sessions.bugs = {decisions.SESSION_NOT_RENEWED}
    controller.now_s += SESSION_TIMEOUT_S - 1
    controller.beat(1)
    assert controller.sessions.next_deadline_s(controller.image) == begun_s + SESSION_TIMEOUT_S
    controller.sessions = Sessions(controller.image, controller.now_s, {decisions.FAILOVER_FORGETS_SESSIONS})
    assert controller.sessions.next_deadline_s(controller.image) is None
    controller.beat(1)
    assert controller.sessions.next_deadline_s(controller.image) == controller.now_s + SESSION_TIMEOUT_S


def test_a_controlled_shutdown_hands_its_partitions_over_first() -> None:
    controller = Controller().with_topic()
    assert controller.beat(1, wants_shutdown=True) is BrokerState.CONTROLLED_SHUTDOWN
    assert controller.leaders() == [2, 2, 3]
    assert controller.beat(1, wants_shutdown=True) is BrokerState.CONTROLLED_SHUTDOWN, "the others do not know yet"
    controller.beat(2), controller.beat(3)
    assert controller.beat(1, wants_shutdown=True) is BrokerState.SHUTDOWN_NOW
    assert controller.image.brokers[1].fenced


def test_the_last_broker_leaves_no_leader_and_comes_back_as_one() -> None:
    controller = Controller().with_topic()
    for broker in BROKERS:
        controller.beat(broker, wants_fence=True)
    assert controller.leaders() == [NO_LEADER] * 3
    assert controller.beat(3) is BrokerState.UNFENCED
    assert controller.leaders() == [3] * 3, "3 was the last in sync"


def test_an_unclean_restart_leaves_the_eligible_replicas() -> None:
    controller = Controller().with_topic(min_insync=2)
    controller.take([FeatureLevelRecord(ELR_VERSION, 1)])
    for broker in (1, 2):
        controller.beat(broker, wants_fence=True)
    partition = controller.image.topics["orders"].partitions[0]
    assert (partition.isr, partition.elr) == ((3,), (2,)), "1 left an ISR that was large enough without it"
    controller.now_s += SESSION_TIMEOUT_S
    controller.beat(3)
    controller.register(2, incarnation=2, previous_epoch=controller.image.brokers[2].broker_epoch)
    assert controller.image.topics["orders"].partitions[0].elr == (2,), "it shut down cleanly"
    controller.register(2, incarnation=3)
    assert controller.image.topics["orders"].partitions[0].elr is None


@given(st.integers(0, 2**32))
def test_whatever_brokers_do_the_rules_of_registrations_and_partitions_hold(seed: int) -> None:
    random = Random(seed)
    controller = Controller().with_topic(min_insync=random.choice([1, 2]))
    if random.random() < 0.5:
        controller.take([FeatureLevelRecord(ELR_VERSION, 1)])
    epochs = {broker: controller.image.brokers[broker].broker_epoch for broker in BROKERS}
    for _ in range(60):
        broker = random.choice(BROKERS)
        match random.randrange(5):
            case 0:
                controller.now_s += random.choice([0.5, 3.0, SESSION_TIMEOUT_S])
                controller.take(life.fence_stale(controller.image, controller.sessions, controller.now_s))
            case 1:
                try:
                    epoch = controller.register(broker, random.randrange(1, 4), random.choice([-1, epochs[broker]]))
                except Refused:
                    continue
                assert epoch >= epochs[broker]
                epochs[broker] = epoch
            case _:
                wants = {"wants_fence": random.random() < 0.2, "wants_shutdown": random.random() < 0.2}
                controller.beat(broker, behind=random.choice([0, 0, 500]), **wants)
        for partition in controller.image.topics["orders"].partitions.values():
            alive = partition.leader == NO_LEADER or not controller.image.brokers[partition.leader].fenced
            assert alive, f"broker {partition.leader} leads and is fenced"
            assert partition.leader == NO_LEADER or partition.leader in partition.isr
            assert not set(partition.isr) & set(partition.elr or ())


METADATA, GROUP = "metadata.version", "group.version"


@pytest.fixture
def image() -> Image:
    made = Image()
    made.replay(encode(FeatureLevelRecord(METADATA, 7)))
    return made


def update(image: Image, *wanted: LevelWanted) -> list[ErrorCode]:
    records, results = update_features(image, wanted, 0)
    for record in records:
        image.apply(record)
    return [result["error_code"] for result in results]


def test_levels_are_raised_and_removed(image: Image) -> None:
    assert update(image, LevelWanted(METADATA, 8), LevelWanted(GROUP, 1)) == [ErrorCode.none] * 2
    assert image.features == {METADATA: 8, GROUP: 1}
    assert update(image, LevelWanted(GROUP, 0, may_fall=True)) == [ErrorCode.none]
    assert image.features == {METADATA: 8}


def test_an_update_without_a_change_writes_nothing(image: Image) -> None:
    assert update_features(image, [LevelWanted(METADATA, 7)], 0)[0] == []


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (LevelWanted(METADATA, 6), ErrorCode.invalid_update_version),
        (LevelWanted(METADATA, 99), ErrorCode.invalid_update_version),
        (LevelWanted(METADATA, 0, may_fall=True), ErrorCode.invalid_update_version),
        (LevelWanted("colour", 1), ErrorCode.invalid_update_version),
    ],
)
def test_one_impossible_level_stops_all(image: Image, wanted: LevelWanted, error: ErrorCode) -> None:
    assert update(image, LevelWanted(GROUP, 1), wanted) == [ErrorCode.invalid_update_version, error]
    assert image.features == {METADATA: 7}
    assert update(image, wanted, wanted) == [ErrorCode.invalid_request] * 2


def test_what_is_not_supported_is_not_served(image: Image) -> None:
    assert why_not_served(image) is None
    for name, level in (("colour", 1), (METADATA, SUPPORTED[METADATA][-1] + 1)):
        beyond = image.copy()
        beyond.replay(encode(FeatureLevelRecord(name, level)))
        assert name in (why_not_served(beyond) or "")


@pytest.fixture
def controller() -> Controller:
    return Controller().with_topic()


def took(controller: Controller, decided: tuple[list[Record], list[Result]]) -> list[ErrorCode]:
    for record in decided[0]:
        controller.image.apply(record)
        controller.end_offset += 1
    for answer in decided[1]:
        if answer["now"] is not None and isinstance(answer["topic"], str):
            assert controller.image.topics[answer["topic"]].partitions[answer["partition_index"]] == answer["now"]
    return [answer["error_code"] for answer in decided[1]]


def partition_of(controller: Controller, number: int = 0) -> PartitionRecord:
    return controller.image.topics["orders"].partitions[number]


def propose(controller: Controller, *isr: int, number: int = 0, epochs: bool = True, **changes: int) -> AlterPartition:
    known = controller.image.brokers
    held = partition_of(controller, number)
    fields = {"leader": held.leader, "leader_epoch": held.leader_epoch, "partition_epoch": held.partition_epoch}
    members = tuple(IsrMember(broker, known[broker].broker_epoch if epochs else -1) for broker in isr)
    return AlterPartition(isr=members, **{**fields, **changes})


def alter(controller: Controller, proposal: AlterPartition, number: int = 0) -> list[ErrorCode]:
    broker = controller.image.brokers[proposal.leader]
    return took(
        controller,
        alter_partitions(controller.image, proposal.leader, broker.broker_epoch, [(ORDERS, number, proposal)]),
    )


def test_a_fenced_broker_and_one_of_another_epoch_do_not_join(controller: Controller) -> None:
    alter(controller, propose(controller, 1))
    stale = AlterPartition(
        1,
        0,
        partition_of(controller).partition_epoch,
        (IsrMember(1), IsrMember(2, controller.image.brokers[2].broker_epoch - 1)),
    )
    assert alter(controller, stale) == [ErrorCode.ineligible_replica]
    controller.beat(3, wants_fence=True)
    assert alter(controller, propose(controller, 1, 3)) == [ErrorCode.ineligible_replica]


def test_requests_of_strangers_and_about_strangers_are_refused(controller: Controller) -> None:
    epoch = controller.image.brokers[1].broker_epoch
    with pytest.raises(Refused, match="has epoch"):
        alter_partitions(controller.image, 1, epoch + 1, [])
    with pytest.raises(Refused, match="named 2 times"):
        alter_partitions(controller.image, 1, epoch, [(ORDERS, 0, propose(controller, 1))] * 2)
    unknown = [(UUID(int=99), 0, propose(controller, 1)), (ORDERS, 9, propose(controller, 1))]
    errors = took(controller, alter_partitions(controller.image, 1, epoch, unknown))
    assert errors == [ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition]


def test_an_unclean_election_finds_whoever_is_there(controller: Controller) -> None:
    for broker in BROKERS:
        controller.beat(broker, wants_fence=True)
    assert controller.leaders() == [NO_LEADER] * 3
    nobody = took(controller, elect_leaders(controller.image, [("orders", 0)], Election.UNCLEAN))
    assert nobody == [ErrorCode.eligible_leaders_not_available]
    controller.beat(1)
    assert controller.leaders() == [NO_LEADER] * 3, "1 is not in sync"
    assert took(controller, elect_leaders(controller.image, None, Election.UNCLEAN)) == [ErrorCode.none] * 3
    assert controller.leaders() == [1, 1, 1]
    assert (partition_of(controller).isr, partition_of(controller).recovery_state) == ((1,), RECOVERING)


def test_reassignments_that_are_refused(controller: Controller) -> None:
    wanted: list[tuple[str, int, tuple[int, ...] | None]] = [
        ("none", 0, (1,)),
        ("orders", 0, ()),
        ("orders", 1, (1, 1)),
        ("orders", 2, (9,)),
        ("orders", 3, None),
    ]
    assert took(controller, reassign_partitions(controller.image, wanted)) == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.unknown_topic_or_partition,
    ]
    nothing = took(controller, reassign_partitions(controller.image, [("orders", 0, None)]))
    assert nothing == [ErrorCode.no_reassignment_in_progress]
