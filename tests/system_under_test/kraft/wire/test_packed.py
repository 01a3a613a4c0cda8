"""The packed Fetch has the bytes that kio's codec makes, and its readers take nothing else."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as alter

from system_under_test.kraft.controller.image import Refused
from system_under_test.kraft.controller.one_by_one import Result, result
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.raft import messages
from system_under_test.kraft.wire import admin, frames, packed, translate, versions
from system_under_test.kraft.wire.versions import INCREMENTAL_ALTER_CONFIGS

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
    return tuple(messages.Batch(n, 3, 1, codec.encode_values(n, 3, [b"x" * size], 1)) for n, size in enumerate(sizes))


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
