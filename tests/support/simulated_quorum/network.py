"""Connections between voters.

They are like TCP's: each carries one request at a time, in order, and its answer; when one fails, everything on
it is answered with None at the client, and the server learns of it later or never.  A request that was on its way
when its client gave up may still arrive: that is how one request comes twice, or after its successor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random

from harness.campaign.swarm.watch import Watch
from simulated_quorum.disk import Disk
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import Effect
from system_under_test.kraft.raft.messages import FetchRequest, RaftRequest, RaftResponse, Timing


@dataclass
class Node:
    """A voter, as the swarm's watch sees one."""

    id: int
    disk: Disk
    core: Core | None = None  # None: not running
    incarnation: int = 0
    tick_at: float = float("inf")
    frozen: list[Callable[[], None]] | None = None  # events received while it was paused
    died_of: str | None = None
    log_start = snapshot_end = 0
    may_stop = may_forget = False

    @property
    def name(self) -> str:
        return f"n{self.id}"

    key = name

    @property
    def lives(self) -> int:
        return self.incarnation

    @property
    def end(self) -> tuple[int, int]:
        return self.disk.last_epoch, self.disk.end_offset

    @property
    def flushed(self) -> int:
        return self.disk.flushed_end

    durable_end = flushed

    @property
    def prefix(self) -> Callable[[int], int | None]:
        return self.disk.prefix


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


class Timeline:
    """Virtual time: what happens next, and until when.  seed: decides every draw."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0

    def at(self, time: float, action: Callable[[], None]) -> None:
        heappush(self._events, (time, self._number(), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay_s, action)

    def next_event_at(self) -> float:
        return self._events[0][0] if self._events else float("inf")

    def step(self) -> None:
        """Carry out the next event."""
        time, _, action = heappop(self._events)
        self.now = max(time, self.now)
        action()

    def elapse(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.step()
        self.now = end

    def wait_for(self, condition: Callable[[], object], limit_s: float = 10.0) -> bool:
        """Wait until a condition holds, which is looked at after every event.  Return False if time is over."""
        end = self.now + limit_s
        while not condition():
            if self.next_event_at() > end:
                self.now = end
                return False
            self.step()
        return True

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


class Network(Timeline):
    """Requests of one kind have a connection of their own."""

    def __init__(self, nodes: dict[int, Node], watch: Watch, seed: int) -> None:
        super().__init__(seed)
        self.nodes = nodes
        self.watch = watch
        self.timing = Timing()
        self.blocked: set[tuple[int, int]] = set()
        self._connections: dict[tuple[int, int, type], Connection] = {}
        self._calls: dict[int, tuple[Connection, Call]] = {}  # token -> the request to answer
        self._on_its_way: set[tuple[int, int, int, type]] = set()

    def _enter(self, node: Node, call: Callable[[Core], list[Effect]], incarnation: int | None = None) -> None:
        """Handle an event in the voter's core, if the voter runs and has not been restarted since."""
        raise NotImplementedError

    def break_connection(self, connection: Connection) -> None:
        if connection.open:
            self._close(connection, tell_server=True)

    def _send(self, node: Node, peer: int, request: RaftRequest) -> None:
        once = (node.id, node.incarnation, peer, type(request))
        assert once not in self._on_its_way, f"voter {node.id} sends {request} while one is on its way"
        self._on_its_way.add(once)
        lane = (node.id, peer, type(request))
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
            self._post(connection.client, connection.server, partial(self._arrive, connection, call))

    def _post(self, source: int, target: int, action: Callable[[], None]) -> None:
        self.after(0.001 + 0.004 * self.random.random(), lambda: self._deliver(source, target, action))

    def _deliver(self, source: int, target: int, action: Callable[[], None]) -> None:
        if (source, target) in self.blocked:
            if self.random.random() < 0.5:  # retransmitted, or else abandoned
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
        if isinstance(call.request, FetchRequest):
            self.watch.calls.fetched(server, f"n{connection.client}", call.request.current_leader_epoch)  # type: ignore[arg-type]
        token = self._number()
        self._calls[token] = (connection, call)
        self._enter(server, lambda core: core.on_request(self.now, token, connection.number, call.request))

    def _answer(self, server: Node, token: int, response: RaftResponse) -> None:
        connection, call = self._calls.pop(token)
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
            client, lambda core: core.on_response(self.now, connection.server, call.request, response), call.incarnation
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
