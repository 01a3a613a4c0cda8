"""Signals meet all processes of a server, also those that left its group, and no other child of the agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from local_agents import LocalAgent
from waiting import eventually, is_alive, state_letter, until

from harness.agent.children import Children, is_stopped
from harness.agent.server import ServerProcess

COUNT = 'echo $$ > "$0/$1.pid"; while :; do echo >> "$0/$1"; sleep 0.01; done'
"""Adds a byte to the file $0/$1 again and again.  Each `sleep` is one more process that appears meanwhile."""
STARTS = {
    "session": "setsid sh -c '{count}' {folder} session &",
    "wiped": "env -i PATH=$PATH setsid sh -c '{count}' {folder} wiped &",  # as PostgreSQL's backends
    "orphan": "(setsid sh -c '{count}' {folder} orphan &);",  # its parent ends at once
}
CONTROL_STEPS = 20
VFORK_PAUSES = 40


def _server(folder: Path, names: Sequence[str]) -> list[str]:
    starts = " ".join(STARTS[name].format(count=COUNT, folder=folder) for name in names)
    return ["sh", "-c", f"{starts} while :; do sleep 0.01; done"]


def _pids(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Waits until each of the processes has counted."""
    until(lambda: all((folder / name).exists() for name in names))
    return {name: int((folder / f"{name}.pid").read_text()) for name in names}


def _counts(folder: Path, names: Sequence[str]) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in names}


async def _started(agent: LocalAgent, folder: Path, names: Sequence[str] = tuple(STARTS)) -> tuple[int, dict[str, int]]:
    """The leader's pid, and those of the others."""
    leader = await agent.node.start(_server(folder, names))
    return leader, await asyncio.to_thread(_pids, folder, names)


async def test_a_paused_server_stands_still_and_goes_on(agent: LocalAgent, tmp_path: Path) -> None:
    leader, others = await _started(agent, tmp_path)
    await agent.node.signal("STOP")
    assert {name: state_letter(pid) for name, pid in others.items()} == dict.fromkeys(others, "T")
    assert state_letter(leader) == "T"
    assert await agent.node.state() == "stopped"
    before = _counts(tmp_path, tuple(others))
    control = f"i=0; while [ $i -lt {CONTROL_STEPS} ]; do i=$((i+1)); sleep 0.01; done"
    assert (await agent.node.run(["sh", "-c", control])).status == 0  # a counter that is no part of the server goes on
    assert _counts(tmp_path, tuple(others)) == before
    await agent.node.signal("CONT")
    assert await agent.node.state() == "running"
    await eventually(lambda: all(now > before[name] for name, now in _counts(tmp_path, tuple(others)).items()))


async def test_a_server_inside_vfork_can_be_paused(agent: LocalAgent) -> None:
    """A shell starts each program with vfork, and here does little else."""
    await agent.node.start(["sh", "-c", "while :; do /bin/true; done"])
    for _ in range(VFORK_PAUSES):
        await agent.node.signal("STOP")
        assert await agent.node.state() == "stopped"
        await agent.node.signal("CONT")


@pytest.mark.parametrize("name", STARTS)
async def test_a_server_of_which_one_process_goes_on_is_not_stopped(
    agent: LocalAgent, tmp_path: Path, name: str
) -> None:
    _, others = await _started(agent, tmp_path)
    await agent.node.signal("STOP")
    os.kill(others[name], signal.SIGCONT)
    assert await agent.node.state() == "running"
    await agent.node.signal("STOP")
    assert state_letter(others[name]) == "T"


async def test_a_kill_leaves_no_process_alive(agent: LocalAgent, tmp_path: Path) -> None:
    leader, others = await _started(agent, tmp_path)
    await agent.node.signal("KILL")
    assert [pid for pid in (leader, *others.values()) if is_alive(pid)] == []
    assert [(event["status"], event["ordered"]) for event in agent.events] == [(-9, True)]


async def test_a_paused_server_is_killed_whole(agent: LocalAgent, tmp_path: Path) -> None:
    leader, others = await _started(agent, tmp_path)
    await agent.node.signal("STOP")
    await agent.node.signal("KILL")
    assert [pid for pid in (leader, *others.values()) if is_alive(pid)] == []


async def test_a_leader_that_dies_leaves_no_process_alive(agent: LocalAgent, tmp_path: Path) -> None:
    leader, others = await _started(agent, tmp_path)
    assert await agent.node.state() == "running"  # from now on the agent knows the process without a mark, too
    os.kill(leader, signal.SIGKILL)
    await eventually(lambda: bool(agent.events))
    assert agent.events[0]["ordered"] is False
    await eventually(lambda: not any(map(is_alive, others.values())))


async def test_a_leader_that_ends_after_term_leaves_no_process_alive(agent: LocalAgent, tmp_path: Path) -> None:
    _, others = await _started(agent, tmp_path, ("session", "orphan"))
    await agent.node.signal("TERM")
    await eventually(lambda: not any(map(is_alive, others.values())))


async def test_a_server_starts_only_after_the_last_one_has_ended_whole(agent: LocalAgent, tmp_path: Path) -> None:
    leader, others = await _started(agent, tmp_path, ("session", "orphan"))
    os.kill(leader, signal.SIGKILL)
    await eventually(lambda: bool(agent.events))
    await agent.node.start(["sleep", "1000"])
    assert not any(map(is_alive, others.values()))


async def test_nothing_of_the_server_outlives_the_agent(agent: LocalAgent, tmp_path: Path) -> None:
    leader, others = await _started(agent, tmp_path)
    await agent.link.close()
    await agent.process.wait()
    await eventually(lambda: not any(map(is_alive, (leader, *others.values()))))


async def test_several_processes_that_make_up_one_server_are_paused_and_killed(
    agent: LocalAgent, tmp_path: Path
) -> None:
    names = ("first", "second")
    argv = {name: ["setsid", "sh", "-c", COUNT, str(tmp_path), name] for name in names}
    module = "system_under_test.own.processes_as_one_server"
    await agent.node.start([sys.executable, "-m", module, json.dumps(argv), str(tmp_path)])
    processes = await asyncio.to_thread(_pids, tmp_path, names)
    await agent.node.signal("STOP")
    assert [state_letter(pid) for pid in processes.values()] == ["T", "T"]
    await agent.node.signal("CONT")
    assert await agent.node.state() == "running"
    os.kill(processes["first"], signal.SIGKILL)  # the end of one is the end of all
    await eventually(lambda: bool(agent.events))
    await eventually(lambda: not is_alive(processes["second"]))
    assert (agent.events[0]["status"], agent.events[0]["ordered"]) == (128 + signal.SIGKILL, False)


def test_a_kill_that_does_not_wait_meets_all(tmp_path: Path) -> None:
    names = ("session", "wiped")
    events: list[dict[str, Any]] = []
    server = ServerProcess(Children(), events.append)
    server.start(_server(tmp_path, names), {}, str(tmp_path / "server.log"))
    others = _pids(tmp_path, names)
    server.kill_without_waiting()
    until(lambda: not any(map(is_alive, others.values())))
    server.signal("KILL")
    assert [event["ordered"] for event in events] == [True]


async def test_other_children_of_the_agent_are_not_met(agent: LocalAgent, tmp_path: Path) -> None:
    """One command that runs, and a daemon that an ended command left to the agent."""
    go, daemon, command = (tmp_path / name for name in ("go", "daemon.pid", "command.pid"))
    waits = f"until test -e {go}; do sleep 0.01; done"
    left = (
        f"(setsid sh -c 'echo $$ > {daemon}; {waits}' > /dev/null 2>&1 &); until test -s {daemon}; do sleep 0.01; done"
    )
    assert (await agent.node.run(["sh", "-c", left])).status == 0
    running = asyncio.ensure_future(
        agent.node.run(["sh", "-c", f"echo $$ > {command}; {waits}; exit 5"], timeout_s=300.0)
    )
    await eventually(lambda: command.exists() and command.read_text().strip())
    strangers = [int(daemon.read_text()), int(command.read_text())]
    try:
        for attempt in ("first", "second"):
            (tmp_path / attempt).mkdir()
            await _started(agent, tmp_path / attempt)
            await agent.node.signal("STOP")
            assert "T" not in [state_letter(pid) for pid in strangers]
            await agent.node.signal("KILL")
            assert all(map(is_alive, strangers))
    finally:
        go.touch()
    assert (await running).status == 5
    await eventually(lambda: not is_alive(strangers[0]))


# ---- ends that were ordered ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_term", "status", "ordered"),
    [
        ("exit 0", 0, True),
        ("exit 1", 1, True),
        ("exit 143", 143, True),
        ("trap - TERM; kill -TERM $$", -signal.SIGTERM, True),
        ("kill -SEGV $$", -signal.SIGSEGV, False),
        ("kill -ABRT $$", -signal.SIGABRT, False),
        ("kill -BUS $$", -signal.SIGBUS, False),
        ("kill -KILL $$", -signal.SIGKILL, False),  # as the kernel does without memory: this KILL was not ordered
        ("exit 134", 134, False),
        ("exit 135", 135, False),
        ("exit 136", 136, False),
        ("exit 139", 139, False),
    ],
)
async def test_a_crash_after_term_is_unexpected(
    agent: LocalAgent, tmp_path: Path, on_term: str, status: int, ordered: bool
) -> None:
    ready = tmp_path / "ready"
    program = f"ulimit -c 0; trap '{on_term}' TERM; touch {ready}; while :; do sleep 0.01; done"
    await agent.node.start(["sh", "-c", program])
    await eventually(ready.exists)
    await agent.node.signal("TERM")
    await eventually(lambda: bool(agent.events))
    assert [(event["status"], event["ordered"]) for event in agent.events] == [(status, ordered)]


# ---- threads -------------------------------------------------------------------------------------------------------

THREADS_END = """
import threading
print("ready", flush=True)
while True:
    started = [threading.Thread(target=int) for _ in range(8)]
    for thread in started: thread.start()
    for thread in started: thread.join()
"""
MAIN_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
LOOKS = 20_000


def _python(program: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_a_thread_that_ends_under_the_reader_is_left_out() -> None:
    with _python(THREADS_END) as process:
        try:
            assert not any(is_stopped(process.pid) for _ in range(LOOKS))
        finally:
            process.kill()


def test_a_process_whose_main_thread_has_ended_can_be_stopped() -> None:
    with _python(MAIN_THREAD_ENDS) as process:
        try:
            until(lambda: state_letter(process.pid) == "Z")
            assert not is_stopped(process.pid)
            process.send_signal(signal.SIGSTOP)
            until(lambda: is_stopped(process.pid))
        finally:
            process.kill()
    assert not is_stopped(process.pid)
