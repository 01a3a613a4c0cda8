"""The interface of a system under test: `System`, and `OwnNode`, by which the system reaches a node.

The bundled systems and a user's own systems implement this interface.  Only `start` is required.  Everything else is
optional, and a run judges a system only by the parts that the system defines:

    status                     current leader: faults can name the leader, and a run waits for elections
    leader_of                  leader of one stream, queue or partition, only to aim faults
    ready, caught_up           when clients may connect, and when the system has recovered
    logs, traces, trace_of     its replicated logs and traces of its steps, for the checkers of logs and traces
    members                    changes of its members while it runs
    bugs, parameters           switches and settings that `--bug` and `--set` choose
    processes, notices_damage  more faults that can be injected
    unreachable_by, never_fsyncs, forwards, routes_by_itself (of its client)   limits of faults and checks
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from system_under_test import subject
from system_under_test.client import Client

Command = str | Sequence[str]
"""A line for the shell, or the words of a command.  A command runs in the node's data directory."""

METADATA = "metadata"
"""Name of the log that the checkers of logs judge."""
JARS = "$KRUCIBLE_JARS"
"""The folder of `Needs.jars` on a node, as written in a line for the shell."""
TOPICS = "topics"
"""Name of the logs of topics, whose replicas are compared."""
METADATA_FOLDER = "__cluster_metadata-0"
"""Name of the folder of the log METADATA, as in Kafka."""

_FIND_IN_WHEELS = """
import os, sys
print(next(path for path in (os.path.join(folder, sys.argv[1]) for folder in sys.path) if os.path.isfile(path)))
"""


class OwnNode:
    """One node as the author of a system sees it.  All paths are relative to `data_dir`, on the disk under test.

    log_dir, trace_dir: directories outside that disk, which survive every fault
    index: 0 for the first node
    starts: number of earlier starts of its server, 0 at the first start
    version: version of the system's `versions` that the next start must run; "" if the system has no `versions`
    python: first words of a command that runs the Python with the wheels of `needs`
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
        """Reason why the last `ask` or `output` returned nothing; "" if it returned something."""

    async def run(self, command: Command, *, timeout_s: float = 30.0) -> subject.Completed:
        """Run a command on the node to its end.  Raises OSError if it takes longer."""
        return await self.node.run(self.words(command), timeout_s=timeout_s)

    async def output(self, command: Command, *, timeout_s: float = 5.0) -> str:
        """Return the output of a command; "" if it fails, and `problem` then contains the reason."""
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
        """Write a file.  If values are passed, fields in braces are replaced: {name} by `name=…`, and {node.address}
        always.
        """
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
        """Return the path of a program in a wheel, named like "package/bin/server".  Raises OSError if the program does
        not have this hash.

        A wheel may change if it is not published by the authors of the program.  The hash ensures that the program is
        the tested one.
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
        """Return True if a process on the node accepts connections to this port."""
        return (await self.run(f"exec 3<> /dev/tcp/{self.address}/{port}")).status == 0

    async def ask(self, port: int, line: str, *, timeout_s: float = 5.0) -> str:
        """Send one line to a port of the node, in one write, and return the answer up to the end of the connection.
        Returns "" if there is no answer.  Then `problem` contains the reason, and messages about a node without a
        status quote it.
        """
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
        """Return a `status` of the node.

        epoch: epoch in which this leader was elected. If two nodes report that they lead one epoch, this is a violation
            of `leadership`, so an epoch and a leader that were read at different times must not be combined.
        leader: name of the node that this node regards as the leader; None if this node knows no leader, and then it
            counts as a follower
        role: "leader" or "follower" by default
        high_watermark, log_end: offsets; None if the system has no such offsets
        """
        role = role or ("leader" if leader == self.name else "follower")
        return subject.NodeStatus(self.name, epoch, role, leader, high_watermark, log_end)

    def path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self.data_dir}/{path}"

    def words(self, command: Command) -> list[str]:
        """Return the words of a shell command that runs the command in the data directory."""
        line = command if isinstance(command, str) else "exec " + shlex.join(command)
        return ["bash", "-c", f"cd {shlex.quote(self.data_dir)} && {line}"]


def named_processes(processes: Mapping[str, str] | Sequence[str]) -> Mapping[str, str]:
    """Return name -> pattern for the `processes` of a system."""
    return dict(processes) if isinstance(processes, Mapping) else dict.fromkeys(processes, "")


def wrong_commands(commands: object) -> str:
    """Return why this result of `start` is no command; "" if it is one."""
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
    """A system under test.  The docstring of your class, or else of its file, is the summary that a run shows.

    port: port to which clients connect
    needs: packages, wheels, files and the user of a node
    client: class of its clients; None if the file defines only one
    client_module: instead of `client`, a module whose `connect` is a `ClientFactory`. Its clients use only asyncio and
        run in the agent; `functions` lists the functions that they have.
    in_process: True if the system has no nodes and runs, with its clients, in the harness' own process
    simulated: `module:name` of its program on virtual time (`subject.SimulatedProgram`); "" if it only runs on real
        machines

    Promises:
    failover_s: seconds until another server answers after a leader is lost.  If these are more than a few seconds,
        faults, the pauses between faults, the run and the limit of recovery are extended.
    unavailable_s: maximum seconds without a successful operation while a majority of the servers is up and connected; a
        longer time is a violation. 0: nothing is promised, and an unusually long time makes a run unknown.
    elections: True if another leader must appear when the leader is cut off; None: True if there is a `status`
    consistency: consistency model of the transactions of `list-append` and `rw-register`, such as "snapshot-isolation";
        "" for strict serializability
    complaints: regular expression; a line of a server's output that matches it is a violation
    usual: default options of a run of this system, such as {"nodes": 3, "rate_hz": 50}
    nodes_min: minimum number of servers
    voters_max: number of servers, from the first on, that vote; 0: all servers

    Faults:
    notices_damage: way in which files of a dead server may be corrupted ("flip", "truncate", "wipe") -> patterns of
        these files, separated by spaces
    processes: names of the processes of a node that faults can hit, such as `kill:agent`. `start` must return a command
        for each name. A mapping may also name a child of such a process: {"agent": "", "postgres": r"bin/postgres"};
        the pattern is searched for in the command line of the child. Any other process belongs to its nearest named
        ancestor.
    unreachable_by: capability that faults need -> why these faults have no effect on the system: {"clock": "it is
        written in Go, which reads the clock without the C library"}. A run with these faults is refused.
    moments: name -> regular expression of lines that a server prints when a fault may trigger bugs: {"snapshot":
        "installing snapshot"}. Cards may wait for such lines (docs/schedules.md); without `moments` they wait for
        unusual lines.
    never_fsyncs: True if servers do not fsync, so that no fault waits for an fsync
    versions: names of versions, oldest first, if a server may run one version while others run the previous version,
        and may return to the previous version. `start` must start `node.version`, and `needs` must contain all
        versions.
    members: interface for changes of its members while it runs; None if members do not change

    Evidence:
    forwards: True if a server forwards requests to the leader, so that a wrong answer of the server may be the leader's
        fault
    logs: name -> a folder of the data directory, or a pattern of folders: {"metadata": "kafka/__cluster_metadata-0",
        "topics": "kafka/*-*"}.  The folders are copied before each heal and at the end. The checkers of logs judge
        "metadata" and "topics", which must have Kafka's format.
    registers_brokers: True if "metadata" contains Kafka's records of brokers and of partitions, which checkers judge
    logs_copied_every_s: maximum seconds between copies with which the copies contain all entries, for a server that
        deletes old entries early. 0: the copies before heals and at the end suffice.
    traces: file in `trace_dir` to which a server appends rows, such as "trace.jsonl" (docs/traces.md)
    kraft_steps: True if all records of the logs and all rows of the traces have the form of the bundled KRaft

    Switches:
    bugs: planted bugs, which `--bug NAME` enables
    parameters: name -> default value of the parameter, which `--set NAME=VALUE` sets

    A run fills in, before `start` is called for the first time:
    bug: name of the planted bug; None for none
    seed: seed of the run
    settings: `parameters` with the values of the run
    nodes: all nodes of the system
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
        """Return the config of the clients of a `client_module`, without seed, bug and settings."""
        return {}

    def check_settings(self) -> None:
        """Raise ValueError, with a message of one sentence, for `settings` with which the system cannot run."""

    async def install(self, node: OwnNode, nodes: Sequence[OwnNode]) -> None:
        """Prepare the fresh data directory of a node, which contains `needs.files`.  Called once per node, before any
        `start`.
        """

    async def installed(self, nodes: Sequence[OwnNode]) -> None:
        """Prepare everything that requires that all nodes are installed.  Called once, before any `start`."""

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command | Mapping[str, Command]:
        """Return the command of the node's server, or name -> command for several processes.  Called for first starts
        and restarts.

        Write configuration files here.  If one of several processes ends, the others are killed, and the server is
        dead.
        """
        raise NotImplementedError

    async def status(self, node: OwnNode) -> subject.NodeStatus | None:
        """Return the current status that the node reports (`node.reports`); None if it reports nothing.  Called a few
        times a second.
        """
        return None

    async def leader_of(self, key: str) -> str | None:
        """Return the name of the node that leads this key (a stream, a queue, a partition); None if it is unknown.

        No checker judges the result.  Every second card against the leader aims at the leader of a key of the workload,
        and every such card does if there is no `status`.
        """
        return None

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None once clients may connect; else what is missing, in words.

        By default every node must accept connections to `port`, and have a `status` if the system defines `status`.
        """
        for node in nodes:
            if self.port and not await node.accepts(self.port):
                return f"{node.name} accepts no connection to port {self.port}"
        return await self._without_status(nodes)

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None once every live node has all data that was committed when this method was called; else what is
        missing, in words.

        By default every live node must have a `status` if the system defines `status`.
        """
        return await self._without_status(nodes)

    async def upgraded(self, nodes: Sequence[OwnNode]) -> None:
        """Raise the feature levels that the cluster kept at its first version.  Called once all servers run the last of
        `versions`.

        Raises OSError if the levels could not be raised.
        """

    def live(self, node: OwnNode, started_monotonic_ns: int) -> subject.Live:
        """Follow the trace and the log of a running node.  Called only if `kraft_steps` is True."""
        raise NotImplementedError

    def complaints_in(self, folder: Path) -> Sequence[subject.Complaint]:
        """Return further errors that the nodes' own logs report.

        folder: contains one folder of logs per node
        """
        return ()

    def comparisons(self, run_folder: Path, copies: Sequence[subject.Collected]) -> Iterable[Mapping[str, Any]]:
        """Return rows of `checkers.base.columns.COMPARISONS`, for a system with two implementations of one format."""
        return ()

    def trace_of(self, node: str, logs: Path) -> Iterable[Mapping[str, Any]]:
        """Return rows of a trace that are read from a node's own logs after the run (docs/traces.md).  Rules about time
        do not judge such rows.

        logs: folder of the node's collected logs
        """
        return ()

    async def _without_status(self, nodes: Sequence[OwnNode]) -> str | None:
        if type(self).status is not System.status:
            for node in nodes:
                if await self.status(node) is None:
                    return f"{node.name} gives no status{f' ({node.problem})' if node.problem else ''}"
        return None
