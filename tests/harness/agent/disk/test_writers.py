"""Whose writes count as the server's: all but those of the agent and of the commands that the harness orders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from harness.agent.children import COMMAND_MARK
from harness.agent.disk_file_system import Writers

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
