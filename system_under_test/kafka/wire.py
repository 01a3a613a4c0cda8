"""Requests of Kafka's protocol as frames: from a client, or from a node of the harness.

One request is one attempt at one server: no library retries it or sends it elsewhere.  A client library for the whole
protocol would take a second to load, and eight of them start at once; so the requests are encoded here.
"""

from __future__ import annotations

import base64
import shlex
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from system_under_test.client import Address
from system_under_test.system import OwnNode

T = TypeVar("T")
OFFSET_COMMIT, OFFSET_FETCH, METADATA, FIND_COORDINATOR, CREATE_TOPICS = 8, 9, 3, 10, 19
DESCRIBE_CONFIGS, ALTER_CONFIGS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 32, 44, 45, 46
TOPIC, BROKER = 2, 4
"""Types of resources that have configs.  A broker of the name "" stands for all of them."""
_SET_FOR_TOPIC = 1
"""Source of a config that was set for this topic."""
BROKERS_APART = 100
"""Node id of a broker in a separate process, minus that of its controller."""
_BASH = "exec 3<> /dev/tcp/{}/{} && base64 -d <<< {} >&3 && head -c $(head -c4 <&3 | od -An -tu4 --endian=big) <&3"


def node_of(broker_id: int) -> str:
    """Return the name of the node that a broker runs on."""
    return f"n{broker_id % BROKERS_APART}"


def text(words: str | None) -> bytes:
    """Return a string that may be null."""
    return struct.pack(">h", -1) if words is None else struct.pack(">h", len(words.encode())) + words.encode()


def array(parts: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(parts)) + b"".join(parts)


def frame(api: int, version: int, body: bytes) -> bytes:
    """Return a whole request, with its size."""
    whole = struct.pack(">hhi", api, version, 1) + text("krucible") + body
    return struct.pack(">i", len(whole)) + whole


class AnswerReader:
    """Reads an answer from its beginning to its end.  Raises struct.error or UnicodeDecodeError for an invalid
    answer.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 4  # after the correlation id

    def number(self, form: str) -> int:
        """Read one number; form: as in `struct`."""
        (found,) = struct.unpack_from(">" + form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def text(self) -> str | None:
        size = self.number("h")
        if size < 0:
            return None
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def count(self) -> int:
        """Read the length of a compact text or array, -1 for null."""
        number = shift = 0
        while True:
            byte = self.number("B")
            number, shift = number | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return number - 1

    def skip(self, size_bytes: int) -> None:
        self._at += max(size_bytes, 0)

    def compact_text(self) -> str:
        size = self.count()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def array(self, one: Callable[[], T]) -> list[T]:
        return [one() for _ in range(self.number("i"))]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition in one broker's metadata. leader: -1 for none."""

    number: int
    leader: int
    epoch: int
    replicas: Sequence[int]
    in_sync: Sequence[int]


def metadata_request(*topics: str) -> bytes:
    """Return a request for these topics, or for all."""
    return frame(METADATA, 7, (array([text(topic) for topic in topics]) if topics else struct.pack(">i", -1)) + b"\0")


def partitions_in(answer: bytes) -> Mapping[str, Mapping[int, PartitionState]]:
    """Return topic -> number -> partition of an answer to `metadata_request`; a topic with an error has none."""
    read = AnswerReader(answer)

    def partition() -> PartitionState:
        read.number("h")
        number, leader, epoch = read.number("i"), read.number("i"), read.number("i")
        replicas, in_sync, _ = (read.array(lambda: read.number("i")) for _ in range(3))
        return PartitionState(number, leader, epoch, replicas, in_sync)

    def topic() -> tuple[str, Mapping[int, PartitionState]]:
        read.number("h")
        name = read.text() or ""
        read.number("b")
        return name, {each.number: each for each in read.array(partition)}

    read.number("i")
    read.array(lambda: (read.number("i"), read.text(), read.number("i"), read.text()))
    read.text(), read.number("i")
    return dict(read.array(topic))


def find_coordinator_request(group: str) -> bytes:
    """Ask for the coordinator of a group; the broker creates the topic of offsets for it."""
    return frame(FIND_COORDINATOR, 2, text(group) + b"\0")


def commit_request(group: str, topic: str, offset: int) -> bytes:
    """Commit an offset of partition 0 of a topic, as a consumer that is no member of the group."""
    row = struct.pack(">iqi", 0, offset, -1) + text(None)
    head = text(group) + struct.pack(">i", -1) + text("") + text(None)
    return frame(OFFSET_COMMIT, 7, head + array([text(topic) + array([row])]))


def errors_of_commit(answer: bytes) -> list[int]:
    read = AnswerReader(answer)
    read.number("i")
    rows = read.array(lambda: (read.text(), read.array(lambda: (read.number("i"), read.number("h")))))
    return [error for _, partitions in rows for _, error in partitions]


def fetch_request(group: str) -> bytes:
    """Ask for all offsets of a group."""
    return frame(OFFSET_FETCH, 5, text(group) + struct.pack(">i", -1))


def offsets_in(answer: bytes) -> tuple[list[int], int]:
    """Return the offsets of a group, and the first error, 0 for none."""
    read = AnswerReader(answer)
    read.number("i")

    def row() -> tuple[int, int]:
        read.number("i")
        offset = read.number("q")
        read.number("i"), read.text()
        return offset, read.number("h")

    rows = [each for _, found in read.array(lambda: (read.text(), read.array(row))) for each in found]
    errors = [error for error in (read.number("h"), *(error for _, error in rows)) if error]
    return [offset for offset, error in rows if not error and offset >= 0], errors[0] if errors else 0


def fetch_many_request(groups: Sequence[str]) -> bytes:
    """Request all offsets of many groups at once, like an exporter of consumer lag."""
    names = b"".join(bytes([len(name) + 1]) + name.encode() + b"\0\0" for name in groups)
    body = b"\0" + _varint(len(groups) + 1) + names + b"\0\0"
    return frame(OFFSET_FETCH, 8, body)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(found) + bytes([number])


def create_topic_request(name: str, replicas: int, configs: Mapping[str, str]) -> bytes:
    """Create a topic of one partition."""
    rows = array([text(key) + text(value) for key, value in configs.items()])
    topic = text(name) + struct.pack(">ih", 1, replicas) + array([]) + rows
    return frame(CREATE_TOPICS, 4, array([topic]) + struct.pack(">ib", 1500, 0))


def set_config_request(resource: str, name: str, value: str, kind: int = TOPIC) -> bytes:
    """Set one config of a topic or of brokers, and keep the others."""
    row = struct.pack(">b", kind) + text(resource) + array([text(name) + b"\0" + text(value)])
    return frame(ALTER_CONFIGS, 0, array([row]) + b"\0")


def error_of_set(answer: bytes) -> int:
    read = AnswerReader(answer)
    read.number("i"), read.number("i")
    return read.number("h")


def config_request(topic: str, name: str) -> bytes:
    """Ask a broker for one config of a topic."""
    row = struct.pack(">b", TOPIC) + text(topic) + array([text(name)])
    return frame(DESCRIBE_CONFIGS, 1, array([row]) + b"\0")


def config_in(answer: bytes) -> tuple[str | None, int]:
    """Return the value that was set for the topic, None for none, and the error."""
    read = AnswerReader(answer)
    read.number("i"), read.number("i")
    error = read.number("h")
    read.text(), read.number("b"), read.text()

    def row() -> tuple[str | None, int]:
        read.text()
        value, _, source, _ = read.text(), read.number("b"), read.number("b"), read.number("b")
        read.array(lambda: (read.text(), read.text(), read.number("b")))
        return value, source

    set_for_it = [value for value, source in read.array(row) if source == _SET_FOR_TOPIC]
    return (set_for_it[0] if set_for_it else None), error


def move_request(topic: str, partition: int, replicas: Sequence[int] | None) -> bytes:
    """Give a partition these replicas; None: end its reassignment and keep those before."""
    wanted = b"\0" if replicas is None else _varint(len(replicas) + 1) + struct.pack(f">{len(replicas)}i", *replicas)
    row = _varint(len(topic) + 1) + topic.encode() + b"\2" + struct.pack(">i", partition) + wanted + b"\0\0"
    return frame(ALTER_REASSIGNMENTS, 0, b"\0" + struct.pack(">i", 1500) + b"\2" + row + b"\0")


def errors_of_move(answer: bytes) -> list[int]:
    """Return the errors of the request and of its partition."""
    read = AnswerReader(answer)
    read.number("b"), read.number("i")
    errors = [read.number("h")]
    read.skip(read.count())
    if read.count() > 0:
        read.skip(read.count())
        read.count(), read.number("i")
        errors.append(read.number("h"))
    return [error for error in errors if error]


def moves_request() -> bytes:
    """Ask for the reassignments in progress."""
    return frame(LIST_REASSIGNMENTS, 0, b"\0" + struct.pack(">i", 1500) + b"\0\0")


def moves_in(answer: bytes) -> tuple[list[str], int]:
    """Return the topics with a reassignment in progress, and the error."""
    read = AnswerReader(answer)
    read.number("b"), read.number("i")
    error, found = read.number("h"), list[str]()
    read.skip(read.count())
    for _ in range(read.count()):
        found.append(read.compact_text())
        for _ in range(read.count()):
            read.number("i")
            for _ in range(3):
                read.skip(4 * read.count())
            read.number("b")
        read.number("b")
    return found, error


class BrokerConnection:
    """A blocking connection of a client to one broker."""

    def __init__(self, server: Address, timeout_s: float) -> None:
        """Raises OSError."""
        self._socket = socket.create_connection((server.host, server.port), timeout=timeout_s)

    def ask(self, request: bytes) -> bytes:
        """Return the answer without its size.  Raises OSError, and EOFError if the broker closes the connection."""
        self.send(request)
        return self.receive()

    def send(self, request: bytes) -> None:
        """Raises OSError."""
        self._socket.sendall(request)

    def receive(self) -> bytes:
        """Raises OSError, EOFError."""
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


async def ask_on(node: OwnNode, port: int, request: bytes, timeout_s: float = 1.0) -> bytes:
    """Return the answer of the broker on a node, b"" if there is none.  Bash sends the request, so no program must
    start for it.
    """
    line = _BASH.format(node.address, port, base64.b64encode(request).decode())
    asked = f"timeout {timeout_s:g} bash -c {shlex.quote(line)} | base64 -w0"
    return base64.b64decode(await node.output(asked, timeout_s=timeout_s + 4))


async def partitions_on(node: OwnNode, port: int, *topics: str) -> Mapping[str, Mapping[int, PartitionState]] | None:
    """Return the metadata of the broker on a node about these topics, or about all; None if it does not answer."""
    answer: Any = await ask_on(node, port, metadata_request(*topics))
    try:
        return partitions_in(answer)
    except (struct.error, UnicodeDecodeError):  # no answer, or a truncated one
        return None


async def moves_on(node: OwnNode, port: int) -> list[str] | None:
    """Return the topics that are being moved, by the broker on a node; None if that is not known."""
    try:
        topics, error = moves_in(await ask_on(node, port, moves_request()))
    except (struct.error, UnicodeDecodeError):  # no answer, or a truncated one
        return None
    return None if error else topics
