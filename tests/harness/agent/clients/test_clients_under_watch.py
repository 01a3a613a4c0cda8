"""The watchdog over clients: for everything a client does the harness gets an outcome, and never a false one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import clients_for_agent_tests as scripted
import pytest
from local_agents import LocalAgent, local_agent
from waiting import PATIENCE_S, eventually

from checkers.base.history import Type
from harness.agent.hosted_clients import OVERRUN_S, HostedClients
from harness.agent.network import BeaconVerbs
from harness.agent.process import NodeVerbs
from harness.backends.agent_link import AgentClientHost
from system_under_test.client import Outcome, Placement, Request

MODULE = scripted.__name__


def placements(count: int) -> list[Placement]:
    return [Placement(thread, "c1", follows=thread % 2 == 0, reads_only=False) for thread in range(count)]


@pytest.fixture
async def host(agent: LocalAgent) -> AgentClientHost:
    host = agent.client_host()
    await host.open(MODULE, placements(5), {"n1": "127.0.0.1:1"}, {"say": "hello"})
    return host


async def test_a_good_client_answers_in_its_own_words(host: AgentClientHost) -> None:
    outcome = await host.invoke(3, Request("read", key="k", value=42), PATIENCE_S)
    assert outcome == Outcome(Type.OK, value=42, payload="hello", node="invoked-1")


async def test_an_agent_answers_while_it_loads_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRUCIBLE_TEST_GO", str(tmp_path / "go"))
    async with local_agent(tmp_path) as agent:
        loading = asyncio.ensure_future(agent.client_host().load("slow_to_import_for_agent_tests"))
        await agent.link.ask(NodeVerbs.processor)
        assert not loading.done()
        (tmp_path / "go").touch()
        await loading


async def test_clients_that_cannot_be_loaded_are_an_error_in_words(agent: LocalAgent) -> None:
    with pytest.raises(OSError, match="clients of no_such_module cannot be loaded: ModuleNotFoundError"):
        await agent.client_host().load("no_such_module")


async def test_clients_answer_beside_each_other(host: AgentClientHost) -> None:
    meeting = [host.invoke(thread, Request("meet", payload="5"), PATIENCE_S) for thread in range(5)]
    assert [o.type for o in await asyncio.gather(*meeting)] == [Type.OK] * 5


async def test_an_overrun_is_answered_info_and_the_client_is_replaced(
    host: AgentClientHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostedClients.invoke, "limit", (PATIENCE_S, "timeout_s"))  # the agent's watchdog answers
    await host.invoke(0, Request("read"), PATIENCE_S)
    began = time.monotonic()
    outcome = await host.invoke(0, Request("sleep", payload="1000"), 0.2)
    assert (outcome.type, outcome.error) == (Type.INFO, "client-overran")
    assert time.monotonic() - began >= 0.2 + OVERRUN_S
    assert (await host.invoke(0, Request("read"), PATIENCE_S)).node == "invoked-1"  # a fresh client


async def test_an_escaped_exception_is_info_with_its_words(host: AgentClientHost) -> None:
    outcome = await host.invoke(1, Request("raise"), PATIENCE_S)
    assert outcome.type is Type.INFO
    assert outcome.error == "client-raised: ZeroDivisionError: a bug in the client"
    assert (await host.invoke(1, Request("read"), PATIENCE_S)).node == "invoked-1"


async def test_an_outcome_that_is_none_is_no_ok(host: AgentClientHost) -> None:
    assert (await host.invoke(2, Request("nonsense"), PATIENCE_S)).type is Type.INFO


async def test_an_agent_stuck_in_a_client_is_info_and_its_late_answers_go_nowhere(
    host: AgentClientHost, tmp_path: Path
) -> None:
    stuck = asyncio.create_task(host.invoke(0, Request("block", payload=str(tmp_path)), 0.2))
    await asyncio.sleep(0)  # its request is the first to leave
    other = await host.invoke(1, Request("read"), 0.2)
    assert (await stuck).type is Type.INFO and other.type is Type.INFO
    (tmp_path / "end").touch()
    assert (await host.invoke(1, Request("read", value=7), PATIENCE_S)).value == 7


async def test_a_stray_print_does_not_break_the_stream(host: AgentClientHost) -> None:
    assert (await host.invoke(0, Request("print", value=1), PATIENCE_S)).value == 1


async def test_an_unknown_thread_is_info_not_an_exception(host: AgentClientHost) -> None:
    outcome = await host.invoke(99, Request("read"), PATIENCE_S)
    assert outcome.type is Type.INFO
    assert "no client was opened for thread 99" in (outcome.error or "")


async def test_a_dead_agent_is_info(agent: LocalAgent, host: AgentClientHost) -> None:
    waiting = asyncio.create_task(host.invoke(0, Request("sleep", payload="1000"), 1000.0))
    await asyncio.sleep(0)  # its request has left
    agent.process.kill()
    outcome = await asyncio.wait_for(waiting, PATIENCE_S)
    assert outcome.type is Type.INFO
    assert "its agent is gone" in (outcome.error or "")
    await host.close()


@pytest.mark.parametrize(
    ("module", "config", "words"),
    [
        ("no_such_module", {}, "No module named 'no_such_module'"),
        ("json", {}, "has no attribute 'connect'"),
        (MODULE, {"refuse": True}, "RuntimeError: this configuration is refused"),
    ],
)
async def test_opening_fails_in_the_modules_own_words(
    agent: LocalAgent, module: str, config: dict[str, bool], words: str
) -> None:
    with pytest.raises(OSError, match=words):
        await agent.client_host().open(module, placements(1), {}, config)


async def test_opening_again_replaces_all_clients(host: AgentClientHost) -> None:
    await host.invoke(0, Request("read"), PATIENCE_S)
    await host.open(MODULE, placements(1), {}, {"say": "again"})
    assert await host.invoke(0, Request("read"), PATIENCE_S) == Outcome(Type.OK, payload="again", node="invoked-1")


def received(peer: socket.socket) -> int:
    """How many datagrams have arrived since the last question."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while peer.recv(64):
            count += 1
    return count


async def test_a_computing_client_does_not_starve_the_beacons(
    agent: LocalAgent, host: AgentClientHost, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.14", 0))
        peer.setblocking(False)
        port = peer.getsockname()[1]
        await agent.link.ask(BeaconVerbs.start, b"testtest", "127.0.0.13", port, {"n2": "127.0.0.14"}, 20.0)
        computing = asyncio.create_task(host.invoke(0, Request("compute", payload=str(tmp_path)), 1000.0))
        await eventually((tmp_path / "began").exists)
        received(peer)
        arrived = 0
        async with asyncio.timeout(PATIENCE_S):
            while arrived < 30:
                await asyncio.sleep(0.01)
                arrived += received(peer)
        (tmp_path / "end").touch()
        assert (await computing).type is Type.OK
