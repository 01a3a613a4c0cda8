"""The client of the bundled KRaft, and the finder of its active controller.

One attempt per request, over one connection per process.  `questions.py` defines the request for each function, and the
meaning of its answers.

The target.  A process that follows uses the controller of the highest epoch its client node has seen.  If a later epoch
appears while the process still waits for an earlier controller, it abandons that request (no answer: INFO, reads FAIL)
and moves at once.  Otherwise it would miss the time in which two leaders answer.  A process that stays keeps the
controller it knows until that one answers 41 or refuses the connection; a timeout does not make it move.  Without the
second kind no request would ever reach a deposed leader, and stale reads would stay unseen.

Runs on client nodes; needs the standard library and kio.

*Finder.*  `Finder` finds the active controller, as one client node sees it.  A few times a second it sends
DescribeQuorum to every node, over separate connections: the answer names the leader and epoch that the node knows, with
or without error 6.  The highest epoch ever seen wins.  A deposed leader that has not noticed still names itself in its
old epoch; a client node cut off from all others believes it, as it should.

One Finder serves all processes of a client node.  Its traffic is that of a client: it travels on the data network and
partitions cut it.  Reading it is free; only a process that knows no controller at all waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kio.schema.describe_quorum.v2 import request as describe
from kio.schema.errors import ErrorCode

from checkers.base.history import Type
from system_under_test.client import Outcome, Placement, ProcessClient, Request
from system_under_test.kraft.client.questions import error_of, of_answer, question, unknown
from system_under_test.kraft.wire.channel import Connection
from system_under_test.kraft.wire.frames import Entity, MalformedFrame
from system_under_test.kraft.wire.translate import TOPIC
from system_under_test.kraft.wire.versions import OUR_PREFIX

FIRST_SHARE = 0.4
"""Share of an operation's time for the first attempt, if a planted bug makes a second one."""


def connect(
    placement: Placement, peers: Mapping[str, str], config: Mapping[str, Any], shared: dict[str, Any]
) -> ProcessClient:
    """Return a client for one process; see `system_under_test.client.ClientFactory`.

    config: what the subject's `client_config` returns; "bug" names a planted bug of the client.  "controllers": number
    of servers that are no brokers.
    """
    if "finder" not in shared:
        shared["finder"] = Finder(peers, f"{OUR_PREFIX}{placement.client_node}-finder")
    finder: Finder = shared["finder"]
    client = KraftClient(
        placement,
        peers,
        finder,
        config.get("functions") or {},
        frozenset({config["bug"]} if config.get("bug") else ()),
    )
    client.broker_count = len(peers) - int(config.get("controllers", 0))
    return client


class KraftClient:
    """One process.  finder: shared with the other processes of its client node.  broker_count: servers among the peers
    that hold replicas.
    functions: f of a request -> the function that serves it; an f that is missing names its function itself."""

    def __init__(
        self,
        placement: Placement,
        peers: Mapping[str, str],
        finder: Finder,
        functions: Mapping[str, str] | None = None,
        bugs: frozenset[str] = frozenset(),
    ) -> None:
        self._functions = functions or {}
        self._bugs = bugs
        self._follows = placement.follows
        self._client_id = f"{OUR_PREFIX}{placement.client_node}-{placement.thread}"
        self._peers = dict(peers)
        self.broker_count = len(peers)
        self._finder = finder
        self._node = ""
        self._connection: Connection | None = None
        self._limit: asyncio.Timeout | None = None
        self._superseded = False
        finder.retain(self._later_epoch if self._follows else None)

    async def invoke(self, request: Request, timeout_s: float) -> Outcome:
        """See `system_under_test.client.ProcessClient.invoke`."""
        call = replace(request, f=self._functions.get(request.f, request.f))
        try:
            body = question(call, self.broker_count)
        except ValueError as problem:
            return Outcome(Type.FAIL, request.value, error=str(problem))
        if not may_resend(self._bugs):
            return await self._attempt(call, body, timeout_s)
        outcome = await self._attempt(call, body, timeout_s * FIRST_SHARE)
        if outcome.type is Type.INFO:
            outcome = await self._attempt(call, body, timeout_s * (1 - FIRST_SHARE))
        return outcome

    async def _attempt(self, call: Request, body: Entity, timeout_s: float) -> Outcome:
        connection: Connection | None = None
        self._superseded = False
        try:
            async with asyncio.timeout(timeout_s) as self._limit:
                connection = await self._go()
                answer = await connection.ask(body)
        except (OSError, MalformedFrame) as problem:
            return self._unanswered(call, connection, problem)
        finally:
            self._limit = None
        node = self._node
        if error_of(answer) == ErrorCode.not_controller:
            self._refused()
        return of_answer(call, answer, node)

    async def close(self) -> None:
        self._leave()
        await self._finder.release(self._later_epoch if self._follows else None)

    def _later_epoch(self, controller: Controller) -> None:
        """Stop waiting for an answer of an earlier epoch, because the finder has seen a later one."""
        if self._limit is not None and not self._limit.expired() and self._node not in ("", controller.node):
            self._superseded = True
            self._limit.reschedule(asyncio.get_running_loop().time())

    async def _go(self) -> Connection:
        """Return the connection to the controller that gets the next request."""
        if self._follows or not self._node:
            controller = await self._finder.controller()
            if controller.node != self._node:
                self._leave()
                self._node = controller.node
        if self._connection is None:
            host, _, port = self._peers[self._node].rpartition(":")
            self._connection = Connection(host, int(port), self._client_id)
        return self._connection

    def _unanswered(self, call: Request, connection: Connection | None, problem: Exception) -> Outcome:
        """Return the outcome of an unanswered request; `Connection.ask` has closed the connection."""
        node = self._node if connection is not None else ""
        if connection is None or not connection.sent:
            if isinstance(problem, ConnectionRefusedError):
                self._refused()
                error = "connection refused"
            elif isinstance(problem, TimeoutError):
                error = "no controller known" if connection is None else self._why_late("connect timed out")
            else:
                error = "cannot connect"
            return Outcome(Type.FAIL, call.value, error=error, node=node)
        if isinstance(problem, TimeoutError):
            error = self._why_late("timed out")
        else:
            error = "malformed answer" if isinstance(problem, MalformedFrame) else "connection reset"
        return Outcome(unknown(call), call.value, error=error, node=node)

    def _why_late(self, otherwise: str) -> str:
        return "gave up: a later epoch has another leader" if self._superseded else otherwise

    def _refused(self) -> None:
        """Leave the server now if the process stays with one; if it follows the leader, wait for news of the finder."""
        self._finder.hurry()
        if not self._follows:
            self._leave()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._node = ""


RESENDS_AFTER_TIMEOUT = "resends-after-timeout"

BUGS: dict[str, str] = {
    RESENDS_AFTER_TIMEOUT: "the client sends a write again when it gets no answer, and reports the second outcome",
}
"""Every planted bug of the client, with its effect."""


def may_resend(bugs: Collection[str] = ()) -> bool:
    """Return whether a write with unknown outcome is sent again.  Never, because the first one may still take effect
    later.
    """
    return RESENDS_AFTER_TIMEOUT in bugs


REFRESH_S = 0.15
HURRY_S = 0.05
"""After a refusal the next request is sent at once, but not more often than this."""
PATIENCE_S = 0.5
"""Seconds that one node may take to answer."""

WHO_LEADS = describe.DescribeQuorumRequest(
    topics=(describe.TopicData(topic_name=TOPIC, partitions=(describe.PartitionData(partition_index=0),)),)
)


@dataclass(frozen=True, slots=True)
class Controller:
    node: str
    epoch: int


Listener = Callable[[Controller], None]


class Finder:
    """peers: node name -> "host:port".  It starts with the first `controller()`; `retain` and `release` count its
    clients, and the last release stops it.  A client that wants immediate notice of later epochs passes a listener to
    both.
    """

    def __init__(self, peers: Mapping[str, str], client_id: str) -> None:
        self._addresses = dict(peers)
        self._client_id = client_id
        self._names: dict[int, str] = {}
        self._best: Controller | None = None
        self._found = asyncio.Event()
        self._hurry = asyncio.Event()
        self._hurried_at = 0.0
        self._watchers: list[asyncio.Task[None]] = []
        self._users = 0
        self._listeners: list[Listener] = []

    @property
    def best(self) -> Controller | None:
        """Return the controller of the highest epoch seen, None while there is none."""
        return self._best

    async def controller(self) -> Controller:
        """Return `best`, as soon as there is one."""
        if not self._watchers:
            self._watchers = [asyncio.ensure_future(self._watch(node)) for node in self._addresses]
        while self._best is None:
            await self._found.wait()
        return self._best

    def hurry(self) -> None:
        """Send the request for the leader again now, after a refusal."""
        now = asyncio.get_running_loop().time()
        if now - self._hurried_at >= HURRY_S:
            self._hurried_at = now
            self._hurry.set()
            self._hurry = asyncio.Event()

    def retain(self, listener: Listener | None = None) -> None:
        self._users += 1
        if listener is not None:
            self._listeners.append(listener)

    async def release(self, listener: Listener | None = None) -> None:
        self._users -= 1
        if listener is not None:
            self._listeners.remove(listener)
        if self._users == 0:
            watchers, self._watchers = self._watchers, []
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def _watch(self, node: str) -> None:
        host, _, port = self._addresses[node].rpartition(":")
        connection = Connection(host, int(port), self._client_id)
        try:
            while True:
                hurry = self._hurry
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        self._learn(node, await connection.ask(WHO_LEADS))
                except (OSError, MalformedFrame):
                    pass  # a node that does not answer proves nothing about the controller; the connection is closed
                try:
                    async with asyncio.timeout(REFRESH_S):
                        await hurry.wait()
                except TimeoutError:
                    continue
        finally:
            connection.close()

    def _learn(self, answering: str, answer: Any) -> None:
        if not answer.topics or not answer.topics[0].partitions:
            return
        partition = answer.topics[0].partitions[0]
        for node in answer.nodes:
            addresses = {f"{listener.host}:{listener.port}" for listener in node.listeners}
            for peer in (name for name, address in self._addresses.items() if address in addresses):
                self._names[node.node_id] = peer
        if partition.error_code == 0:
            self._names[partition.leader_id] = answering  # only the leader itself answers without error
        name = self._names.get(partition.leader_id)
        if name is not None and (self._best is None or partition.leader_epoch > self._best.epoch):
            self._best = Controller(name, partition.leader_epoch)
            self._found.set()
            for listener in self._listeners:
                listener(self._best)
