"""The quorum's RPCs: `raft.messages` <-> kio's entities (Vote 52 v2, BeginQuorumEpoch 53 v1, EndQuorumEpoch 54 v1,
Fetch 1 v17 and v18, FetchSnapshot 59 v1; KIP-595, KIP-630, KIP-853, KIP-996, KIP-1166).

A message of the core concerns one partition.  Kafka's schemas have lists of topics and partitions, which in a quorum
always contain exactly the metadata partition.  An unknown value is None in the core.  On the wire it is -1 for ids and
offsets, Uuid(0) for directories, and the schema's own default for structs.

Fetched records travel as the bytes of the log.  This module reads only the batch headers:

    int64 base offset | int32 length of the rest | int32 leader epoch | 7 bytes | int32 last offset delta | ...

The log verifies the CRC and all other fields of a batch.

A Fetch of the usual form needs no entity: its bytes are packed and read directly (`packed.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from system_under_test.kraft.raft import messages
from system_under_test.kraft.wire import frames, packed, versions
from system_under_test.kraft.wire.frames import Entity, RequestHeader
from system_under_test.kraft.wire.packed import TOPIC_ID
from system_under_test.kraft.wire.versions import built, filled

TOPIC = "__cluster_metadata"

_METADATA = {"topic_id": TOPIC_ID, "name": TOPIC, "topic_name": TOPIC}
"""The metadata topic, by each field that identifies a topic in the schemas."""

_API_KEYS: dict[type, int] = {
    messages.FetchRequest: versions.FETCH,
    messages.FetchSnapshotRequest: versions.FETCH_SNAPSHOT,
    messages.VoteRequest: versions.VOTE,
    messages.BeginQuorumEpochRequest: versions.BEGIN_QUORUM_EPOCH,
    messages.EndQuorumEpochRequest: versions.END_QUORUM_EPOCH,
}

RAFT_APIS = frozenset(_API_KEYS.values())
"""API keys of the consensus core's requests."""

Endpoint = tuple[str, str, int]
"""(listener name, host, port)."""

AddressOf = Callable[[int], tuple[str, int] | None]
"""Function that returns the (host, port) of a voter, or None if it is unknown."""

_TOP_LEVEL = frozenset(
    {messages.Error.UNSUPPORTED_VERSION, messages.Error.INCONSISTENT_CLUSTER_ID, messages.Error.INVALID_REQUEST}
)
"""Errors of the whole request, which Kafka answers without any partition.  A voter of Kafka ends if it finds
INVALID_REQUEST in a partition with its own epoch.
"""

MARK_SINCE = 18
"""First version of Fetch in which a replica reports its high watermark (KIP-1166)."""
_ANY_MARK = 2**63 - 1
"""High watermark assumed for a replica that does not report its own: the leader never answers it early because of a
higher one.
"""

_NO_TAGS = b"\0"
_BATCH_HEADER = struct.Struct(">qii")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23
_BATCH_PREFIX_BYTES = 12  # base offset and length, which the length does not count
_BATCH_BYTES_MIN = 61


class MalformedRpc(ValueError):
    """Raised for a well-formed body that no voter sends: another topic, no or several partitions, an unknown error, a
    torn batch.
    """


def encode_request(
    request: messages.RaftRequest,
    endpoint: Endpoint | None,
    correlation_id: int,
    client_id: str,
    fetch_version: int = versions.SUPPORTED[versions.FETCH][1],
) -> bytes:
    """Return the frame of a request, including its size.

    fetch_version: highest version of Fetch that both sides support
    """
    if isinstance(request, messages.FetchRequest):
        if fetch_version < MARK_SINCE:
            older = request_to_wire(request, version=MARK_SINCE - 1)
            return frames.encode_request(correlation_id, client_id, older)
        body = packed.pack_fetch_request(request)
        if body is not None:
            return frames.packed_request(
                versions.FETCH, versions.SUPPORTED[versions.FETCH][1], correlation_id, client_id, body
            )
    return frames.encode_request(correlation_id, client_id, request_to_wire(request, endpoint))


def decode_request(header: RequestHeader, frame: bytes, at: int) -> messages.RaftRequest:
    """Return the request of a frame whose header up to the client id ends at `at`.  Raises MalformedFrame and
    MalformedRpc.
    """
    if header.api_key == versions.FETCH and frame[at : at + 1] == _NO_TAGS:
        usual = packed.read_fetch_request(frame[at + 1 :])
        if usual is not None:
            return usual
    return request_from_wire(header.api_key, frames.decode_request_body(header, frame, at))


def encode_response(
    request: messages.RaftRequest,
    correlation_id: int,
    response: messages.RaftResponse,
    address_of: AddressOf | None = None,
) -> bytes:
    """Return the frame of a response, including its size.

    address_of: returns the leader's address, for replicas that may not know it (KIP-853); None for the usual answer to
        a Fetch
    """
    if address_of is None and isinstance(
        response, messages.FetchResponse
    ):  # matching a pattern of all fields would take as long as the rest of this function
        error, leader_id, epoch, mark, diverging, batches, snapshot = response
        if error == messages.Error.NONE and leader_id is not None and diverging is None and snapshot is None:
            records = b"".join([batch.body for batch in batches])  # type: ignore[misc]  # bytes when read from a log
            return frames.packed_response(correlation_id, packed.pack_fetch_response(leader_id, epoch, mark, records))
    leader = response.leader_id
    address = None if address_of is None or leader is None else address_of(leader)
    return frames.encode_response(correlation_id, response_to_wire(request, response, address))


def decode_response(request: messages.RaftRequest, frame: bytes) -> tuple[int, messages.RaftResponse]:
    """Return (correlation id, response).  Raises MalformedFrame and MalformedRpc."""
    usual = None
    if isinstance(request, messages.FetchRequest) and frame[4:5] == _NO_TAGS:
        usual = packed.read_fetch_response(frame[5:])
    if usual is not None:
        leader_id, epoch, mark, records = usual
        response = messages.FetchResponse(
            messages.Error.NONE, leader_id, epoch, mark, None, tuple(parse_batches(records))
        )
        return int.from_bytes(frame[:4], "big", signed=True), response
    correlation_id, body = frames.decode_response(_codec(_API_KEYS[type(request)]).request_type, frame)
    return correlation_id, response_from_wire(request, body)


def request_to_wire(
    request: messages.RaftRequest, endpoint: Endpoint | None = None, version: int | None = None
) -> Entity:
    """Return the entity of a request.

    endpoint: where the sender is reached, for BeginQuorumEpoch and EndQuorumEpoch
    version: None for the newest version
    """
    api_key = _API_KEYS[type(request)]
    kind = frames.codec(api_key, version or versions.SUPPORTED[api_key][1]).request_type
    values: dict[str, Any]  # fields with another name on the wire
    match request:
        case messages.FetchRequest():
            values = {
                "replica_state": {"replica_id": request.replica.id},
                "replica_directory_id": request.replica.directory,
                "max_wait": timedelta(milliseconds=request.max_wait_ms),
                "min_bytes": 0,
                "max_bytes": request.max_size_bytes,
                "partition_max_bytes": request.max_size_bytes,
                "high_watermark": _or_unknown(request.high_watermark),
                "forgotten_topics_data": (),
            }
        case messages.FetchSnapshotRequest():
            values = {
                "replica_id": request.replica.id,
                "replica_directory_id": request.replica.directory,
                "max_bytes": request.max_size_bytes,
                "snapshot_id": request.snapshot,
            }
        case messages.VoteRequest():
            values = {
                "voter_id": request.voter.id,
                "voter_directory_id": request.voter.directory,
                "replica_epoch": request.epoch,
                "replica_id": request.candidate.id,
                "replica_directory_id": request.candidate.directory,
                "last_offset_epoch": request.last_epoch,
            }
        case messages.BeginQuorumEpochRequest():
            values = {"voter_id": request.voter.id, "voter_directory_id": request.voter.directory}
        case messages.EndQuorumEpochRequest():
            candidates = request.preferred_candidates
            values = {
                "preferred_candidates": [
                    {"candidate_id": key.id, "candidate_directory_id": key.directory} for key in candidates
                ]
            }
    if isinstance(request, messages.BeginQuorumEpochRequest | messages.EndQuorumEpochRequest):
        endpoints = () if endpoint is None else (dict(zip(("name", "host", "port"), endpoint, strict=True)),)
        values |= {"leader_epoch": request.epoch, "leader_endpoints": endpoints}
    return _about_metadata(kind, request, **values)


def request_from_wire(api_key: int, body: Any) -> messages.RaftRequest:
    """Return the request in an entity.  Raises MalformedRpc; KeyError for an API that is not the core's (see
    RAFT_APIS).
    """
    if api_key not in RAFT_APIS:
        raise KeyError(api_key)
    partition = _only_partition(body.topics)
    cluster_id = body.cluster_id or ""
    if api_key == versions.FETCH:
        # Kafka's own replicas limit the whole answer, and set the limit of the partition to 0.
        limits = [each for each in (body.max_bytes, partition.partition_max_bytes) if each > 0]
        return messages.FetchRequest(
            cluster_id=cluster_id,
            replica=messages.ReplicaKey(body.replica_state.replica_id, partition.replica_directory_id),
            current_leader_epoch=partition.current_leader_epoch,
            fetch_offset=partition.fetch_offset,
            last_fetched_epoch=partition.last_fetched_epoch,
            high_watermark=_or_none(getattr(partition, "high_watermark", _ANY_MARK)),
            max_wait_ms=body.max_wait // timedelta(milliseconds=1),
            max_size_bytes=min(limits, default=0),
        )
    if api_key == versions.FETCH_SNAPSHOT:
        return messages.FetchSnapshotRequest(
            cluster_id=cluster_id,
            replica=messages.ReplicaKey(body.replica_id, partition.replica_directory_id),
            current_leader_epoch=partition.current_leader_epoch,
            snapshot=_snapshot_id(partition.snapshot_id),
            position=partition.position,
            max_size_bytes=body.max_bytes,
        )
    if api_key == versions.VOTE:
        return messages.VoteRequest(
            cluster_id=cluster_id,
            epoch=partition.replica_epoch,
            candidate=messages.ReplicaKey(partition.replica_id, partition.replica_directory_id),
            voter=messages.ReplicaKey(body.voter_id, partition.voter_directory_id),
            last_epoch=partition.last_offset_epoch,
            last_offset=partition.last_offset,
            pre_vote=partition.pre_vote,
        )
    leader = partition.leader_id, partition.leader_epoch
    if api_key == versions.BEGIN_QUORUM_EPOCH:
        return messages.BeginQuorumEpochRequest(
            cluster_id, *leader, messages.ReplicaKey(body.voter_id, partition.voter_directory_id)
        )
    candidates = tuple(
        messages.ReplicaKey(c.candidate_id, c.candidate_directory_id) for c in partition.preferred_candidates
    )
    return messages.EndQuorumEpochRequest(cluster_id, *leader, candidates)


def response_to_wire(
    request: messages.RaftRequest, response: messages.RaftResponse, leader_at: tuple[str, int] | None = None
) -> Entity:
    """Return the entity that answers `request`.  BeginQuorumEpoch and EndQuorumEpoch share one response in the core,
    but not on the wire.

    leader_at: (host, port) of the leader; None to leave the address out
    """
    if type(response) is not type(messages.empty_answer(request, response.error, None, 0)):
        raise TypeError(f"{type(response).__name__} does not answer {type(request).__name__}")
    api_key, code = _API_KEYS[type(request)], ErrorCode(response.error)
    if response.error in _TOP_LEVEL:
        return _refusal(api_key, code)
    values: dict[str, Any] = {"leader_id": _or_unknown(response.leader_id), "leader_epoch": response.leader_epoch}
    match response:
        case messages.FetchResponse():
            unknown = messages.EpochEnd(-1, -1)
            values = {
                "current_leader": values,
                "high_watermark": _or_unknown(response.high_watermark),
                "log_start_offset": 0,
                "diverging_epoch": response.diverging or unknown,
                "snapshot_id": response.snapshot or unknown,
                "aborted_transactions": None,
                "records": b"".join(batch.body for batch in response.batches),  # type: ignore[misc]  # read from a log
            }
        case messages.FetchSnapshotResponse():
            values = {
                "current_leader": values,
                "snapshot_id": response.snapshot,
                "size": response.size_bytes,
                "unaligned_records": response.data,
            }
        case messages.VoteResponse():
            values["vote_granted"] = response.granted
    if leader_at is not None:
        host, port = leader_at
        values["node_endpoints"] = [{"node_id": response.leader_id, "host": host, "port": port, "rack": None}]
    kind = _codec(api_key).response_type
    return _about_metadata(kind, response, ErrorCode.none, error_code=code, **values)


def invalid_request(api_key: int) -> Entity:
    """Return the answer to a body that does not contain exactly the metadata partition."""
    return _refusal(api_key, ErrorCode(messages.Error.INVALID_REQUEST))


def response_from_wire(request: messages.RaftRequest, body: Any) -> messages.RaftResponse:
    """Return the answer to `request`.  An error of the whole request names no leader: (None, epoch 0).  Raises
    MalformedRpc.
    """
    if body.error_code:
        return messages.empty_answer(request, _error(body.error_code), None, 0)
    partition = _only_partition(body.responses if isinstance(request, messages.FetchRequest) else body.topics)
    leader = getattr(partition, "current_leader", partition)
    common = _error(partition.error_code), _or_none(leader.leader_id), leader.leader_epoch
    match request:
        case messages.FetchRequest():
            diverging, snapshot = partition.diverging_epoch, partition.snapshot_id
            return messages.FetchResponse(
                *common,
                high_watermark=_or_none(partition.high_watermark),
                diverging=messages.EpochEnd(diverging.epoch, diverging.end_offset)
                if diverging.end_offset >= 0
                else None,
                batches=tuple(parse_batches(partition.records or b"")),
                snapshot=_snapshot_id(snapshot) if snapshot.end_offset >= 0 else None,
            )
        case messages.FetchSnapshotRequest():
            return messages.FetchSnapshotResponse(
                *common,
                snapshot=_snapshot_id(partition.snapshot_id),
                size_bytes=partition.size,
                position=partition.position,
                data=partition.unaligned_records or b"",
            )
        case messages.VoteRequest():
            return messages.VoteResponse(*common, partition.vote_granted, request.pre_vote)
        case _:
            return messages.EpochResponse(*common)


def parse_batches(records: bytes) -> Iterator[messages.Batch]:
    """Yield whole batches, each with its own bytes as body.  Raises MalformedRpc if the bytes end within a batch."""
    at = 0
    while at < len(records):
        if len(records) - at < _BATCH_BYTES_MIN:
            raise MalformedRpc(f"{len(records) - at} bytes are too few for a record batch")
        base_offset, length, epoch = _BATCH_HEADER.unpack_from(records, at)
        end = at + _BATCH_PREFIX_BYTES + length
        if end > len(records) or length < _BATCH_BYTES_MIN - _BATCH_PREFIX_BYTES:
            raise MalformedRpc(f"a record batch of {length} bytes, of which only {len(records) - at} are left")
        (last_offset_delta,) = _LAST_OFFSET_DELTA.unpack_from(records, at + _LAST_OFFSET_DELTA_AT)
        yield messages.Batch(base_offset, epoch, last_offset_delta + 1, records[at:end])
        at = end


def _codec(api_key: int) -> frames.Codec:
    return frames.codec(api_key, versions.SUPPORTED[api_key][1])


def _about_metadata(
    kind: type[Any],
    source: messages.RaftRequest | messages.RaftResponse,
    error_of_all: ErrorCode | None = None,
    **values: Any,
) -> Entity:
    """Return a request or response with exactly the metadata partition.

    values: fields of the message and of its partition.  The other fields have the names of the attributes of `source`.
    """
    topics = "responses" if "responses" in kind.__dataclass_fields__ else "topics"
    partition = filled(source, partition=0, partition_index=0, index=0, **values)
    topic = {"partitions": [partition], **_METADATA}
    return built(kind, filled(source, **{**values, topics: [topic], "error_code": error_of_all}))


def _refusal(api_key: int, code: ErrorCode) -> Entity:
    return built(_codec(api_key).response_type, {"error_code": code, "topics": (), "responses": ()})


def _only_partition(topics: Any) -> Any:
    named = [getattr(topic, each, None) == name for topic in topics for each, name in _METADATA.items()]
    if not any(named) or len(topics) != 1 or len(topics[0].partitions) != 1:
        raise MalformedRpc("the request or response must contain exactly the metadata partition")
    return topics[0].partitions[0]


def _snapshot_id(entity: Any) -> messages.SnapshotId:
    return messages.SnapshotId(entity.end_offset, entity.epoch)


def _error(code: int) -> messages.Error:
    try:
        return messages.Error(code)
    except ValueError:
        raise MalformedRpc(f"error {int(code)}, which no voter returns") from None


def _or_unknown(number: int | None) -> int:
    return -1 if number is None else number


def _or_none(number: int) -> int | None:
    return None if number < 0 else number
