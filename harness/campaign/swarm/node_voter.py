"""A complete node of KRaft as a voter of a swarm: disk, log, core, state machine, controller, and broker; with its
lanes to other nodes, its trace and its clock.  Other voters send requests as direct calls, and so do clients.

This file also finds the end of the log that survives a power loss: it reads the fsynced bytes of the simulated disk,
and does not trust the server's reports.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from harness.campaign.swarm.acts import damage_file
from harness.campaign.swarm.clients import CALLS_PORT, OK, PORT, REFUSED, UNKNOWN, Change, Value, elements
from harness.campaign.swarm.operators import READ_SETTINGS, new_topic, settings_in
from harness.campaign.swarm.scenario import SNAPSHOT_INTERVAL_S, Scenario
from harness.campaign.swarm.watch import Watch, WatchedRow
from harness.campaign.swarm.watch_brokers import CommittedBatch
from harness.campaign.swarm.watch_voters import key_of
from simulation.calls import Lane, LaneTimes, NoAnswer
from simulation.disk import VolatileDisk
from simulation.machine import Machine
from simulation.network import SimulatedNetwork
from system_under_test.kraft.client import LIST, REGISTER
from system_under_test.kraft.controller.configs import Alteration, ConfigOperation, Resource, alter_configs
from system_under_test.kraft.controller.image import Image, Refused
from system_under_test.kraft.controller.one_by_one import Result
from system_under_test.kraft.controller.topics import NewTopic, create_topics, of_ids, registered
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.log import FOLDER
from system_under_test.kraft.log.segment import file_name
from system_under_test.kraft.log.small_files import MetaProperties, derived_uuid, kafka_uuid
from system_under_test.kraft.node import config
from system_under_test.kraft.node.assembly import CannotStart, assemble, assemble_quorum
from system_under_test.kraft.node.broker_role import CLEAN_SHUTDOWN, clean_epoch
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.parts import VotersInLog
from system_under_test.kraft.node.trace import FILE_NAME, Trace
from system_under_test.kraft.ports import Ports, Timer
from system_under_test.kraft.raft.changes import VoterChange
from system_under_test.kraft.raft.decisions import id_of_new_disk
from system_under_test.kraft.raft.messages import (
    FetchRequest,
    FetchSnapshotRequest,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
)
from system_under_test.kraft.raft.replication import WAIT_MAX_S
from system_under_test.kraft.raft.voters import VoterEndpoint, VoterEntry, VoterHistory, VoterSet, voter_set
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, Record, decode
from system_under_test.kraft.simulated import HANDLER_CPU_S, MachineClock, MachineTrace
from system_under_test.kraft.subject import KraftBrokers
from system_under_test.kraft.wire.channel import SocketNetwork
from system_under_test.kraft.wire.quorum_service import LostLeadership

CANNOT_START = 1
APPLY_S_MAX = 1.0
COMES_AND_GOES = "flush.messages"
"""A config that writes set and delete alternately; nothing reads it."""
OF_CALLS = 1 << 40
"""Added to the number of a connection that carries calls, to distinguish it from connections of brokers, which carry
bytes.  With equal numbers, a node would drop a Fetch that waits on one connection when the other connection is closed.
"""


def initial_voters(scenario: Scenario) -> VoterSet:
    """Return the initial voters of the cluster, each with its first disk."""
    names = [f"n{number}" for number in range(1, scenario.nodes + 1)]
    keys = [ReplicaKey(n, derived_uuid("directory", scenario.seed, name)) for n, name in enumerate(names, 1)]
    endpoints = [(VoterEndpoint("CONTROLLER", name, PORT),) for name in names]
    return voter_set(map(VoterEntry, keys, endpoints))


class Lanes:
    """`ports.Calls` of one voter.  As in `wire.channel`, there are two lanes to each peer: one for fetches, one for all
    other requests.
    """

    def __init__(self, network: SimulatedNetwork, me: int, servers: int) -> None:
        self._lanes = {
            (peer, fetches): Lane(network, f"n{peer}", CALLS_PORT, LaneTimes(2.0, backoff_s=0.02))
            for peer in range(1, servers + 1)
            if peer != me
            for fetches in (True, False)
        }

    def call(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> None:
        lane = self._lanes[peer, type(request) is FetchRequest]
        lane.call(request, lambda answer: answered(None if type(answer) is NoAnswer else answer))


LOG_BEGINS_ANEW = frozenset({"start", "truncate", "snapshot"})


class WatchedTrace(Trace):
    """A trace that passes each row to the watch at once, and stores nothing."""

    def __init__(self, voter: NodeVoter) -> None:
        super().__init__(lambda line: None, lambda: 0, 0, voter.lives - 1)
        self._voter = voter
        self._process = voter.machine.process

    def row(self, event: str, epoch: int, **columns: Any) -> None:
        if self._voter.machine.process is self._process:  # False if the voter was killed during the effect
            if event in LOG_BEGINS_ANEW:
                self._voter.log_began_anew()
            self._voter.watch.row(self._voter, WatchedRow(event, epoch, **columns))


class DriftingClock(MachineClock):
    """`ports.Clock` of a machine; its monotonic clock runs `rate` times as fast as virtual time."""

    def __init__(self, machine: Machine, rate: float) -> None:
        super().__init__(machine)
        self._rate = rate

    def now(self) -> float:
        return self._loop.time() * self._rate

    def now_ns(self) -> int:
        return round(self.now() * 1e9)

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        # Rounding must not fire a timer before `now() == when`, because the node would re-arm it forever.
        return self._loop.call_at(when / self._rate + 1e-9, callback)


class NodeVoter:
    """A machine with the node as it runs in a container.  It also shows its state to the watch and the storm.

    Requests of voters and of clients arrive as objects.  Brokers send bytes to the controller and to each other.

    lives: number of starts
    key: name of the server together with its disk
    flushed: end of its durable log according to its own reports
    durable_end: end of its durable log according to its disk
    end: (epoch, offset) of the end of its log
    may_stop: True if its disk fails or its log is damaged, so it may exit
    may_forget: True if its log was damaged and it lost power before it started again, so it may mistake durable entries
        for a torn tail
    """

    def __init__(
        self, number: int, scenario: Scenario, machine: Machine, network: SimulatedNetwork, watch: Watch
    ) -> None:
        self.number, self.name, self.machine, self.watch = number, machine.name, machine, watch
        self.lives = 0
        self.may_stop = self.may_forget = False
        self.left_cleanly: set[int] = set()
        """Epochs of its broker's incarnations that shut down cleanly, as found on its disk at later starts."""
        self.on_first_fetch: Callable[[NodeVoter], None] = lambda voter: None
        self.on_part: Callable[[int], None] = lambda replica: None
        """Called when a replica has some parts of a snapshot and requests the next part from this server."""
        self.quorum: QuorumNode | None = None
        self._recovered_in = 0
        """Incarnation in which it last recovered its log; from then on its recovery point is exact."""
        self._rate = scenario.rates[number - 1] if number <= len(scenario.rates) else 1.0
        self._scenario, self._network = scenario, network
        self._fetched_in = self._disks = 0
        self._slowed = 1.0
        self._config = _config(scenario, number)
        self.cluster_id = self._config.cluster_id
        self._ids = itertools.count(1)
        self._durable = DurableLog()
        self._take_disk(derived_uuid("directory", scenario.seed, self.name))
        self._format()

    def start(self) -> None:
        if self.machine.process is None:
            self.lives += 1
            self.machine.start(self._serve, "output")
            self.slow_down(self._slowed)

    def slow_down(self, times: float) -> None:
        """Multiply the time of each handler, set by the scenario's factor, in this and all later incarnations."""
        self._slowed = times
        factor = times * self._scenario.cpu_factor
        self.machine.costs = {kind: seconds * factor for kind, seconds in HANDLER_CPU_S.items()} if factor else {}

    def replace_disk(self) -> None:
        """Replace the disk of a server that is down with an empty one."""
        self._disks += 1
        drawn = derived_uuid("directory", self._scenario.seed, self.name, self._disks)
        self._take_disk(id_of_new_disk(drawn, self.directory, {self._scenario.bug}))
        self.machine.wipe()
        self._format()

    def _take_disk(self, directory: UUID) -> None:
        """Turn this server into another replica.  The watch often reads its name, so the name is stored."""
        self.directory = directory
        self.key = key_of(self.replica)

    def _format(self) -> None:
        """Format the empty disk for a start, and forget the content of the previous disk."""
        self.quorum = None
        properties = MetaProperties(self._config.cluster_id, self.number, self.directory)
        small_files.write_properties(self.machine.disk, properties)

    async def _serve(self, machine: Machine) -> int:
        ports = Ports(
            clock=DriftingClock(machine, self._rate),
            disk=machine.disk,
            network=SocketNetwork(),
            trace=MachineTrace(machine, FILE_NAME),  # unused, because rows go to the watch
            random=lambda purpose: Random(f"{self._scenario.seed}/{self.number}/{purpose}"),
            say=lambda words: print(words, file=sys.stderr),
            apply_s=self._apply_s,
        )
        try:
            if self._config.brokers is not None:
                return await self._serve_brokers(machine, ports)
            quorum = assemble_quorum(self._config, ports, calls=self._lanes(), trace=WatchedTrace(self))
        except CannotStart as problem:
            print(f"cannot start: {problem}", file=sys.stderr)
            if not self.may_stop:
                self.watch.violated("a voter cannot start", f"{self.name}: {problem}", "dead")
            return CANNOT_START
        machine.on_term = quorum.stop
        self._take_requests(machine, quorum)
        quorum.start()
        status: int = await quorum.ended
        return status

    def _lanes(self) -> Lanes:
        return Lanes(self._network, self.number, self._scenario.may_vote)

    def _apply_s(self, records: int) -> float:
        return min(APPLY_S_MAX, records * self._scenario.apply_s * self._slowed)

    async def _serve_brokers(self, machine: Machine, ports: Ports) -> int:
        """Run the node with the requests that brokers and their controller need.  Raises CannotStart."""
        with machine.disk.for_observer():
            left = small_files.read(machine.disk, CLEAN_SHUTDOWN)
        if left is not None:
            self.left_cleanly.add(clean_epoch(left))
        node = assemble(self._config, ports, calls=self._lanes(), trace=WatchedTrace(self))
        machine.on_term = node.stop
        self._take_requests(machine, node.quorum)
        await node.start()
        status: int = await node.ended
        await node.close()
        return status

    def _take_requests(self, machine: Machine, quorum: QuorumNode) -> None:
        self.quorum = quorum
        self._recovered_in = self.lives
        machine.on_exception = lambda context: quorum.collapse(
            context.get("exception") or RuntimeError(context["message"])
        )
        self._network.listen(self, self.name, CALLS_PORT)

    # State that the watch and the storm read

    @property
    def alive(self) -> bool:
        return self.machine.process is not None

    @property
    def ends(self) -> bool:
        """Return True if the process is about to exit because its node has ended."""
        quorum = self.quorum if self._recovered_in == self.lives else None  # else it is that of the previous process
        return self.alive and quorum is not None and quorum.ended.done()

    @property
    def replica(self) -> ReplicaKey:
        """Return the identity of this server with its disk."""
        return ReplicaKey(self.number, self.directory)

    @property
    def role(self) -> str:
        return self.watch.roles.get(self.name, "dead") if self.alive else "dead"

    @property
    def epoch(self) -> int:
        return self.quorum.epoch if self.quorum is not None else 0

    @property
    def mark(self) -> int:
        return (self.quorum.high_watermark or 0) if self.quorum is not None else 0

    @property
    def flushed(self) -> int:
        return self.quorum.log.flushed_offset if self.quorum is not None else 0

    @property
    def durable_end(self) -> int:
        return self._durable.end_offset(self.machine.disk)

    def log_began_anew(self) -> None:
        """Note that the log may be another one now: it was truncated or replaced by a snapshot, or the server
        restarted.
        """
        self._durable.begin_anew()

    @property
    def end(self) -> tuple[int, int]:
        return (self.quorum.log.last_epoch, self.quorum.log.end_offset) if self.quorum is not None else (0, 0)

    @property
    def log_start(self) -> int:
        """Return the start of the log; everything before it is in a snapshot."""
        return self.quorum.log.start_offset if self.quorum is not None else 0

    @property
    def snapshot_end(self) -> int:
        """Return the end of the newest snapshot; 0 if there is none."""
        snapshot = self.quorum.log.snapshot if self.quorum is not None else None
        return snapshot.end_offset if snapshot is not None else 0

    def voter_history(self) -> VoterHistory:
        """Return the history of voters in the log; while it contains none, the configured voters."""
        if self.quorum is None:
            return VoterHistory(initial_voters(self._scenario))
        with self.machine.disk.for_observer():
            return VotersInLog(self.quorum.log, initial_voters(self._scenario)).load()

    def snapshot_voters(self) -> VoterSet | None:
        """Return the voters in its newest snapshot."""
        log = self.quorum.log if self.quorum is not None else None
        with self.machine.disk.for_observer():
            return None if log is None or log.snapshot is None else log.snapshots.voters(log.snapshot)

    def prefix(self, offset: int) -> int | None:
        """Return an identifier of all entries before this offset; None if no entry ends there, or if the log begins
        after it.
        """
        return self.quorum.log.prefix_hash_at(offset) if self.quorum is not None else (0 if offset == 0 else None)

    def changes(self, offset: int, end_offset: int) -> Iterator[Change]:
        """Return every change between two offsets in the log of this voter.  For a list, the value is the entire list
        after the change.
        """
        assert self.quorum is not None
        for batch in self.quorum.log.batches(offset, end_offset):
            raw = batch.body
            assert isinstance(raw, bytes)
            if codec.is_control(raw):
                continue
            for at, value in enumerate(codec.values(raw)):
                record = decode(value)
                if isinstance(record, ConfigRecord) and record.name in (REGISTER, LIST):
                    yield (batch.base_offset, at), record.resource_name, record.value

    def committed_batches(self, offset: int, end_offset: int) -> list[CommittedBatch]:
        """Return the batches of its metadata log between two offsets."""
        assert self.quorum is not None
        with self.machine.disk.for_observer():
            found = []
            for batch in self.quorum.log.batches(offset, end_offset):
                raw = batch.body
                assert isinstance(raw, bytes)
                values = () if codec.is_control(raw) else tuple(codec.values(raw))
                found.append(CommittedBatch(batch.base_offset, batch.end_offset, batch.epoch, values))
            return found

    def flip(self, at: int, how: str = "") -> bool:
        """Damage a file (`acts.FILE_KINDS`).  Return False if there is none, or if this incarnation has not recovered
        its log yet.
        """
        return self._recovered_in == self.lives and damage_file(self.machine.disk, how, at)

    # simulation.calls.Callee

    def asked(self, connection: int, what: Any, reply: Callable[[Any], None]) -> None:
        quorum = self.quorum
        assert quorum is not None
        if type(what) is tuple:
            asyncio.get_running_loop().create_task(self._answer(quorum, what, reply))
            return
        if not quorum.ended.done():
            quorum.take_raft_request(OF_CALLS + connection, what, self._noted(connection, what, reply))

    def gone(self, connection: int) -> None:
        if self.quorum is not None:
            self.watch.calls.gone(self, connection)
            self.quorum.on_disconnect(OF_CALLS + connection)

    async def _answer(self, quorum: QuorumNode, operation: tuple[str, str, Any], reply: Callable[[Any], None]) -> None:
        function, key, value = operation
        owed, epoch = self.watch.committed, quorum.epoch
        if function == "voters":
            reply = self._noted_change(value, reply)
        try:
            if function == "read":
                image = await quorum.read()
                self.watch.answered_read(self, quorum.applied_offset, owed)
                reply((OK, _held(image, key), epoch, quorum.applied_offset))
            elif function == "voters":
                error, _ = await quorum.change_voters(value)
                reply((REFUSED if error else OK, None))
            elif function == "create":
                [topic] = await quorum.write(lambda image: self._create(image, key))
                reply((OK if topic["error_code"] in _MADE else REFUSED, None))
            elif function == "topics":
                errors = await quorum.write(lambda image: value.decide(image, self._new_id, quorum.bugs))
                reply((REFUSED if any(errors) else OK, None))
            elif function == "registry" and value.how == READ_SETTINGS:
                reply((OK, settings_in(await quorum.read())))
            elif function == "registry":
                reply((OK, await quorum.write(lambda image: value.decide(image, quorum.sessions))))
            else:
                wanted = [Resource(TOPIC_RESOURCE, key, self._alterations(function, value or 0))]
                made: list[int] = []

                def decide(image: Image) -> tuple[list[Record], list[Result]]:
                    records, results = alter_configs(image, wanted)
                    made.append(len(records))
                    return records, results

                [result] = await quorum.write(decide)
                if not made[-1]:  # nothing was changed, so the answer proves as much as a read does
                    self.watch.answered_read(self, quorum.applied_offset, owed)
                reply((REFUSED, None) if result["error_code"] else (OK, None, epoch, quorum.applied_offset))
        except LostLeadership:
            reply((UNKNOWN, None))
        except Refused:
            reply((REFUSED, None))

    def _create(self, image: Image, key: str) -> tuple[list[Record], list[Result]]:
        if not self._scenario.brokers:
            return create_topics(image, [NewTopic(key)], of_ids([1]), self._new_id)
        return create_topics(image, [new_topic(image, key)], registered(image), self._new_id)

    def _alterations(self, function: str, value: int) -> tuple[Alteration, ...]:
        if function == "append":
            return (Alteration(LIST, ConfigOperation.APPEND, f"{value}:0"),)
        write = Alteration(REGISTER, ConfigOperation.SET, str(value))
        if not self._scenario.snapshot_bytes:
            return (write,)
        # If the state could only grow, a snapshot loaded on top of an older state would not show.
        comes_and_goes = ConfigOperation.SET if value % 2 else ConfigOperation.DELETE
        return write, Alteration(COMES_AND_GOES, comes_and_goes, "1" if value % 2 else None)

    def _new_id(self) -> UUID:
        return UUID(int=self.number << 64 | self.lives << 32 | next(self._ids), version=4)

    def _noted(self, connection: int, request: RaftRequest, reply: Callable[[Any], None]) -> Callable[[Any], None]:
        """Note the arrival of a voter's request; return the function that sends the answer."""
        calls, wait_s = self.watch.calls, 0.0
        calls.called(self)
        if request.cluster_id != self.cluster_id:
            return self._awaited(connection, wait_s, reply)
        self._note_fetch(request)
        if isinstance(request, FetchRequest):
            wait_s = min(request.max_wait_ms / 1000, WAIT_MAX_S)
            calls.fetched(self, key_of(request.replica), request.current_leader_epoch)
        elif isinstance(request, FetchSnapshotRequest):
            replica = key_of(request.replica)
            calls.fetched(self, replica, request.current_leader_epoch)
            calls.part_asked(self, replica, request)
            reply = self._telling(reply, lambda response: calls.part_sent(self, replica, response))
            if request.position:
                self.on_part(request.replica.id)
        return self._awaited(connection, wait_s, reply)

    def _telling(self, reply: Callable[[Any], None], note: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a function that calls `note` before `reply`, and neither of them after a restart."""
        life = self.lives

        def answer(response: Any) -> None:
            if life == self.lives:
                note(response)
            reply(response)

        return answer

    def _awaited(self, connection: int, wait_s: float, reply: Callable[[Any], None]) -> Callable[[Any], None]:
        number = self.watch.calls.asked(self, connection, wait_s)
        return self._telling(reply, lambda response: self.watch.calls.answered(self, number))

    def _noted_change(self, change: VoterChange, reply: Callable[[Any], None]) -> Callable[[Any], None]:
        """Note an operator's request for this change of voters; return the function that sends the answer."""
        sets, end = self.watch.sets, self.end[1]
        if sets is None:
            return reply
        sets.asked_for(change)

        def note(response: Any) -> None:
            if response == (OK, None):
                sets.acknowledged(self, change, end)

        return self._telling(reply, note)

    def _note_fetch(self, request: RaftRequest) -> None:
        first = isinstance(request, FetchRequest) and request.current_leader_epoch > self._fetched_in
        if first and isinstance(request, FetchRequest) and self.watch.leads(self):
            self._fetched_in = request.current_leader_epoch
            self.on_first_fetch(self)


_MADE = (ErrorCode.none, ErrorCode.topic_already_exists)


def _config(scenario: Scenario, number: int) -> config.Config:
    observer = number > scenario.nodes
    ids = (*range(1, scenario.nodes + 1), *([number] if observer else []))
    peers = {n: config.Peer(f"n{n}", n, f"n{n}", PORT) for n in ids}
    return config.Config(
        name=f"n{number}",
        node_id=number,
        cluster_id=kafka_uuid(derived_uuid("cluster", scenario.seed)),
        host=f"n{number}",
        port=PORT,
        peers=peers,
        data_dir=Path("/data"),
        trace_dir=Path("/trace"),
        seed=scenario.seed,
        bug=scenario.bug if scenario.bug in config.BUGS else None,
        directories={n: derived_uuid("directory", scenario.seed, peer.name) for n, peer in peers.items()},
        segment_bytes=scenario.segment_bytes,
        cached_bytes=scenario.cached_bytes,
        snapshots=_snapshots(scenario),
        observer=observer,
        dynamic=scenario.dynamic,
        brokers=_brokers(scenario, number),
    )


def _brokers(scenario: Scenario, number: int) -> config.Brokers | None:
    if not scenario.brokers:
        return None
    roles = {config.CONTROLLER} if number <= scenario.may_vote else set()
    roles |= {config.BROKER} if number in scenario.broker_ids else set()
    return config.Brokers(frozenset(roles), **KraftBrokers.cluster_settings["brokers"])


def _snapshots(scenario: Scenario) -> config.SnapshotLimits:
    """Return limits at which the log before a snapshot is deleted once it has two segments, so a server that was away
    for seconds needs a snapshot.
    """
    if not scenario.snapshot_bytes:
        return config.KAFKA_LIMITS
    return config.SnapshotLimits(
        max_record_bytes_between_snapshots=scenario.snapshot_bytes,
        max_snapshot_interval_ms=round(SNAPSHOT_INTERVAL_S * 1000),
        retention_bytes=2 * scenario.segment_bytes,
        part_max_bytes=scenario.part_bytes or config.KAFKA_LIMITS.part_max_bytes,
        batch_max_bytes=scenario.part_bytes or config.KAFKA_LIMITS.batch_max_bytes,
    )


def _held(image: Image, key: str) -> Value:
    configs = image.configs(key)
    if REGISTER in configs:
        return int(configs[REGISTER])
    return elements(configs.get(LIST))


_SUFFIX = ".log"


class DurableLog:
    """Reads the fsynced data of a log, segment after segment, while batches are contiguous.  Each read continues at the
    end of the previous one.
    """

    def __init__(self) -> None:
        self._base = -1  # base offset of the segment in which the next read begins
        self._position = 0
        self._end = 0

    def begin_anew(self) -> None:
        """Forget all data, because the disk may contain another log now."""
        self._base = -1

    def end_offset(self, disk: VolatileDisk) -> int:
        """Return the end of the last durable batch whose predecessors are all durable; the first segment's base if
        there is none.
        """
        files = disk.durable_in(FOLDER)
        if self._position > len(files.get(file_name(self._base), b"")):
            self.begin_anew()
        if self._base < 0:
            bases = [int(name.removesuffix(_SUFFIX)) for name in files if name.endswith(_SUFFIX)]
            self._base, self._position = min(bases, default=0), 0
            self._end = self._base
        while (data := files.get(file_name(self._base))) is not None:
            self._read(data)
            if self._end == self._base or file_name(self._end) not in files:
                break
            self._base, self._position = self._end, 0
        return self._end

    def _read(self, data: bytearray) -> None:
        with memoryview(data) as view:
            while self._position < len(view):
                try:
                    header = codec.read_header(view, self._position)
                except codec.CorruptBatch:
                    return
                if header.base_offset != self._end:
                    return
                self._position += header.size_bytes
                self._end = header.end_offset
