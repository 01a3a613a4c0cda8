"""The one interface of a system under test: `System`, and `OwnNode`, by which it reaches a node.

The bundled systems and those of a user's own are written against it.  Only `start` must be given.  Everything else is
an optional part, and a run demands only what a system states:

    status                     who leads: faults can name the leader, and a run waits for elections
    leader_of                  who leads one stream, queue or partition: only for aiming faults
    ready, caught_up           when clients may come, and when the system has recovered
    logs, traces, trace_of     what it keeps and what it did: the checkers of logs and traces judge them
    members                    how members change while it runs
    bugs, parameters           switches and settings that `--bug` and `--set` choose
    processes, notices_damage  more faults that can be injected
    unreachable_by, never_fsyncs, forwards, routes_by_itself (of its client)   what must not be asked of it
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from system_under_test import subject
from system_under_test.client import Client

Command = str | Sequence[str]
"""A line for the shell, or the words of a command.  It runs in the node's data directory."""

METADATA = "metadata"
"""Name of the log that the checkers of logs judge."""
JARS = "$KRUCIBLE_JARS"
"""The folder of `Needs.jars` on a node, in a line for the shell."""
TOPICS = "topics"
"""Name of the logs of topics, whose replicas are compared."""
METADATA_FOLDER = "__cluster_metadata-0"
"""Kafka's name of its folder."""

_FIND_IN_WHEELS = """
import os, sys
print(next(path for path in (os.path.join(folder, sys.argv[1]) for folder in sys.path) if os.path.isfile(path)))
"""


class OwnNode:
    """One node as the author of a system sees it.  All paths are relative to `data_dir`, the disk under test.

    log_dir, trace_dir: outside of that disk; they survive every fault.
    index: 0 for the first node.  starts: how often its server was started before, 0 at the first start.
    version: of the system's `versions`, the one that the next start is to run; "" where it names none.
    python: the words that start the Python which has the wheels of `needs`.
    """

    def __init__(self, node: subject.Node, index: int) -> None:
        self.node = node
        self.name = node.name
        self.address = node.address
        self.data_dir = node.data_dir
        self.log_dir = node.log_dir
        self.trace_dir = node.trace_dir
        self.index = index
        self.python = node.python
        self.starts = 0
        self.version = ""
        self.problem = ""
        """Why the last `ask` or `output` gave nothing, in words; "" if it gave something."""

    async def run(self, command: Command, *, timeout_s: float = 30.0) -> subject.Completed:
        """Run a command on the node to its end.  Raises OSError if it takes longer."""
        return await self.node.run(self.words(command), timeout_s=timeout_s)

    async def output(self, command: Command, *, timeout_s: float = 5.0) -> str:
        """Return what a command prints; "" if it fails, and `problem` says why."""
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
        """Return the path of a program out of a wheel, named like "package/bin/server".  Raises OSError if it is
        another one.

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

    async def state(self) -> subject.ProcessState:
        return await self.node.state()

    async def accepts(self, port: int) -> bool:
        """Return whether something on the node accepts connections to this port."""
        return (await self.run(f"exec 3<> /dev/tcp/{self.address}/{port}")).status == 0

    async def ask(self, port: int, line: str, *, timeout_s: float = 5.0) -> str:
        """Send one line to a port of the node, in one write; return what it answers until it closes the connection.

        "" if it does not answer; then `problem` says why, and so do the words of a node without a status."""
        sent = f"env printf '%s\\n' {shlex.quote(line)} >&3"  # the printf of bash writes each line on its own
        command = f"exec 3<> /dev/tcp/{self.address}/{port} && {sent} && cat <&3"
        return await self._printed(command, f"port {port}", timeout_s)

    def reports(
        self,
        epoch: int,
        leader: str | None,
        *,
        role: str = "",
        high_watermark: int | None = None,
        log_end: int | None = None,
    ) -> subject.NodeStatus:
        """Return a `status`: the node is in this epoch, and `leader` is the name of the node it takes for the leader.

        epoch: must be that in which this very leader was elected.  Two nodes that report to lead one epoch violate
            `leadership`, so an epoch and a leader that were read at different times must not be combined.
        leader: None where the node does not know it; then it is a follower itself.
        role: by default "leader" or "follower".  high_watermark, log_end: offsets, None where it has no such thing.
        """
        role = role or ("leader" if leader == self.name else "follower")
        return subject.NodeStatus(self.name, epoch, role, leader, high_watermark, log_end)

    def path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.data_dir}/{path}"

    def words(self, command: Command) -> list[str]:
        """Return the command as it runs: in the data directory, through a shell."""
        line = command if isinstance(command, str) else "exec " + shlex.join(command)
        return ["bash", "-c", f"cd {shlex.quote(self.data_dir)} && {line}"]


def named_processes(processes: Mapping[str, str] | Sequence[str]) -> Mapping[str, str]:
    """Name -> pattern, from what a system states as its `processes`."""
    return dict(processes) if isinstance(processes, Mapping) else dict.fromkeys(processes, "")


def wrong_commands(commands: object) -> str:
    """Return why what `start` returned is no command; "" if it is one."""
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
    client: the class of its clients; None where the file defines only one.
    client_module: instead of `client`, a module whose `connect` is a `ClientFactory`.  Its clients are asyncio alone
        and live in the agent; `functions` names what they have.
    in_process: it has no nodes and lives, with its clients, in the harness' own process.
    simulated: `module:name` of its program on virtual time (`subject.SimulatedProgram`), "" if it only runs for real.

    Promises:
    failover_s: seconds until another server answers after a leader is lost.  Faults of a system that needs longer than
        a few seconds hold longer, with the pauses between them, the run and the limit of recovery.
    unavailable_s: maximum number of seconds without a successful operation while a majority of the servers lives and
        can talk.  More is a violation.  0: nothing is promised, and more than usual makes a run unknown.
    elections: whether another leader must appear where one is cut off; None: if there is a `status`.
    consistency: of the transactions of `list-append` and `rw-register`, such as "snapshot-isolation"; "" for strict
        serializability.
    complaints: a regular expression; a line of a server's output that it matches is a violation.
    usual: options of a run that its user does not give, such as {"nodes": 3, "rate_hz": 50}.
    nodes_min: least number of servers.  voters_max: number of servers, from the first on, that vote; 0: all.

    Faults:
    notices_damage: how its files may be damaged while it is down ("flip", "truncate", "wipe"), and a pattern of them;
        spaces separate several.
    processes: the processes of a node that faults can hit by name, such as `kill:agent`: names that `start` returns.
        A mapping may also give a name to what such a process starts itself: {"agent": "", "postgres": r"bin/postgres"},
        where a pattern is searched in the command line.  Each process belongs to the nearest named one above it.
    unreachable_by: capability that faults need -> why such faults have no effect here: {"clock": "it is written in Go,
        which reads the clock without the C library"}.  A run with them is refused.
    moments: name -> a regular expression of lines that a server prints when a fault may hurt: {"snapshot": "installing
        snapshot"}.  Cards may wait for them (docs/schedules.md); without any, for lines that are not usual.
    never_fsyncs: no fault waits for an fsync of a server.
    versions: names of versions, oldest first, if a server may run one while others run the one before, and may go
        back: `start` is to start `node.version`, and `needs` to bring all.
    members: how its members change while it runs; None: they do not.

    Evidence:
    forwards: a server passes requests on to the leader, so its answer may be the leader's mistake.
    logs: name -> a folder of the data directory, or a pattern of folders: {"metadata": "kafka/__cluster_metadata-0",
        "topics": "kafka/*-*"}.  They are copied before each heal and at the end.  The checkers of logs judge
        "metadata" and "topics", which must have Kafka's format.
    registers_brokers: "metadata" holds Kafka's records of brokers and of partitions, which checkers judge.
    logs_copied_every_s: a server cuts its logs so early that copies show all entries only if one is taken this
        often, in seconds.  0: the copies before heals and at the end are enough.
    traces: a file, such as "trace.jsonl", that a server appends rows to, in `trace_dir` (docs/traces.md).
    kraft_steps: the records of the logs and the rows of the traces are all those of the bundled KRaft.

    Switches:
    bugs: planted bugs, which `--bug NAME` switches on.
    parameters: name -> usual value of what `--set NAME=VALUE` sets.

    A run fills in, before `start` is called for the first time:
    bug: name of the planted bug, None for none.  seed: of the run.  settings: `parameters` with the values of the run.
    nodes: all of its nodes.
    """

    name: str = ""
    summary: str = ""
    port: int = 0
    needs: subject.Needs = subject.Needs()
    client: ClassVar[type[Client] | None] = None
    client_module: str = ""
    functions: frozenset[str] = frozenset()
    in_process: bool = False
    simulated: str = ""

    failover_s: float = subject.FAILOVER_S
    unavailable_s: float = 0.0
    elections: bool | None = None
    consistency: str = ""
    complaints: str = ""
    usual: Mapping[str, float] = {}
    nodes_min: int = 1
    voters_max: int = 0

    notices_damage: Mapping[str, str] = {}
    processes: Mapping[str, str] | Sequence[str] = ()
    unreachable_by: Mapping[str, str] = {}
    moments: Mapping[str, str] = {}
    never_fsyncs: bool = False
    versions: Sequence[str] = ()
    members: subject.Members | None = None

    forwards: bool = False
    logs: Mapping[str, str] = {}
    registers_brokers: bool = False
    logs_copied_every_s: float = 0.0
    traces: str = ""
    kraft_steps: bool = False

    bugs: Mapping[str, subject.Bug] = {}
    parameters: Mapping[str, str | float] = {}

    bug: str | None = None
    seed: int = 0
    settings: Mapping[str, str | float] = {}
    nodes: Sequence[OwnNode] = ()

    def client_config(self) -> Mapping[str, Any]:
        """Return what the clients of a `client_module` are given in their config besides seed, bug and settings."""
        return {}

    def check_settings(self) -> None:
        """Raise ValueError, in one sentence, for `settings` that the system cannot run with."""

    async def install(self, node: OwnNode, nodes: Sequence[OwnNode]) -> None:
        """Prepare the fresh data directory of a node, in which `needs.files` lie.  Called once, before any `start`."""

    async def installed(self, nodes: Sequence[OwnNode]) -> None:
        """Prepare what needs every node to be installed.  Called once, before any `start`."""

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command | Mapping[str, Command]:
        """Return the command of the node's server, or name -> command of several; first starts and restarts alike.

        Write configuration files here.  If any of several processes ends, the others are killed: the server is dead.
        """
        raise NotImplementedError

    async def status(self, node: OwnNode) -> subject.NodeStatus | None:
        """Return what the node reports of itself now, by `node.reports`; None if it reports nothing.

        Called a few times a second.
        """
        return None

    async def leader_of(self, key: str) -> str | None:
        """Return the name of the node that leads this key (a stream, a queue, a partition), None if it is not known.

        It needs no epoch, and no checker judges it.  Every second card against the leader is aimed at the leader of a
        key of the workload, and each one where there is no `status`.
        """
        return None

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None once clients may come; else what is missing, in words.

        By default every node must accept connections to `port`, and give a `status` where the system has one.
        """
        for node in nodes:
            if self.port and not await node.accepts(self.port):
                return f"{node.name} accepts no connection to port {self.port}"
        return await self._without_status(nodes)

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None once every live node has all that was committed when this was called; else why not, in words.

        By default every live node must give a `status` where the system has one.
        """
        return await self._without_status(nodes)

    async def upgraded(self, nodes: Sequence[OwnNode]) -> None:
        """Raise what the cluster kept at the level of its first version: all servers run the last of `versions` now.

        Raises OSError if it could not."""

    def live(self, node: OwnNode, started_monotonic_ns: int) -> subject.Live:
        """Follow the trace and the log of a node while it runs.  Called only where `kraft_steps` is set."""
        raise NotImplementedError

    def complaints_in(self, folder: Path) -> Sequence[subject.Complaint]:
        """Return more of what the nodes' own logs say went wrong; `folder` has one folder per node."""
        return ()

    def comparisons(self, run_folder: Path, copies: Sequence[subject.Collected]) -> Iterable[Mapping[str, Any]]:
        """Return rows of `checkers.base.columns.COMPARISONS`, for a system of two implementations."""
        return ()

    def trace_of(self, node: str, logs: Path) -> Iterable[Mapping[str, Any]]:
        """Return rows of a trace that can be read from a node's own logs after the fact (docs/traces.md).

        logs: folder of the node's collected logs.  Rules about time do not judge such rows.
        """
        return ()

    async def _without_status(self, nodes: Sequence[OwnNode]) -> str | None:
        if type(self).status is not System.status:
            for node in nodes:
                if await self.status(node) is None:
                    return f"{node.name} gives no status{f' ({node.problem})' if node.problem else ''}"
        return None
