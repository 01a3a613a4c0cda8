"""Where the active controller is, as one client node sees it.

It sends DescribeQuorum to every node, each over a connection of its own, a few times a second: the answer names the
leader and the epoch that node knows, error 6 or not.  The highest epoch ever seen wins.  A deposed leader that has not
noticed goes on naming itself in its old epoch; a client node cut off from all others believes it, as it should.

One Finder serves all processes of a client node.  Its traffic is that of a client: it travels on the data network and
partitions cut it.  Asking it costs nothing; only a process that knows no controller at all waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.describe_quorum.v2 import request as describe

from system_under_test.kraft.wire.connection import Connection
from system_under_test.kraft.wire.frames import MalformedFrame
from system_under_test.kraft.wire.translate import TOPIC

REFRESH_S = 0.15
HURRY_S = 0.05
"""After a refusal the next question is sent at once, but not more often than this."""
PATIENCE_S = 0.5
"""How long one node may take to answer."""

_QUESTION = describe.DescribeQuorumRequest(
    topics=(describe.TopicData(topic_name=TOPIC, partitions=(describe.PartitionData(partition_index=0),)),)
)


@dataclass(frozen=True, slots=True)
class Controller:
    node: str
    epoch: int


Listener = Callable[[Controller], None]


class Finder:
    """peers: node name -> "host:port".  Begins to look with the first `controller()`; `retain` and `release` count
    the clients that use it, and the last release ends it.  A client that wants to hear of every later epoch at once
    names a listener in both."""

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
        """The controller of the highest epoch seen, None while none was seen."""
        return self._best

    async def controller(self) -> Controller:
        """`best`, as soon as there is one."""
        if not self._watchers:
            self._watchers = [asyncio.ensure_future(self._watch(node)) for node in self._addresses]
        while self._best is None:
            await self._found.wait()
        return self._best

    def hurry(self) -> None:
        """A request was refused: send the question again now."""
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
                        self._learn(node, await connection.ask(_QUESTION))
                except (OSError, MalformedFrame):
                    pass  # a node that does not answer says nothing of the controller; the connection is closed
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
