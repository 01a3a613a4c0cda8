"""Processes of a server: named ones, the whole tree, and what their processors say."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from local_agents import LocalAgent
from waiting import eventually, is_alive, state_letter, until

from harness.agent.children import COMMAND_MARK, NOT_KNOWN_S, Children, is_stopped, of_processes, pressure_s
from harness.agent.disk_file_system import Writers
from harness.agent.server import ServerProcess
from system_under_test.own.processes_as_one_server import CONTROL

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
    # a counter that does not belong to the server continues
    assert (await agent.node.run(["sh", "-c", control])).status == 0
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


@pytest.mark.parametrize("paused", [False, True])
async def test_a_kill_leaves_no_process_alive(agent: LocalAgent, tmp_path: Path, paused: bool) -> None:
    leader, others = await _started(agent, tmp_path)
    if paused:
        await agent.node.signal("STOP")
    await agent.node.signal("KILL")
    assert [pid for pid in (leader, *others.values()) if is_alive(pid)] == []
    assert [(event["status"], event["ordered"]) for event in agent.events] == [(-9, True)]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_leader_that_ends_leaves_no_process_alive_and_the_next_server_starts_after_them(
    agent: LocalAgent, tmp_path: Path, ordered: bool
) -> None:
    leader, others = await _started(agent, tmp_path)
    assert await agent.node.state() == "running"  # from now on the agent also knows the process that has no mark
    if ordered:
        await agent.node.signal("TERM")
    else:
        os.kill(leader, signal.SIGKILL)
    await eventually(lambda: bool(agent.events))
    assert agent.events[0]["ordered"] is ordered
    await agent.node.start(["sleep", "1000"])
    assert not any(map(is_alive, others.values()))


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
    os.kill(processes["first"], signal.SIGKILL)  # the end of one process ends all
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


# ---- ordered ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_term", "status", "ordered"),
    [
        ("exit 0", 0, True),
        ("exit 1", 1, True),
        ("exit 143", 143, True),
        ("trap - TERM; kill -TERM $$", -signal.SIGTERM, True),
        ("kill -SEGV $$", -signal.SIGSEGV, False),
        ("kill -KILL $$", -signal.SIGKILL, False),  # like the kernel's OOM killer: the agent did not order this KILL
        ("exit 134", 134, False),
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


@contextmanager
def _python(program: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def test_a_thread_that_ends_under_the_reader_is_left_out() -> None:
    with _python(THREADS_END) as process:
        assert not any(is_stopped(process.pid) for _ in range(LOOKS))


def test_a_process_whose_main_thread_has_ended_can_be_stopped() -> None:
    with _python(MAIN_THREAD_ENDS) as process:
        until(lambda: state_letter(process.pid) == "Z")
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid))
    assert not is_stopped(process.pid)


# An agent of a database: it starts the database in its own session, and restarts it whenever it has ended.
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


async def _started_named_processes(agent: LocalAgent, folder: Path, store: str = "sleep 0.02") -> dict[str, int]:
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
    before = await _started_named_processes(agent, tmp_path)
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
    pids = await _started_named_processes(agent, tmp_path)
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
    before = await _started_named_processes(agent, tmp_path)
    await _order(agent, "database", "KILL")
    assert not is_alive(before["database"])
    assert is_alive(before["watchdog"])
    assert (await _now(agent, "database"))["ended"]
    assert not (await _now(agent, "database"))["held"]
    await eventually(lambda: _pid(tmp_path, "database") not in (0, before["database"]))


async def test_the_end_of_a_process_without_an_order_is_still_the_end_of_the_server(
    agent: LocalAgent, tmp_path: Path
) -> None:
    pids = await _started_named_processes(agent, tmp_path)
    await _order(agent, "watchdog", "KILL")
    await _order(agent, "watchdog", "RELEASE")
    os.kill(pids["store"], signal.SIGKILL)
    await eventually(lambda: bool(agent.events))
    assert agent.events[0]["event"] == "exit"
    assert not agent.events[0]["ordered"]
    assert "store ended with status -9" in (tmp_path / "server.log").read_text()


async def test_a_named_process_inside_vfork_can_be_paused(agent: LocalAgent, tmp_path: Path) -> None:
    """The store is a shell that starts programs with vfork and does little else."""
    before = await _started_named_processes(agent, tmp_path, store="/bin/true")
    for _ in range(60):
        await _order(agent, "store", "STOP")
        assert state_letter(before["store"]) == "T"
        await _order(agent, "store", "CONT")


async def test_a_process_that_does_not_live_is_refused_in_one_sentence(agent: LocalAgent, tmp_path: Path) -> None:
    await _started_named_processes(agent, tmp_path)
    await _order(agent, "store", "KILL")
    with pytest.raises(OSError, match="no process 'store' is alive here"):
        await _order(agent, "store", "STOP")
    await agent.node.signal("KILL")
    with pytest.raises(OSError, match="the server is dead"):
        await _order(agent, "watchdog", "STOP")
    await _order(agent, "watchdog", "RELEASE")


PRESSURE = "some avg10=62.70 avg60=56.62 avg300=28.01 total=125054995\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def test_the_pressure_is_the_sum_in_which_some_process_waited_if_the_kernel_measures_it(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(PRESSURE)
    assert pressure_s(tmp_path / "cpu") == 125.054995
    (tmp_path / "cpu").write_text("")
    assert pressure_s(tmp_path / "cpu") == pressure_s(tmp_path / "none") == NOT_KNOWN_S


def test_the_threads_of_all_processes_add_up(tmp_path: Path) -> None:
    for pid, tid, ran, waited in ((7, 7, 3, 1), (7, 8, 2, 5), (9, 9, 1, 1), (11, 11, 50, 50)):
        thread = tmp_path / str(pid) / "task" / str(tid)
        thread.mkdir(parents=True)
        (thread / "schedstat").write_text(f"{ran * 10**9} {waited * 10**9} 12\n")
    assert of_processes({7, 9}, tmp_path) == (7.0, 6.0)
    assert of_processes(set(), tmp_path) == of_processes({12}, tmp_path) == (NOT_KNOWN_S, NOT_KNOWN_S)


# ---- writes: all count as the server's but those of the agent and of commands that the harness orders ---------------

ORDERED = {COMMAND_MARK: "1"}
SAYS_ITS_PID = "import os; print(os.getpid(), flush=True); input()"


@contextmanager
def process(script: str, env: Mapping[str, str]) -> Iterator[int]:
    """The pid that the script prints; what it started waits until the context ends."""
    words = [sys.executable, "-c", script]
    with subprocess.Popen(
        words, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        yield int(child.stdout.readline())
        child.stdin.write("end\n" * 3)


def child_of_its_own(env: str) -> str:
    """A script that starts another process, in a session of its own and with this environment."""
    started = f"[sys.executable, '-c', {SAYS_ITS_PID!r}], env={env}, start_new_session=True"
    return f"import os, subprocess, sys; subprocess.run({started})"


def counts(pid: int) -> bool:
    writers = Writers(agent=os.getpid(), asking=lambda: pid)
    writers.note()
    writers.note()
    return writers.server_wrote


@pytest.mark.parametrize(
    ("script", "env", "is_server"),
    [
        pytest.param(SAYS_ITS_PID, {}, True, id="a server"),
        pytest.param(child_of_its_own("os.environ"), {}, True, id="its child in a session of its own"),
        pytest.param(child_of_its_own("{}"), {}, True, id="its child that dropped the environment"),
        pytest.param(SAYS_ITS_PID, ORDERED, False, id="a command"),
        pytest.param(child_of_its_own("os.environ"), ORDERED, False, id="a command's child in a session of its own"),
        pytest.param(child_of_its_own("{}"), ORDERED, False, id="a command's child that dropped the environment"),
    ],
)
def test_a_server_and_its_children_count_and_a_command_and_its_children_do_not(
    script: str, env: Mapping[str, str], is_server: bool
) -> None:
    with process(script, env) as pid:
        assert counts(pid) is is_server


def test_neither_the_agent_nor_a_writer_outside_of_its_pid_namespace_counts() -> None:
    assert not counts(os.getpid())
    assert not counts(0)


def test_a_server_whose_writes_follow_those_of_a_command_counts() -> None:
    asking: list[int] = []
    writers = Writers(agent=os.getpid(), asking=lambda: asking[-1])
    with process(SAYS_ITS_PID, ORDERED) as command, process(SAYS_ITS_PID, {}) as server:
        for pid, wrote in ((command, False), (command, False), (server, True), (command, True)):
            asking.append(pid)
            writers.note()
            assert writers.server_wrote is wrote
