"""What every backend with an agent on each node has in common: all verbs but making nodes, cutting links, removing all.

A backend adds its links with `add`, starts the beacons with `start_beacons`, and implements `create`, `cut` and
`destroy`.

What agents do for faults of clocks, disks, packets, named processes and members: the parts of `AgentCluster`.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import count
from typing import Any, Literal, TypeVar, cast

from checkers.record.header import ClockOffset
from harness.agent.disk.verbs import DATA
from harness.backends.agent_link import (
    AgentClientHost,
    AgentLink,
    AgentNode,
)
from harness.backends.backend import BackendUnavailable, ClientHost, ClusterSpec, Entrance, Exit, HostHealth
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
    Beacons,
    CannotInject,
    Link,
    Marks,
    ProcessNow,
    process_in,
)
from system_under_test.subject import Members, Node, NodeGone, ProcessState

_INSTALL_S = 60.0
_MOUNT_S = 60.0
_LOSS_S = 90.0
TRIAL_PORT = 7789
_SETTLE_S = 0.05
STOP_LIMIT_S = 15.0
"""How long a server, or one process of it, may take to end after SIGTERM: one that hands over its leadership takes
several seconds."""


class AgentPart(ABC):
    """What each part of `AgentCluster` needs of the whole."""

    spec: ClusterSpec

    @abstractmethod
    def _link(self, name: str) -> AgentLink: ...

    @abstractmethod
    def _node(self, name: str) -> AgentNode: ...


class AgentClocks(AgentPart):
    """The wall clocks of servers: the library is sent once, and servers start with it."""

    _clock_problems: dict[str, str]
    """Server -> why its wall clock cannot be shifted."""

    async def install_clock(self, link: AgentLink, node: AgentNode) -> None:
        """Let every server of this node start with the library, if the run needs that.  `why_no_clock` says why it
        could not be done."""
        if CLOCK not in self.spec.wanted or link.name not in self.spec.servers or self.spec.needs.image:
            return
        try:
            library = await asyncio.to_thread(clock_library)
            folder = {"folder": f"{node.log_dir}/clock"}
            result, _ = await link.call("clock.install", folder, library, timeout_s=_INSTALL_S)
        except OSError as problem:
            self._clock_problems[link.name] = str(problem.strerror or problem)
            return
        self._clock_problems.pop(link.name, None)
        node.environment = result["environment"]

    def why_no_clock(self) -> str:
        """Why the servers' wall clocks cannot be shifted here; "" if they can, as far as is known by now."""
        if CLOCK not in self.spec.wanted:
            return "the run was made without clocks that can be shifted"
        if self.spec.needs.image:
            return f"the library that shifts clocks is not made for the C library of the image {self.spec.needs.image}"
        return next((f"{server}: {why}" for server, why in sorted(self._clock_problems.items())), "")

    async def set_clock(self, server: str, offset_s: float, rate: float) -> None:
        """See Cluster.set_clock."""
        if why := self.why_no_clock():
            raise CannotInject(f"the clock of {server} cannot be shifted: {why}")
        await self._link(server).call("clock.order", {"offset_s": offset_s, "rate": rate})

    async def read_clock(self, server: str) -> Mapping[str, Any]:
        """See Cluster.read_clock."""
        if why := self.why_no_clock():
            raise CannotInject(f"the clock of {server} cannot be read: {why}")
        result, _ = await self._link(server).call("clock.read", timeout_s=_INSTALL_S)
        return result


class AgentDisks(AgentPart):
    """The disks of servers: put under FUSE when the node is made, ordered and probed afterwards."""

    _disk_problems: dict[str, str]
    """Server -> why its disk could not be mounted."""

    async def data_folder(self, link: AgentLink, folder: str) -> str:
        """The folder for a server's data below `folder`: under FUSE if the run needs that and the node can do it.

        Where it cannot, `why_no_disk` says why, and every fault of disks is refused for that reason.
        """
        if DISK not in self.spec.wanted or link.name not in self.spec.servers:
            return f"{folder}/data"
        try:
            await link.call("disk.mount", {"path": f"{folder}/disk", "root": f"{folder}/kept"}, timeout_s=_MOUNT_S)
        except OSError as problem:
            self._disk_problems[link.name] = (
                f"{problem.strerror or problem}.  It needs /dev/fuse, the right to mount (CAP_SYS_ADMIN), "
                f"and Debian's libfuse3-3"
            )
            return f"{folder}/data"
        self._disk_problems.pop(link.name, None)
        return f"{folder}/disk/{DATA}"

    def why_no_disk(self) -> str:
        """Why the disks of the servers cannot fail here; "" if they can, as far as is known by now."""
        if DISK not in self.spec.wanted:
            return "the run was made without disks that can fail"
        return next((f"{server}: {why}" for server, why in sorted(self._disk_problems.items())), "")

    async def behave_disk(self, server: str, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        """See Cluster.behave_disk."""
        await self._order(server, "disk.behave", {"rules": list(rules), "seed": seed})

    async def arm_disk(self, server: str, operation: str, nth: int) -> None:
        """See Cluster.arm_disk."""
        await self._order(server, "disk.arm", {"operation": operation, "nth": nth})

    async def disk_reached(self, server: str) -> bool:
        """See Cluster.disk_reached."""
        return bool((await self._order(server, "disk.reached", {}))["reached"])

    async def lose_power(self, server: str, kept: str, seed: int) -> None:
        """See Cluster.lose_power.  Waits while the disk is being copied: a copy is of one state of the disk."""
        async with self._node(server).alone:
            await self._order(server, "disk.lose", {"kept": kept, "seed": seed}, _LOSS_S)

    async def power_loss(self, server: str) -> Mapping[str, int]:
        """See Cluster.power_loss."""
        return await self._order(server, "disk.loss", {})

    async def probe_disk(self, server: str) -> Mapping[str, Any]:
        """See Cluster.probe_disk."""
        return await self._order(server, "disk.probe", {}, _LOSS_S)

    def why_no_damage(self, how: str) -> str:
        """Why files of the servers cannot be damaged in this way; "" if they can."""
        if how not in self.spec.notices_damage:
            return f"the system under test does not promise to notice this damage of its files: {how}"
        return self.why_no_disk()

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        """See Cluster.damage_disk."""
        if why := self.why_no_damage(how):
            raise CannotInject(why)
        damage = {"files": self.spec.notices_damage[how], "how": how, "seed": seed}
        async with self._node(server).alone:
            await self._order(server, "disk.damage", damage, _LOSS_S)

    async def disk_damage(self, server: str) -> Mapping[str, Any]:
        """See Cluster.disk_damage."""
        return await self._order(server, "disk.damaged", {}, _LOSS_S)

    async def _order(
        self, server: str, verb: str, args: Mapping[str, Any], timeout_s: float = _MOUNT_S
    ) -> Mapping[str, Any]:
        if why := self.why_no_disk():
            raise CannotInject(f"the disk of {server} cannot fail on order: {why}")
        result, _ = await self._link(server).call(verb, args, timeout_s=timeout_s)
        return result


class AgentPackets(AgentPart):
    """Measures what links do to packets."""

    _trials = count(1)

    async def try_link(self, link: Link, datagrams: int, interval_s: float, wait_s: float) -> Mapping[str, float]:
        """See Cluster.try_link."""
        source, to = link
        for name in link:
            where = {"address": self._node(name).address, "port": TRIAL_PORT}
            await self._link(name).call("trial.listen", where)
        trial = next(self._trials)
        peer = {"address": self._node(to).address, "port": TRIAL_PORT}
        order = {"peer": peer, "trial": trial, "count": datagrams, "interval_s": interval_s}
        sent, _ = await self._link(source).call("trial.send", order, timeout_s=10.0 + datagrams * interval_s * 3)
        await asyncio.sleep(_SETTLE_S + wait_s)
        result, _ = await self._link(to).call("trial.result", {"trial": trial})
        return {"sent": sent["sent"], **result}


class AgentProcesses(AgentPart):
    """The named processes of servers."""

    def why_no_process(self, process: str) -> str:
        """Why no fault can meet this process; "" if one can."""
        if process in self.spec.processes:
            return ""
        known = ", ".join(self.spec.processes)
        there = f"it names {known}" if known else "it names none (`processes` of its class)"
        return f"the system under test names no process {process!r}; {there}"

    async def signal_process(self, server: str, process: str, name: Literal["STOP", "KILL", "TERM", "RELEASE"]) -> None:
        """See Cluster.signal_process."""
        if why := self.why_no_process(process):
            raise CannotInject(why)
        args = {"process": process, "name": name, "names": dict(self.spec.processes)}
        async with self._node(server).alone:
            await self._link(server).call("process.signal", args)
        deadline = time.monotonic() + STOP_LIMIT_S
        while name == "TERM" and not (await self.process_now(server, process)).ended:
            if time.monotonic() > deadline:
                words = f"{server}: {process} did not end within {STOP_LIMIT_S:g} s of SIGTERM"
                raise OSError(errno.ETIMEDOUT, words)
            await asyncio.sleep(0.02)

    async def process_now(self, server: str, process: str) -> ProcessNow:
        """See Cluster.process_now."""
        args = {"process": process, "names": dict(self.spec.processes)}
        result, _ = await self._link(server).call("process.state", args)
        return ProcessNow(**{name: bool(result[name]) for name in ("lives", "stopped", "held", "ended")})


class AgentMembers(AgentPart):
    """Changes of the members: the subject knows how, the backend knows the nodes."""

    _nodes: Mapping[str, AgentNode]

    def why_no_members(self) -> str:
        """Why the members cannot change; "" if they can."""
        if self.spec.members is None:
            return "the members of the system under test cannot change while it runs"
        return ""

    async def members(self) -> frozenset[str]:
        """See Cluster.members."""
        return await self._changing().members(self._servers())

    async def remove_member(self, server: str) -> None:
        """See Cluster.remove_member."""
        await self._changing().remove(self._servers(), self._nodes[server])

    async def add_member(self, server: str, *, wiped: bool = False) -> None:
        """See Cluster.add_member."""
        await self._changing().add(self._servers(), self._nodes[server], wiped=wiped)

    def _servers(self) -> list[AgentNode]:
        return [self._nodes[name] for name in self.spec.servers]

    def _changing(self) -> Members:
        if self.spec.members is None:
            raise CannotInject(self.why_no_members())
        return self.spec.members


BEACON_PORT = 7788
IN_FLIGHT_S = 0.03
"""How long after a window its last datagrams may still be under way."""

OPEN_LIMIT_S = 20.0
"""How long fresh links may take to carry their first beacon."""

_LACKS = {
    REJECT: "cannot reset TCP on a cut link: choose --backend namespaces",
    PACKETS: "cannot impair packets, because no switch lies between hosts: choose --backend docker or namespaces",
}
"""What no backend with agents has unless it says so, and how to get it."""

T = TypeVar("T")


class AgentCluster(AgentDisks, AgentClocks, AgentMembers, AgentPackets, AgentProcesses):
    """spec: whose nodes.  Nothing answers before `add` and after `close_links`: every verb raises NodeGone then."""

    name = "agents"

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.servers: Sequence[str] = spec.servers
        self.clients: Sequence[str] = spec.clients
        self.leftovers: list[str] = []
        self._links: dict[str, AgentLink] = {}
        self._nodes: dict[str, AgentNode] = {}
        self._hosts = {name: AgentClientHost(lambda name=name: self._link(name)) for name in spec.clients}  # type: ignore[misc]
        self._exits: list[Exit] = []
        self._steal_at_start_s: dict[str, float] = {}
        self._disk_problems: dict[str, str] = {}
        self._clock_problems: dict[str, str] = {}
        self._observing = asyncio.Lock()
        self._start_again: Callable[[Node], Awaitable[None]] | None = None

    # ---- what a backend calls ----------------------------------------------------------------------------------

    async def add(self, link: AgentLink, node: AgentNode) -> None:
        """Take over a node whose agent has answered `hello`."""
        self._links[link.name] = link
        self._nodes[link.name] = node
        await self.install_clock(link, node)
        if CLIENT_PROCESSES in self.spec.wanted and link.name in self.clients:
            await link.call("apart.start")
        result, _ = await link.call("processor")
        self._steal_at_start_s[link.name] = result["steal_s"]

    def heard(self, node: str, event: Mapping[str, Any]) -> None:
        """The `on_event` of every link."""
        if event["event"] == "exit":
            facts = (event[name] for name in ("pid", "monotonic_ns", "status", "ordered", "oom_kills"))
            self._exits.append(Exit(node, *facts))

    async def wait_until_open(self, advice: str) -> None:
        """Raises BackendUnavailable, naming links that carry nothing and saying `advice`: something here filters."""
        deadline = time.monotonic() + OPEN_LIMIT_S
        while True:
            seen = await self.observe(0.05, 10.0)
            closed = [f"{source}>{to}" for (source, to), beacons in seen.items() if not beacons.received]
            if not closed:
                return
            if time.monotonic() > deadline:
                raise BackendUnavailable(f"Nothing arrives on {', '.join(closed[:3])}: {advice}")

    async def start_beacons(self, port: int = BEACON_PORT) -> None:
        token = hashlib.sha256(self.spec.run_id.encode()).digest()[:8]
        addresses = {name: node.address for name, node in self._nodes.items()}

        async def start(name: str) -> None:
            peers = {peer: address for peer, address in addresses.items() if peer != name}
            args = {"address": addresses[name], "port": port, "peers": peers, "interval_ms": CALM_INTERVAL_MS}
            await self._links[name].call("beacons.start", args, token)

        await asyncio.gather(*(start(name) for name in addresses))

    async def close_links(self) -> None:
        """End every agent's stdin, upon which it kills its server and ends."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    # ---- nemesis.cluster.Cluster -------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """Raises NodeGone before `create` and for a name that is not in the cluster."""
        if name not in self._nodes:
            raise NodeGone(f"{name}: there is no such node (yet)")
        return self._nodes[name]

    async def mend(self) -> None:
        """See Cluster.mend."""
        if not self.lacks(PACKETS):
            await self.impair({}, 0)
        for server in self.servers:
            for process in self.spec.processes:
                await self.signal_process(server, process, "RELEASE")
            if not self.why_no_disk():
                await self.behave_disk(server, [], 0)
            if not self.why_no_clock():
                await self.set_clock(server, 0.0, 1.0)

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        """See Cluster.impair.  A backend that can do it overrides this."""
        if links:
            raise CannotInject(self.lacks(PACKETS) or f"backend {self.name} impairs no links")

    def lacks(self, capability: str) -> str:
        """See Cluster.lacks."""
        if capability in (LINKS, PROCESSES):
            return ""
        if capability == CLIENT_PROCESSES:
            wanted = CLIENT_PROCESSES in self.spec.wanted
            return "" if wanted else "the run was made without clients in processes of their own"
        if capability == DISK:
            return self.why_no_disk()
        if capability == CLOCK:
            return self.why_no_clock()
        if capability == MEMBERS:
            return self.why_no_members()
        if process := process_in(capability):
            return self.why_no_process(process)
        if capability in DAMAGES:
            return self.why_no_damage(DAMAGES[capability])
        return f"backend {self.name} {_LACKS.get(capability, f'has no capability {capability!r}')}"

    async def beat(self, interval_ms: float) -> None:
        await self._ask_all("beacons.interval", {"interval_ms": interval_ms})

    async def mark(self) -> Marks:
        """See Cluster.mark."""
        sent = await self._ask_all("beacons.mark")
        return {(source, to): last for source, answer in sent.items() for to, last in answer["sent"].items()}

    async def arrived(self, first: Marks, last: Marks) -> Mapping[Link, Beacons]:
        """See Cluster.arrived."""
        await asyncio.sleep(IN_FLIGHT_S)
        windows = {link: (first[link], last[link]) for link in first.keys() & last.keys()}
        received = await self._ask({to: ("beacons.count", {"windows": _into(to, windows)}) for to in self._links})
        return {
            (source, to): Beacons(sent=end - begin, received=received[to]["received"][source])
            for (source, to), (begin, end) in windows.items()
            if to in received
        }

    async def observe(self, window_s: float, interval_ms: float) -> Mapping[Link, Beacons]:
        """Send beacons every `interval_ms` for `window_s` and count those that arrived.  A second caller waits."""
        async with self._observing:
            try:
                await self.beat(interval_ms)
                first = await self.mark()
                await asyncio.sleep(window_s)
                last = await self.mark()
            finally:
                await self.beat(CALM_INTERVAL_MS)
            return await self.arrived(first, last)

    async def state(self, server: str) -> ProcessState:
        if server in self.clients:
            result, _ = await self._link(server).call("apart.state")
            return cast(ProcessState, result["state"])
        return await self._node(server).state()

    async def pause(self, server: str) -> None:
        await self._signal(server, "STOP")

    async def resume(self, server: str) -> None:
        await self._signal(server, "CONT")

    async def _signal(self, server: str, name: Literal["STOP", "CONT"]) -> None:
        """To a server, or to the clients of a client node."""
        if server in self.clients:
            await self._link(server).call("apart.signal", {"name": name})
            return
        node = self._node(server)
        async with node.alone:
            await node.signal(name)

    async def kill(self, server: str) -> None:
        node = self._node(server)
        async with node.alone:
            await node.signal("KILL")

    async def kill_at_write(self, server: str, within_s: float) -> bool:
        """See Cluster.kill_at_write."""
        node = self._node(server)
        async with node.alone:
            order = {"folder": node.data_dir, "within_s": within_s}
            result, _ = await self._link(server).call("kill.at_write", order, timeout_s=within_s + STOP_LIMIT_S)
        return bool(result["written"])

    async def stop(self, server: str) -> None:
        """See Cluster.stop."""
        node = self._node(server)
        async with node.alone:
            await node.signal("TERM")
        deadline = time.monotonic() + STOP_LIMIT_S
        while await node.state() != "dead":
            if time.monotonic() > deadline:
                raise OSError(errno.ETIMEDOUT, f"{server}: the server did not end within {STOP_LIMIT_S:g} s of SIGTERM")
            await asyncio.sleep(0.02)

    def restart_with(self, start: Callable[[Node], Awaitable[None]]) -> None:
        self._start_again = start

    async def restart(self, server: str) -> None:
        """Start the server again.  Raises OSError if it is running or never was started."""
        node = self._node(server)
        async with node.alone:
            if self._start_again is None:
                await node.start_again()
            else:
                await self._start_again(node)

    # ---- harness.backends.backend.Backend ----------------------------------------------------------------------

    def client_host(self, client_node: str) -> ClientHost:
        """May be called before `create`.  Raises NodeGone for a name that is no client node."""
        if client_node not in self._hosts:
            raise NodeGone(f"{client_node}: there is no such client node")
        return self._hosts[client_node]

    def exits(self) -> Sequence[Exit]:
        return tuple(self._exits)

    async def health(self) -> HostHealth:
        """Nodes whose agents do not answer are left out."""
        answers = await self._ask_all("processor")
        return HostHealth(
            {n: a["steal_s"] - self._steal_at_start_s[n] for n, a in answers.items()},
            {n: {name: a[name] for name in _SUMS if a[name] >= 0} for n, a in answers.items()},
        )

    def clocks(self) -> Mapping[str, ClockOffset]:
        """See Backend.clocks.  A backend whose nodes are other machines overrides this."""
        return {}

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
        """The command with which a user of this machine runs a program on a node, at a terminal.

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

    async def _ask_all(self, verb: str, args: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
        return await self._ask({name: (verb, args or {}) for name in self._links})

    async def _ask(self, questions: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
        """Node -> answer, all requested at once; a node whose agent does not answer is left out."""
        calls = [answered(self._links[name].call(verb, args)) for name, (verb, args) in questions.items()]
        answers = await asyncio.gather(*calls)
        return {name: answer[0] for name, answer in zip(questions, answers, strict=True) if answer is not None}


_SUMS = ("pressure_s", "waited_s", "ran_s")
"""What an agent reports of processors; below 0 where its kernel does not measure it."""


async def answered(call: Coroutine[Any, Any, T]) -> T | None:
    """None where the agent is gone."""
    try:
        return await call
    except NodeGone:
        return None


def _into(to: str, windows: Mapping[Link, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    return {source: window for (source, target), window in windows.items() if target == to}
