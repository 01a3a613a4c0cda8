"""The packed write is read as kio reads it and answered with kio's bytes, and nothing else is taken for it."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import request as alter

from system_under_test.kraft.controller.configs import ResourceResult
from system_under_test.kraft.wire import answers, frames, packed_write
from system_under_test.kraft.wire.versions import INCREMENTAL_ALTER_CONFIGS

SHORT = st.text(st.characters(codec="utf-8"), max_size=30)
INT8 = st.integers(-128, 127)


def _alteration(name: str, operation: int, value: str | None) -> Any:
    return alter.AlterableConfig(name=name, config_operation=operation, value=value)


def _request(kind: int, name: str, *alterations: Any, validate_only: bool = False, times: int = 1) -> Any:
    resource = alter.AlterConfigsResource(resource_type=kind, resource_name=name, configs=alterations)
    return alter.IncrementalAlterConfigsRequest(resources=(resource,) * times, validate_only=validate_only)


ALTERATION = _alteration("retention.ms", 0, "7")
FRAME = frames.encode_request(7, "client", _request(2, "t1", ALTERATION))[4:]


def _read(frame: bytes) -> packed_write.UsualWrite | None:
    header, at = frames.decode_request_header(frame)
    return packed_write.read_request(header, frame, at)


@given(INT8, SHORT, SHORT, INT8, st.none() | SHORT)
@example(2, "t" * 126, "n" * 126, 0, "v" * 126)
def test_a_usual_write_is_read_as_kio_reads_it(kind: int, resource: str, name: str, op: int, value: str | None) -> None:
    frame = frames.encode_request(7, "client", _request(kind, resource, _alteration(name, op, value)))[4:]
    header, at = frames.decode_request_header(frame)
    expected = frames.decode_request_body(header, frame, at)
    found = packed_write.read_request(header, frame, at)
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
        found = packed_write.read_request(header, damaged, begins)
    except frames.MalformedFrame:
        return
    if found is not None:
        expected = frames.decode_request_body(header, damaged, begins)
        assert found.resources[0].resource_name == expected.resources[0].resource_name
        assert found.resources[0].configs[0].value == expected.resources[0].configs[0].value


@given(st.integers(0, len(FRAME) - 1))
def test_a_frame_that_ends_early_or_late_is_no_usual_write(size: int) -> None:
    header, at = frames.decode_request_header(FRAME)
    assert packed_write.read_request(header, FRAME[: max(size, at)], at) is None
    assert packed_write.read_request(header, FRAME + b"\0", at) is None


@given(INT8, SHORT)
def test_a_packed_response_has_kios_bytes(kind: int, name: str) -> None:
    results = [ResourceResult(kind, name)]
    packed = packed_write.pack_response(results)
    types = frames.codec(INCREMENTAL_ALTER_CONFIGS, 1).responses
    entity = answers.incremental_alter_configs(types, results)
    assert packed is not None and frames.packed_response(7, packed) == frames.encode_response(7, entity)


def test_an_error_several_results_and_a_long_name_are_left_to_kio() -> None:
    refused = ResourceResult(2, "t1", ErrorCode.invalid_config, "no")
    for results in ([refused], [ResourceResult(2, "t1")] * 2, [ResourceResult(2, "t" * 127)], []):
        assert packed_write.pack_response(results) is None
