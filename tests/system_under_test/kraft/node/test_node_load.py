"""Long replays, large requests and any frame: the loop keeps serving the quorum, and nothing harms a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import timedelta
from random import Random
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID, uuid4

import pytest
import virtual_time
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kraft_server import read_frame, serve
from node_cluster import QUICK, VOTERS, Boot, Cluster, create, set_retention
from waiting import eventually

from system_under_test.kraft.controller.topics import RECORDS_MAX, NewTopic, create_topics, of_ids
from system_under_test.kraft.node import snapshotting
from system_under_test.kraft.node.assembly import taking_raft_requests
from system_under_test.kraft.node.snapshotting import Replay
from system_under_test.kraft.node.state_machine import WRITE_MAX_BYTES
from system_under_test.kraft.raft.messages import Timing
from system_under_test.kraft.records.metadata import ConfigRecord
from system_under_test.kraft.wire.api import Api
from system_under_test.kraft.wire.frames import codec, decode_response, encode_request
from system_under_test.kraft.wire.quorum_service import TooLarge
from system_under_test.kraft.wire.translate import TOPIC, TOPIC_ID
from system_under_test.kraft.wire.versions import DELETE_TOPICS, SUPPORTED, requested

pytestmark = pytest.mark.virtual_time


PATIENT = replace(QUICK, fetch_timeout_s=10.0, request_timeout_s=10.0)
"""For what takes a while on a loaded machine."""


async def test_a_long_replay_is_done_in_slices_and_reads_wait_for_it(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart with 200,000 records: 69 s without a leader, because the replay was one step."""
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    await leader.write(create("t"))
    for first in range(0, 6000, 500):
        await asyncio.gather(*(leader.write(set_retention("t", first + n)) for n in range(500)))
    for node in cluster.network.nodes.values():
        node._end(0)
    cluster.disks = {voter: disk.crash("lose", Random(voter)) for voter, disk in cluster.disks.items()}
    monkeypatch.setattr(snapshotting, "SLICE_RECORDS", 100)
    slices: list[int] = []
    apply_slice = Replay.apply_slice

    def counted(replay: Replay) -> None:
        before = replay._machine.applied_offset
        apply_slice(replay)
        slices.append(replay._machine.applied_offset - before)

    monkeypatch.setattr(Replay, "apply_slice", counted)
    before_restart = {voter: len(rows) for voter, rows in cluster.traces.items()}
    cluster.boot_all()
    image = await (await cluster.leader()).read()
    assert image.configs("t") == {"retention.ms": "5999"}
    assert len(slices) > 10
    assert max(slices) <= 100 + 500, "one batch is never parted"
    for voter, rows in cluster.traces.items():
        applied = [row for row in rows[before_restart[voter] :] if row["event"] == "applied"]
        assert len(applied) < 100, "a long replay reports some of the states it passes"


async def test_an_atomic_write_has_a_largest_size(boot: Boot) -> None:
    """20,000 records passed, and a value near 16 MiB could be written that no follower could ever fetch."""
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    await leader.write(create("t"))
    end = leader._log.end_offset
    record = ConfigRecord(2, "t", "retention.ms", "1")
    large = ConfigRecord(2, "t", "retention.ms", "x" * WRITE_MAX_BYTES)
    for records in ([record] * (RECORDS_MAX + 1), [large]):
        with pytest.raises(TooLarge):
            await leader.write(lambda image, records=records: (records, None))
    assert leader._log.end_offset == end
    await leader.write(lambda image: ([record] * RECORDS_MAX, None))
    assert leader.is_active()


async def test_a_topic_with_ten_thousand_partitions_costs_no_leader_its_office(boot: Boot) -> None:
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    epoch = leader.epoch

    def many(image):  # type: ignore[no-untyped-def]
        return create_topics(image, [NewTopic("many", RECORDS_MAX - 1, 3)], of_ids(VOTERS), lambda: UUID(int=9))

    (result,) = await leader.write(many)
    assert result["num_partitions"] == RECORDS_MAX - 1
    assert (leader.epoch, leader.is_active()) == (epoch, True)


async def test_the_writes_of_a_lone_client_are_appended_at_once_and_those_of_many_share_an_append(boot: Boot) -> None:
    cluster = boot(timing=PATIENT)
    leader = await cluster.leader()
    await leader.write(create("t"))
    answered: list[int] = []

    def submit(number: int) -> int:
        """How many records were appended before the loop ran again."""
        before = leader._log.end_offset
        leader.submit(set_retention("t", number), lambda result, problem: answered.append(number))
        return leader._log.end_offset - before

    async def appends_for(numbers: range) -> tuple[int, int]:
        """How many records were appended at once, and in how many batches all of them."""
        batches = len(leader._log._batches)
        at_once = sum([submit(number) for number in numbers])
        await eventually(
            lambda: len(answered) == numbers.stop and leader._core.high_watermark == leader._log.end_offset
        )
        return at_once, len(leader._log._batches) - batches

    assert await appends_for(range(1)) == (1, 1), "the topic was created alone"
    assert await appends_for(range(1, 6)) == (1, 2), "the first one alone, and four that find it in flight"
    assert await appends_for(range(6, 11)) == (0, 1)
    assert await appends_for(range(11, 12)) == (0, 1)
    assert await appends_for(range(12, 13)) == (1, 1)
    assert answered == list(range(13))


NEVER = Timing(election_timeout_s=1000.0, fetch_timeout_s=1000.0)
ANSWER_LIMIT_S = 30.0

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = st.sampled_from([TOPIC, "cluster", "t", "u.v", "", ".", "retention.ms", "5", "é" * 300]) | st.text(max_size=5)


def integers(bits: int) -> st.SearchStrategy[int]:
    edges = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -5, -1, 0, 1, 2, 3]
    return st.sampled_from(edges) | st.integers(edges[0], edges[1])


VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{name: integers(bits) for name, bits in INTEGERS.items()},
    "uint16": st.integers(0, 65535),
    "bool": st.booleans(),
    "float64": st.sampled_from([-1.0, 0.0, 0.5, 1e300]),
    "string": TEXTS,
    "uuid": st.sampled_from([TOPIC_ID, UUID(int=7)]),
    "timedelta_i32": st.sampled_from([timedelta(milliseconds=-1), timedelta(0), timedelta(milliseconds=10)]),
    "bytes": st.binary(max_size=5),
}


def entities(kind: Any) -> st.SearchStrategy[Any]:
    """Entities of one of kio's types, from the types of its fields."""
    return st.builds(kind, **{field.name: _values(field.type, field) for field in fields(kind)})


def _values(kind: Any, field: Any) -> st.SearchStrategy[Any]:
    if get_origin(kind) in (UnionType, Union):
        [there] = [option for option in get_args(kind) if option is not NoneType]
        return st.none() | _values(there, field)
    if get_origin(kind) is tuple:
        return st.lists(_values(get_args(kind)[0], field), min_size=0, max_size=2).map(tuple)
    if is_dataclass(kind):
        filled = entities(kind)
        return filled if field.default is MISSING else filled | st.just(field.default)
    return VALUES[field.metadata["kafka_type"]]


VERSIONS = [(key, version) for key, (lowest, highest) in SUPPORTED.items() for version in {lowest, highest}]
well_formed = st.sampled_from(VERSIONS).flatmap(lambda which: entities(codec(*which).request_type))


async def attack(voters: tuple[int, ...], frames: Sequence[bytes], heard: Callable[[int, bytes | None], None]) -> None:
    """Send each frame on a connection of its own, report the answers, and look at the node and its disk after it."""
    cluster = Cluster(timing=NEVER, voters=voters, names_disks=True)
    node = cluster.boot(1)
    api, take = Api(node, new_uuid=uuid4, timeout_s=1.0), taking_raft_requests(node)
    server = await serve("127.0.0.1", 0, api.handle, node.on_disconnect, take_at_once=take)
    try:
        for number, frame in enumerate(frames):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(frame)
            writer.write_eof()
            async with asyncio.timeout(ANSWER_LIMIT_S):
                try:
                    heard(number, await read_frame(reader))
                except (ConnectionError, asyncio.IncompleteReadError):
                    heard(number, None)
            writer.transport.abort()
            assert not node.ended.done(), [row for row in cluster.traces[1] if row["event"] == "fatal"]
    finally:
        await server.close()
        node._end(0)
    cluster.disks[1] = cluster.disks[1].crash("lose", Random(0))
    again = cluster.boot(1)
    assert not again.ended.done()
    again._end(0)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.sampled_from([(1,), (1, 2, 3)]), st.lists(well_formed, min_size=1, max_size=5))
def test_every_well_formed_request_is_answered_and_harms_nothing(voters: tuple[int, ...], requests: list[Any]) -> None:
    """A frame about another topic closed its connection; one that named a strange leader bricked the node."""

    def heard(number: int, answer: bytes | None) -> None:
        assert answer is not None, f"closed without an answer: {requests[number]}"
        decode_response(type(requests[number]), answer)

    virtual_time.run(attack(voters, [encode_request(1, "krucible-test", entity) for entity in requests], heard))


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(well_formed, st.data())
def test_no_damaged_frame_harms_a_node(entity: Any, data: st.DataObject) -> None:
    frame = bytearray(encode_request(1, "krucible-test", entity))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = frame[: data.draw(st.integers(5, len(frame)))]
    virtual_time.run(attack((1, 2, 3), [bytes(frame)], lambda number, answer: None))


@pytest.mark.parametrize("voters", [(1,), (1, 2)])
async def test_deleting_a_topic_without_a_name_is_answered(voters: tuple[int, ...]) -> None:
    soon = timedelta(milliseconds=10)
    requests = [
        requested(DELETE_TOPICS, 1, {"topic_names": [""], "timeout": soon}),
        requested(DELETE_TOPICS, 6, {"topics": [{"name": None, "topic_id": None}], "timeout": soon}),
    ]
    heard: dict[int, bytes | None] = {}
    await attack(voters, [encode_request(1, "c", request) for request in requests], heard.__setitem__)
    assert None not in heard.values() and len(heard) == 2
