"""The agent's children, its commands, all processes of a server, and the kernel's statistics of the machine.

*Children.*  The server, commands, and orphans that the kernel gave to the agent.

Theory.  Only `reap` waits for children; it is called on SIGCHLD.  It first learns which child ended without collecting
it (WNOWAIT).  Until a dead group leader is collected, its process id is not used again, so `reap` can kill the rest of
the group without hitting an unrelated process.  Then `reap` collects the status.  An ended process that the agent did
not start was an orphan, which the agent inherited as PID 1 of a container or as a subreaper.  Orphans are collected
silently.

Every child leads its own session.  So a signal to its group reaches its descendants, and a Ctrl-C at the harness'
terminal reaches none of them.  A child whose descendants start further sessions needs its own function to kill them
(`ProcessTree`).

*Commands.*  Programs that the harness orders; each runs to its end.

*Process tree.*  All processes of a server, which are found and signalled together.

Theory.  A server's children may leave its process group: each backend of PostgreSQL calls setsid().  `killpg` alone
misses them, so a server that the harness calls paused would still write.  No single mark finds every process:

- The parent: a process that forks twice, or whose parent dies, becomes a child of the agent (the subreaper).
- The session: setsid() leaves it.
- A variable in the environment survives both.  But a program may overwrite it (PostgreSQL does, for its title in ps),
  and the kernel hides it if the program changed its user.

So a process belongs to the server if one of these holds:

1. It was seen in the tree before.  Its start time must be the same, because numbers of processes are used again.
2. Its parent or a process of its session belongs to the server.  A number of a session is not used again while the
   session has a member, and a child of the agent starts in a new session.
3. It is a child of the agent and its environment contains the server's own value of `MARK`.  Other children of the
   agent (commands, clients, disks) never have this value.

A process escapes only if it left the session, lost its parent and overwrote its environment before the first look.  An
ordered kill stops every process before it kills any, so no parent dies before its children are known.

/proc is no snapshot: a child can appear after the reader has passed its place.  A stopped process cannot fork.  So once
all processes are stopped, /proc is read again.  The second reading misses a child only if each process of a chain forks
and ends before it is read.

Cost: a look reads one file for each process in /proc (about 15 µs each) and one for each thread of the server.  It also
reads the environment of each child of the agent that is not known.  In a container and in a pid namespace, /proc shows
only the processes inside; on a host reached by ssh, it shows all processes of the host.

*Processors.*  Linux measures how long processes waited for a processor, and how much time a hypervisor took away.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from harness.agent.frames import limit

_PR_SET_CHILD_SUBREAPER = 36
COMMAND_MARK = "KRUCIBLE_COMMAND"
"""Environment variable of every command that the harness orders, and of its descendants.  No server has it."""
COMMAND = f"{COMMAND_MARK}=1"
_STAT_BYTES = 4096
"""Maximum bytes of a process' /proc stat file: 52 numbers and a name of at most 64 bytes."""
_OBEY_S = 10.0
"""Seconds until a signal without visible effect counts as failed; a process may have to wait for its disk or CPU."""


@dataclass(slots=True)
class Child:
    """One process that the agent started.

    ended: called once, after the process was reaped, with its exit status, or minus the number of the signal
    kill_family: called with the pid; sends SIGKILL to the process and all its descendants without waiting.  It is
        called before the process is reaped, because until then the pid identifies the process group.
    """

    process: subprocess.Popen[bytes]
    ended: Callable[[int], None]
    kill_family: Callable[[int], object]

    @property
    def pid(self) -> int:
        return self.process.pid


class Children:
    """Starts children and notices their end.  Used only on the thread that receives SIGCHLD."""

    def __init__(self) -> None:
        self._living: dict[int, Child] = {}

    def start(
        self,
        argv: Sequence[str],
        ended: Callable[[int], None],
        kill_family: Callable[[int], object] | None = None,
        **popen: Any,
    ) -> Child:
        """Start a child.  Raises OSError if argv cannot be executed.

        kill_family: see `Child`; None kills the process group"""
        process = subprocess.Popen(
            list(argv), stdin=popen.pop("stdin", subprocess.DEVNULL), start_new_session=True, **popen
        )
        child = Child(process, ended, kill_family or partial(signal_group, number=signal.SIGKILL))
        self._living[process.pid] = child
        return child

    def reap(self) -> None:
        """Collect every child that has ended, after killing its descendants."""
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
        """Kill and collect every child with its descendants, when the agent ends."""
        for child in list(self._living.values()):
            _kill_family(child)
        deadline = time.monotonic() + 1.0
        while self._living and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.001)


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants, which PID 1 is without this call.  Returns False if the kernel
    refuses."""
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def signal_group(pid: int, number: int) -> None:
    """Signal a whole group; a no-op if the group is empty."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def is_stopped(pid: int) -> bool:
    """Return True if a signal has stopped every living thread of the process; False if no thread lives."""
    states = thread_states(pid)
    return bool(states) and all(state in "Tt" for state in states)


def thread_states(pid: int) -> list[str]:
    """Return the state of each living thread, as a letter of proc(5).  The main thread may end before the others."""
    states = ((stat_of(task) or [b"X"])[0].decode() for task in _threads(Path(f"/proc/{pid}")))
    return [state for state in states if state not in "ZX"]


def stat_of(process: Path | str) -> list[bytes]:
    """Return the fields of a process' /proc stat file from the third field, the state, on.  The first two are omitted,
    because the second may contain any character.

    Empty if the process has been reaped, which the kernel reports when the file is opened (ENOENT) or read (ESRCH)."""
    try:
        descriptor = os.open(f"{process}/stat", os.O_RDONLY)
        try:
            return os.read(descriptor, _STAT_BYTES).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return []


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - called very often


def has_mark(pid: int, mark: str) -> bool:
    """Return True if the environment of a process contains `mark`, in the form `NAME=value`; False if the process has
    ended, or if its environment cannot be read because its user changed."""
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> bool:
    """Poll a condition for at most _OBEY_S, and return True once it holds.  A stop or a continue usually takes effect
    within 0.1 ms, so the first pauses are short."""
    deadline = time.monotonic() + _OBEY_S
    pause_s = 0.00005
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.005)
    return True


def _kill_family(child: Child) -> None:
    """Kill the descendants of a child.  Errors are ignored, because the child must be reaped in any case; the next
    order to kill reports processes that survive.
    """
    with contextlib.suppress(OSError):
        child.kill_family(child.pid)


async def run(
    children: Children, argv: Sequence[str], timeout_s: float, given: bytes = b""
) -> tuple[int, bytes, bytes]:
    """Run a command, and return its exit status (or minus the signal's number), its stdout and its stderr.

    given: bytes for its stdin
    Raises OSError if argv cannot be executed, or if the command runs longer than timeout_s and is killed.
    """
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def note(status: int) -> None:
        if not ended.done():  # after a timeout, no caller waits for the future
            ended.set_result(status)

    with _in_memory(given) as stdin, _in_memory() as stdout, _in_memory() as stderr:
        env = {**os.environ, COMMAND_MARK: "1"}
        child = children.start(argv, note, stdin=stdin, stdout=stdout, stderr=stderr, env=env)
        try:
            status = await asyncio.wait_for(ended, timeout_s)
        except TimeoutError:
            signal_group(child.pid, signal.SIGKILL)
            raise OSError(errno.ETIMEDOUT, f"{argv[0]} did not end within {timeout_s:g} s and was killed") from None
        return status, _content(stdout), _content(stderr)


def _in_memory(content: bytes = b"") -> IO[bytes]:
    """Return a file without a name that uses no disk, because disks may be under fault."""
    file = os.fdopen(os.memfd_create("krucible"), "w+b", 0)
    file.write(content)
    file.seek(0)
    return file


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


class Commands:
    """Commands that the harness orders."""

    def __init__(self, children: Children) -> None:
        self._children = children

    @limit(30.0, beyond="timeout_s")
    async def run(self, argv: Sequence[str], timeout_s: float, given: bytes = b"") -> tuple[tuple[int, int], bytes]:
        """Run a command as `run` does.  Returns its status, the length of its stdout, and its stdout and stderr."""
        status, out, err = await run(self._children, argv, timeout_s, given)
        return (status, len(out)), out + err


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Return the number of processes that the kernel has killed since boot because the machine, or a container on it,
    ran out of memory.

    The kernel counts a kill before it sends the signal.  Before Linux 4.13 it reports no number: returns 0.
    """
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


NOT_KNOWN_S = -1.0
"""Value of a quantity, in seconds, that the kernel of the node does not measure."""


def steal_s() -> float:
    """Return the CPU seconds since boot, over all CPUs, that a hypervisor gave to other guests (field 8 of
    /proc/stat).
    """
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def pressure_s(file: Path = Path("/proc/pressure/cpu")) -> float:
    """Return the seconds since boot in which at least one process of the machine waited for a processor.

    NOT_KNOWN_S if the kernel does not measure it (before Linux 4.20, or without CONFIG_PSI).
    """
    try:
        some = file.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return NOT_KNOWN_S


def of_processes(pids: Iterable[int], proc: Path = Path("/proc")) -> tuple[float, float]:
    """Return (seconds that the living threads of these processes waited for a processor, seconds that they ran).

    NOT_KNOWN_S for both if there is no process, or if the kernel has no schedstat.
    """
    waited_ns = ran_ns = 0
    found = False
    for pid in pids:
        for thread in _threads(proc / str(pid)):
            try:
                ran, waited, _ = (thread / "schedstat").read_text().split()
                ran_ns, waited_ns, found = ran_ns + int(ran), waited_ns + int(waited), True
            except (OSError, ValueError):  # the thread ended meanwhile
                continue
    return (waited_ns / 1e9, ran_ns / 1e9) if found else (NOT_KNOWN_S, NOT_KNOWN_S)


def _threads(process: Path) -> list[Path]:
    """Return the /proc folders of the threads of a process; none if it ended meanwhile."""
    try:
        return list((process / "task").iterdir())
    except OSError:
        return []


MARK = "KRUCIBLE_SERVER"
"""Environment variable of every process of a server; its value belongs to one start of one server."""
_LOOKS = 1000
"""Maximum number of looks of a kill, even if new processes appear faster than they can be stopped."""


@dataclass(frozen=True, slots=True)
class _Process:
    """One reading of a process.

    started: start time in clock ticks since boot.  Together with the pid it identifies one process until a reboot."""

    pid: int
    parent: int
    session: int
    started: int


class ProcessTree:
    """All processes of one server.

    mark: value of `MARK` in the server's environment
    leader: pid of the process that the agent started; 0 before `begin`"""

    def __init__(self, mark: str) -> None:
        self.leader = 0
        self._mark = f"{MARK}={mark}"
        self._known: set[tuple[int, int]] = set()

    def begin(self, leader: int) -> None:
        """Add the newly started leader, which cannot have been reaped yet."""
        self.leader = leader
        if process := _process(leader):
            self._known = {(leader, process.started)}

    def look(self) -> set[int]:
        """Return the living processes of the tree.  A process that has ended and is not yet reaped is excluded."""
        there = {pid: process for pid in pids() if (process := _process(pid))}
        members = {pid for pid, process in there.items() if (pid, process.started) in self._known}
        _add_relatives(members, there.values())
        agent = os.getpid()
        orphans = {pid for pid, process in there.items() if process.parent == agent and pid not in members}
        if marked := {pid for pid in orphans if has_mark(pid, self._mark)}:
            members |= marked
            _add_relatives(members, there.values())
        self._known = {(pid, there[pid].started) for pid in members}
        return {pid for pid in members if thread_states(pid)}

    def parents(self) -> dict[int, int]:
        """Return the living processes of the tree, each with its parent."""
        return {pid: process.parent for pid in self.look() if (process := _process(pid))}

    def signal(self, number: int) -> None:
        """Signal every process once.  Raises PermissionError if the kernel refuses for one process; all others have
        received the signal.
        """
        send(self.look(), number)

    def settle(self, number: int) -> bool:
        """Return True if a SIGSTOP or SIGCONT has taken effect on every process.  Otherwise send it again to the
        processes on which it has not.
        """
        return settled(self.look(), number) and (number == signal.SIGCONT or settled(self.look(), number))

    def is_stopped(self) -> bool:
        """Return True if every thread of every process is stopped; False if no process lives."""
        members = self.look()
        return bool(members) and all(is_stopped(pid) for pid in members)

    def kill(self) -> set[int]:
        """Stop all processes, then send SIGKILL to all, and return their pids.  Does not wait until they have ended.

        Raises PermissionError as `signal` does."""
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


def _add_relatives(members: set[int], there: Iterable[_Process]) -> None:
    """Add to `members` all descendants of members, and all processes of their sessions."""
    sessions: set[int] = set()
    others = list(there)
    grown = True
    while grown:
        sessions |= {process.session for process in others if process.pid in members}
        others = [process for process in others if process.pid not in members]
        relatives = {process.pid for process in others if process.parent in members or process.session in sessions}
        members |= relatives
        grown = bool(relatives)


def settled(members: set[int], number: int) -> bool:
    """Return True if a SIGSTOP or SIGCONT has taken effect on all these processes.  Otherwise send it again to the
    processes on which it has not."""
    wanted = number == signal.SIGSTOP
    others = {pid for pid in members if is_stopped(pid) != wanted}
    send(others, number)
    if wanted:
        _let_vforks_end(others, members - others)
    return not others


def _let_vforks_end(others: Iterable[int], stopped: Iterable[int]) -> None:
    """Continue the children of processes that are in vfork().  Such a parent cannot stop before its child has called
    execve(), and the child may have been stopped first.  The parent's state is D, like that of a process that waits for
    its disk.  So the children of all processes in state D are continued; the next look stops them again.
    """
    if waiting := {pid for pid in others if "D" in thread_states(pid)}:
        children = {pid for pid in stopped if (process := _process(pid)) and process.parent in waiting}
        send(children, signal.SIGCONT)


def started_at(pid: int) -> int | None:
    """Return the start time of a living process in clock ticks since boot; None if the process has ended."""
    process = _process(pid) if thread_states(pid) else None
    return process.started if process else None


def send(pids: Iterable[int], number: int) -> None:
    """Signal all these processes, except those that have ended.  Raises the first PermissionError afterwards."""
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


def _process(pid: int) -> _Process | None:
    """Read a process from /proc.  Returns None if it has been reaped."""
    fields = stat_of(f"/proc/{pid}")
    return _Process(pid, int(fields[1]), int(fields[3]), int(fields[19])) if fields else None
