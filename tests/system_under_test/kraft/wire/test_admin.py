"""The three requests that change voters (KIP-853), from bodies to changes and back.

What a broker says of its log folder: the replicas that it hosts, whatever is asked, and why one is not there.

Requests that are handed on share a few connections to the controller.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest
from kio.schema.create_topics.v7 import request as creation
from kio.schema.create_topics.v7 import response as created
from kio.schema.errors import ErrorCode
from kraft_server import serve

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.topics import NewTopic, create_topics, of_ids
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.messages import ReplicaKey
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry
from system_under_test.kraft.wire import admin, versions
from system_under_test.kraft.wire.admin import CONNECTIONS_MAX, Forwarder
from system_under_test.kraft.wire.frames import Entity, codec
from system_under_test.kraft.wire.quorum_service import NotQueued
from system_under_test.kraft.wire.server import Server, WireCall

DIRECTORY = UUID(int=9)
KEY = ReplicaKey(4, DIRECTORY)
AT = VoterEndpoint("CONTROLLER", "h", 9093)


def body(**fields: object) -> SimpleNamespace:
    listeners = (SimpleNamespace(name="CONTROLLER", host="h", port=9093),)
    known = {"cluster_id": "c", "voter_id": 4, "voter_directory_id": DIRECTORY, "listeners": listeners}
    return SimpleNamespace(**(known | fields))


def test_requests_become_changes() -> None:
    supported = SimpleNamespace(min_supported_version=0, max_supported_version=1)
    assert admin.CHANGES[versions.ADD_RAFT_VOTER](body()) == AddVoter(VoterEntry(KEY, (AT,)))
    assert admin.CHANGES[versions.REMOVE_RAFT_VOTER](body()) == RemoveVoter(KEY)
    update = admin.CHANGES[versions.UPDATE_RAFT_VOTER](body(k_raft_version_feature=supported))
    assert update == UpdateVoter(VoterEntry(KEY, (AT,), (0, 1)))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "another"}, ErrorCode.inconsistent_cluster_id),
        ({"voter_id": -1}, ErrorCode.invalid_request),
        ({"voter_directory_id": None}, ErrorCode.invalid_request),
        ({"listeners": ()}, ErrorCode.invalid_request),
    ],
)
def test_malformed_requests_are_refused(fields: dict[str, object], error: ErrorCode) -> None:
    refusal = admin.why_malformed("c", body(**fields))
    assert refusal is not None and refusal[0] == error


def test_a_request_without_a_cluster_id_fits_every_cluster() -> None:
    assert admin.why_malformed("c", body(cluster_id=None)) is None


@pytest.mark.parametrize("api_key", [versions.ADD_RAFT_VOTER, versions.REMOVE_RAFT_VOTER, versions.UPDATE_RAFT_VOTER])
def test_answers_can_be_written_in_every_version(api_key: int) -> None:
    lowest, highest = versions.SUPPORTED[api_key]
    for version in range(lowest, highest + 1):
        given = admin.respond(ErrorCode.duplicate_voter, "it is one", (3, 7, "h", 1))
        answer = versions.built(codec(api_key, version).response_type, given)
        assert answer.error_code == ErrorCode.duplicate_voter
        assert getattr(answer, "current_leader", answer) is answer or answer.current_leader.leader_epoch == 7


HERE = "/data"


@pytest.fixture
def image() -> Image:
    """Topic `a`: three partitions with two replicas each; topic `b`: one partition, on broker 1 alone."""
    made, numbers = Image(), iter(range(1, 100))
    by_hand = creation.CreatableReplicaAssignment(partition_index=0, broker_ids=(1,))
    wanted = [NewTopic("a", 3, 2), NewTopic("b", assignments=[by_hand])]
    for record in create_topics(made, wanted, of_ids((1, 2, 3)), lambda: UUID(int=next(numbers)))[0]:
        made.apply(record)
    return made


def hosted(image: Image, broker: int, version: int, topics: dict[str, list[int]] | None) -> set[tuple[str, int]]:
    """(topic, partition) of all that a DescribeLogDirs answer names."""
    wanted = topics and [{"topic": name, "partitions": numbers} for name, numbers in topics.items()]
    body = versions.requested(versions.DESCRIBE_LOG_DIRS, version, {"topics": wanted})
    answer = versions.built(
        codec(versions.DESCRIBE_LOG_DIRS, version).response_type, admin.describe_log_dirs(image, broker, HERE, body)
    )
    [folder] = answer.results
    assert (folder.log_dir, folder.error_code) == (HERE, ErrorCode.none)
    return {(topic.name, partition.partition_index) for topic in folder.topics for partition in topic.partitions}


@pytest.mark.parametrize(
    "version",
    range(versions.SUPPORTED[versions.DESCRIBE_LOG_DIRS][0], versions.SUPPORTED[versions.DESCRIBE_LOG_DIRS][1] + 1),
)
@pytest.mark.parametrize("broker", [1, 2, 3, 4])
def test_a_broker_names_the_replicas_that_it_hosts_and_no_other(image: Image, broker: int, version: int) -> None:
    right = {
        (name, number)
        for name, topic in image.topics.items()
        for number, partition in topic.partitions.items()
        if broker in partition.replicas
    }
    assert bool(right) == (broker != 4)
    assert hosted(image, broker, version, None) == right
    assert hosted(image, broker, version, {"a": [0, 2, 7], "none": [0]}) == right & {("a", 0), ("a", 2)}
    assert hosted(image, broker, version, {}) == set()


@pytest.mark.parametrize(
    "version",
    range(
        versions.SUPPORTED[versions.ALTER_REPLICA_LOG_DIRS][0],
        versions.SUPPORTED[versions.ALTER_REPLICA_LOG_DIRS][1] + 1,
    ),
)
def test_a_replica_moves_only_to_where_it_is(image: Image, version: int) -> None:
    def moved(broker: int, path: str, topic: str, *partitions: int) -> dict[int, ErrorCode]:
        dirs = [{"path": path, "topics": [{"name": topic, "partitions": partitions}]}]
        body = versions.requested(versions.ALTER_REPLICA_LOG_DIRS, version, {"dirs": dirs})
        answer = versions.built(
            codec(versions.ALTER_REPLICA_LOG_DIRS, version).response_type,
            admin.alter_replica_log_dirs(image, broker, HERE, body),
        )
        [result] = answer.results
        assert result.topic_name == topic
        return {each.partition_index: each.error_code for each in result.partitions}

    assert moved(1, HERE, "b", 0, 1) == {0: ErrorCode.none, 1: ErrorCode.unknown_topic_or_partition}
    assert moved(1, "/elsewhere", "b", 0) == {0: ErrorCode.log_dir_not_found}
    assert moved(2, HERE, "b", 0) == {0: ErrorCode.replica_not_available}
    assert moved(2, HERE, "none", 0) == {0: ErrorCode.unknown_topic_or_partition}


pytestmark = pytest.mark.virtual_time

REQUEST = creation.CreateTopicsRequest(topics=(), timeout=versions.NO_TIME)
ANSWER = created.CreateTopicsResponse(throttle_time=versions.NO_TIME, topics=())


class Controller:
    """Answers when `open` is set, and counts the connections on which requests came."""

    def __init__(self) -> None:
        self.connections: list[int] = []
        self.open = asyncio.Event()
        self.open.set()
        self.busy = asyncio.Event()  # enough requests wait to use all allowed connections
        self.hangs_up = False

    async def handle(self, call: WireCall) -> Entity | None:
        self.connections.append(call.connection)
        if len(self.connections) == CONNECTIONS_MAX:
            self.busy.set()
        await self.open.wait()
        return None if self.hangs_up else ANSWER


async def started(controller: Controller) -> Server:
    return await serve("127.0.0.1", 0, controller.handle)


async def test_requests_one_after_another_use_one_connection() -> None:
    """Every forwarded request opened one of its own."""
    controller = Controller()
    server, forwarder = await started(controller), Forwarder("n1")
    for _ in range(5):
        assert await forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0) == ANSWER
    assert controller.connections == [1] * 5
    forwarder.close()
    await server.close()


async def test_requests_at_once_use_a_few_connections() -> None:
    controller = Controller()
    server, forwarder = await started(controller), Forwarder("n1")
    controller.open.clear()
    answers = [asyncio.ensure_future(forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0)) for _ in range(30)]
    await controller.busy.wait()
    controller.open.set()
    assert await asyncio.gather(*answers) == [ANSWER] * 30
    assert len(set(controller.connections)) == CONNECTIONS_MAX
    forwarder.close()
    await server.close()


async def test_a_request_without_an_answer_is_unknown_and_costs_its_connection() -> None:
    controller = Controller()
    server, forwarder = await started(controller), Forwarder("n1")
    controller.hangs_up = True
    with pytest.raises(TimeoutError):
        await forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0)
    controller.hangs_up = False
    assert await forwarder.forward("127.0.0.1", server.port, REQUEST, 10.0) == ANSWER
    assert controller.connections == [1, 2]
    port = server.port
    forwarder.close()
    await server.close()
    with pytest.raises(NotQueued):
        await forwarder.forward("127.0.0.1", port, REQUEST, 10.0)
