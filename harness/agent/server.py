"""The one server process of a node: started, stopped, continued, killed, and its end reported without a request."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.agent.children import (
    Child,
    Children,
    environment,
    group_has_members,
    is_stopped,
    signal_group,
    wait_until,
)

_SIGNALS = {"STOP": signal.SIGSTOP, "CONT": signal.SIGCONT, "KILL": signal.SIGKILL, "TERM": signal.SIGTERM}


class ServerProcess:
    """At most one living server.  report: called with the exit event as soon as it has been reaped."""

    def __init__(self, children: Children, report: Callable[[dict[str, Any]], None]) -> None:
        self._children = children
        self._report = report
        self._child: Child | None = None
        self._group: int | None = None
        self._ordered: set[str] = set()

    def start(self, argv: Sequence[str], env: Mapping[str, str], output: str) -> int:
        """Returns the pid.  Raises OSError if one is running already or argv cannot be executed."""
        self._children.reap()
        if self._child is not None:
            raise OSError(errno.EBUSY, f"a server is already running here (pid {self._child.pid})")
        self._ordered = set()
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        with Path(output).open("ab") as log:
            self._child = self._children.start(argv, self._ended, stdout=log, stderr=log, env=environment(env))
        self._group = self._child.pid
        return self._child.pid

    def signal(self, name: str) -> None:
        """Signal the whole group; nothing is sent if the server is dead.

        STOP and CONT return when every thread has obeyed.  KILL returns when the process and all of its group have
        been reaped: one that dies slowly might still write.  Raises OSError (ETIMEDOUT) if they do not obey in time.
        """
        number = _SIGNALS[name]
        self._children.reap()  # a death that came before the order was not ordered
        child = self._child
        if child is None:
            if name == "KILL" and not wait_until(self._has_no_member):
                raise OSError(errno.ETIMEDOUT, f"a process of the dead server (group {self._group}) does not end")
            return
        self._ordered.add(name)
        signal_group(child.pid, number)
        obeyed = {
            "STOP": lambda: self._child is not child or is_stopped(child.pid),
            "CONT": lambda: self._child is not child or not is_stopped(child.pid),
            "KILL": self._has_no_member,
            "TERM": lambda: True,
        }[name]
        if not wait_until(obeyed):
            raise OSError(errno.ETIMEDOUT, f"the server (pid {child.pid}) did not obey SIG{name}")

    def kill_without_waiting(self) -> None:
        """Send SIGKILL and return: a process inside a disk operation that is held ends only when it is let go."""
        if self._child is not None:
            self._ordered.add("KILL")
            signal_group(self._child.pid, signal.SIGKILL)

    @property
    def pid(self) -> int | None:
        """Of the living server; None if there is none."""
        return None if self._child is None else self._child.pid

    def state(self) -> str:
        """ "running", "stopped" or "dead"."""
        self._children.reap()
        if self._child is None:
            return "dead"
        return "stopped" if is_stopped(self._child.pid) else "running"

    def _has_no_member(self) -> bool:
        self._children.reap()
        return self._child is None and (self._group is None or not group_has_members(self._group))

    def _ended(self, status: int) -> None:
        child, self._child = self._child, None
        assert child is not None
        ordered = "TERM" in self._ordered or ("KILL" in self._ordered and status == -signal.SIGKILL)
        self._report(
            {
                "event": "exit",
                "pid": child.pid,
                "monotonic_ns": time.monotonic_ns(),
                "status": status,
                "ordered": ordered,
            }
        )
