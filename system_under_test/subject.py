"""The values that pass between the harness and a system under test, and the `Node` by which a system is reached.

A backend implements `Node`, through the agent on each node.  `system.System` is what a system states and does;
`own.subject.Subject` is how the harness sees it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

StartedOn = Callable[[str], int]
"""Node -> when the test began, in ns of that node's own monotonic clock: the zero of the times in its trace."""

ProcessState = Literal["running", "stopped", "dead"]


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ran on a node to its end."""

    status: int
    stdout: bytes
    stderr: bytes

    def succeeded(self, or_else: str) -> Completed:
        """This command.  Raises OSError if it failed: `or_else`, and the end of what it printed to stderr."""
        if self.status != 0:
            raise OSError(f"{or_else}: {self.stderr.decode(errors='replace').strip()[-300:]}")
        return self


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Things that were looked at of one server besides the state of its process, in words.

    evidence: whether that would show a server that is out of its cluster."""

    words: tuple[str, ...] = ()
    evidence: bool = True


class NotKnown(RuntimeError):
    """Statement of a system about itself that settles nothing; the message says why in one sentence."""


class NodeGone(ConnectionError):
    """The agent of a node no longer answers (its container died, or the backend was destroyed)."""


class Node(Protocol):
    """One machine as a subject sees it.  Every verb travels outside the data network, so no partition cuts it.

    data_dir: the disk under test.  trace_dir, log_dir: outside of it; they survive every fault.
    python: argv prefix of an interpreter on the node that can import `system_under_test` and `checkers.base.history`.
    Every verb raises NodeGone when the agent does not answer, and OSError with the node's own words when it refuses.
    """

    name: str
    address: str
    data_dir: str
    trace_dir: str
    log_dir: str
    python: tuple[str, ...]
    alone: asyncio.Lock
    """Held while the process is stopped for a copy, and by every fault that signals it: neither undoes the other."""

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] = ..., output: str = ...) -> int:
        """Start the node's one server process; stdout and stderr append to `output` (a path on the node).
        Returns its pid.  Raises OSError if a server is already running here or argv cannot be executed."""
        ...

    async def signal(self, name: Literal["STOP", "CONT", "KILL", "TERM"]) -> None:
        """Signal the server process; a no-op if it is dead.  After KILL returns, the process is reaped."""
        ...

    async def state(self) -> ProcessState: ...

    async def run(self, argv: Sequence[str], *, timeout_s: float = ...) -> Completed: ...

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file (parents are made)."""
        ...

    async def read(self, path: str, offset: int = 0, size_bytes: int = -1) -> bytes:
        """Bytes of a file from `offset`; b"" beyond its end or if there is no such file."""
        ...

    async def copy_out(self, path: str, destination: Path) -> None:
        """Copy a file or a whole directory tree from the node to the harness' machine."""
        ...

    async def copy_data(self, aside: str) -> int:
        """Copy the data directory to a new folder on the node.  Returns the size of the node's traces then, in bytes.

        The caller stops the server meanwhile, so this is quick: nothing crosses the network."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file or a directory tree; a no-op if there is none."""
        ...


class SimulatedMachine(Protocol):
    """A machine on virtual time, as a program of a subject sees it (`simulation.machine`).

    disk: the data directory, with the verbs of `kraft.ports.Disk`.  files: path -> content, beside it; they survive.
    on_term: a server sets it, and SIGTERM starts it.  on_exception: a server sets it, and it takes what no task awaits.
    costs: a server may set it: kind of message -> CPU seconds that handling one takes (`simulation.loop.Process`).
    """

    name: str
    files: dict[str, bytearray]
    on_term: Callable[[], Coroutine[Any, Any, None]] | None
    on_exception: Callable[[dict[str, Any]], None] | None
    costs: Mapping[str, float]

    @property
    def disk(self) -> Any: ...

    def wipe(self) -> None:
        """Make the disk empty."""
        ...

    def append(self, path: str, data: bytes) -> None:
        """Append to a file beside the disk."""
        ...

    def now_ns(self) -> int:
        """Return the monotonic clock."""
        ...

    def wall_ns(self) -> int:
        """Return the wall clock, which a fault may have set wrong."""
        ...

    def random(self, stream: str) -> Random:
        """Chance that follows from the seed of the run, the name of the machine and that of the stream."""
        ...


class SimulatedProgram(Protocol):
    """Work that the command lines of a subject do on a simulated machine, in the harness' own process.

    Everything that it awaits must be asyncio: a socket of its own, a thread or a file would leave virtual time."""

    def run(self, argv: Sequence[str], machine: SimulatedMachine) -> Completed | Coroutine[Any, Any, Completed]:
        """Run, as `Node.run` does, a command that ends at once, or one that talks to servers for a while."""
        ...

    async def serve(self, argv: Sequence[str], machine: SimulatedMachine) -> int:
        """Run, as `Node.start` does, a server, until it ends; its exit status.  It prints to stderr."""
        ...


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Status that a node last reported of itself.  role as in `checkers.base.columns.TRACE`; None = not known.

    high_watermark and log_end are None where the subject has no such thing.  campaigned: it has sought votes since the
    status before this one.  voted_epoch: the epoch of its last vote, None where the subject does not report votes.
    disk: the id of its disk, if an empty one with another id may come in its place; the node begins anew with it."""

    node: str
    epoch: int
    role: str
    leader: str | None
    high_watermark: int | None = None
    log_end: int | None = None
    campaigned: bool = False
    voted_epoch: int | None = None
    disk: str = ""


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug: one switch at one decision point.

    found_by: name of the checker that must be invalid; witness_kinds: `Witness.kind`s that show the planted
    mechanism, so that a run counts as found only for the right reason.
    shown_by: names of the nemeses under which a run can show it.  Empty: it shows without any fault.
    workloads: names of the workloads that can show it.
    odds: one in this many requests that could show it does.
    """

    name: str
    summary: str
    found_by: str
    witness_kinds: tuple[str, ...]
    in_containers: bool = True
    shown_by: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ("register",)
    odds: int = 1


def planted_bugs(file: Path, summaries: Mapping[str, str] = MappingProxyType({})) -> dict[str, dict[str, Bug]]:
    """Return the planted bugs that a TOML file states, by group and name.

    summaries: what each bug does, for those of which the file does not say it.
    """

    def stated(name: str, row: Mapping[str, Any]) -> Bug:
        values: dict[str, Any] = {"summary": summaries.get(name, "")}
        values |= {field: tuple(held) if isinstance(held, list) else held for field, held in row.items()}
        return Bug(name, **values)

    groups = tomllib.loads(file.read_text(encoding="utf-8"))
    return {group: {name: stated(name, row) for name, row in rows.items()} for group, rows in groups.items()}


T = TypeVar("T")

FAILOVER_S = 4.0
"""Within so long a Raft cluster with fetch timeouts of 2 s has another leader, also after a split vote.  Lengths of
faults are made for such a system."""
FAILOVER_S_MAX = 400.0


@dataclass(frozen=True, slots=True)
class Declares:
    """Properties of a system, so that only that is demanded of a run; `System` explains the fields of the same
    names."""

    nodes: bool = True
    logs: bool = False
    traces: bool = False
    elections: bool = True
    faults: bool = True
    leaders: bool = True
    """It reports who leads, so that a fault may name the leader."""
    leaders_of_keys: bool = False
    """It reports who leads a key (`System.leader_of`)."""
    each_server_serves: bool = False
    """Each client keeps to one server, whether it leads or not: client thread t to server t modulo their number."""
    routes_by_itself: bool = False
    """The library of its client chooses the server of each request, so no answer names one."""
    failover_s: float = FAILOVER_S
    unavailable_s: float = 0.0
    kraft_steps: bool = False
    """The records of its logs and the rows of its traces are all those of the bundled KRaft."""
    copied_every_s: float = 0.0
    registers_brokers: bool = False
    """Its metadata log holds records of brokers and of partitions that no client asked for."""
    topic_logs: bool = False
    """It hands over the logs of topics, with the checkpoint files beside them."""
    two_implementations: bool = False
    """It compares what two implementations of one format wrote or read."""
    nodes_min: int = 1
    voters_max: int = 0
    forwards: bool = False
    fsyncs: bool = True

    def voters(self, servers: Sequence[T]) -> Sequence[T]:
        """Return those of the servers that vote."""
        return servers[: self.voters_max or len(servers)]


@dataclass(frozen=True, slots=True)
class Crate:
    """A program in Rust, which cargo builds once on the harness' machine.

    folder: of its Cargo.toml, its Cargo.lock and its sources, beside the subject's file.
    patches: name of a crate that it depends on -> a unified diff for that crate's source, which lies in `folder`.
    """

    folder: str
    patches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file or folder that commands make once on the harness' machine, such as a release that is built or fetched.

    It is kept in the cache under a hash of this value.

    name: of what is made, such as "etcd 3.7.3".
    commands: lists of words, run in order in a fresh folder.
    result: the file or folder that they leave there.
    files: name -> text of each file that lies in the folder before.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    result: str
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Jars:
    """Java archives, which lie in one folder of each server, outside of the disk under test (`system.JARS`).

    made: leaves them in a folder.
    folders: of this machine, which hold them, instead of `made`.
    prepare: a line for the shell, which runs once in the folder of a server, such as one that dumps a class-data
        archive.  It may fail: nothing may depend on what it makes.
    """

    made: Artefact | None = None
    folders: tuple[str, ...] = ()
    prepare: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of a subject on its nodes besides a plain Debian with Python.

    debian: packages of Debian bookworm.  wheels: requirements that pip understands, for the nodes' own Python.
    files: path on the node -> file or folder here; relative paths lie in the data directory, and beside the system's
    file.
    crates: path on the node -> a program in Rust; relative paths lie in the data directory.
    artefacts: path on the node -> what is made for it; relative paths lie in the data directory.
    jars: Java archives; the Java itself is one of `debian`.
    user: who runs everything on a node; "" for root without capabilities.
    shared_memory_bytes: size of /dev/shm, 0 for the default.  open_files: limit of open files, 0 for the default.
    image: an image that servers start from, instead of a plain Debian; it has what `debian` would install.
    Backends whose nodes share this machine's files can only check for packages, ignore shared_memory_bytes and
    open_files, and refuse an image.
    """

    debian: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    crates: Mapping[str, Crate] = field(default_factory=dict)
    artefacts: Mapping[str, Artefact] = field(default_factory=dict)
    jars: Jars = Jars()
    user: str = ""
    shared_memory_bytes: int = 0
    open_files: int = 0
    image: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """One node's data directory as copied into the run folder.

    taken_ns: when the copy was complete, since the test began; -1 if that is not known."""

    copy: int
    when: str
    node: str
    state: ProcessState
    folder: Path
    trace_size_bytes: int = -1
    taken_ns: int = -1


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something a node's own log says went wrong (a traceback, a refusal to go on)."""

    node: str
    reason: str
    excerpt: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class Live(Protocol):
    """Reads what one node adds to its trace and its log while it runs; it neither stops nor disturbs the node.

    One verb at a time.  All but `fetch` are called in another thread, and raise ValueError for what is no trace or log.
    """

    async def fetch(self) -> None:
        """Bring what is new to the harness' machine.  Raises OSError where the node's agent does not answer."""
        ...

    def trace(self) -> Any:
        """Return what was fetched since the last time, as rows of `checkers.base.columns.TRACE` in seq order (a
        Table)."""
        ...

    def entries(self) -> Any:
        """The entries of the last `fetch`, as `checkers.online.Entries`: only entries below a high
        watermark that the trace had reported before they were read."""
        ...

    def tail(self, copy: Collected) -> Any:
        """Return what a copy of this node has of its log beyond what `entries` gave so far, in the same form."""
        ...


async def _nothing() -> str:
    return ""


@dataclass(slots=True)
class ServerVersions:
    """The versions of a system, between which its servers may change.

    names: oldest first, that of every server at the start.  ordered, started: node -> the version of its next start,
    and of its last one.  left: node -> the version to which it returns.
    ready: returns what is missing before another server may be spared, "" for nothing.
    raise_levels: `System.upgraded`, due once all servers run the last version.  raised: it has been carried out.
    """

    names: Sequence[str]
    ready: Callable[[], Awaitable[str]] = _nothing
    raise_levels: Callable[[], Awaitable[object]] = _nothing
    ordered: dict[str, str] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    raised: bool = False

    def of(self, node: str) -> str:
        return self.started.get(node, self.names[0])

    def following(self, node: str) -> str | None:
        """Return the version after that of a node; None if it runs the last one."""
        return next(iter(self.names[self.names.index(self.of(node)) + 1 :]), None)


class Members(Protocol):
    """Means by which a system changes its members while it runs.  nodes: of all servers, members or not.

    Each verb raises OSError if the system did not agree in time."""

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Return the names of the members that have been started as such, by what the leader reports."""
        ...

    async def remove(self, nodes: Sequence[Node], leaving: Node) -> None:
        """Remove a member.  Do nothing if the node is no member.  Its process may go on, or end itself."""
        ...

    async def add(self, nodes: Sequence[Node], joining: Node, *, wiped: bool = False) -> None:
        """Add a dead server as a new member.  wiped: its disk was replaced by an empty one.

        A system that needs an empty disk in any case wipes it, and the next `Subject.start` lets the server join.
        Another system starts the server here, because it must catch up before it becomes a member."""
        ...
