"""What a broker says of its log folder: the replicas that it hosts, whatever is asked, and why one is not there."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.topics import NewTopic, create_topics, of_ids
from system_under_test.kraft.wire import admin
from system_under_test.kraft.wire.frames import codec
from system_under_test.kraft.wire.versions import ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS, SUPPORTED

HERE = "/data"


@pytest.fixture
def image() -> Image:
    """Topic `a`: three partitions with two replicas each; topic `b`: one partition, on broker 1 alone."""
    made, numbers = Image(), iter(range(1, 100))
    wanted = [NewTopic("a", 3, 2), NewTopic("b", -1, -1, assignments={0: (1,)})]
    for record in create_topics(made, wanted, of_ids((1, 2, 3)), lambda: UUID(int=next(numbers)))[0]:
        made.apply(record)
    return made


def hosted(image: Image, broker: int, version: int, topics: dict[str, list[int]] | None) -> set[tuple[str, int]]:
    """(topic, partition) of all that a DescribeLogDirs answer names."""
    kinds = codec(DESCRIBE_LOG_DIRS, version)
    wanted: Any = None
    if topics is not None:
        asked = kinds.requests.DescribableLogDirTopic
        wanted = tuple(asked(topic=name, partitions=tuple(numbers)) for name, numbers in topics.items())
    body = kinds.requests.DescribeLogDirsRequest(topics=wanted)
    answer = admin.describe_log_dirs(kinds.responses, image, broker, HERE, body)
    [folder] = answer.results
    assert (folder.log_dir, folder.error_code) == (HERE, ErrorCode.none)
    return {(topic.name, partition.partition_index) for topic in folder.topics for partition in topic.partitions}


@pytest.mark.parametrize("version", range(SUPPORTED[DESCRIBE_LOG_DIRS][0], SUPPORTED[DESCRIBE_LOG_DIRS][1] + 1))
@pytest.mark.parametrize("broker", [1, 2, 3, 4])
def test_a_broker_names_the_replicas_that_it_hosts_and_no_other(image: Image, broker: int, version: int) -> None:
    right = {
        (name, number)
        for name, topic in image.topics.items()
        for number, partition in topic.partitions.items()
        if broker in partition.replicas
    }
    assert bool(right) == (broker != 4)
    assert hosted(image, broker, version, None) == right
    assert hosted(image, broker, version, {"a": [0, 2, 7], "none": [0]}) == right & {("a", 0), ("a", 2)}
    assert hosted(image, broker, version, {}) == set()


@pytest.mark.parametrize(
    "version", range(SUPPORTED[ALTER_REPLICA_LOG_DIRS][0], SUPPORTED[ALTER_REPLICA_LOG_DIRS][1] + 1)
)
def test_a_replica_moves_only_to_where_it_is(image: Image, version: int) -> None:
    kinds = codec(ALTER_REPLICA_LOG_DIRS, version)

    def moved(broker: int, path: str, topic: str, *partitions: int) -> dict[int, ErrorCode]:
        named = kinds.requests.AlterReplicaLogDirTopic(name=topic, partitions=partitions)
        body = kinds.requests.AlterReplicaLogDirsRequest(
            dirs=(kinds.requests.AlterReplicaLogDir(path=path, topics=(named,)),)
        )
        answer = admin.alter_replica_log_dirs(kinds.responses, image, broker, HERE, body)
        [result] = answer.results
        assert result.topic_name == topic
        return {each.partition_index: each.error_code for each in result.partitions}

    assert moved(1, HERE, "b", 0, 1) == {0: ErrorCode.none, 1: ErrorCode.unknown_topic_or_partition}
    assert moved(1, "/elsewhere", "b", 0) == {0: ErrorCode.log_dir_not_found}
    assert moved(2, HERE, "b", 0) == {0: ErrorCode.replica_not_available}
    assert moved(2, HERE, "none", 0) == {0: ErrorCode.unknown_topic_or_partition}
