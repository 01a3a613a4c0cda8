"""The whole node of KRaft as a voter of a swarm: disk, log, core, state machine and controller, without sockets."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from harness.campaign.swarm.scenario import SNAPSHOT_INTERVAL_S, Scenario
from harness.campaign.swarm.voter import (
    OK,
    PORT,
    REFUSED,
    UNKNOWN,
    Change,
    DriftingClock,
    Value,
    VoterOnMachine,
    WatchedTrace,
    elements,
)
from harness.campaign.swarm.watch import Watch
from simulation.machine import Machine
from simulation.network import SimulatedNetwork
from system_under_test.kraft.client.questions import LIST, REGISTER
from system_under_test.kraft.controller.configs import (
    Alteration,
    ConfigOperation,
    Resource,
    ResourceResult,
    alter_configs,
)
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.placement import of_ids
from system_under_test.kraft.controller.topics import NewTopic, create_topics
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log import meta_properties
from system_under_test.kraft.log.meta_properties import MetaProperties, derived_uuid, kafka_uuid
from system_under_test.kraft.node.assembly import CannotStart, assemble_quorum
from system_under_test.kraft.node.config import Config, Peer
from system_under_test.kraft.node.node import QuorumNode
from system_under_test.kraft.node.snapshot_limits import KAFKA_LIMITS, SnapshotLimits
from system_under_test.kraft.node.voters_in_log import VotersInLog
from system_under_test.kraft.ports import Ports
from system_under_test.kraft.raft.decisions import BUGS
from system_under_test.kraft.raft.voters import VoterHistory, VoterSet
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, decode
from system_under_test.kraft.simulated import LoopNetwork
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued, TooLarge

CANNOT_START = 1
COMES_AND_GOES = "flush.messages"
"""A config that writes set and delete in turn; nobody reads it."""


class NodeVoter(VoterOnMachine):
    """The node as it runs in a container, without sockets: disk, log, core, state machine, controller."""

    def __init__(
        self, number: int, scenario: Scenario, machine: Machine, network: SimulatedNetwork, watch: Watch
    ) -> None:
        super().__init__(number, scenario, machine, network, watch)
        self.quorum: QuorumNode | None = None
        self._config = _config(scenario, number)
        self._ids = itertools.count(1)
        self._format()

    def _format(self) -> None:
        self.quorum = None
        properties = MetaProperties(self._config.cluster_id, self.number, self.directory)
        meta_properties.write(self.machine.disk, properties)

    async def _serve(self, machine: Machine) -> int:
        ports = Ports(
            clock=DriftingClock(machine, self._rate),
            disk=machine.disk,
            network=LoopNetwork(),
            trace=_NoTrace(),
            random=lambda purpose: Random(f"{self._scenario.seed}/{self.number}/{purpose}"),
            say=lambda words: print(words, file=sys.stderr),
        )
        try:
            quorum = assemble_quorum(self._config, ports, calls=self._lanes(), trace=WatchedTrace(self))
        except CannotStart as problem:
            print(f"cannot start: {problem}", file=sys.stderr)
            if not self.may_stop:
                self.watch.violated("a voter cannot start", f"{self.name}: {problem}", "dead")
            return CANNOT_START
        self.quorum = quorum
        machine.on_term = quorum.stop
        machine.on_exception = lambda context: quorum.collapse(
            context.get("exception") or RuntimeError(context["message"])
        )
        self._network.listen(self, self.name, PORT)
        quorum.start()
        status: int = await quorum.ended
        return status

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self.quorum.epoch if self.quorum is not None else 0

    @property
    def mark(self) -> int:  # type: ignore[override]
        return (self.quorum.high_watermark or 0) if self.quorum is not None else 0

    @property
    def flushed(self) -> int:  # type: ignore[override]
        return self.quorum.log.flushed_offset if self.quorum is not None else 0

    @property
    def end(self) -> tuple[int, int]:  # type: ignore[override]
        return (self.quorum.log.last_epoch, self.quorum.log.end_offset) if self.quorum is not None else (0, 0)

    @property
    def log_start(self) -> int:
        return self.quorum.log.start_offset if self.quorum is not None else 0

    @property
    def snapshot_end(self) -> int:
        snapshot = self.quorum.log.snapshot if self.quorum is not None else None
        return snapshot.end_offset if snapshot is not None else 0

    def voter_history(self) -> VoterHistory:
        if self.quorum is None:
            return VoterHistory(self._configured())
        with self.machine.disk.for_observer():
            return VotersInLog(self.quorum.log, self._configured()).load()

    def snapshot_voters(self) -> VoterSet | None:
        log = self.quorum.log if self.quorum is not None else None
        with self.machine.disk.for_observer():
            return None if log is None or log.snapshot is None else log.snapshots.voters(log.snapshot)

    def prefix(self, offset: int) -> int | None:
        return self.quorum.log.prefix_hash_at(offset) if self.quorum is not None else (0 if offset == 0 else None)

    def changes(self, offset: int, end_offset: int) -> Iterator[Change]:
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

    def flip(self, at: int) -> bool:
        files = [path for path, data in self.machine.disk.files().items() if path.endswith(".log") and data]
        if not files:
            return False
        file = self.machine.disk.open(sorted(files)[-1])
        place = noticed(file.read_at(0, file.size()), at % file.size())
        byte = file.read_at(place, 1)[0]
        file.write_at(place, bytes([byte ^ (1 << at % 8)]))
        file.fsync()
        return True

    # simulation.calls.Callee

    def asked(self, connection: int, what: Any, reply: Callable[[Any], None]) -> None:
        quorum = self.quorum
        assert quorum is not None
        if type(what) is tuple:
            asyncio.get_running_loop().create_task(self._answer(quorum, what, reply))
            return
        self._note_fetch(what)
        quorum.take_raft_request(connection, what, reply)

    def gone(self, connection: int) -> None:
        if self.quorum is not None:
            self.quorum.on_disconnect(connection)

    async def _answer(self, quorum: QuorumNode, operation: tuple[str, str, Any], reply: Callable[[Any], None]) -> None:
        function, key, value = operation
        owed = self.watch.committed
        try:
            if function == "read":
                image = await quorum.read()
                self.watch.answered_read(self, quorum.applied_offset, owed)
                reply((OK, _held(image, key)))
            elif function == "voters":
                error, _ = await quorum.change_voters(value)
                reply((REFUSED if error else OK, None))
            elif function == "create":
                await quorum.write(lambda image: create_topics(image, [NewTopic(key)], of_ids([1]), self._new_id))
                reply((OK, None))
            else:
                wanted = [Resource(TOPIC_RESOURCE, key, self._alterations(function, value or 0))]
                made: list[int] = []

                def decide(image: Image) -> tuple[list[bytes], list[ResourceResult]]:
                    records, results = alter_configs(image, wanted)
                    made.append(len(records))
                    return records, results

                [result] = await quorum.write(decide)
                if not made[-1]:  # it changed nothing: it says what a read says
                    self.watch.answered_read(self, quorum.applied_offset, owed)
                reply((REFUSED if result.error else OK, None))
        except (NotQueued, TooLarge):
            reply((REFUSED, None))
        except LostLeadership:
            reply((UNKNOWN, None))

    def _alterations(self, function: str, value: int) -> tuple[Alteration, ...]:
        if function == "append":
            return (Alteration(LIST, ConfigOperation.APPEND, f"{value}:0"),)
        write = Alteration(REGISTER, ConfigOperation.SET, str(value))
        if not self._scenario.snapshot_bytes:
            return (write,)
        # A state that only grows hides a snapshot that was loaded on top of an older state.
        comes_and_goes = ConfigOperation.SET if value % 2 else ConfigOperation.DELETE
        return write, Alteration(COMES_AND_GOES, comes_and_goes, "1" if value % 2 else None)

    def _new_id(self) -> UUID:
        return UUID(int=self.number << 64 | self.lives << 32 | next(self._ids), version=4)


CRC_COVERS_FROM = 21
"""Of a batch: Kafka's CRC leaves out the base offset and the epoch, so nobody promises to notice that they changed."""


def noticed(data: bytes, place: int) -> int:
    """A place in a log, or the first one behind it in the same batch at which a server has to notice a flipped bit."""
    position = 0
    while position <= place:
        try:
            header = codec.read_header(data, position)
        except codec.CorruptBatch:
            return place
        if place < position + header.size_bytes:
            return max(place, position + CRC_COVERS_FROM)
        position += header.size_bytes
    return place


class _NoTrace:
    """`ports.TraceFile`: the rows go elsewhere."""

    def last_line(self) -> bytes | None:
        return None

    def append(self, line: bytes) -> None:
        raise AssertionError("rows go to the watch")


def _config(scenario: Scenario, number: int) -> Config:
    observer = number > scenario.nodes
    ids = (*range(1, scenario.nodes + 1), *([number] if observer else []))
    peers = {n: Peer(f"n{n}", n, f"n{n}", PORT) for n in ids}
    return Config(
        name=f"n{number}",
        node_id=number,
        cluster_id=kafka_uuid(derived_uuid("cluster", scenario.seed)),
        host=f"n{number}",
        port=PORT,
        peers=peers,
        data_dir=Path("/data"),
        trace_dir=Path("/trace"),
        seed=scenario.seed,
        bug=scenario.bug if scenario.bug in BUGS else None,
        directories={n: derived_uuid("directory", scenario.seed, peer.name) for n, peer in peers.items()},
        segment_bytes=scenario.segment_bytes,
        cached_bytes=scenario.cached_bytes,
        snapshots=_snapshots(scenario),
        observer=observer,
        dynamic=scenario.dynamic,
    )


def _snapshots(scenario: Scenario) -> SnapshotLimits:
    """A log is cut once it holds two segments, so that a server that was away for seconds needs a snapshot."""
    if not scenario.snapshot_bytes:
        return KAFKA_LIMITS
    return SnapshotLimits(
        max_record_bytes_between_snapshots=scenario.snapshot_bytes,
        max_snapshot_interval_ms=round(SNAPSHOT_INTERVAL_S * 1000),
        retention_bytes=2 * scenario.segment_bytes,
    )


def _held(image: Image, key: str) -> Value:
    configs = image.configs(key)
    if REGISTER in configs:
        return int(configs[REGISTER])
    return elements(configs.get(LIST))
