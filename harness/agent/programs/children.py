"""The agent's child processes: the one server, commands, and orphans that were left to it.

Theory.  Only one place waits for children: `reap`, called on SIGCHLD.  It first *looks* at which child ended
(WNOWAIT).  While the dead leader of a group still holds its number, the rest of the group can be killed without
hitting a stranger.  Only then it collects the status.  A process that ends and is not known here was an orphan: the
agent is PID 1 of its container, and a subreaper elsewhere.  It is collected silently.

Every child leads a session of its own.  So a signal to its group reaches what it started, and a Ctrl-C at the harness'
terminal reaches neither.  A child that starts sessions of its own brings its own way to kill them
(`process_tree`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
COMMAND_MARK = "KRUCIBLE_COMMAND"
"""Environment variable of every command that the harness orders, and of what it starts.  No server has it."""
_OBEY_S = 10.0
"""How long a signal may take to show before it counts as failed; a process may have to wait for its disk or its CPU."""


@dataclass(slots=True)
class Child:
    """One process we started.  ended: called once, after it was reaped, with its status (minus the signal).
    kill_family: sends SIGKILL to it and to all it started, and does not wait; called with its pid before it is reaped,
    because its own number names its family until then."""

    process: subprocess.Popen[bytes]
    ended: Callable[[int], None]
    kill_family: Callable[[int], object]

    @property
    def pid(self) -> int:
        return self.process.pid


class Children:
    """Starts children and notices their end.  Lives on one thread, the one that receives SIGCHLD."""

    def __init__(self) -> None:
        self._living: dict[int, Child] = {}

    def start(
        self,
        argv: Sequence[str],
        ended: Callable[[int], None],
        kill_family: Callable[[int], object] | None = None,
        **popen: Any,
    ) -> Child:
        """kill_family: see `Child`; without it, the group is killed.  Raises OSError if argv cannot be executed."""
        process = subprocess.Popen(
            list(argv), stdin=popen.pop("stdin", subprocess.DEVNULL), start_new_session=True, **popen
        )
        child = Child(process, ended, kill_family or _kill_group)
        self._living[process.pid] = child
        return child

    def reap(self) -> None:
        """Collect every child that has ended."""
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            child = self._living.pop(seen.si_pid, None)
            if child is not None:
                _kill_family(child)
            _, raw = os.waitpid(seen.si_pid, 0)
            if child is not None:
                child.process.returncode = os.waitstatus_to_exitcode(raw)
                child.ended(child.process.returncode)

    def kill_all(self) -> None:
        """Kill every child with its family and collect them; used when the agent ends."""
        for child in list(self._living.values()):
            _kill_family(child)
        deadline = time.monotonic() + 1.0
        while self._living and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.001)


def adopt_orphans() -> bool:
    """Become the parent of descendants whose parent died, as PID 1 is anyway.  False where the kernel refuses."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def signal_group(pid: int, number: int) -> None:
    """Signal a whole group; a no-op if the group is empty."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def is_stopped(pid: int) -> bool:
    """Whether every living thread of the process is stopped by a signal; False if none lives."""
    states = thread_states(pid)
    return bool(states) and all(state in "Tt" for state in states)


def thread_states(pid: int) -> list[str]:
    """The state of each living thread, as a letter of proc(5).  The main thread may end before the others."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [state for task in tasks if (state := _state_letter(task / "stat")) not in ("", "Z", "X")]


def wait_until(condition: Callable[[], bool]) -> bool:
    """Poll for at most _OBEY_S; a stop or continue usually shows within 0.1 ms."""
    deadline = time.monotonic() + _OBEY_S
    pause_s = 0.00005
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.005)
    return True


def environment(added: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, **added}


def _kill_family(child: Child) -> None:
    """A failure must not keep the child from being reaped.  The next order to kill reports what lives on."""
    with contextlib.suppress(OSError):
        child.kill_family(child.pid)


def _kill_group(pid: int) -> None:
    signal_group(pid, signal.SIGKILL)


def _state_letter(stat: Path) -> str:
    """The third field of /proc's stat; the second is a name in parentheses that may hold anything.  "" if the thread
    has ended: the kernel says so at the opening (ENOENT) or at the reading (ESRCH)."""
    try:
        return stat.read_bytes().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""
