"""What a broker says of the folder that holds its logs (KIP-113, KIP-827).

A broker here has one such folder.  Its nodes keep no data of topics yet, so every replica that the broker hosts is
there with 0 bytes, and a replica can be moved nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.wire.frames import Entity
from system_under_test.kraft.wire.versions import NO_TIME, make


def describe_log_dirs(types: ModuleType, image: Image, broker: int, log_dir: str, body: Any) -> Entity:
    """body: the request; without topics it asks for every replica that the broker hosts."""
    wanted: dict[str, Collection[int]]
    if body.topics is None:
        wanted = {name: topic.partitions.keys() for name, topic in image.topics.items()}
    else:
        wanted = {topic.topic: topic.partitions for topic in body.topics}
    topics = tuple(
        types.DescribeLogDirsTopic(
            name=name,
            partitions=tuple(
                types.DescribeLogDirsPartition(
                    partition_index=number, partition_size=0, offset_lag=0, is_future_key=False
                )
                for number in hosted
            ),
        )
        for name, numbers in wanted.items()
        if (hosted := [number for number in numbers if _why_absent(image, broker, name, number) is None])
    )
    described = make(types.DescribeLogDirsResult, error_code=ErrorCode.none, log_dir=log_dir, topics=topics)
    return make(types.DescribeLogDirsResponse, throttle_time=NO_TIME, error_code=ErrorCode.none, results=(described,))


def alter_replica_log_dirs(types: ModuleType, image: Image, broker: int, log_dir: str, body: Any) -> Entity:
    """A replica that shall go where it is has been moved; no other folder is known."""
    results: dict[str, list[Entity]] = {}
    for wanted in body.dirs:
        for topic in wanted.topics:
            for number in topic.partitions:
                error = ErrorCode.log_dir_not_found
                if wanted.path == log_dir:
                    error = _why_absent(image, broker, topic.name, number) or ErrorCode.none
                results.setdefault(topic.name, []).append(
                    types.AlterReplicaLogDirPartitionResult(partition_index=number, error_code=error)
                )
    return types.AlterReplicaLogDirsResponse(
        throttle_time=NO_TIME,
        results=tuple(
            types.AlterReplicaLogDirTopicResult(topic_name=name, partitions=tuple(partitions))
            for name, partitions in results.items()
        ),
    )


def _why_absent(image: Image, broker: int, topic: str, partition: int) -> ErrorCode | None:
    """Why this broker has no log of the partition; None if it has."""
    known = image.topics.get(topic)
    if known is None or partition not in known.partitions:
        return ErrorCode.unknown_topic_or_partition
    return None if broker in known.partitions[partition].replicas else ErrorCode.replica_not_available
