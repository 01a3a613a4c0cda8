"""A node is put together over ports alone, and reads nothing beside them."""

from __future__ import annotations

import ast
from pathlib import Path
from uuid import UUID

import pytest
from assembled_nodes import PORT, AssembledNodes, on_machines

import system_under_test.kraft
from system_under_test.kraft import voters_tool
from system_under_test.kraft.wire.channel import SocketNetwork
from system_under_test.kraft.wire.versions import API_VERSIONS, requested


@on_machines
async def test_static_voters_are_upgraded_by_the_operators_tool_and_then_change(cluster: AssembledNodes) -> None:
    """Over the wire: the voters report who they are, UpdateFeatures raises the version, and a voter is removed."""
    for number in cluster.peers:
        await cluster.start(number)
    await cluster.leader()
    assert await finalized(cluster, 1) == {}, "Kafka shows no feature of level 0"

    async def operate() -> None:
        def quorum(timeout_s: float) -> voters_tool.QuorumOfVoters:
            servers = [(f"n{number}", PORT) for number in cluster.peers]
            return voters_tool.QuorumOfVoters(servers, timeout_s, SocketNetwork())

        with pytest.raises(voters_tool.NotAgreed, match="error 35: the voters cannot change"):
            await quorum(1.0).add(4, UUID(int=4), ("n4", PORT))
        await quorum(60.0).upgrade()
        assert (await quorum(10.0).remove(3)).voters == {1: UUID(int=1), 2: UUID(int=2)}
        await quorum(1.0).upgrade()

    await cluster.world.run("operator", operate())
    leader = await cluster.leader()
    assert await finalized(cluster, leader.quorum.node_id) == {"kraft.version": 1}
    hosts = [entry.endpoints[0].host for entry in leader.quorum.voters]
    assert hosts == ["n1", "n2"], "each voter has reported where it is reached"


async def finalized(cluster: AssembledNodes, number: int) -> dict[str, int]:
    """The features that a node shows by ApiVersions."""
    request = requested(API_VERSIONS, 4, {"client_software_name": "k", "client_software_version": "1"})
    shown = await cluster.ask(number, request)
    assert all(each.min_version_level == each.max_version_level for each in shown.finalized_features)
    return {each.name: each.max_version_level for each in shown.finalized_features}


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
