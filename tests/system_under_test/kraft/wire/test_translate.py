"""The quorum's RPCs through real bytes: the other core receives exactly what the core sent.

Answers that come in pages say everything once, in whatever pages.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.topics import NewTopic, create_topics, of_ids
from system_under_test.kraft.raft import messages
from system_under_test.kraft.wire import answers, translate
from system_under_test.kraft.wire.frames import (
    codec,
    decode_request_body,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from system_under_test.kraft.wire.versions import DESCRIBE_TOPIC_PARTITIONS, built

epochs = st.integers(0, 2**31 - 1)
offsets = st.integers(0, 2**63 - 1)
nodes = st.integers(0, 2**31 - 1)
cluster_ids = st.text(min_size=1, max_size=30)
keys = st.builds(messages.ReplicaKey, nodes, st.none() | st.uuids().filter(lambda uuid: uuid.int != 0))

requests = st.one_of(
    st.builds(messages.VoteRequest, cluster_ids, epochs, keys, keys, epochs, offsets, st.booleans()),
    st.builds(messages.BeginQuorumEpochRequest, cluster_ids, nodes, epochs, keys),
    st.builds(messages.EndQuorumEpochRequest, cluster_ids, nodes, epochs, st.lists(keys, max_size=5).map(tuple)),
    st.builds(
        messages.FetchRequest,
        cluster_ids,
        keys,
        epochs,
        offsets,
        epochs,
        st.none() | offsets,
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
    ),
)


@st.composite
def batches(draw: st.DrawFn) -> messages.Batch:
    """Only the header is real: base offset, length, epoch, magic, CRC, attributes, last offset delta."""
    base, epoch, count = draw(st.integers(0, 2**40)), draw(epochs), draw(st.integers(1, 1000))
    rest = draw(st.binary(min_size=34, max_size=100))
    body = struct.pack(">qiibIhi", base, 49 - 34 + len(rest), epoch, 2, 0, 0, count - 1) + rest
    return messages.Batch(base, epoch, count, body)


partition_errors = st.sampled_from([e for e in messages.Error if e not in translate._TOP_LEVEL])
leaders = st.none() | nodes
epoch_ends = st.builds(messages.EpochEnd, epochs, offsets)


def responses_to(request: messages.RaftRequest) -> st.SearchStrategy[messages.RaftResponse]:
    match request:
        case messages.VoteRequest():
            return st.builds(
                messages.VoteResponse, partition_errors, leaders, epochs, st.booleans(), st.just(request.pre_vote)
            )
        case messages.FetchRequest():
            found = st.lists(batches(), max_size=4).map(tuple)
            marks, ends = st.none() | offsets, st.none() | epoch_ends
            return st.builds(messages.FetchResponse, partition_errors, leaders, epochs, marks, ends, found, st.none())
        case _:
            return st.builds(messages.EpochResponse, partition_errors, leaders, epochs)


def through_bytes(entity: Any) -> tuple[int, Any]:
    frame = encode_request(3, "krucible-n1", entity)[4:]
    header, at = decode_request_header(frame)
    return header.api_key, decode_request_body(header, frame, at)


def back_through_bytes(request: messages.RaftRequest, entity: Any) -> messages.RaftResponse:
    frame = encode_response(3, entity)[4:]
    correlation_id, body = decode_response(type(translate.request_to_wire(request)), frame)
    assert correlation_id == 3
    return translate.response_from_wire(request, body)


@given(requests)
def test_requests_survive_the_wire(request: messages.RaftRequest) -> None:
    api_key, body = through_bytes(translate.request_to_wire(request, ("CONTROLLER", "198.18.0.1", 9092)))
    assert api_key in translate.RAFT_APIS
    assert translate.request_from_wire(api_key, body) == request


@given(st.data(), requests)
def test_responses_survive_the_wire(data: st.DataObject, request: messages.RaftRequest) -> None:
    response = data.draw(responses_to(request))
    assert back_through_bytes(request, translate.response_to_wire(request, response)) == response


@given(requests, st.sampled_from(sorted(translate._TOP_LEVEL)))
def test_a_refusal_of_the_whole_request_names_no_leader(request: messages.RaftRequest, error: messages.Error) -> None:
    response: messages.RaftResponse
    match request:
        case messages.VoteRequest():
            response = messages.VoteResponse(error, 1, 5, False, request.pre_vote)
        case messages.FetchRequest():
            response = messages.FetchResponse(error, 1, 5)
        case _:
            response = messages.EpochResponse(error, 1, 5)
    heard = back_through_bytes(request, translate.response_to_wire(request, response))
    assert (heard.error, heard.leader_id, heard.leader_epoch) == (error, None, 0)


@given(st.lists(batches(), min_size=1, max_size=4), st.data())
def test_records_that_end_within_a_batch_are_refused(found: list[messages.Batch], data: st.DataObject) -> None:
    records = b"".join(batch.body for batch in found)  # type: ignore[misc]
    assert list(translate.parse_batches(records)) == found
    ends = {sum(len(b.body) for b in found[:n]) for n in range(len(found) + 1)}  # type: ignore[arg-type]
    cut = data.draw(st.integers(0, len(records)).filter(lambda size: size not in ends))
    with pytest.raises(translate.MalformedRpc):
        list(translate.parse_batches(records[:cut]))


@given(st.binary(max_size=300))
def test_arbitrary_records_are_parsed_or_refused(records: bytes) -> None:
    try:
        list(translate.parse_batches(records))
    except translate.MalformedRpc:
        return


def test_a_body_about_another_partition_is_refused() -> None:
    request = messages.VoteRequest("c", 1, messages.ReplicaKey(1), messages.ReplicaKey(2), 0, 0, True)
    entity = translate.request_to_wire(request)
    for topics in ((), (*entity.topics, *entity.topics)):
        with pytest.raises(translate.MalformedRpc):
            translate.request_from_wire(52, type(entity)(cluster_id="c", voter_id=2, topics=topics))


def test_an_answer_of_another_kind_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError):
        translate.response_to_wire(
            messages.VoteRequest("c", 1, messages.ReplicaKey(1), messages.ReplicaKey(2), 0, 0, True),
            messages.EpochResponse(messages.Error.NONE, None, 1),
        )


def test_an_older_kafka_fetches_with_version_17_both_ways() -> None:
    """It says nothing of its high watermark, so that it is not answered early for a higher one (KIP-1166)."""
    request = messages.FetchRequest("c", messages.ReplicaKey(1, None), 3, 10, 2, 9, 500, 1 << 20)
    frame = translate.encode_request(request, None, 7, "client", fetch_version=17)
    header, at = decode_request_header(frame[4:])
    assert (header.api_key, header.version) == (1, 17)
    assert translate.decode_request(header, frame[4:], at) == request._replace(high_watermark=2**63 - 1)


def test_the_smallest_limit_that_is_set_counts() -> None:
    """Kafka's own replicas limit the whole answer and leave that of the partition at 0."""
    request = messages.FetchRequest("c", messages.ReplicaKey(1, None), 3, 10, 2, 9, 500, 1 << 20)
    body = translate.request_to_wire(request)
    partition = replace(body.topics[0].partitions[0], partition_max_bytes=0)
    topic = replace(body.topics[0], partitions=(partition,))
    read = translate.request_from_wire(1, replace(body, max_bytes=4096, topics=(topic,)))
    assert isinstance(read, messages.FetchRequest) and read.max_size_bytes == 4096


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (
            messages.FetchRequest("c", messages.ReplicaKey(9, None), 3, 10, 2, None, 0, 1),
            messages.FetchResponse(messages.Error.FENCED_LEADER_EPOCH, 2, 5),
        ),
        (
            messages.FetchRequest("c", messages.ReplicaKey(9, None), 5, 10, 2, None, 0, 1),
            messages.FetchResponse(messages.Error.NONE, 2, 5, 3),
        ),
        (
            messages.VoteRequest("c", 1, messages.ReplicaKey(9), messages.ReplicaKey(1), 0, 0, False),
            messages.VoteResponse(messages.Error.NONE, 2, 5, False, False),
        ),
        (
            messages.BeginQuorumEpochRequest("c", 9, 1, messages.ReplicaKey(1)),
            messages.EpochResponse(messages.Error.FENCED_LEADER_EPOCH, 2, 5),
        ),
        (
            messages.EndQuorumEpochRequest("c", 9, 1, ()),
            messages.EpochResponse(messages.Error.FENCED_LEADER_EPOCH, 2, 5),
        ),
        (
            messages.FetchSnapshotRequest("c", messages.ReplicaKey(9, None), 3, messages.SnapshotId(5, 1), 0, 100),
            messages.FetchSnapshotResponse(messages.Error.NOT_LEADER_OR_FOLLOWER, 2, 5),
        ),
    ],
)
def test_each_answer_says_where_the_leader_is_reached(
    request_: messages.RaftRequest, response: messages.RaftResponse
) -> None:
    frame = translate.encode_response(request_, 7, response, lambda leader: (f"n{leader}", 9093))
    _, body = decode_response(type(translate.request_to_wire(request_)), frame[4:])
    (endpoint,) = body.node_endpoints
    assert (endpoint.node_id, endpoint.host, endpoint.port) == (2, "n2", 9093)
    assert translate.decode_response(request_, frame[4:]) == (7, response)


def test_an_impossible_request_is_refused_as_a_whole() -> None:
    """A voter of Kafka ends if it finds INVALID_REQUEST beside a partition of its own epoch."""
    request = messages.BeginQuorumEpochRequest("c", 9, 1, messages.ReplicaKey(1))
    frame = translate.encode_response(request, 7, messages.EpochResponse(messages.Error.INVALID_REQUEST, 2, 5))
    _, body = decode_response(type(translate.request_to_wire(request)), frame[4:])
    assert body.error_code == 42 and body.topics == ()


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
