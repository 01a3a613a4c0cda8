"""What a node does for the author of a system, and what a system waits for by default.

Recovery looks at its `status` and its `ready` where it has no `caught_up`.  Each start of a server marks its output,
and each complaint belongs to the life that wrote it.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import PATIENCE_S

from checkers.record.faults import Proof
from harness.registry import load_subject
from harness.run import phases as phase
from harness.run.clock import MACHINE
from harness.run.phases import SystemRecovery
from krucible import NodeStatus, OwnNode, System
from system_under_test.own import processes_as_one_server
from system_under_test.own.subject import Subject
from system_under_test.subject import Completed, NotKnown


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


SYSTEM = """
from krucible import Client, System

class Mine(System):
    async def start(self, node, nodes):
        return "exec true"

{methods}

class MyClient(Client):
    def read(self, key):
        return None

    def write(self, key, value):
        return None
"""
STATUS = "    async def status(self, node):\n        return node.reports(*{}[node.name])"


def node(name: str, state: str = "running") -> Any:
    async def state_of() -> str:
        return state

    async def ran(*_: object, **__: object) -> object:
        return Completed(0, b"", b"")

    verbs = {"state": state_of, "run": ran, "write": ran, "start": ran}
    return SimpleNamespace(
        name=name, address="", data_dir="/d", log_dir="/l", trace_dir="/t", python=["python3"], **verbs
    )


async def made(tmp_path: Path, methods: str, nodes: list[Any]) -> Subject:
    path = tmp_path / "mine.py"
    path.write_text(SYSTEM.format(methods=methods))
    subject = load_subject(str(path))
    assert isinstance(subject, Subject)
    await subject.install(nodes, seed=1, bug=None)
    return subject


NOTHING, READY = "", "    async def ready(self, nodes):\n        return None"
CAUGHT_UP = "    async def caught_up(self, nodes):\n        return None"
AGREED = STATUS.format({"n1": (3, "n1"), "n2": (3, "n1")})
SILENT_FOLLOWER = STATUS.format({"n1": (3, "n1"), "n2": (3, None)})


@pytest.mark.parametrize(
    ("methods", "at_n2", "without_evidence"),
    [
        (NOTHING, [], ["n1", "n2"]),
        (READY, ["ready()"], []),
        (CAUGHT_UP, ["caught_up()"], []),
        (AGREED, ["status: epoch and leader"], []),
        (SILENT_FOLLOWER, ["status: epoch, no leader"], ["n2"]),
        (f"{SILENT_FOLLOWER}\n\n{READY}", ["status: epoch, no leader", "ready()"], []),
    ],
)
async def test_recovery_records_what_it_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, methods: str, at_n2: list[str], without_evidence: list[str]
) -> None:
    async def healed(*_: object, **__: object) -> Proof:
        return Proof(verdict="as ordered")

    monkeypatch.setattr(phase, "heal_all", healed)
    nodes = [node("n1"), node("n2")]
    recovery = SystemRecovery(await made(tmp_path, methods, nodes), nodes, 5, 60.0, MACHINE, lambda _: None)

    async def no_beats() -> dict[tuple[str, str], int]:
        return {}

    await recovery.run(SimpleNamespace(mark=no_beats), ())
    assert recovery.found.recovered is True
    assert recovery.found.looked_at["n2"] == ("process running", *at_n2)
    assert recovery.found.without_evidence == tuple(without_evidence)


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (STATUS.format({"n1": (3, "n1"), "n2": (2, "n2")}), "do not agree: n1 takes n1 for the leader, n2 takes n2"),
        (STATUS.format({"n1": (3, None), "n2": (3, "n1")}), "n1 does not report that it leads"),
        ("    async def ready(self, nodes):\n        return 'n2 is new'", "after the heal `ready` says: n2 is new"),
        ("    async def ready(self, nodes):\n        return 1 / 0", "ready raised ZeroDivisionError"),
        (STATUS.format({}), "status raised KeyError"),
    ],
)
async def test_what_settles_nothing_is_neither_recovered_nor_a_violation(
    tmp_path: Path, methods: str, words: str
) -> None:
    nodes = [node("n1"), node("n2")]
    subject = await made(tmp_path, methods, nodes)
    with pytest.raises(NotKnown) as problem:
        await subject.caught_up(nodes, 1)
    assert words in str(problem.value)


async def test_a_leader_that_is_dead_settles_nothing(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2", "dead"), node("n3")]
    subject = await made(tmp_path, STATUS.format({"n1": (3, "n2"), "n3": (3, "n2")}), nodes)
    with pytest.raises(NotKnown, match="the server of n2 is dead"):
        await subject.caught_up(nodes, 1)


async def test_ready_may_demand_every_server_so_it_is_not_called_where_one_is_dead(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2", "dead")]
    subject = await made(tmp_path, "    async def ready(self, nodes):\n        return 'n2 is missing'", nodes)
    assert await subject.caught_up(nodes, 1) is None
    assert {name: seen.words for name, seen in subject.looked_at(["n1"]).items()} == {"n1": ()}


async def test_a_server_that_gives_no_status_has_not_caught_up(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2")]
    subject = await made(tmp_path, "    async def status(self, node):\n        return None", nodes)
    assert await subject.caught_up(nodes, 1) == "n1 gives no status"


PATTERN = re.compile(r"^(?:panic|corrupted).*", re.MULTILINE)


def found(text: str) -> list[tuple[str, int, int]]:
    complaints = processes_as_one_server.complaints_of("n1", text, PATTERN)
    return [(c.reason, c.facts["pid"], c.facts["lines_before_end"]) for c in complaints]


def test_every_different_complaint_of_every_life_is_found() -> None:
    first = "panic at 1\npanic at 2\n  a stack\n\ncorrupted: k1\nbye\n"
    text = processes_as_one_server.mark(7) + first + "torn" + processes_as_one_server.mark(8) + "corrupted: k2\n"
    assert found(text) == [("panic at 1", 7, 4), ("corrupted: k1", 7, 2), ("corrupted: k2", 8, 0)]


def test_a_log_without_marks_is_of_no_known_life() -> None:
    assert found("panic\n") == [("panic", processes_as_one_server.NO_LIFE, 0)]
    assert found("panic\n" + processes_as_one_server.mark(7) + "corrupted\n") == [
        ("panic", processes_as_one_server.NO_LIFE, 0),
        ("corrupted", 7, 0),
    ]
    assert not list(processes_as_one_server.lives("\n"))


def test_what_is_beyond_the_limit_is_counted() -> None:
    words = [f"panic {'x' * count}" for count in range(processes_as_one_server.COMPLAINTS_MAX + 3)]
    complaints = found(processes_as_one_server.mark(7) + "\n".join(words) + "\n")
    assert len(complaints) == processes_as_one_server.COMPLAINTS_MAX + 1
    assert complaints[-1] == ("3 more different lines match `complaints`", 7, 2)


def test_the_last_words_are_those_of_the_life_that_ended(tmp_path: Path) -> None:
    first = "up\n\x1b[31m\nno space\nrolled back\n\n"
    (tmp_path / "server.log").write_text(
        processes_as_one_server.mark(7) + first + processes_as_one_server.mark(8) + "up again\n"
    )
    assert processes_as_one_server.last_words(tmp_path, 7) == "[31m\nno space\nrolled back"
    assert processes_as_one_server.last_words(tmp_path, 8) == "up again"
    assert (
        processes_as_one_server.last_words(tmp_path, 9)
        == processes_as_one_server.last_words(tmp_path / "none", 7)
        == ""
    )


def test_of_a_long_line_the_beginning_stays_because_it_says_what_happened(tmp_path: Path) -> None:
    long = "Error: WAL(no such record), " + "x" * 1000 + ", file: 7"
    (tmp_path / "server.log").write_text(processes_as_one_server.mark(7) + f"up\n{long}\n")
    words = processes_as_one_server.last_words(tmp_path, 7)
    assert words.splitlines()[-1].startswith("Error: WAL(no such record), xxx")
    assert words.endswith("xxx, file: 7")
    assert len(words) < 300


def test_the_last_words_of_several_processes_are_those_of_the_one_that_ended_first(tmp_path: Path) -> None:
    ended = "db ended with status 1; the others are killed"
    (tmp_path / "server.log").write_text(processes_as_one_server.mark(7) + ended + "\n")
    (tmp_path / "db.log").write_text(
        processes_as_one_server.mark(7) + "disk full\n" + processes_as_one_server.mark(8) + "up again\n"
    )
    assert processes_as_one_server.last_words(tmp_path, 7) == f"disk full\n{ended}"


def test_a_shell_that_becomes_the_server_announces_its_own_id() -> None:
    own = [sys.executable, "-c", "import os; print(os.getpid())"]
    process = subprocess.Popen([*processes_as_one_server.ANNOUNCED, *own], stdout=subprocess.PIPE, text=True)
    (life,) = processes_as_one_server.lives(process.communicate()[0])
    assert life.pid == process.pid == int(life.text)


def test_several_processes_mark_each_of_their_logs(tmp_path: Path) -> None:
    named = json.dumps(
        {"a": ["sh", "-c", "echo panic a; sleep 0.2"], "b": ["sh", "-c", "echo panic b; exec sleep 1000"]}
    )
    argv = [sys.executable, "-m", "system_under_test.own.processes_as_one_server", named, str(tmp_path)]
    pids = []
    for _ in range(2):
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        (life,) = processes_as_one_server.lives(process.communicate(timeout=PATIENCE_S)[0])
        assert life.pid == process.pid
        pids.append(process.pid)
    assert [life.pid for life in processes_as_one_server.lives((tmp_path / "a.log").read_text())] == pids
    assert found((tmp_path / "a.log").read_text()) == [("panic a", pid, 0) for pid in pids]


def test_the_last_words_of_a_life_are_its_panic_and_not_the_note_below_it(tmp_path: Path) -> None:
    log = "ready\nthread 'main' panicked at src/main.rs:3:5:\nno quorum\nnote: run with `RUST_BACKTRACE=1`\nlate line\n"
    (tmp_path / "server.log").write_text(
        processes_as_one_server.mark(7)
        + log
        + processes_as_one_server.mark(8)
        + "ready\nnote: run with `RUST_BACKTRACE=1`\n"
    )
    assert processes_as_one_server.last_words(tmp_path, 7) == "thread 'main' panicked at src/main.rs:3:5:\nno quorum"
    assert processes_as_one_server.last_words(tmp_path, 8) == "ready"
