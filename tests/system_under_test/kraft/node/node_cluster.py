"""Nodes in one process: real asyncio, an in-memory network, disks that lose what was not fsynced.

Others are put together over the ports of simulated machines, each a process of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

from waiting import eventually

from checkers.raft.rules import TraceRow
from checkers.raft.trace_validation import Replayed, replay
from simulation.disk import VolatileDisk
from simulation.machine import Machine
from simulation.world import World, simulate
from system_under_test.kraft.controller import decisions as of_controller
from system_under_test.kraft.controller.partition_requests import DutySettings
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.log import FOLDER, open_log
from system_under_test.kraft.log.small_files import QuorumStateFile
from system_under_test.kraft.node import config
from system_under_test.kraft.node.assembly import KraftNode, assemble
from system_under_test.kraft.node.config import KAFKA_LIMITS, SnapshotLimits
from system_under_test.kraft.node.disk import with_bugs
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import NodeParts
from system_under_test.kraft.node.process import LoopClock
from system_under_test.kraft.node.trace import FILE_NAME, Trace
from system_under_test.kraft.raft import decisions as of_raft
from system_under_test.kraft.raft.decisions import must_check_batches
from system_under_test.kraft.raft.messages import FetchRequest, Identity, RaftRequest, RaftResponse, ReplicaKey, Timing
from system_under_test.kraft.records.metadata import ConfigRecord, TopicRecord
from system_under_test.kraft.simulated import _ports
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity

VOTERS = (1, 2, 3)
OBSERVERS = (4, 5)
REPLICAS = VOTERS + OBSERVERS
WALL_BEGAN_MS = 1_700_000_000_000
OFTEN = SnapshotLimits(max_record_bytes_between_snapshots=1500, retention_bytes=3000)
QUICK = Timing(election_timeout_s=0.1, fetch_timeout_s=0.2, request_timeout_s=0.2, fetch_max_wait_s=0.05)


class Network:
    """Hands requests from node to node; `cut` holds the directed pairs that lose them."""

    def __init__(self) -> None:
        self.nodes: dict[int, QuorumNode] = {}
        self.cut: set[tuple[int, int]] = set()

    async def pass_on(self, sender: int, peer: int, request: RaftRequest) -> RaftResponse | None:
        await asyncio.sleep(0.001)
        node = self.nodes.get(peer)
        if node is None or (sender, peer) in self.cut:
            await asyncio.sleep(QUICK.request_timeout_s)
            return None
        connection = sender * 100 + isinstance(request, FetchRequest)
        response = await answer_of(node, connection, request)
        await asyncio.sleep(0.001)
        return None if (peer, sender) in self.cut else response

    def isolate(self, node_id: int) -> None:
        self.cut = {pair for other in VOTERS for pair in ((node_id, other), (other, node_id))}


async def answer_of(node: QuorumNode, connection: int, request: RaftRequest) -> RaftResponse | None:
    """None if the node ends without an answer."""
    answer: asyncio.Future[RaftResponse] = asyncio.get_running_loop().create_future()
    node.take_raft_request(connection, request, lambda response: answer.done() or answer.set_result(response))
    await asyncio.wait({answer, node.ended}, return_when=asyncio.FIRST_COMPLETED)
    return answer.result() if answer.done() else None


class Port:
    """One node's end of the network."""

    def __init__(self, network: Network, me: int) -> None:
        self._network = network
        self._me = me

    async def request(self, peer: int, request: RaftRequest) -> RaftResponse | None:
        return await self._network.pass_on(self._me, peer, request)

    def send_at_once(self, peer: int, request: RaftRequest, answered: object) -> bool:
        return False

    def reach(self, peer: int, host: str, port: int) -> None: ...

    async def close(self) -> None: ...


class SkewedClock(LoopClock):
    """The loop's clock, and a wall clock that goes with it and is set as the cluster says."""

    def __init__(self, cluster: Cluster, voter: int) -> None:
        super().__init__()
        self._cluster, self._voter = cluster, voter

    def wall_ms(self) -> int:
        return WALL_BEGAN_MS + round(self.now() * 1000) + self._cluster.wall_offset_ms[self._voter]


class Cluster:
    """snapshots: when nodes take snapshots, and how much of their logs they keep.  dynamic: the ids of the voters with
    which the cluster begins, if its voters can change.  names_disks: each disk has a directory id.
    voters: those of the configuration, where they cannot change."""

    def __init__(
        self,
        bugs: frozenset[str] = frozenset(),
        timing: Timing = QUICK,
        duties: DutySettings | None = None,
        snapshots: SnapshotLimits = KAFKA_LIMITS,
        dynamic: tuple[int, ...] = (),
        names_disks: bool = False,
        voters: tuple[int, ...] = VOTERS,
        **log_options: Any,
    ) -> None:
        self.duties = duties
        self.dynamic = dynamic
        self.voters = dynamic or voters
        self.snapshots = snapshots
        self.network = Network()
        self.bugs = bugs
        self.timing = timing
        self.log_options = log_options
        self.disks: dict[int, VolatileDisk] = {}
        self.traces: dict[int, list[dict[str, Any]]] = {}
        self.incarnations: dict[int, int] = {}
        self.wall_offset_ms: dict[int, int] = {}
        self.directories = {replica: UUID(int=replica) for replica in REPLICAS if names_disks}
        self._first_directories = dict(self.directories)
        self.are_traces_sound = True
        """False where a test spoils or takes away traces, so that the model cannot explain them."""
        for voter in VOTERS:
            self._add(voter)

    def _add(self, replica: int) -> None:
        self.disks[replica], self.traces[replica] = VolatileDisk(), []
        self.incarnations[replica] = self.wall_offset_ms[replica] = 0

    def wipe(self, replica: int, *, own_id: bool = True) -> None:
        """Put an empty disk in the place of a stopped node's disk."""
        self.disks[replica] = VolatileDisk()
        if own_id:
            self.directories[replica] = UUID(int=self.directories[replica].int + len(REPLICAS))

    def key(self, replica: int) -> ReplicaKey:
        return ReplicaKey(replica, self.directories.get(replica))

    def boot(self, voter: int) -> QuorumNode:
        if voter not in self.disks:
            self._add(voter)
        clock, rows = SkewedClock(self, voter), self.traces[voter]
        disk = with_bugs(self.disks[voter], self.bugs)
        incarnation = self.incarnations[voter]
        self.incarnations[voter] += 1
        log = open_log(disk, FOLDER, checks_batches=must_check_batches(self.bugs), **self.log_options)
        parts = NodeParts(
            identity=Identity(
                "cluster",
                self.key(voter),
                self.voters,
                self.timing,
                self.bugs & of_raft.BUGS.keys(),
                self._first_directories,
                observer=voter not in self.voters,
                dynamic=bool(self.dynamic),
            ),
            log=log,
            state_file=QuorumStateFile(disk, FOLDER, "cluster", None if self.dynamic else self.voters),
            clock=clock,
            transport=Port(self.network, voter),
            trace=Trace(lambda line: rows.append(json.loads(line)), clock.now_ns, len(rows), incarnation),
            random=Random(f"{voter}/{incarnation}"),
            names={v: f"n{v}" for v in REPLICAS},
            brokers={v: (f"n{v}", 9092) for v in VOTERS},
            duties=self.duties,
            controller_bugs=self.bugs & of_controller.BUGS.keys(),
            snapshots=self.snapshots,
        )
        node = self.network.nodes[voter] = QuorumNode(parts)
        node.start()
        return node

    def boot_all(self, voters: Iterable[int] = VOTERS) -> Cluster:
        for voter in voters:
            self.boot(voter)
        return self

    async def leader(self, *, but: int = 0) -> QuorumNode:
        for _ in range(400):
            for node in self.network.nodes.values():
                if node.is_active() and node.node_id != but:
                    return node
            await asyncio.sleep(0.01)
        raise AssertionError("no node came to lead within 4 s")

    async def close(self) -> None:
        for node in self.network.nodes.values():
            await node.stop(0)


Boot = Callable[..., Cluster]
"""The fixture `boot`."""


def topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE_DNS, name)


def create(name: str) -> Any:
    return lambda image: ([TopicRecord(name, topic_id(name))], name)


def set_retention(topic: str, value: int) -> Any:
    return lambda image: ([ConfigRecord(2, topic, "retention.ms", str(value))], value)


async def fill(node: QuorumNode, writes: int, first: int = 0) -> None:
    for value in range(first, first + writes):
        await node.write(set_retention("t", value))


def explained(traces: Mapping[int, Iterable[dict[str, Any]]]) -> Replayed:
    """Replay the traces of these nodes through the model of KRaft."""
    columns = ("offset", "hash", "peer", "role", "detail")
    rows = {
        f"n{node}": iter(
            TraceRow(row["seq"], row["inc"], row["event"], row["epoch"], *(row.get(name) for name in columns))
            for row in trace
        )
        for node, trace in traces.items()
    }
    return replay(rows, dict.fromkeys(rows, 1 << 40))


def unexplained(cluster: Cluster) -> list[str]:
    """Return what the model of KRaft cannot explain in the traces of all nodes."""
    return [str(stop) for stop in explained(cluster.traces).stops]


def applied_states(cluster: Cluster) -> dict[int, set[int]]:
    """Offset -> the state hashes that nodes reported there."""
    found: dict[int, set[int]] = {}
    for rows in cluster.traces.values():
        for row in rows:
            if row["event"] == "applied":
                found.setdefault(row["offset"], set()).add(row["hash"])
    return found


PORT = 9092


def fields(number: int, peers: tuple[int, ...] = (1, 2, 3), **more: Any) -> dict[str, Any]:
    """Fields of a node's configuration."""
    return {
        "node_id": number,
        "name": f"n{number}",
        "cluster_id": "c",
        "listen": f"n{number}:{PORT}",
        "peers": {f"n{peer}": [peer, f"n{peer}", PORT] for peer in peers},
        "data_dir": "data",
        "trace_dir": "trace",
        "seed": 7,
        **more,
    }


class AssembledNodes:
    """nodes: number -> the node that runs.  peers: the numbers of the voters that each node is configured with."""

    def __init__(self, world: World, peers: tuple[int, ...] = (1, 2, 3)) -> None:
        self.world = world
        self.peers = peers
        self.nodes: dict[int, KraftNode] = {}
        self.are_traces_sound = True
        """False where rows name a voter that their writer knows by its number alone, so that the model cannot."""
        self._starts = 0

    def machine(self, number: int) -> Machine:
        return self.world.machine(f"n{number}")

    async def start(self, number: int, directory: UUID | None = None, **more: Any) -> None:
        """Start a node, whose disk is formatted if it is empty.  more: fields of its configuration."""
        self._starts += 1
        parsed = config.parse(fields(number, self.peers, seed=self._starts, **more))
        if not self.machine(number).disk.exists(small_files.META_PROPERTIES):
            mine = small_files.MetaProperties("c", number, directory or UUID(int=number))
            small_files.write_properties(self.machine(number).disk, mine)

        async def serve(machine: Machine) -> int:
            node = assemble(parsed, _ports(parsed, machine), QUICK)
            machine.on_term = node.stop
            await node.start()
            self.nodes[number] = node
            status = await node.ended
            await node.close()
            return status

        self.world.start(f"n{number}", serve)
        await eventually(lambda: number in self.nodes)

    def kill(self, number: int) -> None:
        del self.nodes[number]
        self.world.kill(f"n{number}")

    async def stop(self, number: int) -> None:
        del self.nodes[number]
        self.machine(number).terminate()
        await eventually(lambda: self.machine(number).process is None)

    @property
    def active(self) -> KraftNode | None:
        return next((node for node in self.nodes.values() if node.quorum.is_active()), None)

    async def leader(self) -> KraftNode:
        await eventually(lambda: self.active is not None)
        assert self.active is not None
        return self.active

    async def of(self, number: int, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of `work`, as a task of the node's process."""
        process = self.machine(number).process
        assert process is not None
        return await process.spawn(work)

    async def ask(self, number: int, request: Entity) -> Any:
        """Return the answer of a node to a stock client."""

        async def ask() -> Any:
            connection = Connection(f"n{number}", PORT, "stock")
            try:
                return await connection.ask(request)
            finally:
                connection.close()

        return await self.world.run("client", ask())

    def unexplained(self) -> list[str]:
        """Return what the model of KRaft cannot explain in the traces of all nodes that ever ran."""
        path = str(Path("trace") / FILE_NAME)
        machines = {int(name[1:]): machine for name, machine in self.world.machines.items()}
        traces = {n: map(json.loads, bytes(machine.files[path]).splitlines()) for n, machine in machines.items()}
        return [str(stop) for stop in explained(traces).stops]


def on_machines(scenario: Callable[[AssembledNodes], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Make a test of a scenario that plays on virtual time.  In the end the traces of all nodes must be explained."""

    async def whole(world: World) -> None:
        nodes = AssembledNodes(world)
        await scenario(nodes)
        for number in sorted(nodes.nodes, reverse=True):  # brokers transfer leadership to a controller
            await nodes.stop(number)
        stops = nodes.unexplained() if nodes.are_traces_sound else []
        assert stops == [], stops

    def test() -> None:
        simulate(whole, seed=1)

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test
