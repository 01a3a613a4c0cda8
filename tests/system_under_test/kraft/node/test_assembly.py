"""Whole nodes: put together on simulated machines, in separate roles, and as a process under the limits of an OS."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.schema.api_versions.v0 import request as api_versions
from node_cluster import PORT, AssembledNodes, on_machines
from own_address import HOST, free_ports
from waiting import eventually

import system_under_test.kraft
from system_under_test.kraft import voters_tool
from system_under_test.kraft.node.broker_role import CLEAN_SHUTDOWN
from system_under_test.kraft.node.process import _unhandled
from system_under_test.kraft.wire.channel import Connection, SocketNetwork
from system_under_test.kraft.wire.translate import TOPIC
from system_under_test.kraft.wire.versions import API_VERSIONS, CREATE_TOPICS, DESCRIBE_QUORUM, METADATA, requested


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


CONTROLLERS, BROKERS = (1, 2, 3), (4, 5)
SETTINGS = {
    "heartbeat_interval_s": 0.1,
    "session_timeout_s": 1.0,
    "lag_s": 0.5,
    "probe_interval_s": 0.1,
    "features": {"metadata.version": 25},
}


def role(number: int) -> dict[str, Any]:
    return {"process.roles": "controller" if number in CONTROLLERS else "broker", "brokers": SETTINGS}


async def started(cluster: AssembledNodes) -> None:
    for number in (*CONTROLLERS, *BROKERS):
        await cluster.start(number, UUID(int=1000 + number), **role(number))  # Kafka reserves ids below 100
    await eventually(lambda: alive(cluster).keys() == set(BROKERS))


def alive(cluster: AssembledNodes) -> dict[int, int]:
    """The brokers that are unfenced by the leader's image, with their epochs."""
    if cluster.active is None:
        return {}
    image = cluster.active.quorum.committed_image()
    return {number: broker.broker_epoch for number, broker in image.brokers.items() if not broker.fenced}


async def create(cluster: AssembledNodes, broker: int, name: str) -> None:
    topic = {"name": name, "num_partitions": 2, "replication_factor": 2, "assignments": (), "configs": ()}
    answer = await cluster.ask(broker, requested(CREATE_TOPICS, 5, {"topics": [topic]}))
    assert answer.topics[0].error_code == 0, answer


@on_machines
async def test_brokers_that_are_no_controllers_observe_register_and_hand_requests_on(cluster: AssembledNodes) -> None:
    await started(cluster)
    await create(cluster, 4, "t")
    leader = cluster.active
    assert leader is not None
    [topic] = leader.quorum.committed_image().topics.values()
    assert all(set(partition.replicas) == set(BROKERS) for partition in topic.partitions.values())
    await eventually(lambda: all("t" in cluster.nodes[broker].quorum.committed_image().topics for broker in BROKERS))
    for broker in BROKERS:
        asked = {"topics": None, "include_topic_authorized_operations": False}
        shown = await cluster.ask(broker, requested(METADATA, 12, asked))
        assert [each.node_id for each in shown.brokers] == list(BROKERS) and shown.controller_id in BROKERS
        quorum = cluster.nodes[broker].quorum
        assert quorum.role == "follower" and quorum.voters.ids == CONTROLLERS
    for number in (*CONTROLLERS, *BROKERS):
        await eventually(lambda number=number: cluster.nodes[number].quorum.committed_image().features)
        assert await finalized(cluster, number) == {"metadata.version": 25}
    asked = {"topics": [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}]}
    quorum = (await cluster.ask(5, requested(DESCRIBE_QUORUM, 2, asked))).topics[0].partitions[0]
    assert {each.replica_id for each in quorum.current_voters} == set(CONTROLLERS)
    assert {each.replica_id for each in quorum.observers} == set(BROKERS)


@on_machines
async def test_a_broker_that_no_controller_lets_go_ends_when_its_time_to_leave_is_over(cluster: AssembledNodes) -> None:
    await started(cluster)
    for number in CONTROLLERS:
        cluster.kill(number)
    began_s = asyncio.get_running_loop().time()
    async with asyncio.timeout(60.0):
        await cluster.stop(4)
    assert 10.0 <= asyncio.get_running_loop().time() - began_s < 20.0
    assert not cluster.machine(4).disk.exists(CLEAN_SHUTDOWN)
    cluster.kill(5)


FILES_MAX = 128
CONNECTIONS = 300
CONFIG = {"node_id": 1, "name": "n1", "cluster_id": "c", "seed": 1, "peers": {}}


async def started_process(root: Path) -> tuple[asyncio.subprocess.Process, int]:
    """A node that may open few files, and its port."""
    [port] = free_ports(1)
    where = {"data_dir": str(root / "data"), "trace_dir": str(root / "trace"), "listen": f"{HOST}:{port}"}
    config = root / "node.json"
    config.write_text(json.dumps(CONFIG | where))
    command = f"{sys.executable} -m system_under_test.kraft --config {config}"
    with (root / "output").open("wb") as output:
        shell = f"{command} --format && ulimit -n {FILES_MAX} && exec {command}"
        process = await asyncio.create_subprocess_shell(shell, stdout=output, stderr=output)
    return process, port


async def ask_until_answered(port: int) -> None:
    connection = Connection(HOST, port, "test", connect_timeout_s=1.0)
    while True:
        try:
            async with asyncio.timeout(5.0):
                await connection.ask(api_versions.ApiVersionsRequest())
        except OSError:
            await asyncio.sleep(0.05)
            continue
        connection.close()
        return


async def test_more_connections_than_files_do_not_end_a_node(tmp_path: Path) -> None:
    """136 connections ended a process that may open 128 files."""
    process, port = await started_process(tmp_path)
    try:
        await ask_until_answered(port)
        opened = [await asyncio.open_connection(HOST, port) for _ in range(CONNECTIONS)]
        await ask_until_answered(port)
        assert process.returncode is None, (tmp_path / "output").read_text()
        assert "FATAL" not in (tmp_path / "output").read_text()
        for _, writer in opened:
            writer.transport.abort()
    finally:
        process.kill()
        await process.wait()


def test_a_node_imports_no_tools_for_tests(tmp_path: Path) -> None:
    """Hypothesis took half of the processor time of a start.  This node imports all before it finds no disk."""
    where = {"data_dir": str(tmp_path), "trace_dir": str(tmp_path / "trace"), "listen": "127.0.0.1:1"}
    (tmp_path / "node.json").write_text(json.dumps(CONFIG | where))
    command = [sys.executable, "-X", "importtime", "-m", "system_under_test.kraft", "--config", tmp_path / "node.json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "cannot start" in run.stderr
    assert "kio.static" in run.stderr
    assert "hypothesis.internal" not in run.stderr


def test_a_connection_that_cannot_be_accepted_ends_nothing() -> None:
    full = OSError(24, os.strerror(24))
    problems: list[BaseException] = []
    node: Any = SimpleNamespace(collapse=problems.append)
    _unhandled(node, {"message": "socket.accept() out of system resource", "exception": full})
    assert problems == []
    _unhandled(node, {"message": "Task exception was never retrieved", "exception": full})
    assert problems == [full], "any other unexpected error ends the node"
