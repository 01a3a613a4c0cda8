"""Quorums of processes on loopback, all data on one disk: the bundled KRaft, and etcd."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kio.schema.describe_quorum.v2 import request as describe

from bench.instruments.writers import EtcdWriter, KRaftWriter, WriterConnection
from system_under_test.client import Request
from system_under_test.etcd_client import Gateway, NotSent, NoUsableAnswer, Rejected
from system_under_test.kraft.client import error_of, question
from system_under_test.kraft.node.config import format_directory, load
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import MalformedFrame
from system_under_test.kraft.wire.translate import TOPIC
from system_under_test.kraft.wire.versions import OUR_PREFIX

ETCD = "/usr/bin/etcd"
LEADER_S = 600.0
"""Seconds to start under heavy load, where a node with a million records takes minutes."""
_LOOK_EVERY_S = 0.01
_ANSWER_S = 0.5
_ROOT = Path(__file__).parents[2]
HOST = f"127.{os.getpid() % 250 + 2}.{os.getpid() // 250 % 250}.79"
"""An address of this process alone, so that no other process takes a port that was found free."""


class QuorumCluster(ABC):
    """Servers 1 to `size`.  address: of a server's clients.  Ends all its processes when it is closed."""

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
                self._command(server), cwd=_ROOT, stdout=output, stderr=output, stdin=subprocess.DEVNULL
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
        """Wait until one of them reports that it leads.  Raises TimeoutError."""
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
        """Return whether the server has fetched all that the leader has, or knows the leader and what it committed."""

    @abstractmethod
    def _writer(self, number: int) -> Any: ...

    async def prepare(self, server: int, objects: int) -> None:  # noqa: B027 - etcd makes no objects first
        """Make the objects that writers write, at the leader."""


class KRaft(QuorumCluster):
    """settings: additional configuration of the nodes.  first: the id of the first one."""

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
        """Apply other settings, from the next start of a server on."""
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
        return [sys.executable, "-m", "system_under_test.kraft", "--config", str(self._config(server))]

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
        """Counts also an index that is still to be applied: it is in the log of the server."""
        own, other = await self._status(server), await self._status(leader)
        same = "leader" in own and own["leader"] == other.get("leader")
        return same and int(own["raftIndex"]) >= int(other["raftAppliedIndex"])

    async def _status(self, server: int) -> dict[str, Any]:
        """Empty if there is no answer."""
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
