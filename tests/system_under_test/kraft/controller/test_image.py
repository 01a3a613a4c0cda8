"""The image: replay is all that changes it, and the state hash says what it holds."""

from __future__ import annotations

import contextlib
from hashlib import blake2b
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from system_under_test.kraft.controller.image import HASHED_ANEW_EVERY, HASHED_ANEW_MAX, Image
from system_under_test.kraft.records import metadata

configs = st.builds(
    metadata.ConfigRecord,
    st.just(metadata.TOPIC_RESOURCE),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["retention.ms", "segment.ms"]),
    st.none() | st.sampled_from(["1", "2", "3"]),
)


def image_of(*records: object) -> Image:
    image = Image()
    for record in records:
        image.replay(metadata.encode(record))  # type: ignore[arg-type]
    return image


def entry(record: object) -> int:
    digest = blake2b(metadata.encode(record), digest_size=8).digest()  # type: ignore[arg-type]
    return int.from_bytes(digest, "big", signed=True)


@given(st.lists(configs, max_size=30))
def test_the_state_hash_is_that_of_the_latest_records_alone(history: list[metadata.ConfigRecord]) -> None:
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


def test_the_state_hash_covers_everything_a_reader_can_see() -> None:
    """The config maps lay outside: the image changed, and the hash did not."""
    image = Image()
    for record in (
        metadata.TopicRecord("t", UUID(int=1)),
        metadata.PartitionRecord(0, UUID(int=1), (1,), (1,)),
        metadata.ConfigRecord(2, "t", "a", "1"),
    ):
        image.replay(metadata.encode(record))
    before = image.state_hash
    image._configs[(2, "t")]["a"] = "2"
    assert image.state_hash != before
    image._configs[(2, "t")]["a"] = "1"
    assert image.state_hash == before
    image._topics["t"].partitions[0] = metadata.PartitionRecord(0, UUID(int=1), (2,), (2,))  # type: ignore[index]
    assert image.state_hash != before


def test_a_large_image_is_hashed_anew_now_and_then() -> None:
    image = Image()
    image.replay(metadata.encode(metadata.TopicRecord("t", UUID(int=1))))
    for number in range(HASHED_ANEW_MAX):
        image.replay(metadata.encode(metadata.PartitionRecord(number, UUID(int=1), (1,), (1,))))
    before = image.state_hash
    assert before == image.hash_of_content()
    image._configs[(2, "t")] = {"a": "2"}
    assert any(image.state_hash != before for _ in range(HASHED_ANEW_EVERY))


brokers = st.builds(
    metadata.RegisterBrokerRecord, st.integers(1, 3), broker_epoch=st.integers(0, 2), fenced=st.booleans()
)
changes = st.builds(
    metadata.PartitionChangeRecord,
    st.integers(0, 1),
    st.just(UUID(int=7)),
    isr=st.none() | st.just((1,)) | st.just((2, 1)),
    leader=st.sampled_from([-2, -1, 1]),
    elr=st.none() | st.just(()) | st.just((2,)),
)
anything = st.one_of(
    configs,
    brokers,
    changes,
    st.builds(metadata.TopicRecord, st.just("orders"), st.just(UUID(int=7))),
    st.builds(metadata.PartitionRecord, st.integers(0, 1), st.just(UUID(int=7)), st.just((1, 2)), st.just((1,))),
    st.builds(metadata.RemoveTopicRecord, st.just(UUID(int=7))),
    st.builds(metadata.FeatureLevelRecord, st.sampled_from(["metadata.version", "kraft.version"]), st.integers(0, 3)),
    st.builds(metadata.UnfenceBrokerRecord, st.integers(1, 3), st.integers(0, 2)),
    st.builds(metadata.FenceBrokerRecord, st.integers(1, 3), st.integers(0, 2)),
    st.builds(metadata.UnregisterBrokerRecord, st.integers(1, 3), st.integers(0, 2)),
    st.builds(metadata.BrokerRegistrationChangeRecord, st.integers(1, 3), st.integers(0, 2), fenced=st.integers(-1, 1)),
    st.builds(metadata.ProducerIdsRecord, st.integers(1, 3), st.just(0), st.integers(0, 5000)),
    st.builds(
        metadata.ClientQuotaRecord,
        st.just((metadata.QuotaEntity("user", None),)),
        st.sampled_from(["a", "b"]),
        st.just(1.5),
        remove=st.booleans(),
    ),
    st.builds(metadata.AccessControlEntryRecord, st.uuids(), *map(st.just, (2, "t", 3, "User:a", "*", 2, 3))),
    st.just(metadata.UnknownRecord(99, 0, bytes.fromhex("016300ff"))),
    st.just(metadata.BeginTransactionRecord()),
    st.just(metadata.EndTransactionRecord()),
    st.just(metadata.AbortTransactionRecord()),
)


TWO_PARTITIONS = (
    metadata.TopicRecord("orders", UUID(int=7)),
    *(metadata.PartitionRecord(number, UUID(int=7), (1, 2), (1,)) for number in range(2)),
)
History = list[metadata.Record | metadata.UnknownRecord]


def replayed(history: History, image: Image | None = None) -> Image:
    """The image after a history, from which the records that do not fit are left out."""
    image = image or Image()
    for record in history:
        with contextlib.suppress(metadata.CorruptRecord):
            image.replay(metadata.encode(record))
    return image


def held(image: Image) -> tuple[int, list[object]]:
    return image.hash_of_content(), list(image.records())


@given(st.lists(anything, max_size=20), st.lists(anything, max_size=20))
def test_a_copy_and_its_original_do_not_feel_each_other(before: History, after: History) -> None:
    image = replayed([*TWO_PARTITIONS, *before])
    copy = image.copy()
    replayed(after, image)
    assert held(copy) == held(replayed([*TWO_PARTITIONS, *before]))
    assert held(replayed(after, copy)) == held(image)


@given(st.lists(anything, max_size=40))
def test_the_entries_written_out_amount_to_the_same_image(history: History) -> None:
    """This is what a snapshot rests on."""
    image = replayed(history)
    again = Image()
    for record in image.records():
        again.replay(metadata.encode(record))
    assert again.state_hash == image.state_hash
    assert list(again.records()) == list(image.records())
    assert image.hash_of_content() == image._state_hash  # the incrementally maintained sum
