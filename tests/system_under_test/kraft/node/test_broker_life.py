"""The life of a broker: sessions, shutdown and in-sync sets, and the epochs that controllers give."""

from __future__ import annotations

import asyncio
import math
from uuid import UUID

import pytest
from node_cluster import Boot
from waiting import eventually

from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller.brokers import Registration
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import DutySettings
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.node import broker_life
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.records.metadata import (
    Endpoint,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    decode,
    encode,
)

pytestmark = pytest.mark.virtual_time


def started(previous: int = broker_life.UNKNOWN_EPOCH) -> broker_life.Lifecycle:
    return broker_life.Lifecycle(100.0, previous, 2.0)


def serving() -> broker_life.Lifecycle:
    life = started()
    life.registered(100.0, 7)
    life.beaten(100.0, caught_up=True, fenced=True, should_shut_down=False)
    life.beaten(100.0, caught_up=True, fenced=False, should_shut_down=False)
    return life


def test_it_registers_first_and_shows_the_epoch_that_it_left_with() -> None:
    life = started(previous=5)
    assert life.ask(100.0, -1) == broker_life.AskToRegister(5)
    life.unanswered(100.0)
    assert life.ask(100.4, -1) is None and life.due_s == 100.5
    assert life.ask(100.5, -1) == broker_life.AskToRegister(5)


def test_it_wants_to_be_fenced_until_the_controller_says_that_it_knows_its_own_registration() -> None:
    life = started()
    life.registered(100.0, 7)
    assert life.state is broker_life.LifeState.FENCED
    assert life.ask(100.0, 6) == broker_life.Beat(7, 6, wants_fence=True, wants_shutdown=False)
    life.beaten(100.0, caught_up=False, fenced=True, should_shut_down=False)
    assert life.ask(100.5, 7) == broker_life.Beat(7, 7, wants_fence=True, wants_shutdown=False)
    life.beaten(100.5, caught_up=True, fenced=True, should_shut_down=False)
    assert life.ask(100.5, 7) == broker_life.Beat(7, 7, wants_fence=False, wants_shutdown=False), "at once"


def test_what_it_is_follows_from_the_answers() -> None:
    life = serving()
    assert life.state is broker_life.LifeState.SERVING and life.due_s == 102.0
    life.beaten(102.0, caught_up=True, fenced=True, should_shut_down=False)
    assert life.state is broker_life.LifeState.FENCED and life.due_s == 102.5


def test_it_leaves_when_the_controller_says_so() -> None:
    life = serving()
    life.leave(101.0)
    assert life.ask(101.0, 9) == broker_life.Beat(7, 9, wants_fence=False, wants_shutdown=True)
    life.beaten(101.0, caught_up=True, fenced=False, should_shut_down=False)
    assert life.state is broker_life.LifeState.LEAVING and not life.left_cleanly
    life.beaten(101.5, caught_up=True, fenced=True, should_shut_down=True)
    assert life.state is broker_life.LifeState.STOPPED and life.left_cleanly and life.ask(102.0, 9) is None


def test_it_leaves_uncleanly_where_no_controller_answers() -> None:
    life = serving()
    life.leave(101.0)
    assert life.due_s == 101.0
    life.unanswered(101.0)
    assert life.ask(111.0, 9) is None
    assert life.state is broker_life.LifeState.STOPPED and not life.left_cleanly


@pytest.mark.parametrize("fenced", [True, False])
def test_only_one_that_leaves_is_stopped_by_an_answer(fenced: bool) -> None:
    life = serving()
    life.beaten(102.0, caught_up=True, fenced=fenced, should_shut_down=fenced)
    assert life.state is (broker_life.LifeState.FENCED if fenced else broker_life.LifeState.SERVING)


def test_one_that_was_never_registered_just_stops() -> None:
    life = started()
    life.leave(100.0)
    assert life.state is broker_life.LifeState.STOPPED and not life.left_cleanly


def test_it_reports_when_the_last_answered_heartbeat_becomes_old_and_when_one_is_answered_in_time_again() -> None:
    answered = broker_life.Answered(within_s=4.0)
    assert answered.due_s == math.inf and answered.look(100.0) is None and answered.for_ms(100.0) == -1
    assert answered.answered(sent_s=100.0, now_s=100.5) == "heard 4000"
    assert answered.answered(sent_s=102.0, now_s=102.5) is None and answered.due_s == 106.0
    assert answered.look(105.9) is None
    assert answered.look(111.5) == "unheard 9500"  # the process slept
    assert answered.answered(sent_s=111.5, now_s=116.0) is None, "its answer came too late to say anything of now"
    assert answered.due_s == math.inf
    assert answered.answered(sent_s=116.0, now_s=116.5) == "heard 4000"


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


def members(keeper: broker_life.InSyncKeeper, image: Image, now_s: float) -> list[tuple[tuple[int, int], ...]]:
    return [proposal.isr for proposal in keeper.proposals(image, now_s)]


def test_a_member_gets_a_whole_lag_from_a_new_leader(image: Image) -> None:
    keeper = broker_life.InSyncKeeper(1, LAG_S)
    assert keeper.proposals(image, 100.0) == []
    assert keeper.proposals(image, 100.0 + LAG_S) == []
    assert members(keeper, image, 100.1 + LAG_S) == [((1, 11),)]


def test_who_answers_joins_with_the_epoch_that_answered(image: Image) -> None:
    keeper = broker_life.InSyncKeeper(1, LAG_S)
    keeper.heard(3, 13, 100.0)
    [proposal] = keeper.proposals(image, 100.0)
    assert (proposal.leader_epoch, proposal.partition_epoch) == (4, 6)
    assert proposal.isr == ((1, 11), (2, 12), (3, 13))
    image.replay(encode(RegisterBrokerRecord(3, broker_epoch=99, fenced=True)))
    assert members(keeper, image, 101.0) == [((1, 11), (2, 12), (3, 13))], "the controller refuses the old epoch"


def test_a_new_term_begins_a_new_lag(image: Image) -> None:
    keeper = broker_life.InSyncKeeper(1, LAG_S)
    keeper.proposals(image, 100.0)
    image.replay(encode(PartitionChangeRecord(0, ORDERS, leader=1)))
    assert keeper.proposals(image, 104.0) == []


def test_only_the_leader_proposes(image: Image) -> None:
    assert broker_life.InSyncKeeper(2, LAG_S).proposals(image, 100.0) == []
    assert broker_life.InSyncKeeper(2, LAG_S).followers(image) == set()
    assert broker_life.InSyncKeeper(1, LAG_S).followers(image) == {2, 3}
    assert broker_life.InSyncKeeper(9, LAG_S).proposals(image, 100.0) == []


SESSION_S = 0.6


async def register(node: QuorumNode, broker: int, incarnation: int = 1) -> int:
    request = Registration(broker, UUID(int=incarnation), (Endpoint("PLAINTEXT", f"n{broker}", 9092),))

    def decide(image):  # type: ignore[no-untyped-def]
        records = life.register(image, node.sessions, request, node.next_offset, node.now_s())
        return records, life.epoch_in(records)

    return await node.write(decide, at_once=True)


def records_of(node: QuorumNode) -> dict[int, object]:
    """offset -> record, of everything that is committed."""
    found: dict[int, object] = {}
    log = node._parts.log
    for batch in log.batches(log.start_offset, node.high_watermark or 0):
        if not codec.is_control(batch.body):
            found.update(enumerate(map(decode, codec.values(batch.body)), batch.base_offset))
    return found


async def test_epochs_are_the_offsets_of_registrations_also_when_many_come_at_once(boot: Boot) -> None:
    cluster = boot(duties=DutySettings(session_timeout_s=SESSION_S, balance_interval_s=None, no_op_interval_s=None))
    leader = await cluster.leader()
    epochs = await asyncio.gather(*(register(leader, broker) for broker in range(10)))
    found = {
        offset: record.broker_id
        for offset, record in records_of(leader).items()
        if isinstance(record, RegisterBrokerRecord)
    }
    assert found == {epoch: broker for broker, epoch in enumerate(epochs)}


async def test_an_idle_controller_writes_a_record_now_and_then(boot: Boot) -> None:
    cluster = boot(duties=DutySettings(session_timeout_s=SESSION_S, balance_interval_s=None, no_op_interval_s=0.2))
    leader = await cluster.leader()
    await eventually(lambda: sum(isinstance(record, NoOpRecord) for record in records_of(leader).values()) >= 3)
