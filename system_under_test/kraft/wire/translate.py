"""The quorum's RPCs: `raft.messages` <-> kio's entities (Vote 52 v2, BeginQuorumEpoch 53 v1, EndQuorumEpoch 54 v1,
Fetch 1 v17 and v18, FetchSnapshot 59 v1; KIP-595, KIP-630, KIP-853, KIP-996, KIP-1166).

What the core says of one partition is wrapped into the topic and partition lists of Kafka's schemas, which in a quorum
always hold exactly the metadata partition.  "Unknown" is None in the core and, on the wire, -1 for ids and
offsets, Uuid(0) for directories, and the schema's own default for structs.

Fetched records travel as the bytes of the log.  Only the batch headers are looked at here:

    int64 base offset | int32 length of what follows | int32 leader epoch | 7 bytes | int32 last offset delta | ...

so the CRC, and all else the log wants to know of a batch, is the log's business.

The usual Fetch has no entity: its bytes are packed and read directly (`packed_fetch.py`).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any, NamedTuple

from kio.schema.begin_quorum_epoch.v1 import request as begin_request
from kio.schema.begin_quorum_epoch.v1 import response as begin_response
from kio.schema.end_quorum_epoch.v1 import request as end_request
from kio.schema.end_quorum_epoch.v1 import response as end_response
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v17 import request as older_fetch_request
from kio.schema.fetch.v18 import request as fetch_request
from kio.schema.fetch.v18 import response as fetch_response
from kio.schema.fetch_snapshot.v1 import request as snapshot_request
from kio.schema.fetch_snapshot.v1 import response as snapshot_response
from kio.schema.vote.v2 import request as vote_request
from kio.schema.vote.v2 import response as vote_response

from system_under_test.kraft.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEnd,
    EpochResponse,
    Error,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from system_under_test.kraft.wire import frames, packed_fetch
from system_under_test.kraft.wire.frames import Entity, RequestHeader
from system_under_test.kraft.wire.packed_fetch import TOPIC_ID
from system_under_test.kraft.wire.versions import (
    BEGIN_QUORUM_EPOCH,
    END_QUORUM_EPOCH,
    FETCH,
    FETCH_SNAPSHOT,
    NO_TIME,
    SUPPORTED,
    VOTE,
    make,
)

TOPIC = "__cluster_metadata"

RAFT_APIS = frozenset({FETCH, FETCH_SNAPSHOT, VOTE, BEGIN_QUORUM_EPOCH, END_QUORUM_EPOCH})
"""API keys whose calls go to the consensus core."""

Endpoint = tuple[str, str, int]
"""(listener name, host, port)."""

AddressOf = Callable[[int], tuple[str, int] | None]
"""The (host, port) where a voter is reached, if that is known."""

_TOP_LEVEL = frozenset({Error.UNSUPPORTED_VERSION, Error.INCONSISTENT_CLUSTER_ID, Error.INVALID_REQUEST})
"""Errors of the whole request: Kafka answers them without any partition.  A voter of Kafka ends if it finds
INVALID_REQUEST beside a partition of its own epoch."""

MARK_SINCE = 18
"""The version of Fetch from which on a replica says how far it knows what is committed (KIP-1166)."""
_ANY_MARK = 2**63 - 1
"""The high watermark of a replica that does not say it: it is not answered early for a higher one."""

_NO_TAGS = b"\0"
_BATCH_HEADER = struct.Struct(">qii")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_BATCH_PREFIX_BYTES = 12  # base offset and length, which the length does not count
_BATCH_BYTES_MIN = 61


class MalformedRpc(ValueError):
    """A well-formed body no voter sends: another topic, no or several partitions, an unknown error, torn batches."""


def encode_request(
    request: RaftRequest,
    endpoint: Endpoint | None,
    correlation_id: int,
    client_id: str,
    fetch_version: int = SUPPORTED[FETCH][1],
) -> bytes:
    """The frame of a request, with its size.  fetch_version: the highest of Fetch that both sides speak."""
    if isinstance(request, FetchRequest):
        if fetch_version < MARK_SINCE:
            return frames.encode_request(correlation_id, client_id, _fetch_request(request, older_fetch_request))
        body = packed_fetch.pack_request(request)
        if body is not None:
            return frames.packed_request(FETCH, SUPPORTED[FETCH][1], correlation_id, client_id, body)
    return frames.encode_request(correlation_id, client_id, request_to_wire(request, endpoint))


def decode_request(header: RequestHeader, frame: bytes, at: int) -> RaftRequest:
    """The request of a frame whose header up to the client id ends at `at`.  Raises MalformedFrame and MalformedRpc."""
    if header.api_key == FETCH and frame[at : at + 1] == _NO_TAGS:
        usual = packed_fetch.read_request(frame[at + 1 :])
        if usual is not None:
            return usual
    return request_from_wire(header.api_key, frames.decode_request_body(header, frame, at))


def encode_response(
    request: RaftRequest, correlation_id: int, response: RaftResponse, address_of: AddressOf | None = None
) -> bytes:
    """The frame of a response, with its size.

    address_of: where a leader is reached, which the response says to a replica that may not know it (KIP-853).  The
    usual answer to a Fetch does without."""
    if address_of is None and isinstance(
        response, FetchResponse
    ):  # a pattern of all fields takes as long as the rest of this
        error, leader_id, epoch, mark, diverging, batches, snapshot = response
        if error == Error.NONE and leader_id is not None and diverging is None and snapshot is None:
            records = b"".join([batch.body for batch in batches])  # type: ignore[misc]  # bytes when read from a log
            return frames.packed_response(correlation_id, packed_fetch.pack_response(leader_id, epoch, mark, records))
    entity = response_to_wire(request, response)
    leader = response.leader_id
    address = None if address_of is None or leader is None else address_of(leader)
    if address is not None and not entity.error_code:
        module = sys.modules[type(entity).__module__]
        known = make(module.NodeEndpoint, node_id=leader, host=address[0], port=address[1], rack=None)
        entity = replace(entity, node_endpoints=(known,))
    return frames.encode_response(correlation_id, entity)


def decode_response(request: RaftRequest, frame: bytes) -> tuple[int, RaftResponse]:
    """(correlation id, response).  Raises MalformedFrame and MalformedRpc."""
    usual = None
    if isinstance(request, FetchRequest) and frame[4:5] == _NO_TAGS:
        usual = packed_fetch.read_response(frame[5:])
    if usual is not None:
        leader_id, epoch, mark, records = usual
        response = FetchResponse(Error.NONE, leader_id, epoch, mark, None, tuple(parse_batches(records)))
        return int.from_bytes(frame[:4], "big", signed=True), response
    correlation_id, body = frames.decode_response(_ENTITIES[type(request)], frame)
    return correlation_id, response_from_wire(request, body)


def request_to_wire(request: RaftRequest, endpoint: Endpoint | None = None) -> Entity:
    """endpoint: where the sender is reached; Begin- and EndQuorumEpoch carry it."""
    match request:
        case FetchRequest():
            return _fetch_request(request)
        case VoteRequest():
            return _vote_request(request)
        case BeginQuorumEpochRequest():
            return _begin_request(request, endpoint)
        case EndQuorumEpochRequest():
            return _end_request(request, endpoint)
        case FetchSnapshotRequest():
            return _snapshot_request(request)


def request_from_wire(api_key: int, body: Entity) -> RaftRequest:
    """Raises MalformedRpc; KeyError for an API that is not the core's (see RAFT_APIS)."""
    return _REQUESTS[api_key](body)


def response_to_wire(request: RaftRequest, response: RaftResponse) -> Entity:
    """The entity that answers `request`; Begin- and EndQuorumEpoch share one response in the core, not on the wire."""
    match request, response:
        case FetchRequest(), FetchResponse():
            return _fetch_response(response)
        case FetchSnapshotRequest(), FetchSnapshotResponse():
            return _snapshot_response(response)
        case VoteRequest(), VoteResponse():
            return _partition_response(vote_response, "VoteResponse", response, vote_granted=response.granted)
        case BeginQuorumEpochRequest(), EpochResponse():
            return _partition_response(begin_response, "BeginQuorumEpochResponse", response)
        case EndQuorumEpochRequest(), EpochResponse():
            return _partition_response(end_response, "EndQuorumEpochResponse", response)
    raise TypeError(f"{type(response).__name__} does not answer {type(request).__name__}")


def invalid_request(api_key: int) -> Entity:
    """The answer to a body that is about something else than exactly the metadata partition."""
    code = ErrorCode(Error.INVALID_REQUEST)
    if api_key == FETCH:
        return fetch_response.FetchResponse(throttle_time=NO_TIME, error_code=code, session_id=0, responses=())
    if api_key == FETCH_SNAPSHOT:
        return snapshot_response.FetchSnapshotResponse(throttle_time=NO_TIME, error_code=code, topics=())
    response = {
        VOTE: vote_response.VoteResponse,
        BEGIN_QUORUM_EPOCH: begin_response.BeginQuorumEpochResponse,
        END_QUORUM_EPOCH: end_response.EndQuorumEpochResponse,
    }[api_key]
    return response(error_code=code, topics=())


def response_from_wire(request: RaftRequest, body: Entity) -> RaftResponse:
    """The answer to `request`.  A refusal of the whole request names no leader: (None, epoch 0).
    Raises MalformedRpc."""
    match request:
        case FetchRequest():
            return _read_fetch_response(body)
        case FetchSnapshotRequest():
            return _read_snapshot_response(body)
        case VoteRequest():
            answer = _read_partition_response(body)
            granted = answer.partition is not None and answer.partition.vote_granted
            return VoteResponse(answer.error, answer.leader_id, answer.leader_epoch, granted, request.pre_vote)
        case _:
            answer = _read_partition_response(body)
            return EpochResponse(answer.error, answer.leader_id, answer.leader_epoch)


def parse_batches(records: bytes) -> Iterator[Batch]:
    """Whole batches, each with its own bytes as body.  Raises MalformedRpc where the bytes end within one."""
    at = 0
    while at < len(records):
        if len(records) - at < _BATCH_BYTES_MIN:
            raise MalformedRpc(f"{len(records) - at} bytes where a record batch must stand")
        base_offset, length, epoch = _BATCH_HEADER.unpack_from(records, at)
        end = at + _BATCH_PREFIX_BYTES + length
        if end > len(records) or length < _BATCH_BYTES_MIN - _BATCH_PREFIX_BYTES:
            raise MalformedRpc(f"a record batch of {length} bytes, {len(records) - at} are there")
        (last_offset_delta,) = _LAST_OFFSET_DELTA.unpack_from(records, at + _LAST_OFFSET_DELTA_AT)
        yield Batch(base_offset, epoch, last_offset_delta + 1, records[at:end])
        at = end


def _fetch_request(request: FetchRequest, types: ModuleType = fetch_request) -> Entity:
    partition = make(
        types.FetchPartition,
        partition=0,
        current_leader_epoch=request.current_leader_epoch,
        fetch_offset=request.fetch_offset,
        last_fetched_epoch=request.last_fetched_epoch,
        partition_max_bytes=request.max_size_bytes,
        replica_directory_id=request.replica.directory,
        high_watermark=_or_unknown(request.high_watermark),
    )
    return types.FetchRequest(
        cluster_id=request.cluster_id,
        replica_state=types.ReplicaState(replica_id=request.replica.id),
        max_wait=timedelta(milliseconds=request.max_wait_ms),
        min_bytes=0,
        max_bytes=request.max_size_bytes,
        topics=(types.FetchTopic(topic_id=TOPIC_ID, partitions=(partition,)),),
        forgotten_topics_data=(),
    )


def _read_fetch_request(body: Any) -> FetchRequest:
    partition = _only_partition(body.topics, body.topics and body.topics[0].topic_id == TOPIC_ID)
    return FetchRequest(
        cluster_id=body.cluster_id or "",
        replica=ReplicaKey(body.replica_state.replica_id, partition.replica_directory_id),
        current_leader_epoch=partition.current_leader_epoch,
        fetch_offset=partition.fetch_offset,
        last_fetched_epoch=partition.last_fetched_epoch,
        high_watermark=_or_none(getattr(partition, "high_watermark", _ANY_MARK)),
        max_wait_ms=body.max_wait // timedelta(milliseconds=1),
        # Kafka's own replicas limit the whole answer, and leave the limit of the partition at 0.
        max_size_bytes=min([each for each in (body.max_bytes, partition.partition_max_bytes) if each > 0], default=0),
    )


def _fetch_response(response: FetchResponse) -> Entity:
    if response.error in _TOP_LEVEL:
        return fetch_response.FetchResponse(
            throttle_time=NO_TIME, error_code=ErrorCode(response.error), session_id=0, responses=()
        )
    diverging = response.diverging or EpochEnd(-1, -1)
    partition = fetch_response.PartitionData(
        partition_index=0,
        error_code=ErrorCode(response.error),
        high_watermark=_or_unknown(response.high_watermark),
        log_start_offset=0,
        diverging_epoch=fetch_response.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset),
        current_leader=fetch_response.LeaderIdAndEpoch(
            leader_id=_or_unknown(response.leader_id), leader_epoch=response.leader_epoch
        ),
        snapshot_id=fetch_response.SnapshotId()
        if response.snapshot is None
        else fetch_response.SnapshotId(end_offset=response.snapshot.end_offset, epoch=response.snapshot.epoch),
        aborted_transactions=None,
        records=b"".join(batch.body for batch in response.batches),  # type: ignore[misc]  # bytes when read from a log
    )
    topic = fetch_response.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(partition,))
    return fetch_response.FetchResponse(
        throttle_time=NO_TIME, error_code=ErrorCode.none, session_id=0, responses=(topic,)
    )


def _read_fetch_response(body: Any) -> FetchResponse:
    if body.error_code:
        return FetchResponse(_error(body.error_code), None, 0)
    partition = _only_partition(body.responses, body.responses and body.responses[0].topic_id == TOPIC_ID)
    diverging = partition.diverging_epoch
    return FetchResponse(
        error=_error(partition.error_code),
        leader_id=_or_none(partition.current_leader.leader_id),
        leader_epoch=partition.current_leader.leader_epoch,
        high_watermark=_or_none(partition.high_watermark),
        diverging=EpochEnd(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
        batches=tuple(parse_batches(partition.records or b"")),
        snapshot=_snapshot_id(partition.snapshot_id) if partition.snapshot_id.end_offset >= 0 else None,
    )


def _snapshot_id(entity: Any) -> SnapshotId:
    return SnapshotId(entity.end_offset, entity.epoch)


def _snapshot_request(request: FetchSnapshotRequest) -> Entity:
    partition = snapshot_request.PartitionSnapshot(
        partition=0,
        current_leader_epoch=request.current_leader_epoch,
        snapshot_id=snapshot_request.SnapshotId(end_offset=request.snapshot.end_offset, epoch=request.snapshot.epoch),
        position=request.position,
        replica_directory_id=request.replica.directory,
    )
    return snapshot_request.FetchSnapshotRequest(
        cluster_id=request.cluster_id,
        replica_id=request.replica.id,
        max_bytes=request.max_size_bytes,
        topics=(snapshot_request.TopicSnapshot(name=TOPIC, partitions=(partition,)),),
    )


def _read_snapshot_request(body: Any) -> FetchSnapshotRequest:
    partition = _only_partition(body.topics, body.topics and body.topics[0].name == TOPIC)
    return FetchSnapshotRequest(
        cluster_id=body.cluster_id or "",
        replica=ReplicaKey(body.replica_id, partition.replica_directory_id),
        current_leader_epoch=partition.current_leader_epoch,
        snapshot=_snapshot_id(partition.snapshot_id),
        position=partition.position,
        max_size_bytes=body.max_bytes,
    )


def _snapshot_response(response: FetchSnapshotResponse) -> Entity:
    if response.error in _TOP_LEVEL:
        error = ErrorCode(response.error)
        return snapshot_response.FetchSnapshotResponse(throttle_time=NO_TIME, error_code=error, topics=())
    partition = snapshot_response.PartitionSnapshot(
        index=0,
        error_code=ErrorCode(response.error),
        snapshot_id=snapshot_response.SnapshotId(
            end_offset=response.snapshot.end_offset, epoch=response.snapshot.epoch
        ),
        current_leader=snapshot_response.LeaderIdAndEpoch(
            leader_id=_or_unknown(response.leader_id), leader_epoch=response.leader_epoch
        ),
        size=response.size_bytes,
        position=response.position,
        unaligned_records=response.data,
    )
    topic = snapshot_response.TopicSnapshot(name=TOPIC, partitions=(partition,))
    return snapshot_response.FetchSnapshotResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, topics=(topic,))


def _read_snapshot_response(body: Any) -> FetchSnapshotResponse:
    if body.error_code:
        return FetchSnapshotResponse(_error(body.error_code), None, 0)
    partition = _only_partition(body.topics, body.topics and body.topics[0].name == TOPIC)
    return FetchSnapshotResponse(
        error=_error(partition.error_code),
        leader_id=_or_none(partition.current_leader.leader_id),
        leader_epoch=partition.current_leader.leader_epoch,
        snapshot=_snapshot_id(partition.snapshot_id),
        size_bytes=partition.size,
        position=partition.position,
        data=partition.unaligned_records or b"",
    )


def _vote_request(request: VoteRequest) -> Entity:
    partition = vote_request.PartitionData(
        partition_index=0,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory,
        voter_directory_id=request.voter.directory,
        last_offset_epoch=request.last_epoch,
        last_offset=request.last_offset,
        pre_vote=request.pre_vote,
    )
    return vote_request.VoteRequest(
        cluster_id=request.cluster_id,
        voter_id=request.voter.id,
        topics=(vote_request.TopicData(topic_name=TOPIC, partitions=(partition,)),),
    )


def _read_vote_request(body: Any) -> VoteRequest:
    partition = _only_metadata(body)
    return VoteRequest(
        cluster_id=body.cluster_id or "",
        epoch=partition.replica_epoch,
        candidate=ReplicaKey(partition.replica_id, partition.replica_directory_id),
        voter=ReplicaKey(body.voter_id, partition.voter_directory_id),
        last_epoch=partition.last_offset_epoch,
        last_offset=partition.last_offset,
        pre_vote=partition.pre_vote,
    )


def _begin_request(request: BeginQuorumEpochRequest, endpoint: Endpoint | None) -> Entity:
    partition = begin_request.PartitionData(
        partition_index=0,
        voter_directory_id=request.voter.directory,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
    )
    return begin_request.BeginQuorumEpochRequest(
        cluster_id=request.cluster_id,
        voter_id=request.voter.id,
        topics=(begin_request.TopicData(topic_name=TOPIC, partitions=(partition,)),),
        leader_endpoints=_endpoints(begin_request, endpoint),
    )


def _read_begin_request(body: Any) -> BeginQuorumEpochRequest:
    partition = _only_metadata(body)
    voter = ReplicaKey(body.voter_id, partition.voter_directory_id)
    return BeginQuorumEpochRequest(body.cluster_id or "", partition.leader_id, partition.leader_epoch, voter)


def _end_request(request: EndQuorumEpochRequest, endpoint: Endpoint | None) -> Entity:
    candidates = tuple(
        end_request.ReplicaInfo(candidate_id=key.id, candidate_directory_id=key.directory)
        for key in request.preferred_candidates
    )
    partition = end_request.PartitionData(
        partition_index=0,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_candidates=candidates,
    )
    return end_request.EndQuorumEpochRequest(
        cluster_id=request.cluster_id,
        topics=(end_request.TopicData(topic_name=TOPIC, partitions=(partition,)),),
        leader_endpoints=_endpoints(end_request, endpoint),
    )


def _read_end_request(body: Any) -> EndQuorumEpochRequest:
    partition = _only_metadata(body)
    candidates = tuple(ReplicaKey(c.candidate_id, c.candidate_directory_id) for c in partition.preferred_candidates)
    return EndQuorumEpochRequest(body.cluster_id or "", partition.leader_id, partition.leader_epoch, candidates)


_ENTITIES: dict[type, type] = {
    FetchRequest: fetch_request.FetchRequest,
    FetchSnapshotRequest: snapshot_request.FetchSnapshotRequest,
    VoteRequest: vote_request.VoteRequest,
    BeginQuorumEpochRequest: begin_request.BeginQuorumEpochRequest,
    EndQuorumEpochRequest: end_request.EndQuorumEpochRequest,
}

_REQUESTS: dict[int, Callable[[Any], RaftRequest]] = {
    FETCH: _read_fetch_request,
    FETCH_SNAPSHOT: _read_snapshot_request,
    VOTE: _read_vote_request,
    BEGIN_QUORUM_EPOCH: _read_begin_request,
    END_QUORUM_EPOCH: _read_end_request,
}


class _Answer(NamedTuple):
    error: Error
    leader_id: int | None
    leader_epoch: int
    partition: Any | None


def _partition_response(module: Any, name: str, response: VoteResponse | EpochResponse, **more: Any) -> Entity:
    """Vote's, Begin's and End's responses differ in their names and in Vote's one extra field."""
    if response.error in _TOP_LEVEL:
        return getattr(module, name)(error_code=ErrorCode(response.error), topics=())
    partition = module.PartitionData(
        partition_index=0,
        error_code=ErrorCode(response.error),
        leader_id=_or_unknown(response.leader_id),
        leader_epoch=response.leader_epoch,
        **more,
    )
    topic = module.TopicData(topic_name=TOPIC, partitions=(partition,))
    return getattr(module, name)(error_code=ErrorCode.none, topics=(topic,))


def _read_partition_response(body: Any) -> _Answer:
    if body.error_code:
        return _Answer(_error(body.error_code), None, 0, None)
    partition = _only_metadata(body)
    return _Answer(_error(partition.error_code), _or_none(partition.leader_id), partition.leader_epoch, partition)


def _only_metadata(body: Any) -> Any:
    return _only_partition(body.topics, body.topics and body.topics[0].topic_name == TOPIC)


def _only_partition(topics: Any, is_metadata: bool) -> Any:
    if not is_metadata or len(topics) != 1 or len(topics[0].partitions) != 1:
        raise MalformedRpc("not about exactly the metadata partition")
    return topics[0].partitions[0]


def _endpoints(module: Any, endpoint: Endpoint | None) -> tuple[Any, ...]:
    if endpoint is None:
        return ()
    name, host, port = endpoint
    return (module.LeaderEndpoint(name=name, host=host, port=port),)


def _error(code: int) -> Error:
    try:
        return Error(code)
    except ValueError:
        raise MalformedRpc(f"error {int(code)}, which no voter answers") from None


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
