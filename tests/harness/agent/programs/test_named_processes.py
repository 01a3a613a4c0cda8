"""Faults on one named process of a server leave its other processes alone, and a release undoes them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from local_agents import LocalAgent
from waiting import eventually, is_alive, state_letter

from harness.agent.server import ServerProcess
from system_under_test.own.processes_as_one_server import CONTROL

# The agent of a database: it starts the database in a session of its own, and again whenever it has ended.
WATCHDOG = """
import os, pathlib, subprocess, sys
place = pathlib.Path(sys.argv[1])
(place / "watchdog").write_text(f"{os.getpid()}\\n")
while True:
    counts = f"echo $$ > {place}/database; : my-database; while :; do sleep 0.02; done"
    subprocess.Popen(["setsid", "sh", "-c", counts]).wait()
"""
NAMES = {"watchdog": "", "store": "", "database": "my-database"}


async def _order(agent: LocalAgent, process: str, name: str) -> None:
    await agent.link.ask(ServerProcess.signal_named, process, name, NAMES)


async def _now(agent: LocalAgent, process: str) -> dict[str, Any]:
    return await agent.link.ask(ServerProcess.state_named, process, NAMES)


async def _started(agent: LocalAgent, folder: Path, store: str = "sleep 0.02") -> dict[str, int]:
    """The pid of each process of a server: a store, which runs a program again and again, and a watchdog that starts a
    database."""
    commands = {
        "watchdog": [sys.executable, "-c", WATCHDOG, str(folder)],
        "store": ["sh", "-c", f"echo $$ > {folder}/store; while :; do {store}; done"],
    }
    words = [sys.executable, "-m", "system_under_test.own.processes_as_one_server", json.dumps(commands), str(folder)]
    await agent.node.start(words, env={CONTROL: str(folder / "control")}, output=str(folder / "server.log"))
    await eventually(lambda: all(_pid(folder, name) for name in NAMES))
    return {name: _pid(folder, name) for name in NAMES}


def _pid(folder: Path, name: str) -> int:
    """0 while the process has not written it, or writes it again."""
    written = (folder / name).read_text() if (folder / name).exists() else ""
    return int(written) if written.endswith("\n") else 0


@pytest.mark.parametrize("order", ["KILL", "TERM"])
async def test_a_process_stays_down_until_its_release_and_the_others_go_on(
    agent: LocalAgent, tmp_path: Path, order: str
) -> None:
    before = await _started(agent, tmp_path)
    await _order(agent, "watchdog", order)
    while not (now := await _now(agent, "watchdog"))["ended"]:
        pass
    assert now == {"lives": False, "stopped": False, "held": True, "ended": True}
    assert is_alive(before["store"])
    assert is_alive(before["database"]), "the database has a name, so the fault on its watchdog leaves it alone"
    assert await agent.node.state() == "running"
    assert not agent.events
    await _order(agent, "watchdog", "RELEASE")
    await eventually(lambda: _pid(tmp_path, "watchdog") not in (0, before["watchdog"]))
    assert (await _now(agent, "watchdog"))["lives"]
    assert not (await _now(agent, "watchdog"))["held"]


async def test_a_paused_process_stands_still_alone(agent: LocalAgent, tmp_path: Path) -> None:
    pids = await _started(agent, tmp_path)
    await _order(agent, "watchdog", "STOP")
    assert (await _now(agent, "watchdog"))["stopped"]
    assert state_letter(pids["watchdog"]) == "T"
    assert [state_letter(pids[name]) for name in ("store", "database")] != ["T", "T"]
    assert await agent.node.state() == "running"
    await _order(agent, "watchdog", "RELEASE")
    assert not (await _now(agent, "watchdog"))["stopped"]
    assert state_letter(pids["watchdog"]) != "T"


async def test_what_another_process_started_is_killed_by_its_pattern_and_started_by_its_parent(
    agent: LocalAgent, tmp_path: Path
) -> None:
    before = await _started(agent, tmp_path)
    await _order(agent, "database", "KILL")
    assert not is_alive(before["database"])
    assert is_alive(before["watchdog"])
    assert (await _now(agent, "database"))["ended"]
    assert not (await _now(agent, "database"))["held"]
    await eventually(lambda: _pid(tmp_path, "database") not in (0, before["database"]))


async def test_the_end_of_a_process_without_an_order_is_still_the_end_of_the_server(
    agent: LocalAgent, tmp_path: Path
) -> None:
    pids = await _started(agent, tmp_path)
    await _order(agent, "watchdog", "KILL")
    await _order(agent, "watchdog", "RELEASE")
    os.kill(pids["store"], signal.SIGKILL)
    await eventually(lambda: bool(agent.events))
    assert agent.events[0]["event"] == "exit"
    assert not agent.events[0]["ordered"]
    assert "store ended with status -9" in (tmp_path / "server.log").read_text()


async def test_a_named_process_inside_vfork_can_be_paused(agent: LocalAgent, tmp_path: Path) -> None:
    """The store is a shell that starts programs with vfork and does little else."""
    before = await _started(agent, tmp_path, store="/bin/true")
    for _ in range(60):
        await _order(agent, "store", "STOP")
        assert state_letter(before["store"]) == "T"
        await _order(agent, "store", "CONT")


async def test_signals_to_the_server_meet_every_named_process(agent: LocalAgent, tmp_path: Path) -> None:
    pids = await _started(agent, tmp_path)
    await agent.node.signal("STOP")
    assert {name: state_letter(pid) for name, pid in pids.items()} == dict.fromkeys(NAMES, "T")
    await agent.node.signal("CONT")
    await agent.node.signal("KILL")
    assert [name for name, pid in pids.items() if is_alive(pid)] == []


async def test_a_process_that_does_not_live_is_refused_in_one_sentence(agent: LocalAgent, tmp_path: Path) -> None:
    await _started(agent, tmp_path)
    await _order(agent, "store", "KILL")
    with pytest.raises(OSError, match="no process 'store' lives here"):
        await _order(agent, "store", "STOP")
    await agent.node.signal("KILL")
    with pytest.raises(OSError, match="the server is dead"):
        await _order(agent, "watchdog", "STOP")
    await _order(agent, "watchdog", "RELEASE")
