"""Metadata records: what is written is read again, byte for byte as Kafka writes it, and nothing else is believed."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from system_under_test.kraft.controller.records import (
    ConfigRecord,
    CorruptRecord,
    NoOpRecord,
    PartitionRecord,
    Record,
    TopicRecord,
    decode,
    encode,
)

names = st.text(max_size=300)
int8s = st.integers(-(2**7), 2**7 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
ids = st.lists(int32s, max_size=5).map(tuple)
uuids = st.uuids()

records = st.one_of(
    st.builds(TopicRecord, names, uuids),
    st.builds(
        PartitionRecord,
        int32s,
        uuids,
        ids,
        ids,
        ids,
        ids,
        leader=int32s,
        recovery_state=int8s,
        leader_epoch=int32s,
        partition_epoch=int32s,
        directories=st.lists(uuids, max_size=5).map(tuple),
    ),
    st.builds(ConfigRecord, int8s, names, names, st.none() | names),
    st.just(NoOpRecord()),
)


@given(records)
def test_reads_what_it_wrote(record: Record) -> None:
    assert decode(encode(record)) == record


@given(records, st.data())
def test_a_part_of_a_record_is_no_record(record: Record, data: st.DataObject) -> None:
    value = encode(record)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(CorruptRecord):
        decode(value[:cut])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_decoded_but_never_crash(value: bytes) -> None:
    try:
        decode(value)
    except CorruptRecord:
        return


def test_bytes_are_kafkas() -> None:
    """Written out by hand from Kafka's schemas: frame 1, type, version, then the flexible body."""
    assert encode(ConfigRecord(2, "t", "retention.ms", "7")) == bytes.fromhex("010400 02 0274 0d") + (
        b"retention.ms" + bytes.fromhex("0237 00")
    )
    assert encode(ConfigRecord(2, "t", "x", None)) == bytes.fromhex("010400 02 0274 0278 00 00")
    assert encode(NoOpRecord()) == bytes.fromhex("011400 00")
    topic_id = UUID(int=0x0102030405060708090A0B0C0D0E0F10)
    assert encode(TopicRecord("abc", topic_id)) == bytes.fromhex("010200 04616263") + topic_id.bytes + b"\0"
    partition = PartitionRecord(3, topic_id, (1, 2), (1,), leader=1, leader_epoch=0, partition_epoch=5)
    assert encode(partition) == (
        bytes.fromhex("010300 00000003")
        + topic_id.bytes
        + bytes.fromhex("03 00000001 00000002  02 00000001  01 01  00000001 00000000 00000005  00")
    )


def test_unknown_tags_are_skipped() -> None:
    assert decode(bytes.fromhex("011400 01 07 02 ffff")) == NoOpRecord()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("020400", "frame version 2"),
        ("016300", "unknown type 99"),
        ("010409", "version 9"),
        ("01140000ff", "1 bytes follow"),
        ("0102000000", "null where a string"),
    ],
)
def test_says_why_it_refuses(value: str, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        decode(bytes.fromhex(value))
