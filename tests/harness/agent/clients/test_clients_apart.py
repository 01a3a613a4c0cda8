"""Clients in a process of their own: they are stopped and go on, and the agent answers all the while."""

from __future__ import annotations

import asyncio

import clients_for_agent_tests as scripted
import pytest
from local_agents import LocalAgent
from waiting import PATIENCE_S, eventually, is_alive

from checkers.base.history import Type
from harness.agent.hosted_clients import ClientsApart, HostedClients
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
    outcome = await host.invoke(1, Request("read", key="k", value=42), PATIENCE_S)
    assert outcome == Outcome(Type.OK, value=42, payload="hello", node="invoked-1")
    assert await state(agent) == "running"
    await agent.link.ask(ClientsApart.start)  # a no-op: it is there
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
    with pytest.raises(OSError, match="do not live in a process of their own"):
        await order(agent, "STOP")
    assert await state(agent) == "dead"


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
        return file.read().split()
