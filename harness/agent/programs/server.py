"""The one server of a node: started, stopped, continued, killed, and its end reported without a request.

Theory.  A server is a leader, which the agent started, and its descendants (`process_tree`).  STOP, CONT and KILL mean
all of them.  TERM goes to the leader's group only: it asks for an orderly end, and a server that gave its children
sessions of their own ends them in its own order.  The leader's end is the server's end: what remains is killed.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.agent.programs.children import (
    Child,
    Children,
    environment,
    signal_group,
    wait_until,
)
from harness.agent.programs.commands import oom_kills
from harness.agent.programs.named_processes import NamedProcesses, ProcessNames
from harness.agent.programs.process_tree import MARK, ProcessTree
from system_under_test.own.processes_as_one_server import CONTROL

_SIGNALS = {"STOP": signal.SIGSTOP, "CONT": signal.SIGCONT, "KILL": signal.SIGKILL, "TERM": signal.SIGTERM}
_CRASHES = frozenset(
    {signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS}
)
"""Signals that a program gets for its own mistakes."""
_SHELL_SIGNAL = 128
"""A shell whose program was ended by signal n exits with this plus n."""


class ServerProcess:
    """At most one living server.  report: called with the exit event as soon as it has been reaped."""

    def __init__(self, children: Children, report: Callable[[dict[str, Any]], None]) -> None:
        self._children = children
        self._report = report
        self._child: Child | None = None
        self._tree = ProcessTree("")
        self._named = NamedProcesses()
        self._ordered: set[str] = set()
        self._oom_kills_before = 0

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: str) -> int:
        """Returns the pid.  Raises OSError if one is running already, if processes of the last one do not end, or if
        argv cannot be executed."""
        self._children.reap()
        if self._child is not None:
            raise OSError(errno.EBUSY, f"a server is already running here (pid {self._child.pid})")
        self._await_end()
        self._ordered = set()
        self._oom_kills_before = oom_kills()
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        tree = ProcessTree(mark)
        self._named.use(env.get(CONTROL, ""))
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        with Path(output).open("ab") as log:
            self._child = self._children.start(
                argv,
                self._ended,
                lambda _: tree.kill(),
                stdout=log,
                stderr=log,
                env=environment({**env, MARK: mark}),
            )
        tree.remember(self._child.pid)
        self._tree = tree
        return self._child.pid

    def signal(self, name: str) -> None:
        """Signal the server; nothing is sent if it is dead.

        STOP and CONT return when every thread of every process has obeyed.  KILL returns when the leader has been
        reaped and all others have ended: one that dies slowly might still write.  Raises OSError if they do not obey
        in time (ETIMEDOUT), or if the kernel refuses a signal (EPERM).
        """
        number = _SIGNALS[name]
        self._children.reap()  # a death that came before the order was not ordered
        child = self._child
        if child is None:
            if name == "KILL":
                self._await_end()
            return
        self._ordered.add(name)
        if name == "KILL":
            signal_group(child.pid, signal.SIGSTOP)  # at once: the look at the tree that comes first takes a while
            self._await_end()
            return
        signal_group(child.pid, number)
        if name == "TERM":
            return
        self._tree.signal(number)
        if not wait_until(lambda: self._has_died(child) or self._tree.settle(number)):
            raise OSError(errno.ETIMEDOUT, f"the server (pid {child.pid}) did not obey SIG{name}")

    def kill_without_waiting(self) -> None:
        """Send SIGKILL and return: a process inside a disk operation that is held ends only when it is let go."""
        if self._child is not None:
            self._ordered.add("KILL")
            signal_group(self._child.pid, signal.SIGSTOP)
            self._tree.kill()

    @property
    def pid(self) -> int | None:
        """Of the living server; None if there is none."""
        return None if self._child is None else self._child.pid

    def signal_named(self, process: str, name: str, names: ProcessNames) -> None:
        """Signal one named process of the server, or RELEASE what an earlier signal did to it (`named_processes`).

        A release of a dead server is a no-op.  Raises OSError if there is no such process, or if it does not obey."""
        self._children.reap()
        if self._child is None:
            if name == "RELEASE":
                return
            raise OSError(errno.ESRCH, "the server is dead, and all its processes with it")
        if name == "RELEASE":
            self._named.release(process, names, self._tree, self._child.pid)
        else:
            self._named.signal(process, _SIGNALS[name], names, self._tree, self._child.pid)

    def state_named(self, process: str, names: ProcessNames) -> dict[str, bool]:
        """See `NamedProcesses.state`; nothing lives of a dead server."""
        self._children.reap()
        leader = self._child.pid if self._child else 0
        return self._named.state(process, names, self._tree, leader)

    def processes(self) -> set[int]:
        """Every living process of the server; empty if it is dead."""
        return set() if self._child is None else self._tree.look()

    def state(self) -> str:
        """ "running", "stopped" or "dead"."""
        self._children.reap()
        if self._child is None:
            return "dead"
        return "stopped" if self._tree.is_stopped() else "running"

    def _has_died(self, child: Child) -> bool:
        self._children.reap()
        return self._child is not child

    def _await_end(self) -> None:
        """Kill what is left of the server until nothing is.  Raises OSError (ETIMEDOUT) if a process does not end."""
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
        """A server may exit with any status after TERM.  But it must not crash, also not below a shell."""
        if status >= 0:
            return "TERM" in self._ordered and status - _SHELL_SIGNAL not in _CRASHES
        return any(name in self._ordered and status == -_SIGNALS[name] for name in ("TERM", "KILL"))
