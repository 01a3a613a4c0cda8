"""Who is in sync: who answers is, who is silent for too long is not, and epochs are those of who answered."""

from __future__ import annotations

from uuid import UUID

import pytest

from system_under_test.kraft.broker.in_sync import InSyncKeeper
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records.metadata import (
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    encode,
)

ORDERS = UUID(int=7)
LAG_S = 3.0


@pytest.fixture
def image() -> Image:
    made = Image()
    for broker in (1, 2, 3):
        made.replay(encode(RegisterBrokerRecord(broker, broker_epoch=10 + broker, fenced=False)))
    made.replay(encode(TopicRecord("orders", ORDERS)))
    made.replay(encode(PartitionRecord(0, ORDERS, (1, 2, 3), (1, 2), leader=1, leader_epoch=4, partition_epoch=6)))
    return made


def members(keeper: InSyncKeeper, image: Image, now_s: float) -> list[tuple[tuple[int, int], ...]]:
    return [proposal.isr for proposal in keeper.proposals(image, now_s)]


def test_a_member_gets_a_whole_lag_from_a_new_leader(image: Image) -> None:
    keeper = InSyncKeeper(1, LAG_S)
    assert keeper.proposals(image, 100.0) == []
    assert keeper.proposals(image, 100.0 + LAG_S) == []
    assert members(keeper, image, 100.1 + LAG_S) == [((1, 11),)]


def test_who_answers_joins_with_the_epoch_that_answered(image: Image) -> None:
    keeper = InSyncKeeper(1, LAG_S)
    keeper.heard(3, 13, 100.0)
    [proposal] = keeper.proposals(image, 100.0)
    assert (proposal.leader_epoch, proposal.partition_epoch) == (4, 6)
    assert proposal.isr == ((1, 11), (2, 12), (3, 13))
    image.replay(encode(RegisterBrokerRecord(3, broker_epoch=99, fenced=True)))
    assert members(keeper, image, 101.0) == [((1, 11), (2, 12), (3, 13))], "the controller refuses the old epoch"


def test_a_new_term_begins_a_new_lag(image: Image) -> None:
    keeper = InSyncKeeper(1, LAG_S)
    keeper.proposals(image, 100.0)
    image.replay(encode(PartitionChangeRecord(0, ORDERS, leader=1)))
    assert keeper.proposals(image, 104.0) == []


def test_only_the_leader_proposes(image: Image) -> None:
    assert InSyncKeeper(2, LAG_S).proposals(image, 100.0) == []
    assert InSyncKeeper(2, LAG_S).followers(image) == set()
    assert InSyncKeeper(1, LAG_S).followers(image) == {2, 3}
    assert InSyncKeeper(9, LAG_S).proposals(image, 100.0) == []
