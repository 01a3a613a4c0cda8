"""The packed Fetch has the bytes that kio's codec makes, and its readers take nothing else."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.raft.messages import (
    Batch,
    EpochEnd,
    Error,
    FetchRequest,
    FetchResponse,
    ReplicaKey,
    SnapshotId,
)
from system_under_test.kraft.wire import frames, packed_fetch, translate

INT32, INT64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
MARKS = st.none() | st.integers(0, 2**63 - 2)
REQUESTS = st.builds(
    FetchRequest,
    cluster_id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    replica=st.builds(ReplicaKey, INT32, st.none() | st.integers(1, 2**128 - 1).map(lambda n: UUID(int=n))),
    current_leader_epoch=INT32,
    fetch_offset=INT64,
    last_fetched_epoch=INT32,
    high_watermark=MARKS,
    max_wait_ms=INT32,
    max_size_bytes=INT32,
)
RESPONSES = st.builds(
    lambda leader, epoch, mark, sizes: FetchResponse(Error.NONE, leader, epoch, mark, None, _batches(sizes)),
    INT32,
    INT32,
    MARKS,
    st.lists(st.integers(1, 20_000), max_size=3),
)
REQUEST = FetchRequest("cluster", ReplicaKey(2, UUID(int=7)), 3, 10, 3, 9, 500)


def _batches(sizes: list[int]) -> tuple[Batch, ...]:
    return tuple(Batch(n, 3, 1, codec.encode_values(n, 3, [b"x" * size], 1)) for n, size in enumerate(sizes))


def _as_kio(request: FetchRequest) -> bytes:
    return frames.encode_request(7, "client", translate.request_to_wire(request))


@given(REQUESTS)
def test_a_packed_request_has_kios_bytes_and_is_read_again(request: FetchRequest) -> None:
    frame = translate.encode_request(request, None, 7, "client")
    assert frame == _as_kio(request)
    header, at = frames.decode_request_header(frame[4:])
    assert packed_fetch.read_request(frame[4 + at + 1 :]) == request
    assert translate.decode_request(header, frame[4:], at) == request


@given(RESPONSES)
def test_a_packed_response_has_kios_bytes_and_is_read_again(response: FetchResponse) -> None:
    frame = translate.encode_response(REQUEST, 7, response)
    assert frame == frames.encode_response(7, translate.response_to_wire(REQUEST, response))
    assert packed_fetch.read_response(frame[9:]) is not None
    assert translate.decode_response(REQUEST, frame[4:]) == (7, response)


@given(st.data())
def test_bytes_of_another_form_are_left_to_kio(data: st.DataObject) -> None:
    """Any byte may differ: what the packed readers still take says the same to kio."""
    request = data.draw(REQUESTS)
    frame = bytearray(_as_kio(request))
    frame[data.draw(st.integers(4 + 17, len(frame) - 1))] = data.draw(st.integers(0, 255))
    header, at = frames.decode_request_header(bytes(frame[4:]))
    read = packed_fetch.read_request(bytes(frame[4 + at + 1 :]))
    if read is not None:
        body = frames.decode_request_body(header, bytes(frame[4:]), at)
        assert translate.request_from_wire(1, body) == read


@given(st.data())
def test_a_damaged_response_is_left_to_kio(data: st.DataObject) -> None:
    frame = bytearray(translate.encode_response(REQUEST, 7, data.draw(RESPONSES)))
    frame[data.draw(st.integers(9, len(frame) - 1))] = data.draw(st.integers(0, 255))
    read = packed_fetch.read_response(bytes(frame[9:]))
    if read is not None:
        _, body = frames.decode_response(translate.fetch_request.FetchRequest, bytes(frame[4:]))
        partition = body.responses[0].partitions[0]
        assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == read[:2]
        assert partition.high_watermark == (-1 if read[2] is None else read[2])
        assert (partition.records or b"") == read[3]


@given(st.binary(max_size=200))
def test_random_bytes_are_no_fetch(data: bytes) -> None:
    assert packed_fetch.read_request(data) is None
    assert packed_fetch.read_response(data) is None


def test_what_is_unusual_travels_all_the_same() -> None:
    long = REQUEST._replace(cluster_id="x" * 200)
    assert packed_fetch.pack_request(long) is None
    assert translate.encode_request(long, None, 7, "client") == _as_kio(long)
    for response in (
        FetchResponse(Error.NOT_LEADER_OR_FOLLOWER, 1, 3),
        FetchResponse(Error.NONE, 1, 3, 9, EpochEnd(2, 4)),
        FetchResponse(Error.NONE, 1, 3, 9, snapshot=SnapshotId(5, 2)),
        FetchResponse(Error.NONE, None, 3),
    ):
        frame = translate.encode_response(REQUEST, 7, response)
        assert packed_fetch.read_response(frame[9:]) is None
        assert translate.decode_response(REQUEST, frame[4:]) == (7, response)
