"""Requests between voters, and their answers.

A request that fails, or waits too long, is answered with None at its client.  It may still arrive later, and its answer
then comes in vain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from harness.campaign.swarm.watch import Watch
from simulated_quorum.disk import Disk
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import CoreEffect
from system_under_test.kraft.raft.messages import FetchRequest, RaftRequest, RaftResponse, Timing


@dataclass
class Node:
    """A voter, as the swarm's watch sees one."""

    id: int
    disk: Disk
    core: Core | None = None  # None: not running
    incarnation: int = 0
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


class Call(NamedTuple):
    """A request.  incarnation: of the client."""

    client: int
    incarnation: int
    server: int
    kind: type
    request: RaftRequest

    @property
    def connection(self) -> int:
        return 10 * self.client + self.server


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
    def __init__(self, nodes: dict[int, Node], watch: Watch, seed: int) -> None:
        super().__init__(seed)
        self.nodes = nodes
        self.watch = watch
        self.timing = Timing()
        self.blocked: set[tuple[int, int]] = set()
        self._calls: dict[int, Call] = {}  # every request by its token
        self._open: set[int] = set()  # those whose clients wait

    def _enter(self, node: Node, call: Callable[[Core], list[CoreEffect]], incarnation: int | None = None) -> None:
        """Handle an event in the voter's core, if the voter runs and has not been restarted since."""
        raise NotImplementedError

    def hang_up(self, id: int) -> None:
        """A voter has ended: who waits for its answer hears of it, as do the servers of its requests."""
        for token in sorted(self._open):
            call = self._calls[token]
            if call.server == id:
                self._post(id, call.client, partial(self._finish, token, None))
            elif call.client == id:
                self._post(id, call.server, partial(self._disconnected, call))

    def _disconnected(self, call: Call) -> None:
        self._enter(self.nodes[call.server], lambda core: core.on_disconnect(self.now, call.connection))

    def _send(self, node: Node, peer: int, request: RaftRequest) -> None:
        call = Call(node.id, node.incarnation, peer, type(request), request)
        assert call[:4] not in {self._calls[token][:4] for token in self._open}, f"{call} while one is on its way"
        token = self._number()
        self._calls[token] = call
        self._open.add(token)
        self.after(self.timing.request_timeout_s, lambda: self._finish(token, None))
        self._post(node.id, peer, lambda: self._arrive(token, call))

    def _post(self, source: int, target: int, action: Callable[[], None]) -> None:
        self.after(0.001 + 0.004 * self.random.random(), lambda: self._deliver(source, target, action))

    def _deliver(self, source: int, target: int, action: Callable[[], None]) -> None:
        if (source, target) not in self.blocked:
            action()
        elif self.random.random() < 0.5:  # retransmitted, or else abandoned
            self.after(0.2 + self.random.random(), lambda: self._deliver(source, target, action))

    def _arrive(self, token: int, call: Call) -> None:
        server = self.nodes[call.server]
        if server.core is None:
            self._post(server.id, call.client, lambda: self._finish(token, None))
            return
        if isinstance(call.request, FetchRequest):
            self.watch.calls.fetched(server, f"n{call.client}", call.request.current_leader_epoch)  # type: ignore[arg-type]
        self._enter(server, lambda core: core.on_request(self.now, token, call.connection, call.request))

    def _finish(self, token: int, response: RaftResponse | None) -> None:
        """The client has an answer, or none: the first of these counts."""
        if token in self._open:
            self._open.remove(token)
            call = self._calls[token]
            self._enter(
                self.nodes[call.client],
                lambda core: core.on_response(self.now, call.server, call.request, response),
                call.incarnation,
            )
