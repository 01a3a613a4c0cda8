"""A small world in memory: voters with disks, connections between them, clients, and virtual time.

By itself the world is kind: messages take a few milliseconds and nothing breaks.  A script (the scenario tests) or a
shuffler cuts links, crashes voters and breaks connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random

from simulated_quorum.disk import Disk
from simulated_quorum.invariants import NO_EXCEPTION, NO_FATAL, Watch
from simulated_quorum.network import Network, Node
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import durable_state, must_fsync
from system_under_test.kraft.raft.effects import (
    Accepted,
    Append,
    BeginFlush,
    Effect,
    Fatal,
    Flush,
    HighWatermark,
    InstallSnapshot,
    NotAccepted,
    Persist,
    ReadReady,
    Reply,
    RoleChanged,
    Send,
    Truncate,
    WriteSnapshot,
)
from system_under_test.kraft.raft.messages import (
    FetchRequest,
    Identity,
    ReplicaKey,
    Timing,
)

CLUSTER_ID = "shuffled"
FSYNC_S = 0.001
"""How long an fsync takes that goes on beside the core."""


@dataclass
class Proposal:
    node: int
    body: str
    outcome: str = "pending"  # pending, refused, accepted, acknowledged, unknown
    epoch: int = 0
    end_offset: int = 0


@dataclass
class Read:
    node: int
    owed: int
    outcome: str = "pending"  # pending, refused, answered
    mark: int = -1


class World(Network):
    """See Network for seed and lanes."""

    def __init__(
        self,
        voters: int = 3,
        *,
        seed: int = 0,
        bugs: Iterable[str] = (),
        timing: Timing | None = None,
        lanes: bool = True,
        batches_per_read: int = 1000,
    ) -> None:
        ids = tuple(range(1, voters + 1))
        nodes = {id: Node(id, Disk(batches_per_read)) for id in ids}
        watch = Watch({id: node.disk for id, node in nodes.items()}, lambda: self.now)
        super().__init__(nodes, watch, timing or Timing(), seed=seed, lanes=lanes)
        self.bugs = frozenset(bugs)
        self.story: list[str] | None = None  # if a list, every effect is appended to it

        self.fsync_s: dict[int, float] = {}  # voter with a slow disk -> time of its fsync
        self.crashes: Callable[[], bool] = lambda: False  # called between any two effects
        self.on_crash: Callable[[int], None] = lambda node: None
        self.tamper: Callable[[list[Effect]], list[Effect]] = lambda effects: effects  # a faulty executor

        self.proposals: dict[int, Proposal] = {}
        self.reads: dict[int, Read] = {}
        self.effects = 0
        self._open_proposals: dict[int, list[Proposal]] = {id: [] for id in ids}
        for id in ids:
            self.restart(id)

    # Seeing

    def core(self, id: int) -> Core:
        core = self.nodes[id].core
        assert core is not None, f"voter {id} is down"
        return core

    def role(self, id: int) -> str:
        return str(self.core(id).role)

    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.core is not None]

    def others(self, *ids: int) -> list[int]:
        """All voters but these."""
        return [id for id in self.nodes if id not in ids]

    def violated(self) -> set[str]:
        """The invariants that did not hold."""
        return {violation.invariant for violation in self.watch.violations}

    def leaders(self) -> list[int]:
        """Every voter that believes it leads, the newest epoch first."""
        leading = [(node.core.epoch, node.id) for node in self.running() if node.core and node.core.role == "leader"]
        return [id for _, id in sorted(leading, reverse=True)]

    def leader(self) -> int | None:
        """The leader of the newest epoch that any voter knows, if there is one."""
        newest = max((node.core.epoch for node in self.running() if node.core), default=0)
        return next((id for id in self.leaders() if self.core(id).epoch == newest), None)

    def elect(self, limit_s: float = 10.0) -> int:
        """Wait until the newest epoch has a leader that has committed its LeaderChange and is followed by all."""

        def settled() -> bool:
            leader = self.leader()
            return leader is not None and all(
                node.core is not None and node.core.leader_id == leader and node.core.high_watermark is not None
                for node in self.running()
            )

        assert self.wait_for(settled, limit_s), f"no leader within {limit_s} s"
        leader = self.leader()
        assert leader is not None
        return leader

    def bodies(self, id: int) -> list[str]:
        """What was proposed and now stands in this voter's log, as text."""
        return [str(batch.body) for batch in self.nodes[id].disk.batches if isinstance(batch.body, str)]

    # Clients

    def propose(self, id: int, *bodies: str) -> Proposal:
        token, proposal = self._number(), Proposal(id, bodies[0])
        self.proposals[token] = proposal
        self._enter(self.nodes[id], lambda core: core.propose(self.now, token, [(body, 1) for body in bodies]))
        return proposal

    def read(self, id: int) -> Read:
        token, read = self._number(), Read(id, self.watch.acknowledged_end)
        self.reads[token] = read
        self._enter(self.nodes[id], lambda core: core.read(self.now, token))
        return read

    # Faults

    def cut(self, *groups: Iterable[int]) -> None:
        """Only members of one group hear each other; who is named in no group is alone."""
        place = {id: index for index, group in enumerate(groups) for id in group}
        self.blocked = {
            (a, b) for a in self.nodes for b in self.nodes if a != b and place.get(a, -a) != place.get(b, -b)
        }

    def slow_down(self, id: int, lag_s: float) -> None:
        """Everything to and from this voter takes longer."""
        for other in self.nodes:
            self.lag_s[id, other] = self.lag_s[other, id] = lag_s

    def heal(self) -> None:
        self.blocked = set()
        self.lag_s = {}

    def crash(self, id: int, *, power_loss: bool = False) -> None:
        node = self.nodes[id]
        node.core, node.frozen = None, None
        node.incarnation += 1
        if power_loss:
            node.disk.lose_power(self.random)
        self._forget_proposals(id)
        for connection in list(self._connections.values()):
            if connection.client == id:
                self._close(connection, tell_server=not power_loss)
            elif connection.server == id and not power_loss:
                self._post(id, connection.client, partial(self.break_connection, connection))
        self.on_crash(id)

    def restart(self, id: int) -> None:
        node = self.nodes[id]
        if node.core is not None or node.died_of is not None:
            return
        identity = Identity(CLUSTER_ID, ReplicaKey(id), tuple(self.nodes), self.timing, self.bugs)
        random = Random(self.random.getrandbits(32))
        node.core = Core(identity, node.disk, node.disk.quorum_state, random, self.now)
        node.tick_at = float("inf")
        self._on_its_way = {call for call in self._on_its_way if call[0] != id}
        self.watch.started(id)
        self._enter(node, lambda core: core.start(self.now))

    def shut_down(self, id: int) -> None:
        self._enter(self.nodes[id], lambda core: core.shutdown(self.now))

    def take_snapshot(self, id: int, *, keep_log: bool = False) -> None:
        """A voter takes a snapshot of all that it knows committed."""
        core = self.nodes[id].core
        if core is not None and core.high_watermark:
            self.nodes[id].disk.take_snapshot(core.high_watermark, keep_log=keep_log)

    def pause(self, id: int) -> None:
        node = self.nodes[id]
        if node.core is not None and node.frozen is None:
            node.frozen = []

    def resume(self, id: int) -> None:
        node = self.nodes[id]
        missed, node.frozen = node.frozen or [], None
        for happened in missed:
            happened()

    # Voters: inputs to the core, and its effects

    def _enter(self, node: Node, call: Callable[[Core], list[Effect]], incarnation: int | None = None) -> None:
        if node.core is None or incarnation not in (None, node.incarnation):
            return
        if node.frozen is not None:
            current = node.incarnation
            node.frozen.append(lambda: self._enter(node, call, current))
            return
        try:
            effects = call(node.core)
        except Exception as error:  # noqa: BLE001  every exception is a finding
            self._die(node, f"{type(error).__name__}: {error}")
            self.watch.violated(NO_EXCEPTION, f"voter {node.id}: {node.died_of}")
            return
        for effect in self.tamper(effects):
            if self.crashes():
                self.crash(node.id, power_loss=self.random.random() < 0.7)
                return
            if self.story is not None:
                self.story.append(f"{self.now:9.3f}  {node.id}  {effect}")
            self.effects += 1
            self._carry_out(node, effect)
            if node.core is None:
                return
        self._plan_tick(node)

    def _plan_tick(self, node: Node) -> None:
        assert node.core is not None
        deadline = node.core.deadline()
        if deadline < node.tick_at:
            node.tick_at = deadline
            incarnation = node.incarnation
            self.at(deadline, lambda: self._tick(node, incarnation))

    def _tick(self, node: Node, incarnation: int) -> None:
        if node.core is None or incarnation != node.incarnation:
            return
        if node.tick_at > self.now:
            return  # an earlier plan, replaced meanwhile
        node.tick_at = float("inf")
        if node.core.deadline() > self.now:
            self._plan_tick(node)
        else:
            self._enter(node, lambda core: core.tick(self.now), incarnation)

    def _carry_out(self, node: Node, effect: Effect) -> None:
        disk, watch, core = node.disk, self.watch, node.core
        assert core is not None
        match effect:
            case Persist(state=state, voted_now=voted_now):
                before, disk.quorum_state = disk.quorum_state, durable_state(state, self.bugs)
                watch.persisted(node.id, before, state, voted_now=voted_now)
            case Append(batches=batches):
                disk.append(batches)
                watch.appended(node.id, len(batches))
            case BeginFlush():
                self._begin_flush(node)
            case Flush():
                if must_fsync(self.bugs):
                    disk.flush()
            case Truncate(end_offset=end_offset):
                watch.truncating(node.id, end_offset)
                disk.truncate(end_offset)
            case WriteSnapshot(position=position, data=data):
                disk.write_snapshot(position, data)
            case InstallSnapshot(snapshot=snapshot):
                disk.install(snapshot)
                watch.installed(node.id)
            case Send(peer=peer, request=request):
                if isinstance(request, FetchRequest):
                    watch.tells_end(node.id, request)
                self._send(node, peer, request)
            case Reply(token=token, response=response):
                self._answer(node, token, response)
            case RoleChanged(role=role, epoch=epoch):
                self._forget_proposals(node.id)
                if role == "leader":
                    watch.leads(node.id, node.incarnation, epoch)
            case HighWatermark(offset=offset):
                leads = core.role == "leader"
                watch.committed(node.id, offset, core.epoch if leads else None)
                self._acknowledge(node.id, offset)
            case Accepted(token=token, epoch=epoch, end_offset=end_offset):
                proposal = self.proposals[token]
                proposal.outcome, proposal.epoch, proposal.end_offset = "accepted", epoch, end_offset
                self._open_proposals[node.id].append(proposal)
            case ReadReady(token=token, high_watermark=mark):
                read = self.reads[token]
                assert read.outcome == "pending", "a read is answered once"
                read.outcome, read.mark = "answered", mark
                watch.answered_read(node.id, mark, read.owed)
            case NotAccepted(token=token):
                waiting = self.reads.get(token) or self.proposals[token]
                assert waiting.outcome == "pending", "only what waits can be refused"
                waiting.outcome = "refused"
            case Fatal(reason=reason):
                self._die(node, reason)
                watch.violated(NO_FATAL, f"voter {node.id} stops: {reason}")

    def _begin_flush(self, node: Node) -> None:
        incarnation, log_end, end = node.incarnation, node.disk.end_offset, node.disk.begin_flush()

        def done() -> None:
            if node.incarnation == incarnation and must_fsync(self.bugs):
                end()
            self._enter(node, lambda core: self._flushed(node, core, log_end), incarnation)

        self.at(self.now + self.fsync_s.get(node.id, FSYNC_S), done)

    def _flushed(self, node: Node, core: Core, log_end: int) -> list[Effect]:
        return core.on_flushed(self.now, log_end)

    def _die(self, node: Node, reason: str) -> None:
        node.died_of = reason
        self.crash(node.id)

    def _acknowledge(self, id: int, mark: int) -> None:
        still_open = []
        for proposal in self._open_proposals[id]:
            if proposal.end_offset <= mark:
                proposal.outcome = "acknowledged"
                self.watch.acknowledged(proposal.end_offset)
            else:
                still_open.append(proposal)
        self._open_proposals[id] = still_open

    def _forget_proposals(self, id: int) -> None:
        for proposal in self._open_proposals[id]:
            proposal.outcome = "unknown"
        self._open_proposals[id] = []
