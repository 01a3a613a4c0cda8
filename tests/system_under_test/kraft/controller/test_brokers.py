"""The life of brokers: registered, unfenced, fenced, shut down; and what that means for their partitions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from live_controller import BROKERS, Controller

from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller import decisions
from system_under_test.kraft.controller.brokers import SESSION_TIMEOUT_S, BrokerState, Sessions
from system_under_test.kraft.controller.features import (
    ELR_VERSION,
    SUPPORTED,
    LevelWanted,
    update_features,
    why_not_served,
)
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.records.metadata import NO_LEADER, FeatureLevelRecord, encode


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
