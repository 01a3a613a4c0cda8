"""The image: replay is all that changes it, and the state hash says what it holds."""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from system_under_test.kraft.controller.image import HASHED_ANEW_EVERY, HASHED_ANEW_MAX, Image
from system_under_test.kraft.controller.records import (
    TOPIC_RESOURCE,
    ConfigRecord,
    CorruptRecord,
    NoOpRecord,
    PartitionRecord,
    TopicRecord,
    encode,
)

configs = st.builds(
    ConfigRecord,
    st.just(TOPIC_RESOURCE),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["retention.ms", "segment.ms"]),
    st.none() | st.sampled_from(["1", "2", "3"]),
)


def image_of(*records: object) -> Image:
    image = Image()
    for record in records:
        image.replay(encode(record))  # type: ignore[arg-type]
    return image


def entry(record: object) -> int:
    digest = blake2b(encode(record), digest_size=8).digest()  # type: ignore[arg-type]
    return int.from_bytes(digest, "big", signed=True)


@given(st.lists(configs, max_size=30))
def test_the_state_hash_is_that_of_the_latest_records_alone(history: list[ConfigRecord]) -> None:
    latest = {(r.resource_name, r.name): r for r in history}
    expected = 0
    for record in latest.values():
        expected ^= entry(record) if record.value is not None else 0
    image = image_of(*history)
    assert image.state_hash == expected
    assert -(2**63) <= image.state_hash < 2**63
    for name in ("a", "b"):
        overrides = {r.name: r.value for r in latest.values() if r.resource_name == name and r.value is not None}
        assert dict(image.configs(name)) == overrides


@given(st.lists(configs, max_size=10), st.lists(configs, max_size=10))
def test_a_copy_and_its_original_do_not_feel_each_other(before: list[ConfigRecord], after: list[ConfigRecord]) -> None:
    image = image_of(*before)
    copy = image.copy()
    for record in after:
        image.replay(encode(record))
    untouched = image_of(*before)
    assert copy.state_hash == untouched.state_hash
    assert all(copy.configs(name) == untouched.configs(name) for name in ("a", "b"))
    for record in after:
        copy.replay(encode(record))
    assert copy.state_hash == image.state_hash


def test_partitions_belong_to_their_topic() -> None:
    topic = TopicRecord("orders", UUID(int=7))
    partition = PartitionRecord(0, UUID(int=7), (1, 2), (1, 2), leader=1)
    image = image_of(topic, partition)
    assert image.topics["orders"].partitions[0].leader == 1
    moved = PartitionRecord(0, UUID(int=7), (1, 2), (2,), leader=2)
    image.replay(encode(moved))
    assert image.topics["orders"].partitions[0].isr == (2,)
    assert image.state_hash == entry(topic) ^ entry(moved)


def test_a_no_op_changes_nothing() -> None:
    image = image_of(TopicRecord("orders", UUID(int=7)))
    before = image.state_hash
    image.replay(encode(NoOpRecord()))
    assert image.state_hash == before


@pytest.mark.parametrize(
    "impossible",
    [
        PartitionRecord(0, UUID(int=8), (1,), (1,)),
        TopicRecord("orders", UUID(int=8)),
        TopicRecord("other", UUID(int=7)),
    ],
)
def test_a_record_that_contradicts_the_image_leaves_it_as_it_was(impossible: object) -> None:
    image = image_of(TopicRecord("orders", UUID(int=7)))
    before = image.state_hash
    with pytest.raises(CorruptRecord):
        image.replay(encode(impossible))  # type: ignore[arg-type]
    assert image.state_hash == before
    assert list(image.topics) == ["orders"]


def test_the_state_hash_covers_everything_a_reader_can_see() -> None:
    """The config maps lay outside: the image changed, and the hash did not."""
    image = Image()
    for record in (
        TopicRecord("t", UUID(int=1)),
        PartitionRecord(0, UUID(int=1), (1,), (1,)),
        ConfigRecord(2, "t", "a", "1"),
    ):
        image.replay(encode(record))
    before = image.state_hash
    image._configs[(2, "t")]["a"] = "2"
    assert image.state_hash != before
    image._configs[(2, "t")]["a"] = "1"
    assert image.state_hash == before
    image._topics["t"].partitions[0] = PartitionRecord(0, UUID(int=1), (2,), (2,))  # type: ignore[index]
    assert image.state_hash != before


def test_a_large_image_is_hashed_anew_now_and_then() -> None:
    image = Image()
    image.replay(encode(TopicRecord("t", UUID(int=1))))
    for number in range(HASHED_ANEW_MAX):
        image.replay(encode(PartitionRecord(number, UUID(int=1), (1,), (1,))))
    before = image.state_hash
    assert before == image._hash_of_content()
    image._configs[(2, "t")] = {"a": "2"}
    assert any(image.state_hash != before for _ in range(HASHED_ANEW_EVERY))


def test_partitions_of_a_copy_are_its_own() -> None:
    image = Image()
    image.replay(encode(TopicRecord("t", UUID(int=1))))
    image.replay(encode(PartitionRecord(0, UUID(int=1), (1,), (1,))))
    copy = image.copy()
    image.replay(encode(PartitionRecord(1, UUID(int=1), (1,), (1,))))
    copy.replay(encode(PartitionRecord(2, UUID(int=1), (1,), (1,))))
    assert (set(image.topics["t"].partitions), set(copy.topics["t"].partitions)) == ({0, 1}, {0, 2})
