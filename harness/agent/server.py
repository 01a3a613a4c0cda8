"""The server of a node and its processes: start, stop, continue and kill them, and report the end of the server.

*Server.*  The agent reports the end of the server without a request.

Theory.  A server consists of a leader, which the agent started, and its descendants (`children.ProcessTree`).  STOP,
CONT and KILL apply to all of them.  TERM requests an orderly end and goes only to the leader's process group, because a
server whose children have their own sessions ends them in its own order.  When the leader ends, the server has ended,
and remaining processes are killed.

*Named processes.*  Processes of a server that a fault may affect alone.

Theory.  A system names its processes (`System.processes`).  Some are started under their names, by
`system_under_test.own.processes_as_one_server`; others are identified by a pattern of their command line.  Each process
of the server belongs to its nearest named ancestor, or to none.  For example, a supervisor and the database that it
started both have names, and the supervisor has helpers without names: then a fault of the supervisor includes the
helpers and spares the database.

A process that was started under its name is not restarted after its end while the file `<name>.held` exists; `release`
restarts it.  A process that is identified by a pattern is restarted by its own parent, whenever the parent does so.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.agent.children import (
    MARK,
    Child,
    Children,
    ProcessTree,
    is_stopped,
    oom_kills,
    send,
    settled,
    signal_group,
    started_at,
    wait_until,
)
from system_under_test.own.processes_as_one_server import CONTROL
from system_under_test.subject import ProcessState

_SIGNALS = {"STOP": signal.SIGSTOP, "CONT": signal.SIGCONT, "KILL": signal.SIGKILL, "TERM": signal.SIGTERM}
_CRASHES = frozenset(
    {signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS}
)
"""Signals that the kernel sends to a program because of an error in the program."""
FROZEN_S_MAX = 2.0
"""Maximum seconds that `freeze` pauses a server until the harness injects the fault."""
_SHELL_SIGNAL = 128
"""If a signal ended the program, a shell exits with this status plus the signal's number."""


class ServerProcess:
    """The server of a node, of which at most one is alive.

    report: called with the exit event as soon as the server has been reaped"""

    def __init__(self, children: Children, report: Callable[[dict[str, Any]], None]) -> None:
        self._children = children
        self._report = report
        self._child: Child | None = None
        self._tree = ProcessTree("")
        self._named = NamedProcesses("", self._tree)
        self._ordered: set[str] = set()
        self._oom_kills_before = 0
        self._frozen: asyncio.TimerHandle | None = None
        self._thaws = 0

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: str) -> int:
        """Start the server and return its pid.

        output: file to which stdout and stderr are appended
        Raises OSError if a server is already running, if processes of the last server do not end, or if argv cannot be
        executed."""
        self._children.reap()
        if self._child is not None:
            raise OSError(errno.EBUSY, f"a server is already running here (pid {self._child.pid})")
        self._await_end()
        self._ordered = set()
        self._oom_kills_before = oom_kills()
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        tree = ProcessTree(mark)
        self._named = NamedProcesses(env.get(CONTROL, ""), tree)
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        with Path(output).open("ab") as log:
            self._child = self._children.start(
                argv,
                self._ended,
                lambda _: tree.kill(),
                stdout=log,
                stderr=log,
                env={**os.environ, **env, MARK: mark},
            )
        tree.begin(self._child.pid)
        self._tree = tree
        return self._child.pid

    def signal(self, name: str) -> None:
        """Signal the server, or do nothing if the server is dead.

        STOP and CONT return when they have taken effect on every thread of every process.  KILL returns when the leader
        has been reaped and all other processes have ended, because a process that ends slowly might still write.
        Raises OSError if the signal takes no effect in time (ETIMEDOUT), or if the kernel refuses it (EPERM).
        """
        number = _SIGNALS[name]
        self._thaws_no_more()
        self._children.reap()  # a death before the order was not caused by the order
        child = self._child
        if child is None:
            if name == "KILL":
                self._await_end()
            return
        self._ordered.add(name)
        if name == "CONT":
            self._ordered.discard("STOP")
        if name == "KILL":
            signal_group(child.pid, signal.SIGSTOP)  # stop first, because walking the process tree takes a while
            self._await_end()
            return
        signal_group(child.pid, number)
        if name == "TERM":
            return
        self._tree.signal(number)
        if not wait_until(lambda: self._has_died(child) or self._tree.settle(number)):
            raise OSError(errno.ETIMEDOUT, f"the server (pid {child.pid}) did not obey SIG{name}")

    def freeze(self) -> None:
        """Pause the server at once, so that the harness can inject a fault at this point of its execution.

        The server resumes at the next signal, at `thaw`, or after FROZEN_S_MAX.
        """
        if self._child is not None and self._frozen is None and "STOP" not in self._ordered:
            signal_group(self._child.pid, signal.SIGSTOP)
            self._frozen = asyncio.get_running_loop().call_later(FROZEN_S_MAX, self._go_on)

    def arm(self) -> Callable[[], None]:
        """Return a function that calls `freeze`, but does nothing if `thaw` has been called in between, because the
        harness then no longer waits for the line.
        """
        ordered = self._thaws

        def freeze() -> None:
            if self._thaws == ordered:
                self.freeze()

        return freeze

    def thaw(self) -> None:
        """Resume a server that `freeze` has paused, and disable all functions that `arm` has returned."""
        self._thaws += 1
        self._go_on()

    def _go_on(self) -> None:
        if self._thaws_no_more() and self._child is not None:
            signal_group(self._child.pid, signal.SIGCONT)

    def _thaws_no_more(self) -> bool:
        frozen, self._frozen = self._frozen, None
        if frozen is not None:
            frozen.cancel()
        return frozen is not None

    def kill_without_waiting(self) -> None:
        """Send SIGKILL to all processes and return at once.  A process inside a waiting disk operation ends only when
        the operation returns."""
        if self._child is not None:
            self._ordered.add("KILL")
            signal_group(self._child.pid, signal.SIGSTOP)
            self._tree.kill()

    def signal_named(self, process: str, name: str, patterns: Mapping[str, str]) -> None:
        """Signal one named process of the server, or undo the effect of an earlier signal (RELEASE).

        RELEASE does nothing if the server is dead.  Raises OSError if there is no such process, or if the signal takes
        no effect.
        """
        self._children.reap()
        if self._child is None:
            if name == "RELEASE":
                return
            raise OSError(errno.ESRCH, "the server is dead, and all its processes with it")
        if name == "RELEASE":
            self._named.release(process, patterns)
        else:
            self._named.signal(process, _SIGNALS[name], patterns)

    def state_named(self, process: str, patterns: Mapping[str, str]) -> dict[str, bool]:
        """Return the state of one named process: see `NamedProcesses.state`."""
        self._children.reap()
        return self._named.state(process, patterns)

    def processes(self) -> set[int]:
        """Return the pids of all living processes of the server; empty if it is dead."""
        return set() if self._child is None else self._tree.look()

    def state(self) -> ProcessState:
        """Return "running", "stopped" or "dead"."""
        self._children.reap()
        if self._child is None:
            return "dead"
        return "stopped" if self._tree.is_stopped() else "running"

    def _has_died(self, child: Child) -> bool:
        self._children.reap()
        return self._child is not child

    def _await_end(self) -> None:
        """Kill remaining processes of the server until there are none.  Raises OSError (ETIMEDOUT) if a process does
        not end.
        """
        if not wait_until(self._is_gone):
            left = ", ".join(map(str, sorted(self._tree.look())))
            raise OSError(errno.ETIMEDOUT, f"processes of the killed server do not end (pid {left})")

    def _is_gone(self) -> bool:
        killed = self._tree.kill()
        self._children.reap()
        return self._child is None and not killed

    def _ended(self, status: int) -> None:
        child, self._child = self._child, None
        assert child is not None
        self._report(
            {
                "event": "exit",
                "pid": child.pid,
                "monotonic_ns": time.monotonic_ns(),
                "status": status,
                "ordered": self._was_ordered(status),
                "oom_kills": oom_kills() - self._oom_kills_before,
            }
        )

    def _was_ordered(self, status: int) -> bool:
        """Return True if the harness ordered this end.  After TERM a server may exit with any status except that of a
        crash, which a shell that started the server reports as _SHELL_SIGNAL plus the signal.
        """
        if status >= 0:
            return "TERM" in self._ordered and status - _SHELL_SIGNAL not in _CRASHES
        return any(name in self._ordered and status == -_SIGNALS[name] for name in ("TERM", "KILL"))


ProcessNames = Mapping[str, str]
"""Name of a process -> regular expression of its command line; "" if the process was started under its name."""


class NamedProcesses:
    """Named processes of one server.  The leader never belongs to a named process."""

    def __init__(self, folder: str, tree: ProcessTree) -> None:
        """Remove the old content of the folder, and create it.

        folder: folder that the server shares with the agent, or "" for none
        tree: all processes of the server"""
        self._tree = tree
        self._ended: dict[str, set[tuple[int, int]]] = {}
        self._folder = Path(folder) if folder else None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)

    def state(self, name: str, names: ProcessNames) -> dict[str, bool]:
        """Return the state of a named process.

        lives: True if any process of it is alive
        stopped: True if all its processes are stopped
        held: True if it is not restarted until `release`
        ended: True if all processes that the last order was to end have ended
        """
        if self._folder is None:
            return dict.fromkeys(("lives", "stopped", "held", "ended"), False)
        members = self._part(name, names)
        return {
            "lives": bool(members),
            "stopped": bool(members) and all(map(is_stopped, members)),
            "held": self._held(name).exists(),
            "ended": self._has_ended(name),
        }

    def signal(self, name: str, number: int, names: ProcessNames) -> None:
        """Send STOP, CONT, KILL or TERM to a named process.  Return when the signal has taken effect, but for TERM at
        once; `state` shows the effect of TERM.

        Raises OSError: ESRCH if no such process is alive, ETIMEDOUT if the signal takes no effect in time.
        """
        members = self._part(name, names)
        if number == signal.SIGCONT:
            send(members, number)
            self._await(lambda: settled(self._part(name, names), number), name, "continue")
            return
        if not members:
            raise OSError(errno.ESRCH, f"no process {name!r} is alive here")
        if number == signal.SIGSTOP:
            self._stop_all(name, names)
            return
        if not names[name]:
            self._held(name).touch()
        self._ended[name] = _identities(members)
        if number == signal.SIGKILL:
            members = self._stop_all(name, names)
            self._ended[name] = _identities(members)
            send(members, signal.SIGKILL)
            self._await(lambda: self._has_ended(name), name, "end")
        else:
            parents = self._tree.parents()
            send((pid for pid in members if parents.get(pid) not in members), number)

    def release(self, name: str, names: ProcessNames) -> None:
        """Resume the process, and restart it if an order has ended it.  Raises OSError if it does not start."""
        if self._folder is None or name not in names:
            return
        self.signal(name, signal.SIGCONT, names)
        if not self._held(name).exists():
            return
        if self._part(name, names):  # the process was ordered to end and still runs
            self.signal(name, signal.SIGKILL, names)
        self._held(name).unlink()
        os.kill(self._tree.leader, signal.SIGUSR1)
        self._await(lambda: self._pid(name) is not None, name, "start again")

    def _has_ended(self, name: str) -> bool:
        """Return True if all processes that the last order was to end have ended, and their parent has noticed it."""
        last = self._ended.get(name, set())
        return bool(last) and self._pid(name) is None and all(started_at(pid) != started for pid, started in last)

    def _stop_all(self, name: str, names: ProcessNames) -> set[int]:
        """Stop all processes of a named process, including new ones, and return their pids."""
        members: set[int] = set()

        def all_stopped() -> bool:
            """Return True if two successive looks found the same processes, all of them stopped."""
            nonlocal members
            before, members = members, self._part(name, names)
            return settled(members, signal.SIGSTOP) and members == before

        self._await(all_stopped, name, "stop")
        return members

    def _part(self, name: str, names: ProcessNames) -> set[int]:
        parents, leader = self._tree.parents(), self._tree.leader
        owners = {pid: owner for pid in parents if pid != leader if (owner := _matching(pid, names))}
        for each in names:
            if (pid := self._pid(each)) is not None and pid in parents:
                owners[pid] = each
        return {pid for pid in parents if pid != leader and _owner(pid, parents, owners) == name}

    def _pid(self, name: str) -> int | None:
        """Return the pid of a process that was started under its name; None if it does not run."""
        try:
            return int(self._path_of(f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _held(self, name: str) -> Path:
        return self._path_of(f"{name}.held")

    def _path_of(self, file: str) -> Path:
        if self._folder is None:
            raise FileNotFoundError(errno.ESRCH, "no server was started here")
        return self._folder / file

    @staticmethod
    def _await(condition: Callable[[], bool], name: str, what: str) -> None:
        if not wait_until(condition):
            raise OSError(errno.ETIMEDOUT, f"the process {name} does not {what}")


def _matching(pid: int, names: ProcessNames) -> str:
    """Return the name of the first pattern that the command line of a process matches, "" if none does."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    return next((name for name, pattern in names.items() if pattern and re.search(pattern, line)), "")


def _owner(pid: int, parents: Mapping[int, int], owners: Mapping[int, str]) -> str:
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        if pid in owners:
            return owners[pid]
        seen.add(pid)
        pid = parents[pid]
    return ""


def _identities(pids: Iterable[int]) -> set[tuple[int, int]]:
    return {(pid, started) for pid in pids if (started := started_at(pid)) is not None}
