"""A controller applies its own records as every other node does, though it decoded them when it decided."""

from __future__ import annotations

from uuid import UUID

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.node.metadata.state_machine import StateMachine
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, TopicRecord, decode, encode

TOPIC = encode(TopicRecord("t", UUID(int=7)))
ONE, TWO = (encode(ConfigRecord(TOPIC_RESOURCE, "t", "retention.ms", value)) for value in "12")


def controller() -> StateMachine:
    machine = StateMachine(0)
    machine.activate()
    return machine


def decide(machine: StateMachine, *records: bytes) -> None:
    machine.decide(lambda image: ([decode(record) for record in records], None), lambda result, problem: None)


def batch(offset: int, *records: bytes) -> Batch:
    return Batch(offset, 1, len(records), codec.encode_values(offset, 1, records, 0))


def test_a_controller_and_a_follower_come_to_the_same_state() -> None:
    """The same bytes are decided twice, before either is committed."""
    leader, follower = controller(), StateMachine(0)
    for records in ([TOPIC], [ONE], [TWO], [ONE]):
        decide(leader, *records)
    for committed in (batch(0, TOPIC), batch(1, ONE, TWO), batch(3, ONE)):
        leader.apply(committed)
        follower.apply(committed)
        assert leader.committed.state_hash == follower.committed.state_hash
    assert leader.committed.configs("t") == {"retention.ms": "1"}
    assert leader.committed.state_hash == leader.speculative_hash


def test_what_a_former_controller_decided_has_no_part_in_what_another_one_commits() -> None:
    leader = controller()
    decide(leader, TOPIC)
    decide(leader, ONE)
    leader.renounce()
    leader.apply(batch(0, TOPIC))
    leader.apply(batch(1, TWO))
    assert leader.committed.configs("t") == {"retention.ms": "2"}
