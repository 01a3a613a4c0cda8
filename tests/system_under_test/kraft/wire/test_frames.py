"""Frames and bodies: bytes from anywhere are read or refused; the process survives them all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from system_under_test.kraft.wire import frames
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
from system_under_test.kraft.wire.versions import SUPPORTED, Finalized, advertise

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
