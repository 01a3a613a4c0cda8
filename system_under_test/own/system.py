"""What a system of your own derives from.  Only `start` must be given; everything else has a default.

Without `status` no leader is known: no fault that names the leader is dealt, and nothing waits for an election.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from system_under_test.own.client import Client
from system_under_test.subject import FAILOVER_S, Complaint, Completed, Needs, Node, NodeStatus, ProcessState

Command = str | Sequence[str]
"""A line for the shell, or the words of a command.  It runs in the node's data directory."""

_FIND_IN_WHEELS = """
import os, sys
print(next(path for path in (os.path.join(folder, sys.argv[1]) for folder in sys.path) if os.path.isfile(path)))
"""


class OwnNode:
    """One node as the author of a system sees it.  All paths are relative to `data_dir`, the disk under test.

    index: 0 for the first node.  starts: how often its server was started before, 0 at the first start.
    python: the words that start the Python which has the wheels of `needs`.
    """

    def __init__(self, node: Node, index: int) -> None:
        self.node = node
        self.name = node.name
        self.address = node.address
        self.data_dir = node.data_dir
        self.log_dir = node.log_dir
        self.index = index
        self.python = node.python
        self.starts = 0
        self.problem = ""
        """Why the last `ask` or `output` gave nothing, in words; "" if it gave something."""

    async def run(self, command: Command, *, timeout_s: float = 30.0) -> Completed:
        """Run a command on the node to its end.  Raises OSError if it takes longer."""
        return await self.node.run(self.words(command), timeout_s=timeout_s)

    async def output(self, command: Command, *, timeout_s: float = 5.0) -> str:
        """What a command prints; "" if it fails, and `problem` says why."""
        name = command if isinstance(command, str) else shlex.join(command)
        return await self._printed(command, f"`{name[:60]}`", timeout_s)

    async def _printed(self, command: Command, what: str, timeout_s: float) -> str:
        try:
            done = await self.run(command, timeout_s=timeout_s)
        except OSError as problem:
            self.problem = f"{what}: {problem.strerror or problem}"
            raise
        printed = done.stdout.decode(errors="replace")
        if done.status == 0 and printed:
            self.problem = ""
            return printed
        words = done.stderr.decode(errors="replace").strip().splitlines()
        said = words[-1].rpartition(": ")[2][:120] if words else ""
        self.problem = f"{what}: {said or ('no answer' if done.status == 0 else f'status {done.status}')}"
        return printed if done.status == 0 else ""

    async def write(self, path: str, text: str, /, **values: object) -> None:
        """Write a file.  With values, what stands in braces is filled in: {name} by `name=…`, {node.address} always."""
        if values:
            try:
                text = text.format(**({"node": self} | values))
            except (KeyError, ValueError, IndexError, AttributeError) as problem:
                why = f"{path} cannot be filled in ({type(problem).__name__}: {problem})"
                raise ValueError(
                    f"{why}: it is filled in by str.format, so write {{{{ and }}}} for its own braces"
                ) from None
        await self.node.write(self.path(path), text.encode())

    async def program(self, wheel_path: str, sha256: str) -> str:
        """The path of a program out of a wheel, named like "package/bin/server".  Raises OSError if it is another one.

        Wheels that others than its authors publish may change: the hash says that this is the program that was tried.
        """
        name = wheel_path.rpartition("/")[2]
        search = shlex.join([*self.node.python, "-c", _FIND_IN_WHEELS, wheel_path])
        done = await self.run(f'p="$({search})"; cmp -s "$p" {name} || install -m 755 "$p" {name}; sha256sum {name}')
        found = done.stdout.decode().partition(" ")[0]
        if found != sha256:
            words = f"has the hash {found}, not {sha256}" if found else "is in no wheel of the node"
            raise OSError(f"{self.name}: {wheel_path} {words}")
        return self.path(name)

    async def read(self, path: str) -> str:
        return (await self.node.read(self.path(path))).decode(errors="replace")

    async def state(self) -> ProcessState:
        return await self.node.state()

    async def accepts(self, port: int) -> bool:
        """Whether something on the node accepts connections to this port."""
        return (await self.run(f"exec 3<> /dev/tcp/{self.address}/{port}")).status == 0

    async def ask(self, port: int, line: str, *, timeout_s: float = 5.0) -> str:
        """Send one line to a port of the node; what it answers until it closes the connection.

        "" if it does not answer; then `problem` says why, and so do the words of a node without a status."""
        sent = f"printf '%s\\n' {shlex.quote(line)} >&3"
        command = f"exec 3<> /dev/tcp/{self.address}/{port} && {sent} && cat <&3"
        return await self._printed(command, f"port {port}", timeout_s)

    def reports(self, epoch: int, leader: str | None) -> NodeStatus:
        """A `status`: the node is in this epoch, and `leader` is the name of the node it takes for the leader.

        leader: None where the node does not know it; then it is a follower itself.
        """
        return NodeStatus(self.name, epoch, "leader" if leader == self.name else "follower", leader)

    def path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.data_dir}/{path}"

    def words(self, command: Command) -> list[str]:
        """The command as it runs: in the data directory, through a shell."""
        line = command if isinstance(command, str) else "exec " + shlex.join(command)
        return ["bash", "-c", f"cd {shlex.quote(self.data_dir)} && {line}"]


def named_processes(processes: Mapping[str, str] | Sequence[str]) -> Mapping[str, str]:
    """Name -> pattern, from what a system states as its `processes`."""
    return dict(processes) if isinstance(processes, Mapping) else dict.fromkeys(processes, "")


def wrong_commands(commands: object) -> str:
    """Why what `start` returned is no command; "" if it is one."""
    if isinstance(commands, Mapping):
        if not commands:
            return "no command"
        names = [name for name in commands if not isinstance(name, str) or "/" in name]
        if names:
            return f"a process with the name {names[0]!r:.60}, which must be a word without a slash"
        return next(filter(None, map(wrong_commands, commands.values())), "")
    expected = "where the command of a server that stays in the foreground is expected: a line, or a list of words"
    if isinstance(commands, str):
        return "" if commands.strip() else f"an empty line, {expected}"
    if not isinstance(commands, list | tuple) or not commands:
        return f"{commands!r:.60}, {expected}"
    wrong = [word for word in commands if not isinstance(word, str)]
    return f"the word {wrong[0]!r:.60}, which is {type(wrong[0]).__name__}: write str(…)" if wrong else ""


class System:
    """The docstring of your class, or else of its file, is the summary that a run shows.

    port: what clients connect to.  needs: packages, wheels, files and the user of a node.
    notices_damage: how its files may be damaged while it is down ("flip", "truncate", "wipe"), and a pattern of them.
    processes: the processes of a node that faults can hit by name, such as `kill:agent`: names that `start` returns.
        A mapping may also give a name to what such a process starts itself: {"agent": "", "postgres": r"bin/postgres"},
        where a pattern is searched in the command line.  Each process belongs to the nearest named one above it.
    failover_s: within so many seconds another server answers after a leader is lost.  Faults of a system that needs
        longer than a few seconds hold longer, with the pauses between them, the run and the limit of recovery.
    unavailable_s: for at most so many seconds no operation succeeds while a majority of the servers lives and can talk.
        More is a violation.  0: nothing is promised, and more than usual makes a run unknown.
    elections: whether another leader must appear where one is cut off; None: if there is a `status`.
    complaints: a regular expression; a line of a server's output that it matches is a violation.
    client: the class of its clients; None where the file defines only one.
    """

    port: ClassVar[int] = 0
    needs: ClassVar[Needs] = Needs()
    notices_damage: ClassVar[Mapping[str, str]] = {}
    processes: ClassVar[Mapping[str, str] | Sequence[str]] = ()
    failover_s: ClassVar[float] = FAILOVER_S
    unavailable_s: ClassVar[float] = 0.0
    elections: ClassVar[bool | None] = None
    complaints: ClassVar[str] = ""
    client: ClassVar[type[Client] | None] = None

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command | Mapping[str, Command]:
        """The command of the node's server, or name -> command of several; first starts and restarts alike.

        Write configuration files here.  If any of several processes ends, the others are killed: the server is dead.
        """
        raise NotImplementedError

    async def status(self, node: OwnNode) -> NodeStatus | None:
        """What the node says of itself now; None if it says nothing.  Called a few times a second."""
        return None

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """None once clients may come; else what is missing, in words.

        By default every node must accept connections to `port`, and give a `status` where the system has one.
        """
        for node in nodes:
            if self.port and not await node.accepts(self.port):
                return f"{node.name} accepts no connection to port {self.port}"
        return await self._without_status(nodes)

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        """None once every live node has all that was committed when this was called; else why not, in words.

        By default every live node must give a `status` where the system has one.
        """
        return await self._without_status(nodes)

    def complaints_in(self, folder: Path) -> Sequence[Complaint]:
        """More of what the nodes' own logs say went wrong; `folder` has one folder per node."""
        return ()

    async def _without_status(self, nodes: Sequence[OwnNode]) -> str | None:
        if type(self).status is not System.status:
            for node in nodes:
                if await self.status(node) is None:
                    return f"{node.name} gives no status{f' ({node.problem})' if node.problem else ''}"
        return None
