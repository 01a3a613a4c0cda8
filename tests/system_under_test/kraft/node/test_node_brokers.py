"""Real nodes as controllers of brokers: epochs are offsets, and an idle controller writes a record now and then."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from node_cluster import Boot
from waiting import eventually

from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller.brokers import Registration
from system_under_test.kraft.controller.partition_requests import DutySettings
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.records.metadata import Endpoint, NoOpRecord, RegisterBrokerRecord, decode

pytestmark = pytest.mark.virtual_time

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
