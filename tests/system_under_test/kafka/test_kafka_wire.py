"""Requests and answers of Kafka's clients, whose fields are Kafka's own, as a broker reads and writes them."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from system_under_test.kafka import wire
from system_under_test.kraft.wire import frames
from system_under_test.kraft.wire.versions import built


def sent(request: Any) -> Any:
    """Return a request as a broker reads it."""
    body = wire.frame(request)[4:]
    header, at = frames.decode_request_header(body)
    return frames.decode_request_body(header, body, at)


def answered(request: Any, **given: Any) -> Any:
    """Return the answer to a request, as a client reads it."""
    kind = frames.codec(request.__api_key__, request.__version__).response_type
    return frames.decode_response(type(request), frames.encode_response(1, built(kind, given))[4:])[1]


def test_each_request_is_what_kafka_defines() -> None:
    assert [each.name for each in sent(wire.metadata_request("a", "b")).topics] == ["a", "b"]
    assert sent(wire.metadata_request()).topics is None
    assert sent(wire.find_coordinator_request("g")).key == "g"
    committed = sent(wire.commit_request("g", "t", 7))
    assert (committed.group_id, committed.topics[0].name) == ("g", "t")
    assert committed.topics[0].partitions[0].committed_offset == 7
    assert sent(wire.fetch_request("g")).topics is None
    many = sent(wire.fetch_many_request([f"g{number:05}" for number in range(8000)]))
    assert (len(many.groups), many.groups[-1].group_id, many.groups[0].topics) == (8000, "g07999", None)
    made = sent(wire.create_topic_request("t", 3)).topics[0]
    assert (made.name, made.num_partitions, made.replication_factor) == ("t", 1, 3)
    (changed,) = sent(wire.set_config_request("t", "retention.ms", "7")).resources
    (entry,) = changed.configs
    assert (changed.resource_type, changed.resource_name, entry.name, entry.value) == (2, "t", "retention.ms", "7")
    assert sent(wire.moves_request()).topics is None
    for replicas in ((3, 1, 102), None):
        (topic,) = sent(wire.move_request("k0", 7, replicas)).topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index, partition.replicas) == ("k0", 7, replicas)


@pytest.mark.parametrize(
    ("offset", "error", "of_group", "expected"),
    [(7, 0, 0, ([7], 0)), (-1, 0, 0, ([], 0)), (7, 16, 0, ([], 16)), (7, 0, 14, ([7], 14))],
)
def test_offsets_and_errors_are_read(offset: int, error: int, of_group: int, expected: tuple[list[int], int]) -> None:
    row = {"partition_index": 0, "committed_offset": offset, "metadata": None, "error_code": ErrorCode(error)}
    topics = [{"name": "t", "partitions": [row]}]
    answer = answered(wire.fetch_request("g"), topics=topics, error_code=ErrorCode(of_group))
    assert wire.offsets_in(answer) == expected


@pytest.mark.parametrize(
    ("source", "error", "expected"), [(1, 0, ("7", 0)), (5, 0, (None, 0)), (None, 3, (None, 3)), (None, 0, (None, 0))]
)
def test_only_a_config_of_the_topic_itself_counts(
    source: int | None, error: int, expected: tuple[str | None, int]
) -> None:
    of_all = {"name": "log.retention.ms", "value": "9", "source": 5}
    rest = {"read_only": False, "config_source": source, "is_sensitive": False, "synonyms": [of_all]}
    configs = [{"name": "retention.ms", "value": "7", **rest}] if source is not None else []
    result = {"error_code": ErrorCode(error), "resource_type": 2, "resource_name": "t", "configs": configs}
    request = wire.config_request("t", "retention.ms")
    assert sent(request).resources[0].configuration_keys == ("retention.ms",)
    assert wire.config_in(answered(request, results=[result])) == expected


@pytest.mark.parametrize(
    ("of_all", "of_one", "expected"), [(0, [0], []), (0, [85], [85]), (41, [], [41]), (41, [39], [41, 39])]
)
def test_errors_of_a_move_are_read(of_all: int, of_one: list[int], expected: list[int]) -> None:
    rows = [{"partition_index": 7, "error_code": ErrorCode(error)} for error in of_one]
    responses = [{"name": "k0", "partitions": rows}] if rows else []
    request = wire.move_request("k0", 7, (1,))
    answer = answered(request, error_code=ErrorCode(of_all), error_message="no", responses=responses)
    assert wire.errors_of_move(answer) == expected
