"""Frames and bodies: bytes from anywhere are read or refused; the process survives them all.

The packed Fetch has the bytes that kio's codec makes, and its readers take nothing else.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as alter

from system_under_test.kraft.controller.image import Refused
from system_under_test.kraft.controller.one_by_one import Result, result
from system_under_test.kraft.log import batch as batch_codec
from system_under_test.kraft.raft import messages
from system_under_test.kraft.wire import admin, frames, packed, translate, versions
from system_under_test.kraft.wire.frames import (
    FrameBuffer,
    MalformedFrame,
    RequestHeader,
    codec,
    decode_request_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from system_under_test.kraft.wire.versions import INCREMENTAL_ALTER_CONFIGS, SUPPORTED, Finalized, advertise

ALL_VERSIONS = [
    (api_key, version) for api_key, (lowest, highest) in SUPPORTED.items() for version in range(lowest, highest + 1)
]


@pytest.mark.parametrize(("api_key", "version"), ALL_VERSIONS)
def test_every_version_we_advertise_exists_and_can_be_walked(api_key: int, version: int) -> None:
    layout = codec(api_key, version)
    frames.walker(layout.request_type)
    frames.walker(layout.response_type)


LIES = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f")
"""The largest lengths of the two kinds of arrays."""


@given(st.sampled_from(ALL_VERSIONS), st.binary(max_size=60), st.binary(max_size=60))
def test_arbitrary_bodies_are_decoded_or_refused(which: tuple[int, int], request: bytes, response: bytes) -> None:
    """Also those whose lengths would make kio's native parser reserve more memory than there is, and abort."""
    header = RequestHeader(*which, 1, "c")
    for decode in (
        lambda: decode_request_body(header, request, 0),
        lambda: decode_response(codec(*which).request_type, response),
    ):
        try:
            decode()
        except MalformedFrame:
            continue


@given(st.sampled_from(ALL_VERSIONS), st.integers(0, 40), st.sampled_from(LIES))
def test_a_length_that_lies_is_refused_wherever_it_stands(which: tuple[int, int], at: int, lie: bytes) -> None:
    header = RequestHeader(*which, 1, "c")
    try:
        decode_request_body(header, b"\x02" * at + lie + b"\0" * 10, 0)
    except MalformedFrame:
        return


def test_kio_would_have_died_of_this_one() -> None:
    body = b"\xff\xff\xff\xff\x0f" + b"x" * 10  # Metadata v12: an array of 2**32 - 2 topics
    with pytest.raises(MalformedFrame, match="an array of 4294967294 elements in"):
        decode_request_body(RequestHeader(3, 12, 1, None), b"\0" + body, 0)


@given(st.binary(max_size=40))
def test_arbitrary_headers_are_decoded_or_refused(frame: bytes) -> None:
    try:
        header, at = decode_request_header(frame)
    except MalformedFrame:
        return
    assert at <= len(frame)
    assert header.client_id is None or len(header.client_id) <= len(frame)


def test_a_request_is_what_kafkas_protocol_says() -> None:
    """ApiVersions v3, flexible: written out by hand."""
    request = codec(18, 3).request_type(client_software_name="k", client_software_version="1")
    frame = encode_request(7, "me", request)
    assert frame == bytes.fromhex("00000012 0012 0003 00000007 0002 6d65 00 026b 0231 00".replace(" ", ""))
    header, at = decode_request_header(frame[4:])
    assert header == RequestHeader(18, 3, 7, "me")
    assert decode_request_body(header, frame[4:], at) == request


FINALIZED = Finalized(41, {"metadata.version": 25, "kraft.version": 1})


def test_the_response_to_api_versions_has_no_tags_in_its_header() -> None:
    frame = encode_response(7, advertise(3, FINALIZED))
    assert frame[4:11] == bytes.fromhex("00000007 0000") + bytes([len(SUPPORTED) + 1])
    correlation_id, answer = decode_response(codec(18, 3).request_type, frame[4:])
    assert correlation_id == 7
    assert {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys} == SUPPORTED


@pytest.mark.parametrize(("version", "with_level_0"), [(3, False), (4, True)])
def test_the_response_to_api_versions_shows_features(version: int, with_level_0: bool) -> None:
    """The tags behind the body of a node that has finalized one feature: written out by hand."""
    frame = encode_response(7, advertise(version, Finalized(41, {"group.version": 1})))
    tags = "01 08 0000000000000029  02 14 02 0e 67726f75702e76657273696f6e 0001 0001 00"
    assert frame.endswith(bytes.fromhex(tags.replace(" ", "")))
    answer = decode_response(codec(18, version).request_type, frame[4:])[1]
    shown = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    assert shown["metadata.version"] == (7, 33)
    assert ("kraft.version" in shown, shown.get("kraft.version", (0, 1))) == (with_level_0, (0, 1))


def test_older_versions_of_api_versions_have_no_features() -> None:
    for version in (0, 1, 2):
        assert not hasattr(advertise(version, FINALIZED), "finalized_features")


def test_bytes_behind_a_body_are_ignored_as_kafka_does() -> None:
    answer = encode_response(1, advertise(3, FINALIZED))[4:]
    assert decode_response(codec(18, 3).request_type, answer + b"xyz")[1] == advertise(3, FINALIZED)


def test_frames_are_taken_whole_or_not_at_all() -> None:
    buffer = FrameBuffer(size_max_bytes=100)
    for piece in (b"\0\0", b"\0\x02a", b"b\0\0\0\x03c"):
        assert buffer.take() is None
        buffer.feed(piece)
    assert (buffer.take(), buffer.take(), len(buffer)) == (b"ab", None, 5)


@pytest.mark.parametrize("size", [-1, 0, 101])
def test_an_impossible_size_is_refused(size: int) -> None:
    buffer = FrameBuffer(size_max_bytes=100)
    buffer.feed(size.to_bytes(4, "big", signed=True) + b"x" * 200)
    with pytest.raises(MalformedFrame, match=f"a frame of {size} bytes"):
        buffer.take()


INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
MARKS = st.none() | st.integers(0, 2**63 - 2)
REQUESTS = st.builds(
    messages.FetchRequest,
    cluster_id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    replica=st.builds(messages.ReplicaKey, INT32, st.none() | st.integers(1, 2**128 - 1).map(lambda n: UUID(int=n))),
    current_leader_epoch=INT32,
    fetch_offset=INT64,
    last_fetched_epoch=INT32,
    high_watermark=MARKS,
    max_wait_ms=INT32,
    max_size_bytes=INT32,
)
RESPONSES = st.builds(
    lambda leader, epoch, mark, sizes: messages.FetchResponse(
        messages.Error.NONE, leader, epoch, mark, None, _batches(sizes)
    ),
    INT32,
    INT32,
    MARKS,
    st.lists(st.integers(1, 20_000), max_size=3),
)
REQUEST = messages.FetchRequest("cluster", messages.ReplicaKey(2, UUID(int=7)), 3, 10, 3, 9, 500)


def _batches(sizes: list[int]) -> tuple[messages.Batch, ...]:
    return tuple(
        messages.Batch(n, 3, 1, batch_codec.encode_values(n, 3, [b"x" * size], 1)) for n, size in enumerate(sizes)
    )


def _as_kio(request: messages.FetchRequest) -> bytes:
    return frames.encode_request(7, "client", translate.request_to_wire(request))


@given(REQUESTS)
def test_a_packed_request_has_kios_bytes_and_is_read_again(request: messages.FetchRequest) -> None:
    frame = translate.encode_request(request, None, 7, "client")
    assert frame == _as_kio(request)
    header, at = frames.decode_request_header(frame[4:])
    assert packed.read_fetch_request(frame[4 + at + 1 :]) == request
    assert translate.decode_request(header, frame[4:], at) == request


@given(RESPONSES)
def test_a_packed_response_has_kios_bytes_and_is_read_again(response: messages.FetchResponse) -> None:
    frame = translate.encode_response(REQUEST, 7, response)
    assert frame == frames.encode_response(7, translate.response_to_wire(REQUEST, response))
    assert packed.read_fetch_response(frame[9:]) is not None
    assert translate.decode_response(REQUEST, frame[4:]) == (7, response)


@given(st.data())
def test_bytes_of_another_form_are_left_to_kio(data: st.DataObject) -> None:
    """Any byte may differ: what the packed readers still take says the same to kio."""
    request = data.draw(REQUESTS)
    frame = bytearray(_as_kio(request))
    frame[data.draw(st.integers(4 + 17, len(frame) - 1))] = data.draw(st.integers(0, 255))
    header, at = frames.decode_request_header(bytes(frame[4:]))
    read = packed.read_fetch_request(bytes(frame[4 + at + 1 :]))
    if read is not None:
        body = frames.decode_request_body(header, bytes(frame[4:]), at)
        assert translate.request_from_wire(1, body) == read


@given(st.data())
def test_a_damaged_response_is_left_to_kio(data: st.DataObject) -> None:
    frame = bytearray(translate.encode_response(REQUEST, 7, data.draw(RESPONSES)))
    frame[data.draw(st.integers(9, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read = packed.read_fetch_response(bytes(frame[9:]))
    if read is not None:
        _, body = frames.decode_response(frames.codec(1, 18).request_type, bytes(frame[4:]))
        partition = body.responses[0].partitions[0]
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == read[:2]
        assert partition.high_watermark == (-1 if read[2] is None else read[2])
        assert (partition.records or b"") == read[3]


def test_what_is_unusual_travels_all_the_same() -> None:
    long = REQUEST._replace(cluster_id="x" * 200)
    assert packed.pack_fetch_request(long) is None
    assert translate.encode_request(long, None, 7, "client") == _as_kio(long)
    for response in (
        messages.FetchResponse(messages.Error.NOT_LEADER_OR_FOLLOWER, 1, 3),
        messages.FetchResponse(messages.Error.NONE, 1, 3, 9, messages.EpochEnd(2, 4)),
        messages.FetchResponse(messages.Error.NONE, 1, 3, 9, snapshot=messages.SnapshotId(5, 2)),
        messages.FetchResponse(messages.Error.NONE, None, 3),
    ):
        frame = translate.encode_response(REQUEST, 7, response)
        assert packed.read_fetch_response(frame[9:]) is None
        assert translate.decode_response(REQUEST, frame[4:]) == (7, response)


SHORT = st.text(st.characters(codec="utf-8"), max_size=30)
INT8 = st.integers(-128, 127)


def _alteration(name: str, operation: int, value: str | None) -> Any:
    return alter.AlterableConfig(name=name, config_operation=operation, value=value)


def _request(kind: int, name: str, *alterations: Any, validate_only: bool = False, times: int = 1) -> Any:
    resource = alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=alterations)
    return alter.IncrementalAlterConfigsRequest(resources=(resource,) * times, validate_only=validate_only)


ALTERATION = _alteration("retention.ms", 0, "7")
FRAME = frames.encode_request(7, "client", _request(2, "t1", ALTERATION))[4:]


def _read(frame: bytes) -> packed.UsualWrite | None:
    header, at = frames.decode_request_header(frame)
    return packed.read_write_request(header, frame, at)


@given(INT8, SHORT, SHORT, INT8, st.none() | SHORT)
@example(2, "t" * 126, "n" * 126, 0, "v" * 126)
def test_a_usual_write_is_read_as_kio_reads_it(kind: int, resource: str, name: str, op: int, value: str | None) -> None:
    frame = frames.encode_request(7, "client", _request(kind, resource, _alteration(name, op, value)))[4:]
    header, at = frames.decode_request_header(frame)
    expected = frames.decode_request_body(header, frame, at)
    found = packed.read_write_request(header, frame, at)
    assert found is not None and found.validate_only == expected.validate_only
    [one], [same] = found.resources, expected.resources
    assert (one.resource_type, one.resource_name) == (same.resource_type, same.resource_name)
    assert [tuple(each) for each in one.configs] == [
        (each.name, each.config_operation, each.value) for each in same.configs
    ]


def test_another_form_is_left_to_kio() -> None:
    others = (
        _request(2, "t1", ALTERATION, validate_only=True),
        _request(2, "t1", ALTERATION, times=2),
        _request(2, "t1", ALTERATION, _alteration("segment.ms", 0, "9")),
        _request(2, "t1"),
        _request(2, "t" * 127, ALTERATION),
        _request(2, "t1", _alteration("retention.ms", 0, "7" * 200)),
    )
    assert [_read(frames.encode_request(7, "client", each)[4:]) for each in others] == [None] * len(others)
    older = FRAME[:2] + b"\0\0" + FRAME[4:]
    assert _read(FRAME) is not None and _read(older) is None


@given(st.integers(0, len(FRAME) - 1), st.integers(1, 255))
def test_what_is_read_from_a_damaged_frame_is_what_kio_reads(at: int, change: int) -> None:
    damaged = bytes((*FRAME[:at], FRAME[at] ^ change, *FRAME[at + 1 :]))
    try:
        header, begins = frames.decode_request_header(damaged)
        found = packed.read_write_request(header, damaged, begins)
    except frames.MalformedFrame:
        return
    if found is not None:
        expected = frames.decode_request_body(header, damaged, begins)
        assert found.resources[0].resource_name == expected.resources[0].resource_name
        assert found.resources[0].configs[0].value == expected.resources[0].configs[0].value


@given(st.integers(0, len(FRAME) - 1))
def test_a_frame_that_ends_early_or_late_is_no_usual_write(size: int) -> None:
    header, at = frames.decode_request_header(FRAME)
    assert packed.read_write_request(header, FRAME[: max(size, at)], at) is None
    assert packed.read_write_request(header, FRAME + b"\0", at) is None


def answered(kind: int, name: str, why: Refused | None = None) -> Result:
    return result({"resource_type": kind, "resource_name": name}, why)


@given(INT8, SHORT)
def test_a_packed_response_has_kios_bytes(kind: int, name: str) -> None:
    results = [answered(kind, name)]
    body = packed.pack_write_response(results)
    kind = frames.codec(INCREMENTAL_ALTER_CONFIGS, 1).response_type
    entity = versions.built(kind, admin.DECISIONS[INCREMENTAL_ALTER_CONFIGS].respond(results))
    assert body is not None and frames.packed_response(7, body) == frames.encode_response(7, entity)


def test_an_error_several_results_and_a_long_name_are_left_to_kio() -> None:
    refused = answered(2, "t1", Refused(ErrorCode.invalid_config, "no"))
    for results in ([refused], [answered(2, "t1")] * 2, [answered(2, "t" * 127)], []):
        assert packed.pack_write_response(results) is None
