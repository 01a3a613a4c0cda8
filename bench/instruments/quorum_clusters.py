"""Quorums of processes on loopback with all data on one disk (the bundled KRaft, and etcd), and writers that load them.

A writer has one connection, one write in flight, and little work of its own.  Both kinds of writers cost about the
same: a request is a template in which only the value and the number of the request change, and only the part of an
answer that acknowledges the write is read.

    KRaft   IncrementalAlterConfigs v1: SET of a topic's register      acknowledged: the resource has error code 0
    etcd    gRPC `etcdserverpb.KV/Put`, by hand over HTTP/2 (RFC 9113)  acknowledged: the stream got a message

etcd answers a refused Put with trailers only, so a message is an acknowledgement.  A general gRPC client for Python
uses more processor time per call than the server, so the measurement would be of the client.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kio.schema.describe_quorum.v2 import request as describe

from system_under_test.client import Request
from system_under_test.etcd_client import Gateway, NotSent, NoUsableAnswer, Rejected
from system_under_test.kraft.client import error_of, question
from system_under_test.kraft.node.config import format_directory, load
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import MalformedFrame, encode_request
from system_under_test.kraft.wire.translate import TOPIC
from system_under_test.kraft.wire.versions import OUR_PREFIX

VALUE_FIRST = 10**12
"""First value.  All values have thirteen digits, so each fits into the place of the previous one."""
_OF_DEBIAN = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_OF_NODES = _OF_DEBIAN if os.access(_OF_DEBIAN, os.X_OK) else sys.executable
"""Python that runs the servers: Debian's, as in the containers, if its version is that of this Python.  Debian's Python
is compiled with profiles and link-time optimization, which a Python compiled by its user often lacks."""
_PACKAGES = os.pathsep.join(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
_CORRELATION_ID_AT = 8
_ERROR_CODE_AT = 4 + 4 + 1 + 4 + 1
"""Position of the error code, after size, correlation id, tags, throttle time and the number of responses."""


class WriteRefused(RuntimeError):
    """A write was not acknowledged; the message contains the answer."""


class WriterConnection(Protocol):
    """One connection.  `write` sends a write of a value; `acknowledged` is called once for each acknowledged write."""

    acknowledged: Callable[[], None]
    lost: Callable[[Exception], None]

    def write(self, value: int) -> None: ...

    def close(self) -> None: ...


class _Connected(asyncio.Protocol):
    def __init__(self) -> None:
        self.acknowledged: Callable[[], None] = _nothing
        self.lost: Callable[[Exception], None] = _ignored
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost(exc or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        self.lost = _ignored
        if self._transport is not None:
            self._transport.abort()


class KRaftWriter(_Connected):
    """Writes to the register of one topic."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        request = question(Request("write", topic, VALUE_FIRST), 1)
        self._frame = bytearray(encode_request(0, f"{OUR_PREFIX}bench", request))
        self._value_at = self._frame.index(b"%d" % VALUE_FIRST)
        self._number = 0

    def write(self, value: int) -> None:
        assert self._transport is not None
        self._number = (self._number + 1) & 0x7FFFFFFF
        self._frame[_CORRELATION_ID_AT : _CORRELATION_ID_AT + 4] = self._number.to_bytes(4, "big")
        self._frame[self._value_at : self._value_at + 13] = b"%d" % value
        self._transport.write(bytes(self._frame))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            return
        answer = bytes(received)
        received.clear()
        numbered = int.from_bytes(answer[4:8], "big") == self._number
        if not numbered or answer[_ERROR_CODE_AT : _ERROR_CODE_AT + 2] != b"\0\0":
            self.lost(WriteRefused(f"KRaft answered {answer!r}"))
        else:
            self.acknowledged()


_FRAME = struct.Struct(">BHBBI")  # size (24 bits), type, flags, stream
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY = 0, 1, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class EtcdWriter(_Connected):
    """Writes to one key.  A connection is limited to 2**30 writes, and to 2 GiB of answers."""

    def __init__(self, key: str) -> None:
        super().__init__()
        name = key.encode()
        put = b"\x0a" + bytes((len(name),)) + name + b"\x12\x0d"  # field 1, bytes; field 2, thirteen bytes
        self._prefix = b"\0" + (len(put) + 13).to_bytes(4, "big") + put
        self._headers = b"".join((
            b"\x83\x86\x04" + _text(b"/etcdserverpb.KV/Put") + b"\x01" + _text(b"etcd"),
            b"\x0f\x10" + _text(b"application/grpc") + b"\x00" + _text(b"te") + _text(b"trailers"),
        ))  # fmt: skip
        self._stream = -1
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        window = ((1 << 31) - 1 - 65535).to_bytes(4, "big")
        assert self._transport is not None
        self._transport.write(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + _frame(8, 0, 0, window))

    def write(self, value: int) -> None:
        assert self._transport is not None
        self._stream += 2
        self._answered = False
        headers = _frame(_HEADERS, _END_HEADERS, self._stream, self._headers)
        self._transport.write(headers + _frame(_DATA, _END_STREAM, self._stream, self._prefix + b"%d" % value))

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= 9:
            high, low, kind, flags, stream = _FRAME.unpack_from(received, at)
            end = at + 9 + (high << 16 | low)
            if end > len(received):
                break
            self._take(kind, flags, stream, bytes(received[at + 9 : end]))
            at = end
        del received[:at]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == _DATA and len(payload) > 5:
            self._answered = True
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            self.lost(ConnectionResetError(f"etcd closed the connection: {payload!r}"))
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM and stream == self._stream:
            if self._answered:
                self.acknowledged()
            else:
                self.lost(WriteRefused(f"etcd answered {payload!r}"))


async def write_for(
    writers: Sequence[WriterConnection], settle_s: float, seconds: float, marks: Callable[[], None]
) -> list[float]:
    """Write with all writers at once, each as fast as its answers come.  Return the latencies, in seconds, of the
    writes that were acknowledged in the `seconds` after `settle_s`.

    marks: called at the beginning and at the end of these `seconds`

    Raises WriteRefused, or OSError if a connection is lost.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    latencies_s: list[float] = []
    running = [True, False]  # True while writes continue; True while they count

    def begin(writer: WriterConnection, number: int) -> None:
        value, sent_at = VALUE_FIRST + number, time.perf_counter()

        def acknowledged() -> None:
            nonlocal value, sent_at
            now = time.perf_counter()
            if running[1]:
                latencies_s.append(now - sent_at)
            if running[0]:
                value, sent_at = value + len(writers), now
                writer.write(value)

        def lost(problem: Exception) -> None:
            if not over.done():
                over.set_exception(problem)

        writer.acknowledged, writer.lost = acknowledged, lost
        writer.write(value)

    def count(counts: bool) -> None:
        marks()
        running[1] = counts
        if not counts and not over.done():
            over.set_result(None)

    first = time.time_ns() // 1000 % 10**9  # a new value, because setting the same value again writes no record
    for number, writer in enumerate(writers):
        begin(writer, first * 100 + number)
    timers = [loop.call_later(settle_s, count, True), loop.call_later(settle_s + seconds, count, False)]
    try:
        await over
    finally:
        running[0] = False
        for timer in timers:
            timer.cancel()
    return latencies_s


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _text(text: bytes) -> bytes:
    """Encode a string for HPACK; it must be shorter than 127 bytes, and no Huffman code is used."""
    return bytes((len(text),)) + text


def _nothing() -> None:
    """Callback before a writer is used."""


def _ignored(problem: Exception) -> None:
    """Callback after a writer was used."""


ETCD = "/usr/bin/etcd"
LEADER_S = 600.0
"""Maximum seconds of a start under heavy load, where a node with a million records takes minutes."""
_LOOK_EVERY_S = 0.01
_ANSWER_S = 0.5
_ROOT = Path(__file__).parents[2]
HOST = f"127.{os.getpid() % 250 + 2}.{os.getpid() // 250 % 250}.79"
"""A loopback address for this process alone, so no other process takes a port that was found free."""


class QuorumCluster(ABC):
    """Servers 1 to `size`.  address: address of a server for clients.  `close` ends all processes."""

    name: str

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.servers = range(1, size + 1)
        ports = free_ports(2 * size)
        self._client_ports, self._peer_ports = ports[:size], ports[size:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, server: int) -> None:
        output = (self.folder / f"{server}.log").open("ab")
        with output:
            self._processes[server] = subprocess.Popen(
                self._command(server),
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": _PACKAGES},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    def stop(self, server: int, by: signal.Signals = signal.SIGTERM) -> None:
        self._processes[server].send_signal(by)
        self._processes[server].wait()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def pid(self, server: int) -> int:
        return self._processes[server].pid

    def port(self, server: int) -> int:
        return self._client_ports[server - 1]

    async def leader(self, among: Sequence[int] | None = None) -> int:
        """Wait until one of these servers reports that it leads; return it.  Raises TimeoutError."""
        until = time.monotonic() + LEADER_S
        while time.monotonic() < until:
            for server in self.servers if among is None else among:
                if await self._leads(server):
                    return server
            await asyncio.sleep(_LOOK_EVERY_S)
        raise TimeoutError(f"{self.name}: no leader within {LEADER_S:g} s; see {self.folder}")

    async def until_follows(self, server: int, leader: int) -> None:
        """Wait until a restarted server has caught up with the leader.  Raises TimeoutError."""
        until = time.monotonic() + LEADER_S
        while not await self._follows(server, leader):
            if time.monotonic() > until:
                raise TimeoutError(f"{self.name}: server {server} does not follow {leader}; see {self.folder}")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def writers(self, server: int, count: int) -> list[WriterConnection]:
        """Return connected writers, each with a separate object."""
        made = []
        for number in range(count):
            connect = partial(self._writer, number)
            _, writer = await asyncio.get_running_loop().create_connection(connect, HOST, self.port(server))
            made.append(writer)
        return made

    @abstractmethod
    def _command(self, server: int) -> list[str]: ...

    @abstractmethod
    async def _leads(self, server: int) -> bool: ...

    @abstractmethod
    async def _follows(self, server: int, leader: int) -> bool:
        """Return True if the server has fetched everything from the leader, or knows the leader and its commit
        index.
        """

    @abstractmethod
    def _writer(self, number: int) -> Any: ...

    async def prepare(self, server: int, objects: int) -> None:  # noqa: B027 - etcd makes no objects first
        """Create the objects that writers write, at the leader."""


class KRaft(QuorumCluster):
    """A quorum of the bundled KRaft.  settings: additional configuration of the nodes.  first: id of the first node."""

    name = "KRaft"

    def __init__(self, folder: Path, size: int, settings: Mapping[str, Any] | None = None, first: int = 1) -> None:
        super().__init__(folder, size)
        self._first = first
        self.configure(settings or {})
        for server in self.servers:
            format_directory(load(self._config(server)))

    def node_id(self, server: int) -> int:
        return self._first + server - 1

    def address(self, server: int) -> str:
        return f"{HOST}:{self.port(server)}"

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Apply other settings from the next start of a server on."""
        ids = {server: self.node_id(server) for server in self.servers}
        peers = {f"n{of}": [of, HOST, self.port(each)] for each, of in ids.items()}
        for server, number in ids.items():
            config = {"name": f"n{number}", "node_id": number, "cluster_id": "bench", "peers": peers, "seed": 1}
            folders = {"data_dir": str(self.data_dir(server)), "trace_dir": str(self.folder / f"trace{server}")}
            config |= {**folders, "listen": self.address(server), **settings}
            self._config(server).write_text(json.dumps(config))

    def data_dir(self, server: int) -> Path:
        return self.folder / f"data{server}"

    async def prepare(self, server: int, objects: int) -> None:
        connection = Connection(HOST, self.port(server), f"{OUR_PREFIX}bench")
        for number in range(objects):
            while True:
                answer = await connection.ask(question(Request("create", f"t{number}"), len(self.servers)))
                if error_of(answer) in (0, 36):  # created now, or earlier
                    break
                await asyncio.sleep(_LOOK_EVERY_S)
        connection.close()

    def _config(self, server: int) -> Path:
        return self.folder / f"config{server}.json"

    def _command(self, server: int) -> list[str]:
        return [PYTHON_OF_NODES, "-m", "system_under_test.kraft", "--config", str(self._config(server))]

    async def _leads(self, server: int) -> bool:
        return await self._described(server) is not None

    async def _follows(self, server: int, leader: int) -> bool:
        quorum = await self._described(leader)
        return quorum is not None and any(
            voter.replica_id == self.node_id(server) and voter.log_end_offset >= quorum.high_watermark
            for voter in quorum.current_voters
        )

    async def _described(self, server: int) -> Any:
        """Return a leader's answer to DescribeQuorum; None if the server does not lead."""
        partition = describe.PartitionData(partition_index=0)
        body = describe.DescribeQuorumRequest(topics=(describe.TopicData(topic_name=TOPIC, partitions=(partition,)),))
        connection = Connection(HOST, self.port(server), f"{OUR_PREFIX}bench")
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await connection.ask(body)
        except (OSError, MalformedFrame):
            return None
        finally:
            connection.close()
        found = answer.topics[0].partitions[0] if answer.topics else None
        return found if found is not None and found.error_code == 0 else None

    def _writer(self, number: int) -> KRaftWriter:
        return KRaftWriter(f"t{number}")


class EtcdCluster(QuorumCluster):
    name = "etcd"

    def _command(self, server: int) -> list[str]:
        peers = {each: f"http://{HOST}:{self._peer_ports[each - 1]}" for each in self.servers}
        flags = {"name": f"n{server}", "data-dir": str(self.folder / f"data{server}")}
        flags |= dict.fromkeys(("listen-peer-urls", "initial-advertise-peer-urls"), peers[server])
        flags |= dict.fromkeys(("listen-client-urls", "advertise-client-urls"), f"http://{HOST}:{self.port(server)}")
        flags |= {"initial-cluster": ",".join(f"n{each}={url}" for each, url in peers.items())}
        flags |= {"pre-vote": "true", "logger": "zap"}
        return [ETCD, *(f"--{name}={value}" for name, value in flags.items())]

    async def _leads(self, server: int) -> bool:
        status = await self._status(server)
        return "leader" in status and status["leader"] == status["header"]["member_id"]

    async def _follows(self, server: int, leader: int) -> bool:
        """Return True if the server knows the leader and its index, even if entries are not applied yet: its log has
        them.
        """
        own, other = await self._status(server), await self._status(leader)
        same = "leader" in own and own["leader"] == other.get("leader")
        return same and int(own["raftIndex"]) >= int(other["raftAppliedIndex"])

    async def _status(self, server: int) -> dict[str, Any]:
        """Return the status of a server; {} if there is no answer."""
        gateway = Gateway(f"{HOST}:{self.port(server)}", _ANSWER_S)
        try:
            answer = await asyncio.to_thread(gateway.post, "/v3/maintenance/status", {})
        except (NotSent, NoUsableAnswer, Rejected, TimeoutError):
            return {}
        finally:
            gateway.close()
        return dict(answer)

    def _writer(self, number: int) -> EtcdWriter:
        return EtcdWriter(f"t{number}")


def free_ports(count: int) -> list[int]:
    """Return different free ports of HOST."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def etcd_version() -> str | None:
    """Return the version of etcd; None if it is not installed."""
    if not os.access(ETCD, os.X_OK):
        return None
    answer = subprocess.run([ETCD, "--version"], capture_output=True, text=True, check=True).stdout
    return answer.partition("\n")[0].rpartition(" ")[2]
