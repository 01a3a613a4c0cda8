"""What stands on a machine: the whole node of KRaft over direct calls, or its consensus core alone.

Both answer the same calls: requests of other voters, and operations of clients as (function, key, value).

    ("read", key, None)      -> ("ok", what the object holds)
    ("write", key, value)    -> ("ok", None)
    either                   -> ("refused", None): certainly nothing was written; ("unknown", None)

A register holds a number or None, a list a tuple of numbers.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.watch import Watch
from simulation.calls import Lane, NoAnswer
from simulation.loop import SimulatedLoop
from simulation.machine import Machine
from simulation.network import Network
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
from system_under_test.kraft.node.trace import Trace
from system_under_test.kraft.ports import Ports, Timer
from system_under_test.kraft.raft import effects as fx
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import BUGS, durable_state, must_fsync, must_stop_on
from system_under_test.kraft.raft.messages import (
    BEGINNING,
    Batch,
    EpochEnd,
    FetchRequest,
    Identity,
    QuorumState,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    SnapshotId,
)
from system_under_test.kraft.raft.timing import Timing
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, decode
from system_under_test.kraft.simulated import LoopNetwork
from system_under_test.kraft.wire.quorum_service import LostLeadership, NotQueued, TooLarge

PORT = 9093
CANNOT_START = 1
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
Operation = tuple[str, str, int | None]
Value = int | None | tuple[int, ...]
Position = tuple[int, int]
"""(offset of a batch, number of the record in it): the place of a change in the committed log."""


class Voter:
    """What both kinds share: a machine, its lives, and the lanes to the others."""

    def __init__(self, number: int, scenario: Scenario, machine: Machine, network: Network, watch: Watch) -> None:
        self.number = number
        self.name = machine.name
        self.machine = machine
        self.lives = 0
        self.may_stop = False
        self.watch = watch
        self.on_first_fetch: Callable[[Voter], None] = lambda voter: None
        self._scenario = scenario
        self._network = network
        self._fetched_in = 0

    def start(self) -> None:
        if self.machine.process is None:
            self.lives += 1
            self.machine.start(self._serve, "output")

    async def _serve(self, machine: Machine) -> int:
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        return self.machine.process is not None

    # What the watch and the storm look at

    @property
    def role(self) -> str:
        return self.watch.roles.get(self.name, "dead") if self.alive else "dead"

    epoch: int
    mark: int
    flushed: int
    end: tuple[int, int]

    def prefix(self, offset: int) -> int | None:
        raise NotImplementedError

    def changes(self, end_offset: int) -> Iterator[tuple[Position, str, int | str | None]]:
        """(place, key, what was written) of every change below the offset, as the log of this voter holds it.  Of a
        list, what was written is the whole list, as text in a node and as the element in a core."""
        raise NotImplementedError

    def power_lost(self, kind: str, random: Random) -> None:
        """The machine has lost power; what the disk of the machine does not know about is lost here."""

    def flip(self, at: int) -> bool:
        """Flip a bit of the log, while the server is down.  Whether there was one to flip."""
        return False

    # Calls

    def _lanes(self) -> _Lanes:
        return _Lanes(self._network, self.number, [f"n{n}" for n in range(1, self._scenario.nodes + 1)])

    def _note_fetch(self, request: RaftRequest) -> None:
        first = isinstance(request, FetchRequest) and request.current_leader_epoch > self._fetched_in
        if first and isinstance(request, FetchRequest) and self.watch.leads(self):
            self._fetched_in = request.current_leader_epoch
            self.on_first_fetch(self)


class _Lanes:
    """`ports.Calls` of one voter: as `wire.channel`, one lane to each peer for fetches and one for all else."""

    def __init__(self, network: Network, me: int, hosts: Sequence[str]) -> None:
        self._lanes = {
            (peer, fetches): Lane(network, host, PORT, timeout_s=2.0, backoff_s=0.02)
            for peer, host in enumerate(hosts, 1)
            if peer != me
            for fetches in (True, False)
        }

    def call(self, peer: int, request: RaftRequest, answered: Callable[[RaftResponse | None], None]) -> None:
        lane = self._lanes[peer, type(request) is FetchRequest]
        lane.call(request, lambda answer: answered(None if type(answer) is NoAnswer else answer))


class _WatchedTrace(Trace):
    """Rows go to the watch at once, and nowhere else."""

    def __init__(self, voter: Voter) -> None:
        super().__init__(lambda line: None, lambda: 0, 0, voter.lives - 1)
        self._voter = voter
        self._process = voter.machine.process

    def row(
        self,
        event: str,
        epoch: int,
        *,
        offset: int | None = None,
        hash: int | None = None,
        peer: str | None = None,
        role: str | None = None,
        detail: str | None = None,
    ) -> None:
        if self._voter.machine.process is self._process:  # else it died inside the effect
            self._voter.watch.row(self._voter, event, epoch, offset, hash, peer, role, detail)


class _Clock:
    """`ports.Clock` of a machine whose monotonic clock runs `rate` times as fast."""

    def __init__(self, machine: Machine, rate: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._rate = rate

    def now(self) -> float:
        return self._loop.time() * self._rate

    def now_ns(self) -> int:
        return round(self.now() * 1e9)

    def wall_ms(self) -> int:
        return self._machine.wall_ns() // 1_000_000

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        # Never before `now() == when`, whatever is rounded: a timer that rings early rings for ever.
        return self._loop.call_at(when / self._rate + 1e-9, callback)


# The whole node


class NodeVoter(Voter):
    """The node as it runs in a container, without sockets: disk, log, core, state machine, controller."""

    def __init__(self, number: int, scenario: Scenario, machine: Machine, network: Network, watch: Watch) -> None:
        super().__init__(number, scenario, machine, network, watch)
        self.quorum: QuorumNode | None = None
        self._config = _config(scenario, number)
        self._rate = scenario.rates[number - 1] if scenario.rates else 1.0
        properties = MetaProperties(self._config.cluster_id, number, self._config.directories[number])
        meta_properties.write(machine.disk, properties)

    async def _serve(self, machine: Machine) -> int:
        ports = Ports(
            clock=_Clock(machine, self._rate),
            disk=machine.disk,
            network=LoopNetwork(),
            trace=_NoTrace(),
            random=lambda purpose: Random(f"{self._scenario.seed}/{self.number}/{purpose}"),
            say=lambda words: print(words, file=sys.stderr),
        )
        try:
            quorum = assemble_quorum(self._config, ports, calls=self._lanes(), trace=_WatchedTrace(self))
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

    def prefix(self, offset: int) -> int | None:
        return self.quorum.log.prefix_hash_at(offset) if self.quorum is not None else (0 if offset == 0 else None)

    def changes(self, end_offset: int) -> Iterator[tuple[Position, str, int | str | None]]:
        assert self.quorum is not None
        for batch in self.quorum.log.batches(0, end_offset):
            raw = batch.body
            assert isinstance(raw, bytes)
            if codec.is_control(raw):
                continue
            for at, value in enumerate(codec.values(raw)):
                record = decode(value)
                if isinstance(record, ConfigRecord):
                    yield (batch.base_offset, at), record.resource_name, record.value

    def flip(self, at: int) -> bool:
        files = [path for path, data in self.machine.disk.files().items() if path.endswith(".log") and data]
        if not files:
            return False
        file = self.machine.disk.open(sorted(files)[-1])
        place = at % file.size()
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

    async def _answer(self, quorum: QuorumNode, operation: Operation, reply: Callable[[Any], None]) -> None:
        function, key, value = operation
        owed = self.watch.committed
        try:
            if function == "read":
                image = await quorum.read()
                self.watch.answered_read(self, quorum.applied_offset, owed)
                reply((OK, _held(image, key)))
            elif function == "create":
                await quorum.write(lambda image: create_topics(image, [NewTopic(key)], of_ids([1]), self._new_id))
                reply((OK, None))
            else:
                alteration = (
                    Alteration(REGISTER, ConfigOperation.SET, str(value))
                    if function == "write"
                    else Alteration(LIST, ConfigOperation.APPEND, f"{value}:0")
                )
                wanted = [Resource(TOPIC_RESOURCE, key, (alteration,))]
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

    _ids = itertools.count(1)

    def _new_id(self) -> UUID:
        return UUID(int=self.number << 64 | self.lives << 32 | next(self._ids), version=4)


class _NoTrace:
    """`ports.TraceFile`: the rows go elsewhere."""

    def last_line(self) -> bytes | None:
        return None

    def append(self, line: bytes) -> None:
        raise AssertionError("rows go to the watch")


def _config(scenario: Scenario, number: int) -> Config:
    peers = {n: Peer(f"n{n}", n, f"n{n}", PORT) for n in range(1, scenario.nodes + 1)}
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
    )


def _held(image: Image, key: str) -> Value:
    configs = image.configs(key)
    if REGISTER in configs:
        return int(configs[REGISTER])
    return elements(configs.get(LIST))


def elements(text: str | None) -> tuple[int, ...] | None:
    """What a list in a record holds; None for no list."""
    return None if text is None else tuple(int(member.partition(":")[0]) for member in text.split(",") if member)


# The core alone


class CoreLog:
    """The log of a core alone, with what a power loss takes.  A `LogView`; the machine's disk decides what fails.

    It is never cut, and has no snapshots."""

    start = BEGINNING
    snapshot: SnapshotId | None = None

    def __init__(self, machine: Machine) -> None:
        self.state = QuorumState()
        self.batches: list[Batch] = []
        self.ends: list[int] = []
        self.chain: list[int] = []
        self.flushed = 0
        self._machine = machine
        self._fsynced = 0

    @property
    def end_offset(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        at = bisect_right(self.batches, epoch, key=lambda batch: batch.epoch) - 1
        return EpochEnd(self.batches[at].epoch, self.ends[at]) if at >= 0 else EpochEnd(0, 0)

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        first = bisect_right(self.ends, offset)
        return self.batches[first : first + 100]

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_size_bytes: int) -> tuple[bytes, int] | None:
        return None

    def prefix(self, offset: int) -> int | None:
        if offset == 0:
            return 0
        at = bisect_left(self.ends, offset)
        return self.chain[at] if at < len(self.ends) and self.ends[at] == offset else None

    def append(self, batches: Sequence[Batch]) -> None:
        self._changes("write")
        for batch in batches:
            self.batches.append(batch)
            self.ends.append(batch.end_offset)
            before = self.chain[-1] if self.chain else 1
            self.chain.append(_mixed(before, batch))

    def flush(self, really: bool = True) -> None:
        disk = self._machine.disk
        disk.fail_if("fsync", "log")
        disk.before_change()
        self.flushed = self.end_offset
        if really:
            self._fsynced = self.end_offset

    def truncate(self, end_offset: int) -> None:
        """Durable on return, as that of a node's log."""
        self._changes("truncate")
        self._cut(end_offset)

    def store(self, state: QuorumState) -> None:
        self._changes("write")
        self.state = state

    def lose(self, kind: str, random: Random) -> None:
        """A power loss: of what was not fsynced nothing is kept, or a prefix."""
        kept = {"lose": self._fsynced, "keep": self.end_offset}.get(kind)
        ends = [self._fsynced, *(end for end in self.ends if end > self._fsynced)]
        self._cut(random.choice(ends) if kept is None else kept)
        self.flushed = self._fsynced = self.end_offset

    def _changes(self, verb: str) -> None:
        disk = self._machine.disk
        disk.fail_if(verb, "log")
        disk.before_change()

    def _cut(self, end_offset: int) -> None:
        keep = bisect_right(self.ends, end_offset)
        del self.batches[keep:], self.ends[keep:], self.chain[keep:]
        self.flushed, self._fsynced = min(self.flushed, self.end_offset), min(self._fsynced, self.end_offset)


def _mixed(before: int, batch: Batch) -> int:
    """A running hash that is the same in every process."""
    body = batch.body if isinstance(batch.body, tuple) else ("leader",)
    text = f"{before} {batch.base_offset} {batch.epoch} {batch.count} {body}"
    return int.from_bytes(_digest(text.encode()), "big")


def _digest(data: bytes) -> bytes:
    from hashlib import blake2b

    return blake2b(data, digest_size=7).digest()


class CoreVoter(Voter):
    """The very core that a node runs, its effects carried out on a log in memory.  A change is (key, value)."""

    def __init__(self, number: int, scenario: Scenario, machine: Machine, network: Network, watch: Watch) -> None:
        super().__init__(number, scenario, machine, network, watch)
        self._log = CoreLog(machine)
        self._core: Core | None = None
        self._rate = scenario.rates[number - 1] if scenario.rates else 1.0
        self._bugs = frozenset({scenario.bug}) if scenario.bug in BUGS else frozenset()
        self._voters = tuple(range(1, scenario.nodes + 1))
        self._loop: SimulatedLoop = network.loop
        self._tokens = itertools.count(1)

    async def _serve(self, machine: Machine) -> int:
        self._calls = self._lanes()
        self._trace = _WatchedTrace(self)
        self._repliers: dict[int, Callable[[Any], None]] = {}
        self._reads: dict[int, tuple[str, int, Callable[[Any], None]]] = {}
        self._writes: dict[int, Callable[[Any], None]] = {}
        self._accepted: list[tuple[int, int]] = []  # (end offset, token)
        self._image: dict[str, Value] = {}
        self._applied = 0
        self._leading_epoch: int | None = None
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        random = Random(f"{self._scenario.seed}/{self.number}/timeouts/{self.lives}")
        identity = Identity("swarm", ReplicaKey(self.number), self._voters, Timing(), self._bugs)
        state, log = self._log.state, self._log
        self._core = Core(identity, log, state, random, self._now())
        self._network.listen(self, self.name, PORT)
        self._trace.row(
            "start", max(state.epoch, log.last_epoch), offset=log.end_offset, hash=log.prefix(log.end_offset)
        )
        self._vote_row("quorum-state", state)
        self._drive(self._core.start)
        return await self._ended

    def _now(self) -> float:
        return self._loop.time() * self._rate

    def _drive(self, event: Callable[[float], list[fx.Effect]]) -> None:
        core = self._core
        if core is None or self._ended.done():
            return
        now = self._now()
        try:
            self._carry_out(event(now))
            for _ in range(16):
                if core.deadline() > now or self._ended.done():
                    break
                self._carry_out(core.tick(now))
        except OSError as problem:
            self._stop(f"the disk failed: {problem}")
        except Exception as problem:  # noqa: BLE001 - any other error is a finding
            self.may_stop = False
            self._stop(f"unexpected error: {problem!r}")
        if not self._ended.done() and core.deadline() < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = core.deadline()
            self._timer = self._loop.call_at(self._timer_at / self._rate + 1e-9, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._drive(lambda now: [])

    def _stop(self, reason: str) -> None:
        self._trace.row("fatal", self.epoch, detail=reason)
        if self._timer is not None:
            self._timer.cancel()
        self._ended.set_result(1)

    def _carry_out(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            _CORE_EFFECTS[type(effect)](self, effect)
            if self._ended.done():
                return

    def _vote_row(self, event: str, state: QuorumState) -> None:
        self._trace.row(event, state.epoch, peer=None if state.voted is None else f"n{state.voted.id}")

    def _persist(self, effect: fx.Persist) -> None:
        stored = durable_state(effect.state, self._bugs)
        self._log.store(stored)
        event, state = ("vote", effect.state) if effect.voted_now else ("quorum-state", stored)
        self._vote_row(event, state)

    def _append(self, effect: fx.Append) -> None:
        try:
            self._log.append(effect.batches)
        except OSError as problem:
            if must_stop_on(problem.errno, self._bugs):
                raise
        self._trace.row("append", self._log.last_epoch, offset=self._log.end_offset)

    def _flush(self, effect: fx.Flush) -> None:
        self._log.flush(must_fsync(self._bugs))
        self._trace.row("flush", self.epoch, offset=self._log.flushed)

    def _truncate(self, effect: fx.Truncate) -> None:
        self._log.truncate(effect.end_offset)
        self._trace.row("truncate", self.epoch, offset=self._log.end_offset)

    def _send(self, effect: fx.Send) -> None:
        self._calls.call(
            effect.peer,
            effect.request,
            lambda answer: self._drive(lambda now: self._known.on_response(now, effect.peer, effect.request, answer)),
        )

    @property
    def _known(self) -> Core:
        assert self._core is not None
        return self._core

    def _reply(self, effect: fx.Reply) -> None:
        if (reply := self._repliers.pop(effect.token, None)) is not None:
            reply(effect.response)

    def _role_changed(self, effect: fx.RoleChanged) -> None:
        peer = None if effect.leader_id is None else f"n{effect.leader_id}"
        self._trace.row("role", effect.epoch, role=str(effect.role), peer=peer, offset=effect.epoch_start_offset)
        lost, self._accepted = self._accepted, []
        for _, token in lost:
            self._writes.pop(token)((UNKNOWN, None))

    def _high_watermark(self, effect: fx.HighWatermark) -> None:
        log, mark = self._log, effect.offset
        self._trace.row("high-watermark", self.epoch, offset=mark, hash=log.prefix(mark))
        at = bisect_right(log.ends, self._applied)
        while at < len(log.ends) and log.ends[at] <= mark:
            body = log.batches[at].body
            if isinstance(body, tuple):
                key, value, appends = body
                held = self._image.get(key) or ()
                self._image[key] = (*held, value) if appends and isinstance(held, tuple) else value
            at += 1
        self._applied = mark
        while self._accepted and self._accepted[0][0] <= mark:
            _, token = self._accepted.pop(0)
            self._writes.pop(token)((OK, None))

    def _accept(self, effect: fx.Accepted) -> None:
        self._accepted.append((effect.end_offset, effect.token))

    def _refuse(self, effect: fx.Refused) -> None:
        if (reply := self._writes.pop(effect.token, None)) is not None:
            reply((REFUSED, None))
        elif (read := self._reads.pop(effect.token, None)) is not None:
            read[2]((REFUSED, None))

    def _read_ready(self, effect: fx.ReadReady) -> None:
        key, owed, reply = self._reads.pop(effect.token)
        self.watch.answered_read(self, effect.high_watermark, owed)
        reply((OK, self._image.get(key)))

    def _fatal(self, effect: fx.Fatal) -> None:
        self._stop(effect.reason)

    # simulation.calls.Callee

    def asked(self, connection: int, what: Any, reply: Callable[[Any], None]) -> None:
        if self._ended.done():
            return
        token, core = next(self._tokens), self._known
        if type(what) is not tuple:
            self._note_fetch(what)
            self._repliers[token] = reply
            self._drive(lambda now: core.on_request(now, token, connection, what))
            return
        function, key, value = what
        if function == "read":
            self._reads[token] = (key, self.watch.committed, reply)
            self._drive(lambda now: core.read(now, token))
        elif function == "create":
            reply((OK, None) if core.role == "leader" else (REFUSED, None))
        else:
            self._writes[token] = reply
            self._drive(lambda now: core.propose(now, token, [((key, value, function == "append"), 1)]))

    def gone(self, connection: int) -> None:
        if self._core is not None:
            self._drive(lambda now: self._known.on_disconnect(now, connection))

    # What is looked at

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self._core.epoch if self._core is not None else 0

    @property
    def mark(self) -> int:  # type: ignore[override]
        return (self._core.high_watermark or 0) if self._core is not None else 0

    @property
    def flushed(self) -> int:  # type: ignore[override]
        return self._log.flushed

    @property
    def end(self) -> tuple[int, int]:  # type: ignore[override]
        return self._log.last_epoch, self._log.end_offset

    def prefix(self, offset: int) -> int | None:
        return self._log.prefix(offset)

    def changes(self, end_offset: int) -> Iterator[tuple[Position, str, int | str | None]]:
        for batch, end in zip(self._log.batches, self._log.ends, strict=True):
            if end <= end_offset and isinstance(batch.body, tuple):
                key, value, _ = batch.body
                yield (batch.base_offset, 0), key, value

    def power_lost(self, kind: str, random: Random) -> None:
        self._log.lose(kind, random)


_CORE_EFFECTS: Mapping[type, Callable[[CoreVoter, Any], None]] = {
    fx.Persist: CoreVoter._persist,
    fx.Append: CoreVoter._append,
    fx.Flush: CoreVoter._flush,
    fx.Truncate: CoreVoter._truncate,
    fx.Send: CoreVoter._send,
    fx.Reply: CoreVoter._reply,
    fx.RoleChanged: CoreVoter._role_changed,
    fx.HighWatermark: CoreVoter._high_watermark,
    fx.Accepted: CoreVoter._accept,
    fx.Refused: CoreVoter._refuse,
    fx.ReadReady: CoreVoter._read_ready,
    fx.Fatal: CoreVoter._fatal,
}
