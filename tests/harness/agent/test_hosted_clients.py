"""The clients of a node: in processes of their own, under watch, and as a shell for users."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import clients_for_agent_tests as scripted
import pytest
from local_agents import LocalAgent, local_agent
from waiting import PATIENCE_S, eventually, is_alive

from checkers.base.history import Type
from harness.agent.client_shell import BadLine, request_of, words_of
from harness.agent.hosted_clients import OVERRUN_S, ClientsApart, HostedClients
from harness.agent.network import BeaconVerbs
from harness.agent.process import NodeVerbs
from harness.backends.agent_link import AgentClientHost
from system_under_test.client import Outcome, Placement, Request

PLACED = [Placement(thread, "c1", follows=True, reads_only=False) for thread in range(2)]


@pytest.fixture
async def host(agent: LocalAgent) -> AgentClientHost:
    await agent.link.ask(ClientsApart.start)
    host = agent.client_host()
    await host.open(scripted.__name__, PLACED, {"n1": "127.0.0.1:1"}, {"say": "hello"})
    return host


async def order(agent: LocalAgent, name: str) -> None:
    await agent.link.ask(ClientsApart.signal, name)


async def state(agent: LocalAgent) -> str:
    return await agent.link.ask(ClientsApart.state)


async def test_a_client_answers_from_its_own_process(agent: LocalAgent, host: AgentClientHost) -> None:
    outcome = await host.invoke(1, Request("print", key="k", value=42), PATIENCE_S)  # a print does not break the stream
    assert outcome == Outcome(Type.OK, value=42, payload="hello", node="invoked-1")
    assert await state(agent) == "running"
    await agent.link.ask(ClientsApart.start)  # a no-op: the client exists
    assert (await host.invoke(1, Request("read"), PATIENCE_S)).node == "invoked-2"


async def test_stopped_clients_answer_when_they_go_on_and_the_agent_answers_meanwhile(
    agent: LocalAgent, host: AgentClientHost
) -> None:
    await order(agent, "STOP")
    assert await state(agent) == "stopped"
    waiting = asyncio.ensure_future(host.invoke(0, Request("read", value=5), PATIENCE_S))
    await agent.link.ask(NodeVerbs.processor)
    assert not waiting.done()
    await order(agent, "CONT")
    assert await state(agent) == "running"
    assert (await waiting).value == 5


async def test_an_operation_of_stopped_clients_is_unknown_once_its_time_is_over(
    agent: LocalAgent, host: AgentClientHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostedClients.invoke, "limit", (0.1, "timeout_s"))
    await order(agent, "STOP")
    assert (await host.invoke(0, Request("read"), 0.1)).type is Type.INFO
    await order(agent, "CONT")
    assert (await host.invoke(1, Request("read", value=7), PATIENCE_S)).value == 7


async def test_an_agent_that_ends_takes_stopped_clients_along(agent: LocalAgent, host: AgentClientHost) -> None:
    await host.invoke(0, Request("read"), PATIENCE_S)
    (child,) = [int(pid) for pid in _children(agent.process.pid)]
    await order(agent, "STOP")
    await agent.link.close()
    await asyncio.wait_for(agent.process.wait(), PATIENCE_S)
    await eventually(lambda: not is_alive(child))


async def test_clients_that_live_in_the_agent_cannot_be_stopped(agent: LocalAgent) -> None:
    with pytest.raises(OSError, match="do not have a process of their own"):
        await order(agent, "STOP")
    assert await state(agent) == "dead"


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        return file.read().split()


MODULE = scripted.__name__


def placements(count: int) -> list[Placement]:
    return [Placement(thread, "c1", follows=thread % 2 == 0, reads_only=False) for thread in range(count)]


@pytest.fixture
async def watched_host(agent: LocalAgent) -> AgentClientHost:
    watched_host = agent.client_host()
    await watched_host.open(MODULE, placements(5), {"n1": "127.0.0.1:1"}, {"say": "hello"})
    return watched_host


async def test_an_agent_answers_while_it_loads_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    monkeypatch.chdir(tmp_path)
    async with local_agent(tmp_path) as agent:
        loading = asyncio.ensure_future(agent.client_host().load("slow"))
        await agent.link.ask(NodeVerbs.processor)
        assert not loading.done()
        (tmp_path / "go").touch()
        await loading


async def test_clients_that_cannot_be_loaded_are_an_error_in_words(agent: LocalAgent) -> None:
    with pytest.raises(OSError, match="clients of no_such_module cannot be loaded: ModuleNotFoundError"):
        await agent.client_host().load("no_such_module")


async def test_clients_answer_beside_each_other(watched_host: AgentClientHost) -> None:
    meeting = [watched_host.invoke(thread, Request("meet", payload="5"), PATIENCE_S) for thread in range(5)]
    assert [o.type for o in await asyncio.gather(*meeting)] == [Type.OK] * 5


async def test_an_overrun_is_answered_info_and_the_client_is_replaced(
    watched_host: AgentClientHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostedClients.invoke, "limit", (PATIENCE_S, "timeout_s"))  # the agent's watchdog answers
    await watched_host.invoke(0, Request("read"), PATIENCE_S)
    began = time.monotonic()
    outcome = await watched_host.invoke(0, Request("sleep", payload="1000"), 0.2)
    assert (outcome.type, outcome.error) == (Type.INFO, "client-overran")
    assert time.monotonic() - began >= 0.2 + OVERRUN_S
    assert (await watched_host.invoke(0, Request("read"), PATIENCE_S)).node == "invoked-1"  # a fresh client


async def test_an_escaped_exception_is_info_with_its_words(watched_host: AgentClientHost) -> None:
    outcome = await watched_host.invoke(1, Request("raise"), PATIENCE_S)
    assert outcome.type is Type.INFO
    assert outcome.error == "client-raised: ZeroDivisionError: a bug in the client"
    assert (await watched_host.invoke(1, Request("read"), PATIENCE_S)).node == "invoked-1"


async def test_an_outcome_that_is_none_is_no_ok(watched_host: AgentClientHost) -> None:
    assert (await watched_host.invoke(2, Request("nonsense"), PATIENCE_S)).type is Type.INFO


async def test_an_agent_stuck_in_a_client_is_info_and_its_late_answers_go_nowhere(
    watched_host: AgentClientHost, tmp_path: Path
) -> None:
    stuck = asyncio.create_task(watched_host.invoke(0, Request("block", payload=str(tmp_path)), 0.2))
    await asyncio.sleep(0)  # its request is the first to leave
    other = await watched_host.invoke(1, Request("read"), 0.2)
    assert (await stuck).type is Type.INFO and other.type is Type.INFO
    (tmp_path / "end").touch()
    assert (await watched_host.invoke(1, Request("read", value=7), PATIENCE_S)).value == 7


async def test_an_unknown_thread_is_info_not_an_exception(watched_host: AgentClientHost) -> None:
    outcome = await watched_host.invoke(99, Request("read"), PATIENCE_S)
    assert outcome.type is Type.INFO
    assert "no client was opened for thread 99" in (outcome.error or "")


async def test_a_dead_agent_is_info(agent: LocalAgent, watched_host: AgentClientHost) -> None:
    waiting = asyncio.create_task(watched_host.invoke(0, Request("sleep", payload="1000"), 1000.0))
    await asyncio.sleep(0)  # the request has been sent
    agent.process.kill()
    outcome = await asyncio.wait_for(waiting, PATIENCE_S)
    assert outcome.type is Type.INFO
    assert "its agent is gone" in (outcome.error or "")
    await watched_host.close()


@pytest.mark.parametrize(
    ("module", "config", "words"),
    [
        ("json", {}, "has no attribute 'connect'"),
        (MODULE, {"refuse": True}, "RuntimeError: this configuration is refused"),
    ],
)
async def test_opening_fails_in_the_modules_own_words(
    agent: LocalAgent, module: str, config: dict[str, bool], words: str
) -> None:
    with pytest.raises(OSError, match=words):
        await agent.client_host().open(module, placements(1), {}, config)


async def test_opening_again_replaces_all_clients(watched_host: AgentClientHost) -> None:
    await watched_host.invoke(0, Request("read"), PATIENCE_S)
    await watched_host.open(MODULE, placements(1), {}, {"say": "again"})
    assert await watched_host.invoke(0, Request("read"), PATIENCE_S) == Outcome(
        Type.OK, payload="again", node="invoked-1"
    )


def received(peer: socket.socket) -> int:
    """How many datagrams have arrived since the last question."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while peer.recv(64):
            count += 1
    return count


async def test_a_computing_client_does_not_starve_the_beacons(
    agent: LocalAgent, watched_host: AgentClientHost, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.14", 0))
        peer.setblocking(False)
        port = peer.getsockname()[1]
        await agent.link.ask(BeaconVerbs.start, b"testtest", "127.0.0.13", port, {"n2": "127.0.0.14"}, 20.0)
        computing = asyncio.create_task(watched_host.invoke(0, Request("compute", payload=str(tmp_path)), 1000.0))
        await eventually((tmp_path / "began").exists)
        received(peer)
        arrived = 0
        async with asyncio.timeout(PATIENCE_S):
            while arrived < 30:
                await asyncio.sleep(0.01)
                arrived += received(peer)
        (tmp_path / "end").touch()
        assert (await computing).type is Type.OK


@pytest.mark.parametrize(
    ("line", "request_"),
    [
        ("read 3\n", {"f": "read", "key": "3"}),
        ("write 3 17", {"f": "write", "key": "3", "value": 17}),
        ("cas 3 17 18", {"f": "cas", "key": "3", "value": 17, "value2": 18}),
        ('txn [["r", 1, null]]', {"f": "txn", "payload": '[["r", 1, null]]'}),
        ('put k {"a": 1}', {"f": "put", "key": "k", "payload": '{"a": 1}'}),
        ("list", {"f": "list"}),
    ],
)
def test_a_line_is_a_request(line: str, request_: dict[str, Any]) -> None:
    assert request_of(line) == request_


@pytest.mark.parametrize("line", ["write 3 x", "cas 3 1 2 3", "txn [1,"])
def test_a_line_that_is_none_is_refused_with_its_reason(line: str) -> None:
    with pytest.raises(BadLine, match=r"whole numbers|is not valid JSON"):
        request_of(line)


def test_an_outcome_is_one_line() -> None:
    assert words_of({"type": int(Type.OK), "value": 17, "node": "n2"}) == "ok 17  n2"
    assert words_of({"type": int(Type.INFO), "error": "timed out"}) == "info timed out"


def test_lines_are_invoked_until_the_end_of_input(tmp_path: Path) -> None:
    (tmp_path / "echoing.py").write_text(
        "from checkers.base.history import Type\n"
        "from system_under_test.client import Outcome\n"
        "class Client:\n"
        "    async def invoke(self, request, timeout_s):\n"
        "        return Outcome(Type.OK, value=request.value, node='n1')\n"
        "    async def close(self): ...\n"
        "def connect(placement, peers, config, shared): return Client()\n"
    )
    given = {"module": "echoing", "peers": {"n1": "198.18.0.2:9"}, "config": {}, "node": "c1", "keys": ["r0"]}
    (tmp_path / "clients.json").write_text(json.dumps(given))
    words = [sys.executable, "-m", "harness.agent.client_shell", str(tmp_path / "clients.json")]
    path = f"{tmp_path}:{Path(__file__).parents[3]}"
    done = subprocess.run(
        words, input="write 0 5\n\nwrite 0 x\n", capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    servers, _, keys, first, second = done.stdout.splitlines()
    assert servers == "servers: n1 198.18.0.2:9"
    assert keys == "keys: r0"
    assert first == "ok 5  n1" and "whole numbers" in second
