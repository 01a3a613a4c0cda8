"""Requests of Kafka's protocol and the contents of their answers, for clients and for the harness.

One request is one attempt at one server: no library retries it or sends it to another server.
"""

from __future__ import annotations

import base64
import shlex
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from system_under_test.client import Address
from system_under_test.kraft.wire.frames import Entity, MalformedFrame, decode_response, encode_request
from system_under_test.kraft.wire.versions import requested
from system_under_test.system import OwnNode

OFFSET_COMMIT, OFFSET_FETCH, METADATA, FIND_COORDINATOR, CREATE_TOPICS = 8, 9, 3, 10, 19
DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 32, 44, 45, 46
TOPIC, BROKER = 2, 4
"""Types of resources that have configs.  A broker with the name "" stands for all brokers."""
BROKERS_APART = 100
"""Difference between the node id of a broker in a separate process and the node id of its controller."""
_SET_FOR_TOPIC = 1
"""Source of a config that was set for this topic."""
_LIMIT = timedelta(seconds=1.5)
_BASH = "exec 3<> /dev/tcp/{}/{} && base64 -d <<< {} >&3 && head -c $(head -c4 <&3 | od -An -tu4 --endian=big) <&3"

Partitions = Mapping[str, Mapping[int, Any]]
"""Topic -> partition number -> kio's entity of the partition in one broker's metadata."""


def node_of(broker_id: int) -> str:
    """Return the name of the node on which a broker runs."""
    return f"n{broker_id % BROKERS_APART}"


def frame(request: Entity) -> bytes:
    """Return the bytes of a request, with the size in front."""
    return encode_request(1, "krucible", request)


def metadata_request(*topics: str) -> Entity:
    """Return a request for the metadata of these topics, or of all topics."""
    wanted = [{"name": topic} for topic in topics] or None
    return requested(METADATA, 7, {"topics": wanted, "allow_auto_topic_creation": False})


def partitions_in(answer: Entity) -> Partitions:
    """Return the partitions of an answer to `metadata_request`; a topic with an error has none."""
    return {topic.name: {each.partition_index: each for each in topic.partitions} for topic in answer.topics}


def find_coordinator_request(group: str) -> Entity:
    """Return a request for the coordinator of a group.  The broker creates the topic of offsets if it is missing."""
    return requested(FIND_COORDINATOR, 2, {"key": group})


def commit_request(group: str, topic: str, offset: int) -> Entity:
    """Return a request that commits an offset of partition 0 of a topic, as a consumer that is not a member of the
    group.
    """
    row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
    topics = [{"name": topic, "partitions": [row]}]
    return requested(OFFSET_COMMIT, 7, {"group_id": group, "member_id": "", "topics": topics})


def fetch_request(group: str) -> Entity:
    """Return a request for all offsets of a group."""
    return requested(OFFSET_FETCH, 5, {"group_id": group, "topics": None})


def offsets_in(answer: Entity) -> tuple[list[int], int]:
    """Return the offsets of a group, and the first error, 0 if there is none."""
    rows = [row for topic in answer.topics for row in topic.partitions]
    errors = [error for error in (answer.error_code, *(row.error_code for row in rows)) if error]
    found = [row.committed_offset for row in rows if not row.error_code and row.committed_offset >= 0]
    return found, errors[0] if errors else 0


def fetch_many_request(groups: Sequence[str]) -> Entity:
    """Return a request for all offsets of many groups at once, as an exporter of consumer lag sends it."""
    return requested(OFFSET_FETCH, 8, {"groups": [{"group_id": group, "topics": None} for group in groups]})


def create_topic_request(name: str, replicas: int) -> Entity:
    """Return a request that creates a topic of one partition."""
    topic = {"name": name, "num_partitions": 1, "replication_factor": replicas, "assignments": (), "configs": ()}
    return requested(CREATE_TOPICS, 4, {"topics": [topic], "timeout": _LIMIT})


def set_config_request(resource: str, name: str, value: str, kind: int = TOPIC) -> Entity:
    """Return a request that sets one config of a topic or of brokers, and keeps the others."""
    row = {"name": name, "config_operation": 0, "value": value}
    wanted = {"resource_type": kind, "resource_name": resource, "configs": [row]}
    return requested(ALTER_CONFIGS, 0, {"resources": [wanted], "validate_only": False})


def config_request(topic: str, name: str) -> Entity:
    """Return a request for one config of a topic."""
    wanted = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": [name]}
    return requested(DESCRIBE_CONFIGS, 1, {"resources": [wanted]})


def config_in(answer: Entity) -> tuple[str | None, int]:
    """Return the value that was set for the topic, None if there is none, and the error."""
    (found,) = answer.results
    own = [config.value for config in found.configs if config.config_source == _SET_FOR_TOPIC]
    return next(iter(own), None), found.error_code


def move_request(topic: str, partition: int, replicas: Sequence[int] | None) -> Entity:
    """Return a request that reassigns a partition to these replicas.

    replicas: None cancels the pending reassignment, so that the partition returns to its previous replicas
    """
    row = {"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}
    return requested(ALTER_REASSIGNMENTS, 0, {"timeout": _LIMIT, "topics": [row]})


def errors_of_move(answer: Entity) -> list[int]:
    """Return the error of the request and the error of its partition, without zeros."""
    rows = [row for topic in answer.responses for row in topic.partitions]
    return [each.error_code for each in (answer, *rows) if each.error_code]


def moves_request() -> Entity:
    """Return a request for the reassignments in progress."""
    return requested(LIST_REASSIGNMENTS, 0, {"timeout": _LIMIT, "topics": None})


class BrokerConnection:
    """A blocking connection of a client to one broker."""

    def __init__(self, server: Address, timeout_s: float) -> None:
        """Connect to the broker.  Raises OSError."""
        self._socket = socket.create_connection((server.host, server.port), timeout=timeout_s)

    def ask(self, request: Entity) -> Entity:
        """Return the answer.  Raises OSError, EOFError if the broker closes the connection, and MalformedFrame."""
        self.send(frame(request))
        return decode_response(type(request), self.receive())[1]

    def send(self, request: bytes) -> None:
        """Send a frame.  Raises OSError."""
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """Return the bytes of an answer, without the size in front.  Raises OSError, EOFError."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size_bytes: int) -> bytes:
        held = bytearray()
        while len(held) < size_bytes:
            if not (more := self._socket.recv(size_bytes - len(held))):
                raise EOFError("the broker closed the connection")
            held += more
        return bytes(held)

    def close(self) -> None:
        self._socket.close()


async def ask_on(node: OwnNode, port: int, request: Entity, timeout_s: float = 1.0) -> Entity | None:
    """Return the answer of the broker on a node; None if there is no answer or only a truncated one.

    Bash sends the request, so that no program must start.
    """
    line = _BASH.format(node.address, port, base64.b64encode(frame(request)).decode())
    asked = f"timeout {timeout_s:g} bash -c {shlex.quote(line)} | base64 -w0"
    answer = base64.b64decode(await node.output(asked, timeout_s=timeout_s + 4))
    try:
        return decode_response(type(request), answer)[1]
    except MalformedFrame:
        return None


async def partitions_on(node: OwnNode, port: int, *topics: str) -> Partitions | None:
    """Return the metadata of these topics, or of all topics, from the broker on a node; None if the broker does not
    answer.
    """
    answer = await ask_on(node, port, metadata_request(*topics))
    return None if answer is None else partitions_in(answer)


async def moves_on(node: OwnNode, port: int) -> list[str] | None:
    """Return the topics with reassignments in progress according to the broker on a node; None if the broker does not
    answer.
    """
    answer = await ask_on(node, port, moves_request())
    return None if answer is None or answer.error_code else [topic.name for topic in answer.topics]
