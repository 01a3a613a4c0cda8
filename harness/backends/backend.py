"""Interface of a backend, which creates the nodes of a run, cuts links between them, and removes everything at the end.

A backend implements `nemesis.cluster.Cluster`, the interface for faults, and returns `system_under_test.subject.Node`s,
the interface for subjects.  The Protocol `Backend` adds the methods that only the harness calls.

*Entrances.*  Commands by which a user enters the nodes of a cluster that was kept, and the folders of each node.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from checkers.record.header_and_outcome import ClockOffset, NodesClock
from nemesis.cluster import DAMAGES, MEMBERS, VERSIONS, CannotInject, Cluster
from system_under_test.client import Outcome, Placement, Request
from system_under_test.subject import Members, Needs, Node, ServerVersions


class BackendUnavailable(RuntimeError):
    """The backend cannot be used on this machine.  The message says what is missing and how to provide it."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes to create.

    run_id: unique; part of the label or the name of everything that the backend makes
    """

    run_id: str
    servers: tuple[str, ...]
    clients: tuple[str, ...]
    seed: int
    wanted: frozenset[str] = frozenset()
    """Capabilities that the run requests.  They cost something on every node, so they are not provided otherwise: DISK
    puts the servers' data folders under FUSE, CLOCK starts servers with a library that shifts their wall clock."""
    needs: Needs = field(default_factory=Needs)
    """Packages, programs and users that the nodes need in addition to a plain Debian."""
    notices_damage: Mapping[str, str] = field(default_factory=dict)
    """`Subject.notices_damage`: kind of damage -> pattern of the files that may be damaged in this way."""
    members: Members | None = None
    """Adds and removes members of the running system; None if the system cannot change its members."""
    versions: ServerVersions | None = None
    """`Subject.versions`."""
    processes: Mapping[str, str] = field(default_factory=dict)
    """`Subject.processes`: the named processes of a server."""
    simulated: str = ""
    """`Subject.simulated`: the program of the servers on virtual time; "" if the system cannot be simulated."""
    inventory: str = ""
    """Path of the file that lists the user's hosts, for the backend ssh; "" for other backends."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Exit of a server process.

    monotonic_ns: time of the exit by the harness' clock
    ordered: True if the harness ordered it (kill, stop)
    oom_kills: number of out-of-memory kills on the node's machine since the server started"""

    node: str
    pid: int
    monotonic_ns: int
    status: int  # exit status, or minus the signal's number
    ordered: bool
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class HostHealth:
    """Measurements that agents made of the machines of their nodes.

    steal_s: node -> seconds of steal time (the host ran something else) since the backend was created
    processor: node -> measured field of `ProcessorSums` (`checkers/record`) -> value"""

    steal_s: Mapping[str, float] = field(default_factory=dict)
    processor: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class ClientHost(Protocol):
    """The clients on one client node."""

    async def load(self, module: str) -> None:
        """Import `module` on the node while servers still start, because an import may take seconds.  Raises OSError
        as `open` does."""
        ...

    async def open(
        self, module: str, placements: Sequence[Placement], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        """Import `module` on the node and call its `connect` once per placement.  If that fails, raises OSError with
        the error message of the node."""
        ...

    async def invoke(self, thread: int, request: Request, timeout_s: float) -> Outcome:
        """Pass one request to the client of a thread.  Does not raise for errors of the network.  If the agent does not
        answer within timeout_s + 1 s, the outcome is INFO, because the request may have taken effect."""
        ...

    async def close(self) -> None: ...


class Backend(Cluster, Protocol):
    name: str
    notes: Sequence[str]
    """Facts about this backend that the report shows, such as "userspace switch, no kernel bridge"."""
    nodes_clock: NodesClock
    """Relation of the nodes' monotonic clocks to the harness' clock; recorded with the run."""
    leftovers: Sequence[str]
    """One sentence for each object, of this run or of a dead run, that could not be removed so far."""

    async def create(self, progress: Callable[[str], None]) -> None:
        """Start every node, and return once all agents answer and beacons run.  Raises BackendUnavailable."""
        ...

    def restart_with(self, start: Callable[[Node], Awaitable[None]]) -> None:
        """Set the function by which `restart` starts a server after a fault; the subject also starts servers by it."""
        ...

    def client_host(self, client_node: str) -> ClientHost: ...

    def exits(self) -> Sequence[Exit]:
        """Return all exits of server processes so far, in the order in which they were reported."""
        ...

    async def health(self) -> HostHealth: ...

    def clocks(self) -> Mapping[str, ClockOffset]:
        """Return node -> measured offset of its monotonic clock.  Empty if all nodes share the harness' clock."""
        ...

    async def entrances(self, clients: Mapping[str, Any]) -> Sequence[Entrance]:
        """Return the entrance of each node, servers first.  Empty if a user cannot enter the nodes.

        clients: module, peers and config of the clients, JSON-serializable; written to client nodes for the shell"""
        ...

    async def destroy(self) -> None:
        """Remove everything that `create` made.  Safe to call twice, and after a `create` that failed halfway.

        Does not raise: for each object that cannot be removed, `leftovers` gets a sentence."""
        ...


@dataclass(frozen=True, slots=True)
class Entrance:
    """Way into a node for a user.

    command: command for a POSIX shell that opens a shell on the node
    address: address of the node on the network of the nodes
    data, logs: paths on the node
    client: on a client node, the command that sends requests to the servers as clients do; else ""
    """

    node: str
    command: str
    address: str
    data: str
    logs: str
    client: str = ""


class NodesOfRun:
    """Verbs of a `Backend` that do not depend on the kind of node."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.servers: Sequence[str] = spec.servers
        self.clients: Sequence[str] = spec.clients
        self.versions = spec.versions
        self.leftovers: list[str] = []
        self._start_again: Callable[[Node], Awaitable[None]] | None = None

    def node(self, name: str) -> Node:
        """Return a node; a backend overrides this."""
        raise CannotInject(f"there is no node {name}")

    def restart_with(self, start: Callable[[Node], Awaitable[None]]) -> None:
        self._start_again = start

    async def restart(self, server: str) -> None:
        """Start the server again.  Raises OSError if the server is running or was never started."""
        node = self.node(server)
        async with node.alone:
            if self._start_again is None:
                raise OSError(errno.ESRCH, f"{server}: no server was ever started here")
            await self._start_again(node)

    async def pause(self, server: str) -> None:
        await self._signal(server, "STOP")

    async def resume(self, server: str) -> None:
        await self._signal(server, "CONT")

    async def kill(self, server: str) -> None:
        await self._signal(server, "KILL")

    async def _signal(self, server: str, name: Literal["STOP", "CONT", "KILL", "TERM"]) -> None:
        node = self.node(server)
        async with node.alone:
            await node.signal(name)

    async def members(self) -> frozenset[str]:
        """See Cluster.members."""
        return await self._changing().members(self._servers())

    async def remove_member(self, server: str) -> None:
        """See Cluster.remove_member."""
        await self._changing().remove(self._servers(), self.node(server))

    async def add_member(self, server: str, *, wiped: bool = False) -> None:
        """See Cluster.add_member."""
        await self._changing().add(self._servers(), self.node(server), wiped=wiped)

    def _servers(self) -> list[Node]:
        return [self.node(name) for name in self.servers]

    def _changing(self) -> Members:
        if self.spec.members is None:
            raise CannotInject(self._system_lacks(MEMBERS))
        return self.spec.members

    def _system_lacks(self, capability: str) -> str:
        """Return why the system under test does not offer a capability; "" if it does, or if the capability does not
        depend on the system."""
        if capability == MEMBERS and self.spec.members is None:
            return "the members of the system under test cannot change while it runs"
        if capability == VERSIONS and self.versions is None:
            return "the system under test names no other version (`versions` of its class)"
        if capability in DAMAGES and (how := DAMAGES[capability]) not in self.spec.notices_damage:
            return f"the system under test does not promise to notice this damage of its files: {how}"
        return ""

    async def health(self) -> HostHealth:
        return HostHealth()

    def clocks(self) -> Mapping[str, ClockOffset]:
        """See Backend.clocks.  A backend whose nodes are other machines overrides this."""
        return {}

    async def entrances(self, clients: Mapping[str, Any]) -> Sequence[Entrance]:
        return ()
