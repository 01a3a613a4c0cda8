"""Requests that change partitions, on a controller of three live brokers."""

from __future__ import annotations

from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from live_controller import BROKERS, ORDERS, Controller

from system_under_test.kraft.controller.image import Refused
from system_under_test.kraft.controller.one_by_one import Result
from system_under_test.kraft.controller.partition_requests import (
    alter_partitions,
    elect_leaders,
    reassign_partitions,
)
from system_under_test.kraft.controller.partition_rules import RECOVERING, AlterPartition, Election, IsrMember
from system_under_test.kraft.records.metadata import NO_LEADER, PartitionRecord, Record


@pytest.fixture
def controller() -> Controller:
    return Controller().with_topic()


def take(controller: Controller, decided: tuple[list[Record], list[Result]]) -> list[ErrorCode]:
    for record in decided[0]:
        controller.image.apply(record)
        controller.end_offset += 1
    for answer in decided[1]:
        if answer["now"] is not None and isinstance(answer["topic"], str):
            assert controller.image.topics[answer["topic"]].partitions[answer["partition_index"]] == answer["now"]
    return [answer["error_code"] for answer in decided[1]]


def partition(controller: Controller, number: int = 0) -> PartitionRecord:
    return controller.image.topics["orders"].partitions[number]


def propose(controller: Controller, *isr: int, number: int = 0, epochs: bool = True, **changes: int) -> AlterPartition:
    known = controller.image.brokers
    held = partition(controller, number)
    fields = {"leader": held.leader, "leader_epoch": held.leader_epoch, "partition_epoch": held.partition_epoch}
    members = tuple(IsrMember(broker, known[broker].broker_epoch if epochs else -1) for broker in isr)
    return AlterPartition(isr=members, **{**fields, **changes})


def alter(controller: Controller, proposal: AlterPartition, number: int = 0) -> list[ErrorCode]:
    broker = controller.image.brokers[proposal.leader]
    return take(
        controller,
        alter_partitions(controller.image, proposal.leader, broker.broker_epoch, [(ORDERS, number, proposal)]),
    )


def test_a_fenced_broker_and_one_of_another_epoch_do_not_join(controller: Controller) -> None:
    alter(controller, propose(controller, 1))
    stale = AlterPartition(
        1,
        0,
        partition(controller).partition_epoch,
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
    errors = take(controller, alter_partitions(controller.image, 1, epoch, unknown))
    assert errors == [ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition]


def test_an_unclean_election_finds_whoever_is_there(controller: Controller) -> None:
    for broker in BROKERS:
        controller.beat(broker, wants_fence=True)
    assert controller.leaders() == [NO_LEADER] * 3
    nobody = take(controller, elect_leaders(controller.image, [("orders", 0)], Election.UNCLEAN))
    assert nobody == [ErrorCode.eligible_leaders_not_available]
    controller.beat(1)
    assert controller.leaders() == [NO_LEADER] * 3, "1 is not in sync"
    assert take(controller, elect_leaders(controller.image, None, Election.UNCLEAN)) == [ErrorCode.none] * 3
    assert controller.leaders() == [1, 1, 1]
    assert (partition(controller).isr, partition(controller).recovery_state) == ((1,), RECOVERING)


def test_reassignments_that_are_refused(controller: Controller) -> None:
    wanted: list[tuple[str, int, tuple[int, ...] | None]] = [
        ("none", 0, (1,)),
        ("orders", 0, ()),
        ("orders", 1, (1, 1)),
        ("orders", 2, (9,)),
        ("orders", 3, None),
    ]
    assert take(controller, reassign_partitions(controller.image, wanted)) == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.unknown_topic_or_partition,
    ]
    nothing = take(controller, reassign_partitions(controller.image, [("orders", 0, None)]))
    assert nothing == [ErrorCode.no_reassignment_in_progress]
