"""Definition of a backend: nodes somewhere, an agent on each, links that can be cut, and an end that leaves nothing
behind.

A backend implements `nemesis.cluster.Cluster` (what faults act on) and gives `system_under_test.subject.Node`s (what
subjects act on); this Protocol adds what only the harness itself needs.

*Entrances.*  Commands by which a user enters a node whose cluster was left up, and its folders.
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
    """This machine cannot carry the backend; the message says what is missing and what to do about it."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes to create.  run_id: unique, carried by everything that is made (labels, table and file names)."""

    run_id: str
    servers: tuple[str, ...]
    clients: tuple[str, ...]
    seed: int
    wanted: frozenset[str] = frozenset()
    """Capabilities that cost something on every node, and are therefore made only where a run needs them: DISK puts
    the servers' data folders under FUSE, CLOCK starts servers with a library that shifts their wall clock."""
    needs: Needs = field(default_factory=Needs)
    """Needs of the nodes besides a plain Debian."""
    notices_damage: Mapping[str, str] = field(default_factory=dict)
    """`Subject.notices_damage`: how files may be damaged, and which."""
    members: Members | None = None
    """Changes of the subject's members while it runs; None if it cannot change them."""
    versions: ServerVersions | None = None
    """`Subject.versions`."""
    processes: Mapping[str, str] = field(default_factory=dict)
    """`Subject.processes`: the named processes of a server."""
    simulated: str = ""
    """`Subject.simulated`: the program of the servers on virtual time; "" if they can only run for real."""
    inventory: str = ""
    """The file that names the hosts, for a backend whose nodes are hosts of one's own; "" for every other."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A server process ended.  monotonic_ns: by the harness' clock.  ordered: by the harness (kill, stop).

    oom_kills: how often the kernel's out-of-memory killer struck on that machine since the server started."""

    node: str
    pid: int
    monotonic_ns: int
    status: int  # exit status, or minus the signal's number
    ordered: bool
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class HostHealth:
    """Measurements that the agents made of the machines they live on.

    steal_s: node -> seconds of CPU that its host took since the backend was created.
    processor: node -> name of a field of `ProcessorSums` (`checkers/record`) that it measures -> its value."""

    steal_s: Mapping[str, float] = field(default_factory=dict)
    processor: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class ClientHost(Protocol):
    """The clients on one client node."""

    async def load(self, module: str) -> None:
        """Import `module` on the node, which may take seconds, while servers still start.  Raises OSError as `open`."""
        ...

    async def open(
        self, module: str, placements: Sequence[Placement], peers: Mapping[str, str], config: Mapping[str, Any]
    ) -> None:
        """Import `module` on the node and call its `connect` once per placement.  Raises OSError with the node's
        own words if that fails."""
        ...

    async def invoke(self, thread: int, request: Request, timeout_s: float) -> Outcome:
        """Hand one request to the client of that thread.  Never raises for what the network does; if the agent
        itself does not answer within timeout_s + 1 s the outcome is INFO, because the request may have taken effect."""
        ...

    async def close(self) -> None: ...


class Backend(Cluster, Protocol):
    name: str
    notes: Sequence[str]
    """Facts of this backend that a reader of the report needs (e.g. "userspace switch, no kernel bridge")."""
    nodes_clock: NodesClock
    """Owner of the monotonic clock of the nodes; recorded with the run."""
    leftovers: Sequence[str]
    """One sentence for each thing, of this run or of a dead one, that could not be removed so far."""

    async def create(self, progress: Callable[[str], None]) -> None:
        """Bring every node up with its agent answering and its beacons running.  Raises BackendUnavailable."""
        ...

    def restart_with(self, start: Callable[[Node], Awaitable[None]]) -> None:
        """Say how a server is started again after a fault: as the subject starts it the first time."""
        ...

    def client_host(self, client_node: str) -> ClientHost: ...

    def exits(self) -> Sequence[Exit]:
        """Return every end of a server process so far, in the order they were reported."""
        ...

    async def health(self) -> HostHealth: ...

    def clocks(self) -> Mapping[str, ClockOffset]:
        """Node -> its monotonic clock, as measured so far.  Empty where all nodes share the harness' clock."""
        ...

    async def entrances(self, clients: Mapping[str, Any]) -> Sequence[Entrance]:
        """Return how a user enters each node, the servers first.  Empty where a user cannot.

        clients: module, peers and config of the clients, JSON-ready; left on client nodes for a shell."""
        ...

    async def destroy(self) -> None:
        """Remove everything that was made; safe to call twice and after a half-finished `create`.

        It adds what it cannot remove to `leftovers`, and does not raise."""
        ...


@dataclass(frozen=True, slots=True)
class Entrance:
    """command: opens a shell on the node, in words for a POSIX shell.  address: of the node, among the nodes.

    data, logs: the folders of its data and of its logs, as that shell sees them.  client: of a client node, the command
    that speaks to the servers as clients do."""

    node: str
    command: str
    address: str
    data: str
    logs: str
    client: str = ""


class NodesOfRun:
    """Verbs of a `Backend` that are the same whatever its nodes are."""

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
        """Start the server again.  Raises OSError if it is running or never was started."""
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
        """Return why the system under test does not offer this, "" if it does or has no part in it."""
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
