"""A node is put together over ports alone: three of them elect, write and restart without a socket or a file."""

from __future__ import annotations

import ast
import asyncio
import errno
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from node_cluster import QUICK, create

import system_under_test.kraft
from simulation.disk import VolatileDisk
from system_under_test.kraft.client import voters_tool
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.small_files import kafka_uuid
from system_under_test.kraft.node import assembly, config
from system_under_test.kraft.node.assembly import KraftNode, assemble
from system_under_test.kraft.node.process import LoopClock
from system_under_test.kraft.ports import Ports
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import codec
from system_under_test.kraft.wire.versions import API_VERSIONS


class Pipe(asyncio.Transport):
    """One end of a connection in memory."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.other: Pipe | None = None
        self._closing = False

    def write(self, data: Any) -> None:
        if self.other is not None and not self._closing:
            asyncio.get_running_loop().call_soon(self.other.receive, bytes(data))

    def receive(self, data: bytes) -> None:
        if not self._closing:
            self.protocol.data_received(data)

    def abort(self) -> None:
        for end in (self, self.other):
            if end is not None and not end._closing:
                end._closing = True
                asyncio.get_running_loop().call_soon(end.protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        raise AssertionError("so much is never sent here")


class Door:
    def __init__(self, network: MemoryNetwork, port: int) -> None:
        self.port, self._network = port, network

    def close(self) -> None:
        del self._network.doors[self.port]


class MemoryNetwork:
    """`ports.Network` in memory: an address is a port."""

    def __init__(self) -> None:
        self.doors: dict[int, Callable[[], asyncio.Protocol]] = {}

    async def dial(self, host: str, port: int, protocol: Callable[[], Any]) -> Any:
        if port not in self.doors:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        near, far = Pipe(protocol()), Pipe(self.doors[port]())
        near.other, far.other = far, near
        for end in (far, near):
            end.protocol.connection_made(end)
        return near.protocol

    async def listen(self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]) -> Door:
        self.doors[port] = protocol
        return Door(self, port)


class Lines:
    """`ports.TraceFile` in memory."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def last_line(self) -> bytes | None:
        return self.rows[-1] if self.rows else None

    def append(self, line: bytes) -> None:
        self.rows.append(line)


async def booted(number: int, network: MemoryNetwork, disk: VolatileDisk, trace: Lines, said: list[str]) -> KraftNode:
    peers = {f"n{i}": [i, "memory", i] for i in (1, 2, 3)}
    fields = {"node_id": number, "name": f"n{number}", "cluster_id": "c", "listen": f"memory:{number}", "peers": peers}
    settings = config.parse({**fields, "data_dir": "none", "trace_dir": "none", "seed": 7})
    ports = Ports(LoopClock(), disk, network, trace, lambda purpose: Random(f"{number}/{purpose}"), said.append)
    node = assemble(settings, ports, QUICK)
    await node.start()
    return node


async def test_a_controller_beyond_the_first_voter_joins_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of one voter, and a second controller that only knows where the first one is."""
    monkeypatch.setattr(assembly, "EVERY_S", 0.1)
    network, nodes = MemoryNetwork(), {}
    for number in (1, 2):
        disk = VolatileDisk()
        small_files.write_properties(disk, small_files.MetaProperties("c", number, UUID(int=number)))
        fields = {"node_id": number, "name": f"n{number}", "cluster_id": "c", "listen": f"memory:{number}", "seed": 7}
        fields |= {"peers": {"n1": [1, "memory", 1]}, "directories": {"n1": kafka_uuid(UUID(int=1))}, "dynamic": True}
        fields |= {"observer": number != 1, config.AUTO_JOIN: number != 1, "data_dir": "none", "trace_dir": "none"}
        ports = Ports(LoopClock(), disk, network, Lines(), lambda purpose: Random(purpose), lambda line: None)
        nodes[number] = assemble(config.parse(fields), ports, QUICK)
        await nodes[number].start()
    leader = await leader_of(nodes)
    for _ in range(2000):
        if nodes[2].quorum.voters.ids == (1, 2):
            break
        await asyncio.sleep(0.01)
    assert leader.quorum.voters.ids == nodes[2].quorum.voters.ids == (1, 2)
    entry = leader.quorum.voters.entry(2)
    assert entry is not None and entry.key.directory == UUID(int=2) and entry.endpoints[0].port == 2
    await leader.quorum.write(create("t"))
    for node in nodes.values():
        await node.stop()
        await node.close()


@pytest.mark.virtual_time
async def test_static_voters_are_upgraded_by_the_operators_tool_and_then_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over the wire: the voters report who they are, UpdateFeatures raises the version, and a voter is removed."""
    monkeypatch.setattr(assembly, "EVERY_S", 0.1)
    network, said = MemoryNetwork(), []
    disks, traces = {n: VolatileDisk() for n in (1, 2, 3)}, {n: Lines() for n in (1, 2, 3)}
    for number, disk in disks.items():
        small_files.write_properties(disk, small_files.MetaProperties("c", number, UUID(int=number)))
    nodes = {n: await booted(n, network, disks[n], traces[n], said) for n in (1, 2, 3)}
    servers = [("memory", number) for number in nodes]
    await leader_of(nodes)
    assert await finalized(network, 1) == {}, "Kafka shows no feature of level 0"
    with pytest.raises(voters_tool.NotAgreed, match="error 35: the voters cannot change"):
        await voters_tool.QuorumOfVoters(servers, 1.0, network).add(4, UUID(int=4), ("memory", 4))
    quorum = voters_tool.QuorumOfVoters(servers, 10.0, network)
    await quorum.upgrade()
    shown = await quorum.remove(3)
    assert shown.voters == {1: UUID(int=1), 2: UUID(int=2)}
    await voters_tool.QuorumOfVoters(servers, 1.0, network).upgrade()
    leader = await leader_of(nodes)
    assert await finalized(network, leader.quorum.node_id) == {"kraft.version": 1}
    assert [e.endpoints[0].port for e in leader.quorum.voters] == [1, 2], "each voter has reported where it is reached"
    for node in nodes.values():
        await node.stop()
        await node.close()
    assert said == []


async def finalized(network: MemoryNetwork, number: int) -> dict[str, int]:
    """The features that a node shows by ApiVersions."""
    connection = Connection("memory", number, "test", network=network)
    request = codec(API_VERSIONS, 4).requests.ApiVersionsRequest(client_software_name="k", client_software_version="1")
    shown = await connection.ask(request)
    connection.close()
    assert all(each.min_version_level == each.max_version_level for each in shown.finalized_features)
    return {each.name: each.max_version_level for each in shown.finalized_features}


async def leader_of(nodes: dict[int, KraftNode]) -> KraftNode:
    for _ in range(2000):
        for node in nodes.values():
            if node.quorum.is_active():
                return node
        await asyncio.sleep(0.01)
    raise AssertionError("no node came to lead within 20 s")


async def test_three_nodes_elect_write_and_restart_over_ports_alone() -> None:
    network, said = MemoryNetwork(), []
    disks, traces = {n: VolatileDisk() for n in (1, 2, 3)}, {n: Lines() for n in (1, 2, 3)}
    for number, disk in disks.items():
        mine = small_files.MetaProperties("c", number, small_files.derived_uuid("d", number))
        small_files.write_properties(disk, mine)
    for name in ("first", "second"):
        nodes = {n: await booted(n, network, disks[n], traces[n], said) for n in (1, 2, 3)}
        leader = await leader_of(nodes)
        await leader.quorum.write(create(name))
        for node in nodes.values():
            await node.stop()
            assert await node.ended == 0
            await node.close()
    assert "first" in leader.quorum.committed_image().topics
    rows = [json.loads(line) for line in traces[1].rows]
    assert [row["seq"] for row in rows] == list(range(len(rows))) and rows[-1]["inc"] == 1
    assert said == []


AT_THE_RIM = {
    "node/process.py": "the process: real ports",
    "node/disk.py": "the real disk",
    "node/trace.py": "the real trace file",
    "wire/server.py": "the real sockets, and the limit of open files",
}
FORBIDDEN = {"time", "socket", "os", "pathlib", "resource", "secrets", "datetime.datetime", "uuid.uuid4", "uuid.uuid1"}
PARTS_OF_A_NODE = ("node", "wire", "raft", "log", "controller")


def test_nothing_of_a_node_reads_time_sockets_files_or_chance_beside_its_ports() -> None:
    root = Path(system_under_test.kraft.__file__).parent
    looked_at = 0
    for path in sorted(p for part in PARTS_OF_A_NODE for p in (root / part).rglob("*.py")):
        name = str(path.relative_to(root))
        # a path in the configuration is only a name until it is opened
        if name in AT_THE_RIM or name == "node/config.py":
            continue
        looked_at += 1
        for node in ast.walk(ast.parse(path.read_text())):
            imported = set()
            if isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            assert not imported & FORBIDDEN, f"{name} imports {imported & FORBIDDEN}"
    assert looked_at > 40
