"""A small world in memory: voters with disks, connections between them, clients, and virtual time.

By itself the world is kind: messages take a few milliseconds and nothing breaks.  A script (the scenario tests) or a
shuffler cuts links, crashes voters and breaks connections.

Connections are like TCP's: each carries one request at a time, in order, and its answer; when one fails, everything on
it is answered with None at the client, and the server learns of it later or never.  A request that was on its way
when its client gave up may still arrive: that is how one request comes twice, or after its successor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from raft_disk import Disk
from raft_invariants import NO_EXCEPTION, NO_FATAL, Watch

from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import durable_state, must_fsync
from system_under_test.kraft.raft.effects import (
    Accepted,
    Append,
    Effect,
    Fatal,
    Flush,
    HighWatermark,
    Persist,
    ReadReady,
    Refused,
    Reply,
    RoleChanged,
    Send,
    Truncate,
)
from system_under_test.kraft.raft.messages import (
    FetchRequest,
    Identity,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    Timing,
    VoteRequest,
    VoteResponse,
)

CLUSTER_ID = "shuffled"


@dataclass
class Node:
    id: int
    disk: Disk
    core: Core | None = None  # None: not running
    incarnation: int = 0
    tick_at: float = float("inf")
    frozen: list[Callable[[], None]] | None = None  # what happened to it while it was paused
    died_of: str | None = None


@dataclass(eq=False)
class Call:
    request: RaftRequest
    incarnation: int  # of the client
    done: bool = False


@dataclass(eq=False)
class Connection:
    number: int
    client: int
    server: int
    server_incarnation: int | None = None
    open: bool = True
    busy: Call | None = None
    waiting: deque[Call] = field(default_factory=deque)


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


class World:
    """seed: decides every draw.  lanes: whether requests of one kind have a connection of their own."""

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
        self.random = Random(seed)
        self.now = 0.0
        self.timing = timing or Timing()
        self.bugs = frozenset(bugs)
        self.lanes = lanes
        ids = tuple(range(1, voters + 1))
        self.nodes = {id: Node(id, Disk(batches_per_read)) for id in ids}
        self.watch = Watch({id: node.disk for id, node in self.nodes.items()})
        self.blocked: set[tuple[int, int]] = set()
        self.lag_s: dict[tuple[int, int], float] = {}  # of slow links, beside the usual delay
        self.story: list[str] | None = None  # a list: every effect is told

        self.delay_s: Callable[[], float] = lambda: 0.001 + 0.004 * self.random.random()
        self.is_lost: Callable[[], bool] = lambda: False
        self.crashes: Callable[[], bool] = lambda: False  # asked between any two effects
        self.on_crash: Callable[[int], None] = lambda node: None
        self.tamper: Callable[[list[Effect]], list[Effect]] = lambda effects: effects  # a faulty executor

        self.proposals: dict[int, Proposal] = {}
        self.reads: dict[int, Read] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self.effects = 0
        self._connections: dict[tuple[int, int, type | None], Connection] = {}
        self._calls: dict[int, tuple[Connection, Call]] = {}  # token -> whom to answer
        self._on_its_way: set[tuple[int, int, int, type]] = set()
        self._open_proposals: dict[int, list[Proposal]] = {id: [] for id in ids}
        for id in ids:
            self.restart(id)

    # Time

    def at(self, time: float, action: Callable[[], None]) -> None:
        heappush(self._events, (time, self._number(), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def next_event_at(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    def step(self) -> None:
        """Carry out the next event."""
        time, _, action = heappop(self._events)
        self.now = self.watch.now = max(time, self.now)
        action()

    def elapse(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.step()
        self.now = self.watch.now = end

    def wait_for(self, condition: Callable[[], object], limit_s: float = 10.0) -> bool:
        """Whether the condition came true in time; it is looked at after every event."""
        end = self.now + limit_s
        while not condition():
            if self.next_event_at() > end:
                self.now = self.watch.now = end
                return False
            self.step()
        return True

    # Seeing

    def core(self, id: int) -> Core:
        core = self.nodes[id].core
        assert core is not None, f"voter {id} is down"
        return core

    def role(self, id: int) -> str:
        return str(self.core(id).role)

    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.core is not None]

    def leaders(self) -> list[int]:
        """Every voter that believes it leads, the newest epoch first."""
        leading = [(node.core.epoch, node.id) for node in self.running() if node.core and node.core.role == "leader"]
        return [id for _, id in sorted(leading, reverse=True)]

    def leader(self) -> int | None:
        """The leader of the newest epoch that anybody knows, if there is one."""
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
                self._post(id, connection.client, lambda connection=connection: self.break_connection(connection))
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

    def pause(self, id: int) -> None:
        node = self.nodes[id]
        if node.core is not None and node.frozen is None:
            node.frozen = []

    def resume(self, id: int) -> None:
        node = self.nodes[id]
        missed, node.frozen = node.frozen or [], None
        for happened in missed:
            happened()

    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def break_connection(self, connection: Connection) -> None:
        if connection.open:
            self._close(connection, tell_server=True)

    # Voters: into the core and out again

    def _enter(self, node: Node, call: Callable[[Core], list[Effect]], incarnation: int | None = None) -> None:
        if node.core is None or incarnation not in (None, node.incarnation):
            return
        if node.frozen is not None:
            current = node.incarnation
            node.frozen.append(lambda: self._enter(node, call, current))
            return
        try:
            effects = call(node.core)
        except Exception as error:  # noqa: BLE001  whatever it is, it is a finding
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
            return  # an earlier plan, since replaced
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
            case Flush():
                if must_fsync(self.bugs):
                    disk.flush()
            case Truncate(end_offset=end_offset):
                watch.truncating(node.id, end_offset)
                disk.truncate(end_offset)
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
            case Refused(token=token):
                waiting = self.reads.get(token) or self.proposals[token]
                assert waiting.outcome == "pending", "only what waits can be refused"
                waiting.outcome = "refused"
            case Fatal(reason=reason):
                self._die(node, reason)
                watch.violated(NO_FATAL, f"voter {node.id} stops: {reason}")

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

    # The network

    def _send(self, node: Node, peer: int, request: RaftRequest) -> None:
        once = (node.id, node.incarnation, peer, type(request))
        assert once not in self._on_its_way, f"voter {node.id} sends {request} while one is on its way"
        self._on_its_way.add(once)
        lane = (node.id, peer, type(request) if self.lanes else None)
        connection = self._connections.get(lane)
        if connection is None:
            connection = self._connections[lane] = Connection(self._number(), node.id, peer)
        call = Call(request, node.incarnation)
        connection.waiting.append(call)
        self.after(self.timing.request_timeout_s, lambda: None if call.done else self.break_connection(connection))
        self._transmit(connection)

    def _transmit(self, connection: Connection) -> None:
        if connection.open and connection.busy is None and connection.waiting:
            call = connection.busy = connection.waiting.popleft()
            self._post(connection.client, connection.server, lambda: self._arrive(connection, call))

    def _post(self, source: int, target: int, action: Callable[[], None]) -> None:
        delay_s = self.delay_s() + self.lag_s.get((source, target), 0.0)
        self.after(delay_s, lambda: self._deliver(source, target, action))

    def _deliver(self, source: int, target: int, action: Callable[[], None]) -> None:
        if (source, target) in self.blocked or self.is_lost():
            if self.random.random() < 0.5:  # retransmitted; else given up
                self.after(0.2 + self.random.random(), lambda: self._deliver(source, target, action))
        else:
            action()

    def _arrive(self, connection: Connection, call: Call) -> None:
        server = self.nodes[connection.server]
        if connection.server_incarnation is None:
            connection.server_incarnation = server.incarnation
        if server.core is None or connection.server_incarnation != server.incarnation:
            self._post(server.id, connection.client, lambda: self.break_connection(connection))
            return
        token = self._number()
        self._calls[token] = (connection, call)
        self._enter(server, lambda core: core.on_request(self.now, token, connection.number, call.request))

    def _answer(self, server: Node, token: int, response: RaftResponse) -> None:
        connection, call = self._calls.pop(token)
        request = call.request
        if isinstance(request, VoteRequest) and not request.pre_vote:
            assert isinstance(response, VoteResponse)
            if response.granted:
                self.watch.grants(server.id, request)
        self._post(server.id, connection.client, lambda: self._answered(connection, call, response))

    def _answered(self, connection: Connection, call: Call, response: RaftResponse | None) -> None:
        if call.done or not connection.open:
            return
        connection.busy = None
        self._finish(connection, call, response)
        self._transmit(connection)

    def _finish(self, connection: Connection, call: Call, response: RaftResponse | None) -> None:
        call.done = True
        client = self.nodes[connection.client]
        self._on_its_way.discard((client.id, call.incarnation, connection.server, type(call.request)))
        self._enter(
            client,
            lambda core: core.on_response(self.now, connection.server, call.request, response),
            call.incarnation,
        )

    def _close(self, connection: Connection, *, tell_server: bool) -> None:
        connection.open = False
        lanes = [lane for lane, known in self._connections.items() if known is connection]
        for lane in lanes:
            del self._connections[lane]
        if tell_server:
            self._post(connection.client, connection.server, lambda: self._disconnected(connection))
        calls = [call for call in (connection.busy, *connection.waiting) if call is not None and not call.done]
        for call in calls:
            self._finish(connection, call, None)

    def _disconnected(self, connection: Connection) -> None:
        server = self.nodes[connection.server]
        if connection.server_incarnation == server.incarnation:
            self._enter(server, lambda core: core.on_disconnect(self.now, connection.number))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers
