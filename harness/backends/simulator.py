"""The backend `simulator`: machines, links, disks and clocks on virtual time, in the harness' own process.

The whole run, including the conductor, the nemeses and the recorder, uses the event loop of the simulation
(`simulation.loop`), so it runs on virtual time.  One seed determines everything.  docs/simulator.md lists what is
simulated.

*Beacons.*  No beacons are sent.  Their number is computed from the times at which links were cut and impaired.

*Damage.*  Files of a simulated disk are damaged while its server is down.  Later the backend reports whether the damage
is still on the disk.
"""

from __future__ import annotations

import asyncio
import errno
import importlib
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from checkers.record.faults import LOST_OF
from checkers.record.header_and_outcome import NodesClock
from harness.agent.disk_changes import OPERATIONS, Behaviour, Rule, failing
from harness.agent.disk_verbs import Damage, damage
from harness.agent.frame_switch import FrameImpairment
from harness.agent.network import measured
from harness.backends.backend import BackendUnavailable, ClusterSpec, Exit, NodesOfRun
from harness.backends.in_process import SimulatedClientHost, SimulatedNode
from nemesis import cluster
from simulation.disk import Kind, VolatileDisk
from simulation.loop import SimulatedLoop
from simulation.machine import Machine, stderr_of_each_process
from simulation.network import Impairment, SimulatedNetwork
from system_under_test.subject import ProcessState, SimulatedProgram


def chance(seed: int, stream: str) -> Random:
    """Return the random generator of one part of the simulation."""
    return Random(f"{seed}/simulator/{stream}")


STOP_LIMIT_S = 10.0
LOOK_S = 0.01
_KEPT: Mapping[str, Kind] = {"lose": "lose", "tear": "torn", "reorder": "reorder", "recent": "lose"}
"""Kind of power loss for the nemesis -> kind for the simulated disk.  "recent" loses everything that was not fsynced,
because the disk does not store the times of writes."""
_OPERATION = {"truncate": "write"}


class SimulatorBackend(NodesOfRun):
    """A `harness.backends.backend.Backend` on virtual time.  All coroutines must run on a `SimulatedLoop`."""

    name = "simulator"
    nodes_clock: NodesClock = "same kernel"
    notes: Sequence[str] = (
        "virtual time in one process: no kernel, no real disk and no other machine (docs/simulator.md)",
    )

    def __init__(self, spec: ClusterSpec) -> None:
        super().__init__(spec)
        self._seed = spec.seed
        self._cut: tuple[frozenset[cluster.Link], frozenset[cluster.Link]] = (frozenset(), frozenset())
        self._impairments: Mapping[cluster.Link, Mapping[str, float]] = {}
        self._hosts = {name: SimulatedClientHost(name) for name in spec.clients}
        self.versions = None
        self._damaged: dict[str, Damage] = {}
        self._nodes: dict[str, SimulatedNode] = {}
        self._machines: dict[str, Machine] = {}
        self._behaviours = {name: Behaviour() for name in spec.servers}
        self._armed: dict[str, int] = {}
        self._reached: set[str] = set()
        self._losses: dict[str, Mapping[str, int]] = {}
        self._clock_set_s: dict[str, float] = {}
        self._ends = ExitStack()

    # Life

    async def create(self, progress: Callable[[str], None]) -> None:
        if self.servers and not self.spec.simulated:
            raise BackendUnavailable(
                "cannot simulate this system: it must be an asyncio program with injected clock, disk and network"
            )
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SimulatedLoop):
            raise BackendUnavailable("the simulator needs an event loop on virtual time: start it by `harness run`")
        self._loop = loop
        self._network = SimulatedNetwork(loop, chance(self._seed, "network"))
        self._machines = {name: Machine(name, loop, self._network, self._seed) for name in self.servers}
        for name, machine in self._machines.items():
            machine.on_operation = self._operation_of(name)
            self._nodes[name] = SimulatedNode(
                name, partial(self._machines.__getitem__, name), _program(self.spec.simulated)
            )
        everyone = (*self.servers, *self.clients)
        interval_s = cluster.CALM_INTERVAL_MS / 1e3
        self._beacons = CountedBeacons(everyone, chance(self._seed, "beacons"), interval_s, loop.time())
        self._ends.enter_context(stderr_of_each_process())

    async def destroy(self) -> None:
        for machine in self._machines.values():
            machine.kill()
        for host in self._hosts.values():
            if self._machines:
                self._loop.kill(host.process)
        self._ends.close()

    def client_host(self, client_node: str) -> SimulatedClientHost:
        return self._hosts[client_node]

    def exits(self) -> Sequence[Exit]:
        found = [
            Exit(name, end.pid, round(end.time_s * 1e9), end.status, end.ordered)
            for name, machine in self._machines.items()
            for end in machine.ends
        ]
        return sorted(found, key=lambda end: end.monotonic_ns)

    def lacks(self, capability: str) -> str:
        if capability in (
            cluster.LINKS,
            cluster.REJECT,
            cluster.PROCESSES,
            cluster.DISK,
            cluster.CLOCK,
            cluster.PACKETS,
        ):
            return ""
        if capability == cluster.MEMBERS or capability in cluster.DAMAGES:
            return self._system_lacks(capability)
        return f"the simulator does not simulate this capability: {capability}"

    # Links

    async def cut(self, links: Collection[cluster.Link], reject: Collection[cluster.Link] = ()) -> None:
        self._cut = (frozenset(links), frozenset(reject))
        self._cut_and_hold()

    async def impair(self, links: Mapping[cluster.Link, Mapping[str, float]], seed: int) -> None:
        for how in links.values():
            FrameImpairment(**how)  # refuses invalid values
        self._impairments = {link: dict(how) for link, how in links.items()}
        self._network.impaired = {link: _impairment(how) for link, how in links.items()}
        self._cut_and_hold()

    def _cut_and_hold(self) -> None:
        """Apply the cuts to the network.  A link with the impairment `hold` is cut too: its connections stall, and
        deliver everything in order later."""
        links, reject = self._cut
        held = {link for link, how in self._impairments.items() if how.get("hold")}
        self._network.cut(links | held, reject)
        self._beacons.changed(self._network.links_cut, self._network.impaired, self._loop.time())

    async def try_link(
        self, link: cluster.Link, datagrams: int, interval_s: float, wait_s: float
    ) -> Mapping[str, float]:
        """See Cluster.try_link.  The datagrams do not share the queue of the link's connections."""
        how, random = self._impairments.get(link, {}), chance(self._seed, f"trial/{link}/{self._loop.time()}")
        arrivals: list[tuple[float, int, float]] = []
        lost_share = 1 - (1 - how.get("loss", 0.0)) * (1 - how.get("corrupt", 0.0))
        rate, size_bytes, free_s = how.get("rate_bytes_per_s", 0.0), 100, 0.0
        for number in range(datagrams):
            sent_s = number * interval_s
            delay_s = self._network.base_delay_s + self._network.spread_s * random.random()
            if random.random() >= how.get("reorder", 0.0):  # a reordered packet overtakes others: it is not delayed
                delay_s += how.get("delay_s", 0.0) + how.get("jitter_s", 0.0) * random.random()
            if rate:
                free_s = max(free_s, sent_s) + size_bytes / rate
                delay_s += free_s - sent_s
            if random.random() < lost_share or link in self._network.links_cut:
                continue
            copies = 1 + (random.random() < how.get("duplicate", 0.0))
            if sent_s + delay_s <= datagrams * interval_s + wait_s:
                arrivals += [(sent_s + delay_s, number, delay_s)] * copies
        await asyncio.sleep(datagrams * interval_s + wait_s)
        arrivals.sort()
        return {"sent": datagrams, **measured([number for _, number, _ in arrivals], [delay for *_, delay in arrivals])}

    async def beat(self, interval_ms: float) -> None:
        self._beacons.beat(interval_ms / 1e3, self._loop.time())

    async def mark(self) -> cluster.Marks:
        return self._beacons.marks(self._loop.time())

    async def arrived(self, first: cluster.Marks, last: cluster.Marks) -> Mapping[cluster.Link, cluster.Beacons]:
        return self._beacons.arrived(first, last)

    # Processes

    async def state(self, server: str) -> ProcessState:
        return "running" if server in self._hosts else await self._nodes[server].state()

    async def kill_at_write(self, server: str, within_s: float) -> bool:
        """See Cluster.kill_at_write.  The server dies just before the change of its disk takes effect."""
        async with self.node(server).alone:
            machine = self._machines[server]
            machine.kill_at_change(1)
            until_s = self._loop.time() + within_s
            while machine.state != "dead" and self._loop.time() < until_s:  # noqa: ASYNC110 - a look costs nothing here
                await asyncio.sleep(LOOK_S)
            machine.kill_at_change(0)
            return machine.state == "dead"

    async def await_line(self, *_: Any, **__: Any) -> Any:
        """See Cluster.await_line."""
        raise cluster.CannotInject("the simulator does not watch the output of servers")

    async def thaw(self, server: str) -> None:
        """See Cluster.thaw.  Does nothing, because `await_line` cannot freeze a simulated server."""

    async def stop(self, server: str) -> None:
        await self._signal(server, "TERM")
        until_s = self._loop.time() + STOP_LIMIT_S
        while self._machines[server].state != "dead":
            if self._loop.time() > until_s:
                await self.kill(server)
            await asyncio.sleep(LOOK_S)

    async def signal_process(self, *_: Any, **__: Any) -> Any:
        raise cluster.CannotInject("a simulated server is one process")

    process_now = signal_process

    async def mend(self) -> None:
        await self.impair({}, 0)
        for server in self.servers:
            await self.behave_disk(server, [], 0)
            await self.set_clock(server, 0.0, 1.0)

    def node(self, name: str) -> SimulatedNode:
        if name not in self._nodes:
            raise cluster.CannotInject(f"the simulator cannot stop clients, and {name} is a client node")
        return self._nodes[name]

    # Disks

    def _operation_of(self, server: str) -> Callable[[str, str], None]:
        behaviour = self._behaviours[server]

        def operation(verb: str, path: str) -> None:
            """Freeze the server, or delay or fail the operation, as ordered.  Called before each disk operation."""
            named = _OPERATION.get(verb, verb)
            if named == "fsync" and self._armed.get(server):
                self._armed[server] -= 1
                if not self._armed[server]:
                    self._reached.add(server)
                    self._machines[server].freeze()
            effect = behaviour.effect(named, path.rpartition("/")[2])
            machine = self._machines[server]
            if effect.delay_s and machine.process is not None:
                self._loop.occupy(machine.process, effect.delay_s)
            if effect.number:
                raise failing(effect)

        return operation

    async def behave_disk(self, server: str, rules: Sequence[Mapping[str, Any]], seed: int) -> None:
        self._behaviours[server].order([Rule(**rule) for rule in rules], seed)

    async def arm_disk(self, server: str, operation: str, nth: int) -> None:
        """See Cluster.arm_disk.  A server that was frozen at an operation cannot continue: its release kills it."""
        if operation != "fsync":
            raise cluster.CannotInject(f"the simulator cannot freeze a server at {operation}")
        self._armed[server] = nth
        if nth == 0 and server in self._reached:
            self._reached.discard(server)
            self._machines[server].kill()

    async def disk_reached(self, server: str) -> bool:
        return server in self._reached

    async def lose_power(self, server: str, kept: str, seed: int) -> None:
        async with self.node(server).alone:
            machine = self._machines[server]
            before = machine.disk
            machine.lose_power(_KEPT[kept], Random(seed))
            self._reached.discard(server)
            durable = before.durable_files()
            more = kept == "lose" and any(data != durable.get(path, b"") for path, data in machine.disk.files().items())
            self._losses[server] = {
                "seed": seed,
                "undone": machine.disk.lost_changes,
                "redone": 0,
                "torn_bytes": 0,
                "used": 1 if machine.ends else 0,
                "fsynced_kept": int(before.keeps_fsynced(machine.disk)),
                "not_fsynced_kept": int(more),
                **{f"{LOST_OF}{path}": size for path, size in before.bytes_lost(machine.disk).items()},
            }

    async def power_loss(self, server: str) -> Mapping[str, int]:
        return self._losses.get(server, {})

    async def probe_disk(self, server: str) -> Mapping[str, Any]:
        """See Cluster.probe_disk.  Compute the effect of the present rules on each operation."""
        found: dict[str, Any] = {"used": int(self._machines[server].pid > 0), "fsync_s": 0.0}
        for operation in OPERATIONS:
            effect = self._behaviours[server].effect(operation, "probe")
            found[operation] = errno.errorcode[effect.number] if effect.number else ""
            if operation == "fsync":
                found["fsync_s"] = effect.delay_s
        return found

    async def damage_disk(self, server: str, how: str, seed: int) -> None:
        """See Cluster.damage_disk."""
        async with self.node(server).alone:
            machine = self._machines[server]
            if machine.state != "dead":
                raise cluster.CannotInject(
                    f"the disk of {server} cannot be damaged while the server is {machine.state}"
                )
            self._damaged[server] = damage_machine(machine, self.spec.notices_damage[how], how, seed)

    async def disk_damage(self, server: str) -> Mapping[str, Any]:
        done = self._damaged.get(server)
        return {} if done is None else shown(done, self._machines[server])

    # Clocks

    async def set_clock(self, server: str, offset_s: float, rate: float) -> None:
        self._machines[server].set_wall_clock(offset_s, rate)
        self._clock_set_s[server] = self._loop.time()

    async def read_clock(self, server: str) -> Mapping[str, Any]:
        age_s = self._loop.time() - self._clock_set_s.get(server, 0.0)
        return {"ahead_s": self._machines[server].wall_ahead_s(), "age_s": age_s, "heeded": True, "unheeded": ""}

    # Members


def _program(target: str) -> SimulatedProgram:
    module, _, name = target.partition(":")
    program: SimulatedProgram = getattr(importlib.import_module(module), name)()
    return program


def _impairment(how: Mapping[str, float]) -> Impairment:
    lost = 1 - (1 - how.get("loss", 0.0)) * (1 - how.get("corrupt", 0.0))
    return Impairment(lost, how.get("delay_s", 0.0), how.get("jitter_s", 0.0), how.get("rate_bytes_per_s", 0.0))


class CountedBeacons:
    """Count of beacons, as if every node sent one on each of its links every `interval_s`, at the same times."""

    def __init__(self, nodes: Collection[str], random: Random, interval_s: float, now_s: float) -> None:
        self._links = [(a, b) for a in nodes for b in nodes if a != b]
        self._random = random
        self._interval_s = interval_s
        self._sent = self._sent_before = 0
        self._since_s = now_s
        self._received = Counter[cluster.Link]()
        self._received_at: dict[int, Counter[cluster.Link]] = {0: Counter()}
        self._cut: Collection[cluster.Link] = ()
        self._impaired: Mapping[cluster.Link, Impairment] = {}

    def beat(self, interval_s: float, now_s: float) -> None:
        self._count(now_s)
        self._interval_s, self._since_s, self._sent_before = interval_s, now_s, self._sent

    def changed(self, cut: Collection[cluster.Link], impaired: Mapping[cluster.Link, Impairment], now_s: float) -> None:
        """Set the links that are cut and the links that are impaired from `now_s` on."""
        self._count(now_s)
        self._cut, self._impaired = frozenset(cut), impaired

    def marks(self, now_s: float) -> cluster.Marks:
        self._count(now_s)
        self._received_at[self._sent] = self._received.copy()
        return dict.fromkeys(self._links, self._sent)

    def arrived(self, first: cluster.Marks, last: cluster.Marks) -> Mapping[cluster.Link, cluster.Beacons]:
        received = self._received_at
        return {
            link: cluster.Beacons(last[link] - first[link], received[last[link]][link] - received[first[link]][link])
            for link in first.keys() & last.keys()
        }

    def _count(self, now_s: float) -> None:
        """Count the beacons that were sent until now, and those of them that arrived."""
        before, self._sent = self._sent, self._sent_before + int((now_s - self._since_s) / self._interval_s)
        sent = self._sent - before
        for link in self._links:
            if sent and link not in self._cut:
                loss = self._impaired[link].loss if link in self._impaired else 0.0
                self._received[link] += sum(self._random.random() >= loss for _ in range(sent)) if loss else sent


def damage_machine(machine: Machine, pattern: str, how: str, seed: int) -> Damage:
    """Damage a simulated disk as the agent damages a real one (`disk_verbs.damage`).  Raises FileNotFoundError if no
    file matches."""
    with _real_files(machine.disk) as folder:
        done = damage(folder, pattern, how, seed)
        if not done.file:
            machine.wipe()
            return done
        content, file = (folder / done.file).read_bytes(), machine.disk.open(done.file)
    file.truncate(len(content))
    file.write_at(0, content)
    file.fsync()
    return done


def shown(done: Damage, machine: Machine) -> Mapping[str, Any]:
    with _real_files(machine.disk) as folder:
        return done.shown(folder)


@contextmanager
def _real_files(disk: VolatileDisk) -> Iterator[Path]:
    """Yield a temporary folder with copies of the files of a simulated disk."""
    with tempfile.TemporaryDirectory() as name:
        for path, content in disk.files().items():
            place = Path(name) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        yield Path(name)
