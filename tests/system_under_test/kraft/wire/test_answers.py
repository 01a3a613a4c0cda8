"""Answers that come in pages: together they say everything once, in whatever pages."""

from __future__ import annotations

from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.topics import NewTopic, create_topics, of_ids
from system_under_test.kraft.wire import answers
from system_under_test.kraft.wire.frames import codec
from system_under_test.kraft.wire.versions import DESCRIBE_TOPIC_PARTITIONS, built


@pytest.fixture
def image() -> Image:
    made, numbers = Image(), iter(range(1, 100))
    wanted = [NewTopic("a", 3, 1), NewTopic("b", 1, 1), NewTopic("c", 4, 1)]
    for record in create_topics(made, wanted, of_ids((1, 2, 3)), lambda: UUID(int=next(numbers)))[0]:
        made.apply(record)
    return made


@pytest.mark.parametrize("size", range(1, 10))
@pytest.mark.parametrize("wanted", [[], ["c", "a"], ["b", "none", "c"]])
def test_pages_of_partitions_name_each_once(image: Image, wanted: list[str], size: int) -> None:
    kind = codec(DESCRIBE_TOPIC_PARTITIONS, 0).response_type
    found: list[tuple[str, int]] = []
    unknown: set[str] = set()
    cursor: tuple[str, int] | None = None
    for _ in range(20):
        page = built(kind, answers.describe_topic_partitions(image, wanted, cursor, size, frozenset()))
        here = [(topic.name, partition.partition_index) for topic in page.topics for partition in topic.partitions]
        assert len(here) <= size
        found += here
        unknown |= {topic.name for topic in page.topics if topic.error_code == ErrorCode.unknown_topic_or_partition}
        if page.next_cursor is None:
            break
        cursor = (page.next_cursor.topic_name, page.next_cursor.partition_index)
    names = wanted or ["a", "b", "c"]
    assert found == [(name, n) for name in sorted(names) if name in image.topics for n in image.topics[name].partitions]
    assert unknown == set(names) - set(image.topics)
