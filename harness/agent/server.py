"""The server of a node and its processes: started, stopped, continued, killed, found, and their ends reported.

*Server.*  The agent starts, stops, continues and kills it, and reports its end without a request.

Theory.  A server is a leader, which the agent started, and its descendants (`children.ProcessTree`).  STOP, CONT and
KILL apply to all of them.  TERM goes to the leader's group only: it requests an orderly end, and a server whose
children have their own sessions ends them in its own order.  The leader's end is the server's end: remaining processes
are killed.

*Named processes.*  A fault may hit one of them alone.

Theory.  A system names its processes (`System.processes`): some are started under their names, by
`system_under_test.own.processes_as_one_server`; others are known by a pattern of their command line.  Each process of
the server belongs to its nearest named ancestor, or to none.  So if both have names, the fault on an agent spares the
database that it started; but it includes the helpers of the agent, which have no names.

A process that was started under its name stays down after its end while `<name>.held` exists, and is started again
after `release`.  A process that is known by a pattern is restarted by its own parent, at the parent's choice of time.
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
"""Signals that the kernel sends a program for its own errors."""
FROZEN_S_MAX = 2.0
"""Seconds that a paused server waits for the fault that is to follow."""
_SHELL_SIGNAL = 128
"""If signal n ended its program, a shell exits with this plus n."""


class ServerProcess:
    """At most one living server.  report: called with the exit event as soon as it has been reaped."""

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
        """Signal the server; nothing is sent if it is dead.

        STOP and CONT return when they have taken effect on every thread of every process.  KILL returns when the leader
        has been reaped and all others have ended: a process that ends slowly might still write.  Raises OSError if the
        signal takes no effect in time (ETIMEDOUT), or if the kernel refuses it (EPERM).
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
        """Pause the server at once, until the harness has injected the fault that is to follow.

        It resumes at the next signal, at `thaw`, or by itself after FROZEN_S_MAX.
        """
        if self._child is not None and self._frozen is None and "STOP" not in self._ordered:
            signal_group(self._child.pid, signal.SIGSTOP)
            self._frozen = asyncio.get_running_loop().call_later(FROZEN_S_MAX, self._go_on)

    def arm(self) -> Callable[[], None]:
        """Return a function that pauses the server, unless `thaw` is ordered before, when the fault is no longer
        awaited.
        """
        ordered = self._thaws

        def freeze() -> None:
            if self._thaws == ordered:
                self.freeze()

        return freeze

    def thaw(self) -> None:
        """Resume a server that `freeze` has paused, and disarm every `arm` that would pause it."""
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
        """Send SIGKILL and return: a process inside a held disk operation ends only when the disk releases it."""
        if self._child is not None:
            self._ordered.add("KILL")
            signal_group(self._child.pid, signal.SIGSTOP)
            self._tree.kill()

    def signal_named(self, process: str, name: str, patterns: Mapping[str, str]) -> None:
        """Signal one named process of the server, or RELEASE it from the effect of an earlier signal
        (`named_processes`).

        A release of a dead server is a no-op.  Raises OSError if there is no such process, or if the signal takes no
        effect.
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
        """See `NamedProcesses.state`; a dead server has no living process."""
        self._children.reap()
        return self._named.state(process, patterns)

    def processes(self) -> set[int]:
        """Return every living process of the server; empty if it is dead."""
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
        """Return whether the end was ordered.  A server may exit with any status after TERM.  But it must not crash,
        even if a shell started it.
        """
        if status >= 0:
            return "TERM" in self._ordered and status - _SHELL_SIGNAL not in _CRASHES
        return any(name in self._ordered and status == -_SIGNALS[name] for name in ("TERM", "KILL"))


ProcessNames = Mapping[str, str]
"""Name of a process -> a regular expression of its command line, "" for one that was started under its name."""


class NamedProcesses:
    """Named processes of one server. tree: its processes; the leader never belongs to a named process."""

    def __init__(self, folder: str, tree: ProcessTree) -> None:
        """folder: which the server shares with the agent, "" for none; its old content is removed."""
        self._tree = tree
        self._ended: dict[str, set[tuple[int, int]]] = {}
        self._folder = Path(folder) if folder else None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)

    def state(self, name: str, names: ProcessNames) -> dict[str, bool]:
        """Return lives, stopped (all of it), held (it stays down until `release`), ended (all that the last order
        ended).
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
        """Send STOP, CONT, KILL or TERM, and return when it has taken effect, except for TERM, whose effect `state`
        shows.

        Raises OSError: ESRCH if there is no such process, ETIMEDOUT if the signal takes no effect in time.
        """
        members = self._part(name, names)
        if number == signal.SIGCONT:
            send(members, number)
            self._await(lambda: settled(self._part(name, names), number), name, "go on")
            return
        if not members:
            raise OSError(errno.ESRCH, f"no process {name!r} lives here")
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
        """Resume the process, and restart it if it was held down.  Raises OSError if it does not start."""
        if self._folder is None or name not in names:
            return
        self.signal(name, signal.SIGCONT, names)
        if not self._held(name).exists():
            return
        if self._part(name, names):  # it was ordered to end and still runs
            self.signal(name, signal.SIGKILL, names)
        self._held(name).unlink()
        os.kill(self._tree.leader, signal.SIGUSR1)
        self._await(lambda: self._pid(name) is not None, name, "start again")

    def _has_ended(self, name: str) -> bool:
        """Return whether all that the last order ended has ended, and its parent knows."""
        last = self._ended.get(name, set())
        return bool(last) and self._pid(name) is None and all(started_at(pid) != started for pid, started in last)

    def _stop_all(self, name: str, names: ProcessNames) -> set[int]:
        """Stop every process of the part, including new ones, and return them."""
        members: set[int] = set()

        def all_stopped() -> bool:
            """Return whether two successive looks found the same processes, and all of them stopped."""
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
        """Return the process id of a process that was started under its name."""
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
