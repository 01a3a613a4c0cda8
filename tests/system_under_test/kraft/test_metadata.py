"""Metadata records: what is written is read again, byte for byte as Kafka writes it, and nothing else is believed."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, replace
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from system_under_test.kraft.records import metadata, struct
from system_under_test.kraft.records.metadata import (
    RECORD_TYPES,
    ConfigRecord,
    CorruptRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
    UnknownRecord,
    decode,
    encode,
    versions,
)
from system_under_test.kraft.records.struct import Malformed, Since, Struct, StructCodec, WireType

NUMBERS = {
    "b": st.integers(-(2**7), 2**7 - 1),
    "h": st.integers(-(2**15), 2**15 - 1),
    "H": st.integers(0, 2**16 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
    "d": st.floats(allow_nan=False),
}
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    str: st.text(max_size=30),
    bytes: st.binary(max_size=30),
    UUID: st.uuids(),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) is Annotated:
        plain, *notes = get_args(hint)
        form = next((note.form for note in notes if isinstance(note, WireType)), "")
        return NUMBERS[form] if form else values_of(plain)
    if get_origin(hint) in (Union, types.UnionType):
        [inner] = [each for each in get_args(hint) if each is not type(None)]
        return st.none() | values_of(inner)
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=3).map(tuple)
    return structs(hint) if issubclass(hint, Struct) else PLAIN[hint]


def structs(cls: type[Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls, include_extras=True)
    wanted = {}
    for field in fields(cls):
        values = values_of(hints[field.name]) if field.name != "unknown_tags" else st.just(())
        wanted[field.name] = values if field.default is MISSING else st.just(field.default) | values
    return st.builds(cls, **wanted)


records = st.one_of(*(structs(cls) for cls in RECORD_TYPES.values()))


def test_every_type_of_record_is_known() -> None:
    assert list(RECORD_TYPES) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 14, 15, *range(17, 30)]


@given(records)
def test_reads_what_it_wrote(record: Record) -> None:
    assert decode(encode(record)) == record


@given(records, st.data())
def test_reads_every_version_that_can_hold_the_record(record: Record, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(versions(type(record))))
    lowest = encode(record)[2]
    if version >= lowest:
        assert decode(encode(record, version)) == record
    else:
        with pytest.raises(ValueError, match="cannot hold"):
            encode(record, version)


@given(records, st.data())
def test_a_part_of_a_record_is_no_record(record: Record, data: st.DataObject) -> None:
    value = encode(record)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(CorruptRecord):
        decode(value[:cut])


@given(records, st.integers(100, 10_000), st.binary(max_size=20))
def test_tags_of_later_versions_are_kept(record: Record, number: int, content: bytes) -> None:
    tagged = replace(record, unknown_tags=((number, content),))
    assert decode(encode(tagged)) == tagged


@given(st.sampled_from(list(RECORD_TYPES)), st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_decoded_but_never_crash(kind: int, rest: bytes) -> None:
    for value in (rest, bytes([1, kind, 0]) + rest, bytes([1, kind, 1]) + rest):
        try:
            decode(value)
        except CorruptRecord:
            continue


def general(codec: StructCodec) -> StructCodec:
    """The same codec without the functions that are written for its common forms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(struct, "_straight_reader", lambda cls, plain, general: general)
        twin = StructCodec(codec._cls, codec.version_max)
        for version in range(codec.version_max + 1):
            twin._compile(version)
    return twin


CODECS = {cls: (codec, general(codec)) for cls, codec in metadata._CODECS.values()}


def read_by(codec: StructCodec, data: bytes, version: int) -> object:
    try:
        return codec.read(data, 0, version)
    except Malformed as problem:
        return str(problem)


@given(records, st.data())
def test_the_common_form_is_read_as_every_other_one(record: Record, data: st.DataObject) -> None:
    """Also what is cut short, changed, or followed by other bytes, and with the same words for what is malformed."""
    codec, twin = CODECS[type(record)]
    version = data.draw(st.integers(codec.version_for(record), codec.version_max))
    out = bytearray()
    codec.write(out, record, version)
    for _ in range(data.draw(st.integers(0, 3))):
        out[data.draw(st.integers(0, len(out) - 1))] = data.draw(st.integers(0, 255))
    value = bytes(out)[: data.draw(st.integers(0, len(out)))] + data.draw(st.binary(max_size=3))
    for each in (bytes(out), value):
        assert repr(read_by(codec, each, version)) == repr(read_by(twin, each, version))


def test_few_bytes_claim_no_memory() -> None:
    """An array announces as many elements as a uvarint can say, in a record of a dozen bytes."""
    with pytest.raises(CorruptRecord, match="268435454 elements are announced, but only 3 bytes are left"):
        decode(bytes([1, 3, 0]) + bytes(4 + 16) + bytes.fromhex("ffffff7f") + bytes(3))


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
    recovering = replace(partition, recovery_state=1, elr=(2,))
    assert encode(recovering)[:3] == bytes.fromhex("010302")
    assert encode(recovering).endswith(bytes.fromhex("00000005 01 02  00 01 01  01 05 02 00000002"))
    change = PartitionChangeRecord(3, topic_id, isr=(1,), leader=1)
    assert encode(change) == (
        bytes.fromhex("010500 00000003") + topic_id.bytes + bytes.fromhex("02  00 05 02 00000001  01 04 00000001")
    )
    broker = RegisterBrokerRecord(1, incarnation_id=topic_id, broker_epoch=9, log_dirs=(topic_id,))
    assert encode(broker) == (
        bytes.fromhex("010003 00000001 00")
        + topic_id.bytes
        + bytes.fromhex("0000000000000009 01 01 00 01 00")
        + bytes.fromhex("01  00 11 02")
        + topic_id.bytes
    )


@pytest.mark.parametrize("value", ["016300", "016300ff00", "010409", "01040900"])
def test_records_of_later_software_are_kept_byte_for_byte(value: str) -> None:
    record = decode(bytes.fromhex(value))
    assert isinstance(record, UnknownRecord)
    assert encode(record) == bytes.fromhex(value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("020400", "frame version 2"),
        ("01140000ff", "1 bytes follow"),
        ("0102000000", "name: null where a string"),
        ("011400 02 0500 0500", "tag 5 follows tag 5"),
        ("01170001 00 02 0000", "its value ends after"),
    ],
)
def test_says_why_it_refuses(value: str, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        decode(bytes.fromhex(value))


def test_a_number_out_of_range_is_refused_when_it_is_written() -> None:
    with pytest.raises(ValueError, match="ConfigRecord"):
        encode(ConfigRecord(200, "t", "x", None))


def test_every_later_field_has_a_default() -> None:
    """Else a record of version 0 could not be read."""
    for cls in RECORD_TYPES.values():
        hints = get_type_hints(cls, include_extras=True)
        for field in fields(cls):
            later = any(isinstance(note, Since) for note in get_args(hints[field.name])[1:])
            assert not later or field.default is not MISSING, (cls, field.name)
