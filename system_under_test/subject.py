"""The values that are exchanged between the harness and a system under test, and `Node`, the interface to a machine.

A backend implements `Node`, through the agent on each node.  The author of a system implements `system.System`; the
harness uses a system through `own.subject.Subject`.
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
"""Node -> nanoseconds of that node's own monotonic clock when the test began.  Times in the node's trace count from it.
"""

ProcessState = Literal["running", "stopped", "dead"]


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command that ran on a node to its end."""

    status: int
    stdout: bytes
    stderr: bytes

    def succeeded(self, or_else: str) -> Completed:
        """Return this result if the command succeeded.  Else raise OSError with `or_else` and the end of its stderr."""
        if self.status != 0:
            raise OSError(f"{or_else}: {self.stderr.decode(errors='replace').strip()[-300:]}")
        return self


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The things that were checked on one server besides the state of its process.

    words: each check, in words
    evidence: True if the checks would detect a server that is out of its cluster
    """

    words: tuple[str, ...] = ()
    evidence: bool = True


class NotKnown(RuntimeError):
    """The statements of a system about itself do not determine its state; the message gives the reason in one
    sentence.
    """


class NodeGone(ConnectionError):
    """The agent of a node no longer answers (its container died, or the backend was destroyed)."""


class Node(Protocol):
    """One machine as a subject sees it.

    The calls of all methods travel outside the data network, so no partition affects them.  Every method raises
    NodeGone if the agent does not answer, and OSError with the node's own message if the node refuses.

    data_dir: directory on the disk under test
    trace_dir, log_dir: directories outside the disk under test, which survive every fault
    python: first words of a command that runs an interpreter on the node that can import `system_under_test` and
        `checkers.base.history`
    """

    name: str
    address: str
    data_dir: str
    trace_dir: str
    log_dir: str
    python: tuple[str, ...]
    alone: asyncio.Lock
    """Lock that is held while the process is stopped for a copy, and by every fault that signals the process, so that
    neither undoes the other.
    """

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str] = ..., output: str = ...) -> int:
        """Start the node's only server process, and return its pid.  Its stdout and stderr are appended to `output`, a
        path on the node.

        Raises OSError if a server is already running on the node, or if argv cannot be executed.
        """
        ...

    async def signal(self, name: Literal["STOP", "CONT", "KILL", "TERM"]) -> None:
        """Signal the server process; do nothing if it is dead.  After KILL, return once the process is reaped."""
        ...

    async def state(self) -> ProcessState: ...

    async def run(self, argv: Sequence[str], *, timeout_s: float = ...) -> Completed: ...

    async def write(self, path: str, data: bytes) -> None:
        """Create or replace a file.  Creates missing parent directories."""
        ...

    async def read(self, path: str, offset: int = 0, size_bytes: int = -1) -> bytes:
        """Return the bytes of a file from `offset`; b"" beyond its end or if there is no such file."""
        ...

    async def copy_out(self, path: str, destination: Path) -> None:
        """Copy a file or a whole directory tree from the node to the harness' machine."""
        ...

    async def copy_data(self, aside: str) -> int:
        """Copy the data directory to a new folder on the node, and return the size of the node's traces at that time,
        in bytes.

        The copy stays on the node, so that it is quick: the caller keeps the server stopped meanwhile.
        """
        ...

    async def remove(self, path: str) -> None:
        """Remove a file or a directory tree; do nothing if there is none."""
        ...


class SimulatedMachine(Protocol):
    """A machine on virtual time, as a program of a subject sees it (`simulation.machine`).

    files: path -> content of the files outside the disk under test, which survive every fault
    on_term: set by a server; SIGTERM starts it
    on_exception: set by a server; called for an exception of a task that no other task awaits
    costs: may be set by a server: kind of message -> CPU seconds to handle one message (`simulation.loop.Process`)
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
        """Append to a file of `files`."""
        ...

    def now_ns(self) -> int:
        """Return the monotonic clock."""
        ...

    def wall_ns(self) -> int:
        """Return the wall clock, which a fault may have shifted."""
        ...

    def random(self, stream: str) -> Random:
        """Return a random generator that depends on the seed of the run, the name of the machine and the name of the
        stream.
        """
        ...


class SimulatedProgram(Protocol):
    """A program that executes the command lines of a subject on a simulated machine, in the harness' own process.

    It may only await asyncio: a socket of its own, a thread or a file would leave virtual time.
    """

    def run(self, argv: Sequence[str], machine: SimulatedMachine) -> Completed | Coroutine[Any, Any, Completed]:
        """Run a command to its end, as `Node.run` does: a command that ends at once, or one that talks to servers for a
        while.
        """
        ...

    async def serve(self, argv: Sequence[str], machine: SimulatedMachine) -> int:
        """Run a server until it ends, as `Node.start` does, and return its exit status.  It prints to stderr."""
        ...


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The last status that a node reported of itself.

    role: as in `checkers.base.columns.TRACE`
    leader: name of the leader; None if the node does not know it
    high_watermark, log_end: offsets; None if the system does not report them
    campaigned: True if the node has requested votes since its previous status
    voted_epoch: epoch of its last vote; None if the system does not report votes
    disk: id of its disk. An empty disk with another id may replace it, and the node then starts from scratch.
    """

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
    """A planted bug: one switch at one decision point of the code.

    found_by: name of the checker that must be invalid
    witness_kinds: `Witness.kind`s of the planted mechanism, so that a run only counts as found for the right reason
    shown_by: names of the nemeses that can trigger the bug; empty if it needs no fault
    workloads: names of the workloads that can trigger the bug
    odds: the bug affects about one in this many requests that can trigger it
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
    """Return the planted bugs of a TOML file, by group and name.

    summaries: bug -> its effect, for bugs without a summary in the file
    """

    def stated(name: str, row: Mapping[str, Any]) -> Bug:
        values: dict[str, Any] = {"summary": summaries.get(name, "")}
        values |= {field: tuple(held) if isinstance(held, list) else held for field, held in row.items()}
        return Bug(name, **values)

    groups = tomllib.loads(file.read_text(encoding="utf-8"))
    return {group: {name: stated(name, row) for name, row in rows.items()} for group, rows in groups.items()}


T = TypeVar("T")

FAILOVER_S = 4.0
"""Maximum seconds until a Raft cluster with fetch timeouts of 2 s has another leader, even after a split vote.  The
durations of faults suit such a system.
"""
FAILOVER_S_MAX = 400.0


@dataclass(frozen=True, slots=True)
class Declares:
    """Properties of a system, which determine the demands on its runs.  `System` explains fields of the same names."""

    nodes: bool = True
    logs: bool = False
    traces: bool = False
    elections: bool = True
    faults: bool = True
    leaders: bool = True
    """True if the system reports its leader, so that a fault may name the leader."""
    leaders_of_keys: bool = False
    """True if the system reports the leader of a key (`System.leader_of`)."""
    each_server_serves: bool = False
    """True if each client uses only one server, whether that server leads or not: client thread t uses server t modulo
    the number of servers.
    """
    routes_by_itself: bool = False
    """True if the library of its client chooses the server of each request, so that no answer names a server."""
    failover_s: float = FAILOVER_S
    unavailable_s: float = 0.0
    kraft_steps: bool = False
    """True if all records of its logs and all rows of its traces have the form of the bundled KRaft."""
    copied_every_s: float = 0.0
    registers_brokers: bool = False
    """True if its metadata log contains records of brokers and of partitions that no client requested."""
    topic_logs: bool = False
    """True if its runs contain the logs of topics, with the checkpoint files beside them."""
    two_implementations: bool = False
    """True if it compares data that two implementations of one format wrote or read."""
    nodes_min: int = 1
    voters_max: int = 0
    forwards: bool = False
    fsyncs: bool = True

    def voters(self, servers: Sequence[T]) -> Sequence[T]:
        """Return the servers that vote."""
        return servers[: self.voters_max or len(servers)]


@dataclass(frozen=True, slots=True)
class Crate:
    """A program in Rust, which cargo builds once on the harness' machine.

    folder: folder with its Cargo.toml, its Cargo.lock and its sources, beside the subject's file
    patches: name of a crate on which it depends -> file in `folder` with a unified diff for that crate's source
    """

    folder: str
    patches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Artefact:
    """A file or folder that commands create once on the harness' machine, such as a release that is built or fetched.
    The result is kept in the cache under a hash of this value.

    name: name of the result, such as "etcd 3.7.3"
    commands: lists of words, executed in order in a fresh folder
    result: file or folder in that folder that the commands create
    files: name -> text of each file that is written to that folder before the first command
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    result: str
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Jars:
    """Java archives, which are placed in one folder of each server, outside the disk under test (`system.JARS`).

    made: build that creates the archives in a folder
    folders: folders of this machine with the archives, instead of `made`
    prepare: line for the shell, executed once in the folder of a server, for example to dump a class-data archive. The
        line may fail, so nothing may depend on its result.
    """

    made: Artefact | None = None
    folders: tuple[str, ...] = ()
    prepare: str = ""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a subject on its nodes besides a plain Debian with Python.  Relative paths on the node are relative
    to the data directory.

    debian: packages of Debian bookworm
    wheels: requirements in pip's syntax, for the nodes' own Python
    files: path on the node -> file or folder on this machine, relative to the folder of the system's file
    crates: path on the node -> program in Rust
    artefacts: path on the node -> result of a build
    jars: Java archives; Java itself is a package of `debian`
    user: user that runs everything on a node; "" for root without capabilities
    shared_memory_bytes: size of /dev/shm in bytes; 0 for the default
    open_files: limit of open files; 0 for the default
    image: image of the servers instead of a plain Debian; it must contain the packages that `debian` would install

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

    taken_ns: nanoseconds from the begin of the test to the end of the copy; -1 if unknown
    """

    copy: int
    when: str
    node: str
    state: ProcessState
    folder: Path
    trace_size_bytes: int = -1
    taken_ns: int = -1


@dataclass(frozen=True, slots=True)
class Complaint:
    """An error that a node's own log reports, such as a traceback or a refusal to continue."""

    node: str
    reason: str
    excerpt: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


class Live(Protocol):
    """A reader of the rows and entries that one running node adds to its trace and its log, without disturbing the
    node.

    Only one method is called at a time.  All methods but `fetch` are called in another thread, and raise ValueError for
    an invalid trace or log.
    """

    async def fetch(self) -> None:
        """Copy new data to the harness' machine.  Raises OSError if the node's agent does not answer."""
        ...

    def trace(self) -> Any:
        """Return the rows fetched since the last call, as a Table of `checkers.base.columns.TRACE` in seq order."""
        ...

    def entries(self) -> Any:
        """Return the entries of the last `fetch`, as `checkers.online.Entries`: only entries below a high watermark
        that the trace had reported before they were read.
        """
        ...

    def tail(self, copy: Collected) -> Any:
        """Return the log entries in a copy of this node that `entries` has not returned so far, in the same form."""
        ...


async def _nothing() -> str:
    return ""


@dataclass(slots=True)
class ServerVersions:
    """The versions of a system, between which its servers may change.

    names: versions, oldest first; every server starts with the first
    ready: returns what is missing before another server may be taken down; "" for nothing
    raise_levels: `System.upgraded`, to be called once all servers run the last version
    ordered: node -> version of its next start
    started: node -> version of its last start
    left: node -> version to which it returns
    raised: True if `raise_levels` has been called
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
        """Return the version that follows the version of a node; None if the node runs the last version."""
        return next(iter(self.names[self.names.index(self.of(node)) + 1 :]), None)


class Members(Protocol):
    """Interface for changes of a system's members while the system runs.  Each method raises OSError if the system did
    not agree in time.

    nodes: nodes of all servers, members or not
    """

    async def members(self, nodes: Sequence[Node]) -> frozenset[str]:
        """Return the names of the members that were started as members, as the leader reports."""
        ...

    async def remove(self, nodes: Sequence[Node], leaving: Node) -> None:
        """Remove a member; do nothing if the node is no member.  The server's process may continue or end itself."""
        ...

    async def add(self, nodes: Sequence[Node], joining: Node, *, wiped: bool = False) -> None:
        """Add a dead server as a new member.

        wiped: True if its disk was replaced by an empty one

        A system that always needs an empty disk wipes it in this method, and the server joins at the next
        `Subject.start`.  Any other system starts the server in this method, because the server must catch up before it
        becomes a member.
        """
        ...
