"""A node as a process of its own, under the limits of the operating system."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kio.schema.api_versions.v0 import request as api_versions
from own_address import HOST, free_ports

from system_under_test.kraft.node.process import _unhandled
from system_under_test.kraft.wire.channel import Connection

FILES_MAX = 128
CONNECTIONS = 300
CONFIG = {"node_id": 1, "name": "n1", "cluster_id": "c", "seed": 1, "peers": {}}


async def started(root: Path) -> tuple[asyncio.subprocess.Process, int]:
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
    process, port = await started(tmp_path)
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
