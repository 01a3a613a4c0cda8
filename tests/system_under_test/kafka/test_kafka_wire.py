"""Requests and answers of Kafka's clients: kio, which is generated from Kafka's own definitions, is the oracle."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kio.schema.alter_partition_reassignments.v0 import response as moved
from kio.schema.describe_configs.v1 import response as configs
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v0 import response as alter
from kio.schema.list_partition_reassignments.v0 import response as moving
from kio.schema.metadata.v7 import response as metadata
from kio.schema.offset_commit.v7 import response as commit
from kio.schema.offset_fetch.v5 import response as fetch

from system_under_test.kafka import wire
from system_under_test.kraft.wire import frames

NOW = timedelta()


def request_in(frame: bytes) -> object:
    """Return kio's entity of a whole frame, which must hold nothing else."""
    body = frame[4:]
    assert int.from_bytes(frame[:4], "big") == len(body)
    header, at = frames.decode_request_header(body)
    assert header.client_id == "krucible"
    found = frames.decode_request_body(header, body, at)
    assert frames.encode_request(header.correlation_id, "krucible", found) == frame
    return found


def test_each_request_is_what_kafka_defines() -> None:
    assert [each.name for each in request_in(wire.metadata_request("a", "b")).topics] == ["a", "b"]
    assert request_in(wire.metadata_request()).topics is None
    assert request_in(wire.find_coordinator_request("g")).key == "g"
    committed = request_in(wire.commit_request("g", "t", 7))
    assert (committed.group_id, committed.topics[0].name) == ("g", "t")
    assert committed.topics[0].partitions[0].committed_offset == 7
    assert request_in(wire.fetch_request("g")).topics is None
    many = request_in(wire.fetch_many_request([f"g{number:05}" for number in range(8000)]))
    assert (len(many.groups), many.groups[-1].group_id, many.groups[0].topics) == (8000, "g07999", None)
    made = request_in(wire.create_topic_request("t", 3, {"min.insync.replicas": "2"})).topics[0]
    assert (made.name, made.num_partitions, made.replication_factor, made.configs[0].value) == ("t", 1, 3, "2")


def test_partitions_are_read_from_an_answer() -> None:
    rows = [(0, 3, 7, (1, 2, 3), (3, 1)), (1, -1, 2, (2,), ())]
    partitions = tuple(
        metadata.MetadataResponsePartition(
            error_code=ErrorCode(0),
            partition_index=n,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=all_,
            isr_nodes=in_sync,
        )
        for n, leader, epoch, all_, in_sync in rows
    )
    topics = (
        metadata.MetadataResponseTopic(error_code=ErrorCode(0), name="k0", is_internal=False, partitions=partitions),
        metadata.MetadataResponseTopic(error_code=ErrorCode(3), name="none", is_internal=False, partitions=()),
    )
    brokers = (metadata.MetadataResponseBroker(node_id=1, host="198.18.0.1", port=9092, rack=None),)
    answer = metadata.MetadataResponse(
        throttle_time=NOW, brokers=brokers, cluster_id="c", controller_id=1, topics=topics
    )
    found = wire.partitions_in(frames.encode_response(1, answer)[4:])
    assert found["k0"] == {n: wire.PartitionState(n, leader, epoch, [*a], [*i]) for n, leader, epoch, a, i in rows}
    assert found["none"] == {}


@pytest.mark.parametrize(
    ("offset", "error", "of_group", "expected"),
    [(7, 0, 0, ([7], 0)), (-1, 0, 0, ([], 0)), (7, 16, 0, ([], 16)), (7, 0, 14, ([7], 14))],
)
def test_offsets_and_errors_are_read(offset: int, error: int, of_group: int, expected: tuple[list[int], int]) -> None:
    row = fetch.OffsetFetchResponsePartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=-1,
        metadata=None,
        error_code=ErrorCode(error),
    )
    topic = fetch.OffsetFetchResponseTopic(name="t", partitions=(row,))
    answer = fetch.OffsetFetchResponse(throttle_time=NOW, topics=(topic,), error_code=ErrorCode(of_group))
    assert wire.offsets_in(frames.encode_response(1, answer)[4:]) == expected


def test_errors_of_a_commit_are_read() -> None:
    rows = tuple(
        commit.OffsetCommitResponsePartition(partition_index=n, error_code=ErrorCode(e)) for n, e in ((0, 0), (1, 16))
    )
    topic = commit.OffsetCommitResponseTopic(name="t", partitions=rows)
    answer = commit.OffsetCommitResponse(throttle_time=NOW, topics=(topic,))
    assert wire.errors_of_commit(frames.encode_response(1, answer)[4:]) == [0, 16]


def test_a_config_is_set_and_read() -> None:
    (changed,) = request_in(wire.set_config_request("t", "retention.ms", "7")).resources
    assert (changed.resource_type, changed.resource_name) == (2, "t")
    (entry,) = changed.configs
    assert (entry.name, entry.config_operation, entry.value) == ("retention.ms", 0, "7")
    (asked,) = request_in(wire.config_request("t", "retention.ms")).resources
    assert (asked.resource_type, asked.resource_name, asked.configuration_keys) == (2, "t", ("retention.ms",))
    answered = alter.AlterConfigsResourceResponse(
        error_code=ErrorCode(3), error_message="none", resource_type=2, resource_name="t"
    )
    answer = alter.IncrementalAlterConfigsResponse(throttle_time=NOW, responses=(answered,))
    assert wire.error_of_set(frames.encode_response(1, answer)[4:]) == 3


@pytest.mark.parametrize(
    ("source", "error", "expected"), [(1, 0, ("7", 0)), (5, 0, (None, 0)), (None, 3, (None, 3)), (None, 0, (None, 0))]
)
def test_only_a_config_of_the_topic_itself_counts(
    source: int | None, error: int, expected: tuple[str | None, int]
) -> None:
    synonym = configs.DescribeConfigsSynonym(name="log.retention.ms", value="9", source=5)
    entry = configs.DescribeConfigsResourceResult(
        name="retention.ms", value="7", read_only=False, config_source=source, is_sensitive=False, synonyms=(synonym,)
    )
    result = configs.DescribeConfigsResult(
        error_code=ErrorCode(error),
        error_message=None,
        resource_type=2,
        resource_name="t",
        configs=(entry,) if source is not None else (),
    )
    answer = configs.DescribeConfigsResponse(throttle_time=NOW, results=(result,))
    assert wire.config_in(frames.encode_response(1, answer)[4:]) == expected


@pytest.mark.parametrize("replicas", [(3, 1, 102), None])
def test_a_move_names_replicas_or_is_taken_back(replicas: tuple[int, ...] | None) -> None:
    (topic,) = request_in(wire.move_request("k0", 7, replicas)).topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index, partition.replicas) == ("k0", 7, replicas)


@pytest.mark.parametrize(
    ("of_all", "of_one", "expected"), [(0, [0], []), (0, [85], [85]), (41, [], [41]), (41, [39], [41, 39])]
)
def test_errors_of_a_move_are_read(of_all: int, of_one: list[int], expected: list[int]) -> None:
    partitions = tuple(
        moved.ReassignablePartitionResponse(partition_index=7, error_code=ErrorCode(error), error_message="no")
        for error in of_one
    )
    topic = moved.ReassignableTopicResponse(name="k0", partitions=partitions)
    answer = moved.AlterPartitionReassignmentsResponse(
        throttle_time=NOW,
        error_code=ErrorCode(of_all),
        error_message="x" * 200 if of_all else None,
        responses=(topic,) if of_one else (),
    )
    assert wire.errors_of_move(frames.encode_response(1, answer)[4:]) == expected


@pytest.mark.parametrize(("count", "error"), [(0, 0), (2, 0), (0, 7)])
def test_topics_that_are_being_moved_are_read(count: int, error: int) -> None:
    assert request_in(wire.moves_request()).topics is None
    row = moving.OngoingPartitionReassignment(partition_index=0, replicas=(1, 2), adding_replicas=(2,))
    topics = tuple(moving.OngoingTopicReassignment(name=f"k{n}", partitions=(row,) * (n + 1)) for n in range(count))
    answer = moving.ListPartitionReassignmentsResponse(
        throttle_time=NOW, error_code=ErrorCode(error), error_message="no" if error else None, topics=topics
    )
    assert wire.moves_in(frames.encode_response(1, answer)[4:]) == ([f"k{n}" for n in range(count)], error)
