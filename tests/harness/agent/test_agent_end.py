"""However an agent ends, it leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from local_agents import LocalAgent, local_agent
from waiting import PATIENCE_S, eventually, is_alive

from harness.agent.frames import encode
from harness.agent.process import LINGER, SILENCE, NodeVerbs
from system_under_test.client import Placement, Request
from system_under_test.subject import NodeGone


async def _with_family(agent: LocalAgent, tmp_path: Path) -> list[int]:
    """Starts a server with a child; their pids."""
    output = str(tmp_path / "server.log")
    pid = await agent.node.start(["sh", "-c", "sleep 1003 & echo $!; wait"], output=output)
    await eventually(lambda: Path(output).read_bytes().strip() != b"")
    return [pid, int((await agent.node.read(output)).split()[-1])]


async def _close(agent: LocalAgent) -> None:
    await agent.link.close()


async def _close_when_stopped(agent: LocalAgent) -> None:
    await agent.node.signal("STOP")
    await agent.link.close()


async def _terminate(agent: LocalAgent) -> None:
    agent.process.send_signal(signal.SIGTERM)


async def _tear_a_frame(agent: LocalAgent) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.write(encode({"id": 1, "verb": "hello"})[:-3])
    await agent.link.close()


async def _send_garbage(agent: LocalAgent) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.write(b"GET / HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize("end", [_close, _close_when_stopped, _terminate, _tear_a_frame, _send_garbage])
async def test_however_it_ends_the_server_dies_with_it(
    agent: LocalAgent, tmp_path: Path, end: Callable[[LocalAgent], Awaitable[None]]
) -> None:
    family = await _with_family(agent, tmp_path)
    await end(agent)
    assert await asyncio.wait_for(agent.process.wait(), PATIENCE_S) == 0
    await eventually(lambda: not any(is_alive(pid) for pid in family))
    with pytest.raises(NodeGone, match="n1: "):
        await agent.node.state()


async def test_when_stderr_is_as_dead_as_the_harness_the_server_dies_all_the_same(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    async with local_agent(tmp_path, stderr=write_end) as agent:
        os.close(write_end)
        os.close(read_end)
        family = await _with_family(agent, tmp_path)
        await agent.link.close()
        await eventually(lambda: not any(is_alive(pid) for pid in family))


async def test_where_agents_must_not_end_together_the_server_dies_at_once_and_the_agent_lingers(tmp_path: Path) -> None:
    async with local_agent(tmp_path, environment={LINGER: "600"}) as agent:
        family = await _with_family(agent, tmp_path)
        await agent.link.close()
        await eventually(lambda: not any(is_alive(pid) for pid in family))
        assert agent.process.returncode is None
        agent.process.kill()
    async with local_agent(tmp_path, environment={LINGER: "0.5"}) as agent:
        await agent.link.close()
        assert await asyncio.wait_for(agent.process.wait(), PATIENCE_S) == 0


async def test_a_silence_is_the_end_where_it_was_announced(tmp_path: Path) -> None:
    """The stream stays open, and nothing comes."""
    for silence_s in (2, 10, 60):
        async with local_agent(tmp_path, environment={SILENCE: str(silence_s)}) as agent:
            family = await _with_family(agent, tmp_path / str(silence_s))
            heard_all_the_time = await _hears_us_for_longer_than(silence_s, agent)
            await asyncio.wait_for(agent.process.wait(), PATIENCE_S)
            await eventually(lambda family=family: not any(map(is_alive, family)))  # type: ignore[misc]
        if heard_all_the_time:
            return
    raise AssertionError("this test was held up for half of the silence, again and again")


async def _hears_us_for_longer_than(silence_s: int, agent: LocalAgent) -> bool:
    """Whether the agent heard something all the time.  It must live that long then; else it may end, rightly."""
    loop = asyncio.get_running_loop()
    began_s = heard_s = loop.time()
    while loop.time() < began_s + 1.2 * silence_s:
        await asyncio.sleep(0.1)
        asked_s = loop.time()
        if asked_s - heard_s > silence_s / 2:
            return False
        await agent.link.ask(NodeVerbs.hello)
        heard_s = asked_s
    assert agent.process.returncode is None
    return True


async def test_a_client_that_blocks_the_loop_cannot_keep_it_alive(agent: LocalAgent, tmp_path: Path) -> None:
    """Nothing on the loop would ever see the end of the stream: the sentinel does."""
    host = agent.client_host()
    await host.open("clients_for_agent_tests", [Placement(0, "c1", True, False)], {}, {})
    stuck = asyncio.create_task(host.invoke(0, Request("block", payload=str(tmp_path)), 1000))
    await eventually((tmp_path / "began").exists)
    await agent.link.close()
    await asyncio.wait_for(agent.process.wait(), PATIENCE_S)
    await stuck
