"""All processes of one server, found and signalled together.

Theory.  A server's children may leave its process group: each backend of PostgreSQL calls setsid().  `killpg` alone
misses them, and a server that the harness calls paused goes on writing.  No single mark finds every process:

- The parent: a process that forks twice, or whose parent dies, becomes a child of the agent (the subreaper).
- The session: setsid() leaves it.
- A variable in the environment survives both.  But a program may overwrite it (PostgreSQL does, for its title in ps),
  and the kernel hides it if the program changed its user.

So a process belongs to the server if one of these holds:

1. It was seen in the tree before.  Its start time must be the same, because numbers of processes are used again.
2. Its parent or a process of its session belongs to the server.  A number of a session is not used again while the
   session has a member, and a child of the agent starts in a new session.
3. It is a child of the agent and has the server's own value of `MARK` in its environment.  Other children of the agent
   (commands, clients, disks) never have it.

Only one process escapes: it left the session, lost its parent, overwrote its environment, and did all this before the
first look.  An ordered kill stops each process before it kills one.  So no parent dies before its children are known.

/proc is no snapshot: a child can appear behind the reader.  A stopped process cannot fork.  So a stop looks again after
all were seen stopped.  It misses only a chain of processes that each fork and end before the reader comes to them.

Cost: a look reads one file for each process in /proc (about 15 µs each) and one for each thread of the server.  It also
reads the environment of each child of the agent that is not known.  A container and a run on namespaces show only
their own processes; a machine reached by SSH shows all of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.agent.programs.children import is_stopped, thread_states

MARK = "KRUCIBLE_SERVER"
"""Environment variable of every process of a server; its value belongs to one start of one server."""
_STAT_BYTES = 4096
"""More than /proc's stat ever has: 52 numbers and a name of at most 64 bytes."""
_LOOKS = 1000
"""A kill looks no more often, even if new processes appear faster than they can be stopped."""


@dataclass(frozen=True, slots=True)
class _Process:
    """started: in clock ticks since boot.  With the pid it names one process for ever."""

    pid: int
    parent: int
    session: int
    started: int


class ProcessTree:
    """mark: the value of `MARK` in the server's environment."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()
        self._known: set[tuple[int, int]] = set()

    def remember(self, pid: int) -> None:
        """Add a process that cannot have been reaped yet, such as the leader after its start."""
        if process := _process(pid):
            self._known = self._known | {(pid, process.started)}

    def look(self) -> set[int]:
        """The living processes of the tree.  One that has ended and is not yet reaped is left out."""
        there = {process.pid: process for process in _processes()}
        members = {pid for pid, process in there.items() if (pid, process.started) in self._known}
        _add_relatives(members, there.values())
        agent = os.getpid()
        orphans = {pid for pid, process in there.items() if process.parent == agent and pid not in members}
        if marked := {pid for pid in orphans if self._has_mark(pid)}:
            members |= marked
            _add_relatives(members, there.values())
        self._known = {(pid, there[pid].started) for pid in members}
        return {pid for pid in members if thread_states(pid)}

    def parents(self) -> dict[int, int]:
        """The living processes of the tree, each with its parent."""
        return {pid: process.parent for pid in self.look() if (process := _process(pid))}

    def signal(self, number: int) -> None:
        """Signal every process once.  Raises PermissionError if the kernel refuses one; all others have got it."""
        send(self.look(), number)

    def settle(self, number: int) -> bool:
        """Whether every process has obeyed a SIGSTOP, or a SIGCONT.  Sends it again to those that have not."""
        return self._settle_once(number) and (number == signal.SIGCONT or self._settle_once(number))

    def is_stopped(self) -> bool:
        """Whether every thread of every process is stopped; False if none lives."""
        members = self.look()
        return bool(members) and all(is_stopped(pid) for pid in members)

    def kill(self) -> set[int]:
        """Stop all, then send SIGKILL to all, and return them.  Does not wait for their end.

        Raises PermissionError like `signal`."""
        stopped: set[int] = set()
        refused: PermissionError | None = None
        for _ in range(_LOOKS):
            if not (new := self.look() - stopped):
                break
            stopped |= new
            try:
                send(new, signal.SIGSTOP)
            except PermissionError as refusal:
                refused = refusal
        send(stopped, signal.SIGKILL)
        if refused is not None:
            raise refused
        return stopped

    def _settle_once(self, number: int) -> bool:
        wanted = number == signal.SIGSTOP
        members = self.look()
        others = {pid for pid in members if is_stopped(pid) != wanted}
        send(others, number)
        if wanted:
            let_vforks_end(others, members - others)
        return not others

    def _has_mark(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or its user changed
            return False


def _add_relatives(members: set[int], there: Iterable[_Process]) -> None:
    """Add descendants, and processes of the same session, until there are no more."""
    sessions: set[int] = set()
    others = list(there)
    grown = True
    while grown:
        sessions |= {process.session for process in others if process.pid in members}
        others = [process for process in others if process.pid not in members]
        relatives = {process.pid for process in others if process.parent in members or process.session in sessions}
        members |= relatives
        grown = bool(relatives)


def let_vforks_end(others: Iterable[int], stopped: Iterable[int]) -> None:
    """A parent inside vfork() cannot stop before its child has called execve(), and the child may have been stopped
    first.  Such a parent looks like one that waits for its disk (D).  So continue the children of both; the next look
    stops them again."""
    if waiting := {pid for pid in others if "D" in thread_states(pid)}:
        children = {pid for pid in stopped if (process := _process(pid)) and process.parent in waiting}
        send(children, signal.SIGCONT)


def started_at(pid: int) -> int | None:
    """When a living process was started, in clock ticks since boot; with the pid it names one process for ever."""
    process = _process(pid) if thread_states(pid) else None
    return process.started if process else None


def send(pids: Iterable[int], number: int) -> None:
    """Signal each but what has ended meanwhile.  Raises the first PermissionError after all were tried."""
    refused: PermissionError | None = None
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
        except PermissionError as refusal:
            refused = refused or refusal
    if refused is not None:
        raise refused


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - Path.iterdir costs as much as reading the files
        if name.isdigit() and (process := _process(int(name))):
            yield process


def _process(pid: int) -> _Process | None:
    """None if it has been reaped."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
        try:
            fields = os.read(descriptor, _STAT_BYTES).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return _Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))
