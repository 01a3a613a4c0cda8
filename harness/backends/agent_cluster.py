"""Base class of every backend that runs an agent on each node.  It implements all verbs except create, cut and destroy.

Where a verb of `nemesis.cluster.Cluster` is carried out by one server's agent, `_on` derives the verb from the agent's
method, with the same signature.  A backend adds its nodes with `add`, opens the links with `open_links`, and implements
`create`, `cut` and `destroy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from ipaddress import IPv4Network
from itertools import count
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from harness.agent.disk_verbs import DATA, DiskVerbs
from harness.agent.files import Lines
from harness.agent.hosted_clients import ClientsApart
from harness.agent.network import BeaconVerbs, SwitchVerbs, Trials
from harness.agent.process import NodeVerbs
from harness.agent.server import ServerProcess
from harness.agent.wall_clock import ClockVerbs
from harness.backends.agent_link import AgentClientHost, AgentLink, AgentNode
from harness.backends.backend import BackendUnavailable, ClientHost, ClusterSpec, Entrance, Exit, HostHealth, NodesOfRun
from harness.backends.builds import clock_library
from nemesis.cluster import (
    CALM_INTERVAL_MS,
    CLIENT_PROCESSES,
    CLOCK,
    DAMAGES,
    DISK,
    LINKS,
    MEMBERS,
    PACKETS,
    PROCESSES,
    REJECT,
    VERSIONS,
    Beacons,
    CannotInject,
    Link,
    Marks,
    ProcessNow,
    named_process,
    process_in,
)
from system_under_test.subject import Node, NodeGone, ProcessState

BEACON_PORT, TRIAL_PORT = 7788, 7789
_FIRST_SERVER, _FIRST_CLIENT = 11, 101
IN_FLIGHT_S = 0.03
"""Seconds after the end of a window during which datagrams sent in the window may still arrive."""
_SETTLE_S = 0.05
STOP_LIMIT_S = 15.0
"""Maximum seconds from SIGTERM to the exit of a server or of one of its processes.  A server that hands over its
leadership takes several seconds."""
OPEN_LIMIT_S = 20.0
"""Maximum seconds until every new link has carried its first beacon."""
_SUMS = ("pressure_s", "waited_s", "ran_s")
"""Names of the sums of processor time that an agent reports, in seconds.  A sum is negative if the kernel of the node
does not measure it."""

_MADE_WITHOUT = {
    CLIENT_PROCESSES: "clients in processes of their own",
    DISK: "disks that can fail",
    CLOCK: "clocks that can be shifted",
}
"""Capability -> name of the feature that nodes lack if the run did not request the capability."""

_LACKS = {
    REJECT: "cannot reset TCP on a cut link: choose --backend namespaces",
    PACKETS: "cannot impair packets, because no switch lies between hosts: choose --backend docker or namespaces",
}
"""Capability that a backend with agents lacks unless the backend overrides `lacks` -> the reason, and how to get it."""

P = ParamSpec("P")
T = TypeVar("T")


@overload
def _on(
    capability: str, verb: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *, alone: bool = False
) -> Callable[Concatenate[AgentCluster, str, P], Coroutine[Any, Any, T]]: ...


@overload
def _on(
    capability: str, verb: Callable[Concatenate[Any, P], T], *, alone: bool = False
) -> Callable[Concatenate[AgentCluster, str, P], Coroutine[Any, Any, T]]: ...


def _on(capability: str, verb: Callable[..., Any], *, alone: bool = False) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the verb of `Cluster` that passes its arguments to a method of one server's agent.

    capability: the returned verb raises CannotInject if the cluster lacks it
    alone: True if the verb must wait while the server's data is copied, because a copy must show one state of the disk
    """

    async def order(cluster: AgentCluster, server: str, /, *args: Any, **kwargs: Any) -> Any:
        if why := cluster.lacks(capability):
            raise CannotInject(f"{server}: {verb.__name__} needs the capability {capability!r}: {why}")
        async with cluster._node(server).alone if alone else contextlib.nullcontext():
            return await cluster._link(server).ask(verb, *args, **kwargs)

    return order


class AgentCluster(NodesOfRun):
    """Nodes of one run, each with an agent.  Before `add` and after `close_links` every verb raises NodeGone."""

    name = "agents"
    _trials = count(1)

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self._links: dict[str, AgentLink] = {}
        self._nodes: dict[str, AgentNode] = {}
        self._hosts = {name: AgentClientHost(lambda name=name: self._link(name)) for name in spec.clients}  # type: ignore[misc]
        self._exits: list[Exit] = []
        self._steal_at_start_s: dict[str, float] = {}
        self._problems: dict[str, dict[str, str]] = {DISK: {}, CLOCK: {}}
        """Capability -> server -> why it could not be provided there."""

    # ---- what a backend calls ----------------------------------------------------------------------------------

    async def add(self, link: AgentLink, address: str, folder: str, python: tuple[str, ...]) -> AgentNode:
        """Add a node whose agent has answered `hello`.

        folder: path on the node for its data, traces and logs"""
        data = await self.data_folder(link, folder)
        node = AgentNode(link, address, data, f"{folder}/trace", f"{folder}/log", python)
        self._links[link.name] = link
        self._nodes[link.name] = node
        await self.install_clock(link, node)
        if CLIENT_PROCESSES in self.spec.wanted and link.name in self.clients:
            await link.ask(ClientsApart.start)
        self._steal_at_start_s[link.name] = (await link.ask(NodeVerbs.processor))["steal_s"]
        await node.run(["mkdir", "-p", node.data_dir, node.trace_dir, node.log_dir])
        return node

    async def install_clock(self, link: AgentLink, node: AgentNode) -> None:
        """If the run shifts clocks, make every server of this node start with the library that shifts its clock.

        If the library cannot be installed, `lacks` returns the reason."""
        if CLOCK not in self.spec.wanted or link.name not in self.servers or self.spec.needs.image:
            return
        try:
            library = await asyncio.to_thread(clock_library)
            node.environment = await link.ask(ClockVerbs.install, f"{node.log_dir}/clock", library)
        except OSError as problem:
            self._problems[CLOCK][link.name] = str(problem.strerror or problem)

    async def data_folder(self, link: AgentLink, folder: str) -> str:
        """Return the folder for a server's data below `folder`, under FUSE if the run needs faults of disks.

        If the node cannot mount FUSE, `lacks` returns the reason, and every fault of disks is refused with that reason.
        """
        if DISK not in self.spec.wanted or link.name not in self.servers:
            return f"{folder}/data"
        try:
            await link.ask(DiskVerbs.mount, f"{folder}/disk", f"{folder}/kept")
        except OSError as problem:
            self._problems[DISK][link.name] = (
                f"{problem.strerror or problem}.  It needs /dev/fuse, the right to mount (CAP_SYS_ADMIN), "
                f"and Debian's libfuse3-3"
            )
            return f"{folder}/data"
        return f"{folder}/disk/{DATA}"

    def heard(self, node: str, event: Mapping[str, Any]) -> None:
        """Record an event that an agent reports without a request; every link calls this as its `on_event`."""
        if event["event"] == "exit":
            facts = (event[name] for name in ("pid", "monotonic_ns", "status", "ordered", "oom_kills"))
            self._exits.append(Exit(node, *facts))

    async def open_links(self, advice: str) -> None:
        """Start the beacons, and wait until at least one beacon has arrived on every link.

        advice: end of the message of BackendUnavailable, which names links on which nothing arrives"""
        await self.start_beacons()
        deadline = time.monotonic() + OPEN_LIMIT_S
        while True:
            seen = await self.observe(0.05, 10.0)
            closed = [f"{source}>{to}" for (source, to), beacons in seen.items() if not beacons.received]
            if not closed:
                return
            if time.monotonic() > deadline:
                raise BackendUnavailable(f"Nothing arrives on {', '.join(closed[:3])}: {advice}")

    async def start_beacons(self) -> None:
        token = hashlib.sha256(self.spec.run_id.encode()).digest()[:8]
        addresses = {name: node.address for name, node in self._nodes.items()}

        async def start(name: str) -> None:
            peers = {peer: address for peer, address in addresses.items() if peer != name}
            await self._links[name].ask(BeaconVerbs.start, token, addresses[name], BEACON_PORT, peers, CALM_INTERVAL_MS)

        await asyncio.gather(*(start(name) for name in addresses))

    async def close_links(self) -> None:
        """Close the stdin of every agent.  An agent then kills its server and exits."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    # ---- nemesis.cluster.Cluster: links ------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """Raises NodeGone before `create` and for a name that is not in the cluster."""
        return self._node(name)

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """See Cluster.impair.  A backend that can impair links overrides this method."""
        if links:
            raise CannotInject(self.lacks(PACKETS) or f"backend {self.name} impairs no links")

    async def beat(self, interval_ms: float) -> None:
        await self._ask_all(BeaconVerbs.set_interval, interval_ms)

    async def mark(self) -> Marks:
        """See Cluster.mark."""
        sent = await self._ask_all(BeaconVerbs.mark)
        return {(source, to): last for source, answer in sent.items() for to, last in answer.items()}

    async def arrived(self, first: Marks, last: Marks) -> Mapping[Link, Beacons]:
        """See Cluster.arrived."""
        await asyncio.sleep(IN_FLIGHT_S)
        windows = {link: (first[link], last[link]) for link in first.keys() & last.keys()}
        into = {to: {a: window for (a, b), window in windows.items() if b == to} for to in self._links}
        received = await _answers({to: self._links[to].ask(BeaconVerbs.count, into[to]) for to in into})
        return {
            (source, to): Beacons(sent=end - begin, received=received[to][source])
            for (source, to), (begin, end) in windows.items()
            if to in received
        }

    async def observe(self, window_s: float, interval_ms: float) -> Mapping[Link, Beacons]:
        """Send beacons every `interval_ms` for `window_s` and count those that arrived."""
        try:
            await self.beat(interval_ms)
            first = await self.mark()
            await asyncio.sleep(window_s)
            last = await self.mark()
        finally:
            await self.beat(CALM_INTERVAL_MS)
        return await self.arrived(first, last)

    async def try_link(self, link: Link, datagrams: int, interval_s: float, wait_s: float) -> Mapping[str, float]:
        """See Cluster.try_link."""
        source, to = link
        for name in link:
            await self._link(name).ask(Trials.listen, self._node(name).address, TRIAL_PORT)
        trial, peer = next(self._trials), (self._node(to).address, TRIAL_PORT)
        sent = await self._link(source).ask(Trials.send, peer, trial, datagrams, interval_s)
        await asyncio.sleep(_SETTLE_S + wait_s)
        return {"sent": sent, **await self._link(to).ask(Trials.result, trial)}

    # ---- processes ---------------------------------------------------------------------------------------------

    async def state(self, server: str) -> ProcessState:
        if server in self.clients:
            return await self._link(server).ask(ClientsApart.state)
        return await self._node(server).state()

    async def _signal(self, server: str, name: Literal["STOP", "CONT", "KILL", "TERM"]) -> None:
        """Signal a server, or the clients of a client node."""
        if server in self.clients:
            await self._link(server).ask(ClientsApart.signal, name)
            return
        await super()._signal(server, name)

    async def kill_at_write(self, server: str, within_s: float) -> bool:
        """See Cluster.kill_at_write."""
        node = self._node(server)
        async with node.alone:
            return await self._link(server).ask(NodeVerbs.kill_at_write, node.data_dir, within_s)

    async def await_line(self, server: str, pattern: str, nth: int, within_s: float, freeze: bool = False) -> str:
        """See Cluster.await_line."""
        folder = self._node(server).log_dir
        line, _ = await self._link(server).ask(Lines.await_line, folder, pattern, nth, within_s, freeze)
        return line

    async def thaw(self, server: str) -> None:
        """See Cluster.thaw."""
        await self._link(server).ask(ServerProcess.thaw)

    async def stop(self, server: str) -> None:
        """See Cluster.stop."""
        await self._signal(server, "TERM")

        async def ended() -> bool:
            return await self.state(server) == "dead"

        if not await _has_ended(ended):
            await self.kill(server)

    async def signal_process(self, server: str, process: str, name: Literal["STOP", "KILL", "TERM", "RELEASE"]) -> None:
        """See Cluster.signal_process."""
        if why := self.lacks(named_process(process)):
            raise CannotInject(why)
        async with self._node(server).alone:
            await self._link(server).ask(ServerProcess.signal_named, process, name, dict(self.spec.processes))

        async def ended() -> bool:
            return name != "TERM" or (await self.process_now(server, process)).ended

        if not await _has_ended(ended):
            await self.signal_process(server, process, "KILL")

    async def process_now(self, server: str, process: str) -> ProcessNow:
        """See Cluster.process_now."""
        return ProcessNow(**await self._link(server).ask(ServerProcess.state_named, process, dict(self.spec.processes)))

    # ---- disks and clocks --------------------------------------------------------------------------------------

    behave_disk = _on(DISK, DiskVerbs.behave)
    arm_disk = _on(DISK, DiskVerbs.arm)
    disk_reached = _on(DISK, DiskVerbs.has_reached)
    lose_power = _on(DISK, DiskVerbs.lose_power, alone=True)
    power_loss = _on(DISK, DiskVerbs.last_loss)
    probe_disk = _on(DISK, DiskVerbs.probe)
    disk_damage = _on(DISK, DiskVerbs.last_damage)
    _damage_file = _on(DISK, NodeVerbs.damage_disk, alone=True)
    set_clock = _on(CLOCK, ClockVerbs.order)
    read_clock = _on(CLOCK, NodeVerbs.read_clock)

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        """See Cluster.damage_disk."""
        if why := self.lacks(f"damage: {how}"):
            raise CannotInject(why)
        await self._damage_file(server, self.spec.notices_damage[how], how, seed)

    async def mend(self) -> None:
        """See Cluster.mend."""
        if not self.lacks(PACKETS):
            await self.impair({}, 0)
        for server in self.servers:
            for process in self.spec.processes:
                await self.signal_process(server, process, "RELEASE")
            if not self.lacks(DISK):
                await self.behave_disk(server, [], 0)
            if not self.lacks(CLOCK):
                await self.set_clock(server, 0.0, 1.0)

    # ---- what is lacking ---------------------------------------------------------------------------------------

    def lacks(self, capability: str) -> str:
        """See Cluster.lacks.  Before `create` has finished, problems of single nodes are not known yet."""
        if capability in (LINKS, PROCESSES):
            return ""
        if process := process_in(capability):
            return self._why_no_process(process)
        if capability in (MEMBERS, VERSIONS, *DAMAGES):
            return self._system_lacks(capability) or (self.lacks(DISK) if capability in DAMAGES else "")
        if capability not in _MADE_WITHOUT:
            return f"backend {self.name} {_LACKS.get(capability, f'has no capability {capability!r}')}"
        if capability not in self.spec.wanted:
            return f"the run was made without {_MADE_WITHOUT[capability]}"
        if capability == CLOCK and (image := self.spec.needs.image):
            return f"the library that shifts clocks is not made for the C library of the image {image}"
        return next((f"{server}: {why}" for server, why in sorted(self._problems.get(capability, {}).items())), "")

    def _why_no_process(self, process: str) -> str:
        if process in self.spec.processes:
            return ""
        known = ", ".join(self.spec.processes)
        there = f"it names {known}" if known else "its class names no processes (`processes`)"
        return f"the system under test names no process {process!r}; {there}"

    # ---- harness.backends.backend.Backend ----------------------------------------------------------------------

    def client_host(self, client_node: str) -> ClientHost:
        """May be called before `create`.  Raises NodeGone for a name that is no client node."""
        if client_node not in self._hosts:
            raise NodeGone(f"{client_node}: there is no such client node")
        return self._hosts[client_node]

    def exits(self) -> Sequence[Exit]:
        return tuple(self._exits)

    async def health(self) -> HostHealth:
        """See Backend.health.  Omits nodes whose agents do not answer."""
        answers = await self._ask_all(NodeVerbs.processor)
        return HostHealth(
            {n: a["steal_s"] - self._steal_at_start_s[n] for n, a in answers.items()},
            {n: {name: a[name] for name in _SUMS if a[name] >= 0} for n, a in answers.items()},
        )

    async def entrances(self, clients: Mapping[str, Any]) -> Sequence[Entrance]:
        """See Backend.entrances."""
        found = []
        for node in (self._nodes[name] for name in (*self.servers, *self.clients) if name in self._nodes):
            enter, shell = self.command_on(node.name, ["bash"]), ""
            if node.name in self.clients:
                file = f"{node.log_dir}/clients.json"
                await node.write(file, json.dumps({**clients, "node": node.name}).encode())
                shell = self.command_on(node.name, [*node.python, "-m", "harness.agent.client_shell", file])
            found.append(Entrance(node.name, enter, node.address, node.data_dir, node.log_dir, shell))
        return found

    def command_on(self, name: str, words: Sequence[str]) -> str:
        """Return the shell command by which a user of this machine runs a program on a node in a terminal.

        A backend overrides this."""
        raise NotImplementedError(f"backend {self.name} enters no nodes")

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _link(self, name: str) -> AgentLink:
        if name not in self._links:
            raise NodeGone(f"{name}: there is no such node (yet)")
        return self._links[name]

    def _node(self, name: str) -> AgentNode:
        self._link(name)
        return self._nodes[name]

    async def _ask_all(self, verb: Callable[Concatenate[Any, P], T], *args: P.args, **kwargs: P.kwargs) -> dict[str, T]:
        return await _answers({name: link.ask(verb, *args, **kwargs) for name, link in self._links.items()})


def addresses(subnet: IPv4Network, servers: Sequence[str], clients: Sequence[str]) -> dict[str, str]:
    """Return node -> fixed address.  Raises ValueError if the subnet is too small for the servers or the clients."""
    if len(servers) > _FIRST_CLIENT - _FIRST_SERVER or len(clients) > 255 - _FIRST_CLIENT:
        raise ValueError(f"{len(servers)} servers and {len(clients)} client nodes do not fit into {subnet}")
    placed = {name: str(subnet[_FIRST_SERVER + place]) for place, name in enumerate(servers)}
    return placed | {name: str(subnet[_FIRST_CLIENT + place]) for place, name in enumerate(clients)}


async def all_of(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run the jobs concurrently.  The first failure cancels the other jobs and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except ExceptionGroup as failed:  # one reason is enough for the message; the others are usually the same
        raise failed.exceptions[0] from failed


class SwitchedCluster(AgentCluster):
    """Nodes that are connected by a userspace switch.  The agent of a helper node runs the switch."""

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self._address_of: Mapping[str, str] = {}
        self._helper: AgentLink | None = None

    async def start_switch(self, helper: AgentLink, ports: Sequence[Sequence[Any]], *, release: bool = False) -> None:
        """See `harness.agent.frame_switch`.  Raises OSError if the kernel or the engine denies it."""
        await helper.ask(SwitchVerbs.start, ports, release)
        self._helper = helper

    def lacks(self, capability: str) -> str:
        """See Cluster.lacks."""
        return "" if capability in (REJECT, PACKETS) else super().lacks(capability)

    async def cut(self, links: Collection[Link], reject: Collection[Link] = ()) -> None:
        """See Cluster.cut.  Raises KeyError for an unknown node.

        Raises OSError if the switch refuses the order or is dead; all links are cut then."""
        await self._order(links, {"cut": sorted(links), "reject": sorted(reject)})

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """See Cluster.impair.  Raises as `cut`."""
        rows = [[*link, dict(impairment)] for link, impairment in sorted(links.items(), key=lambda item: item[0])]
        await self._order(links, {"impair": rows, "seed": seed})

    async def _order(self, links: Collection[Link], order: Mapping[str, Any]) -> None:
        if self._helper is None:
            raise NodeGone("the switch: there is none (yet)")
        if unknown := {node for link in links for node in link} - self._address_of.keys():
            raise KeyError(unknown.pop())
        await self._helper.ask(SwitchVerbs.order, order)


async def _answers(calls: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Await all calls concurrently and return node -> answer, without nodes whose agents do not answer."""
    answers = await asyncio.gather(*calls.values(), return_exceptions=True)
    found: dict[str, T] = {}
    for name, answer in zip(calls, answers, strict=True):
        if not isinstance(answer, BaseException):
            found[name] = answer
        elif not isinstance(answer, NodeGone):
            raise answer
    return found


async def _has_ended(ended: Callable[[], Awaitable[bool]]) -> bool:
    """Wait until a process has ended.  Return False if it is still alive after STOP_LIMIT_S."""
    deadline = time.monotonic() + STOP_LIMIT_S
    while not (over := await ended()) and time.monotonic() < deadline:  # noqa: ASYNC110 - the node is asked
        await asyncio.sleep(0.02)
    return over
