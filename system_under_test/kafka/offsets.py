"""Offsets that consumer groups commit: each key is a group, and its committed offset is a register.

One request is one attempt, and a client names the broker that answered.  Half of the clients follow the coordinator
that the brokers report; half stay with the one they know until it says that it is none, so that a deposed coordinator
also gets requests.

A deposed coordinator that does not know it answers a read with old offsets, which Kafka documents for consumers that
are no members; it cannot commit.  So each read first commits for another group, at the same coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import cache

from system_under_test.client import Address, Client, Placement
from system_under_test.kafka import wire
from system_under_test.kraft.wire.frames import Entity

OFFSETS = "__consumer_offsets"
TOPIC = "krucible"
"""The topic whose offsets are committed."""
QUICK_S, PATIENT_S = 0.8, 15.0
"""Seconds until an answer of a broker, for a client that follows and for one that stays."""
_GROUPS, _GROUPS_OF_DEPOSED = 8_000, 30_000
"""Number of groups in a request for lag: an answer about the first group takes 40 ms on an idle machine."""
_PAUSE_S, _IDLE_PAUSE_S = 0.002, 0.2
"""Seconds between requests for lag, to a coordinator and to another broker."""
_MORE_OF_DEPOSED = 2
"""Number of concurrent additional requests to a deposed coordinator that does not know it."""


class NoCoordinator(Exception):
    """No broker is the coordinator, by its own report or that of the others, so nothing was committed."""


class NotCommitted(Exception):
    """The coordinator answered with an error: the commit may still be in its log."""


class OffsetsClient(Client):
    refused: tuple[type[BaseException], ...] = (NoCoordinator,)

    coordinator = ""
    """The broker at which this client commits.  It belongs to the class, because a client ends with each error."""
    _links: Mapping[str, wire.BrokerConnection] = {}

    def __init__(self, who: Placement, servers: Mapping[str, Address]) -> None:
        super().__init__(who, servers)
        self._is_patient = not who.follows

    def close(self) -> None:
        for connection in self._links.values():
            connection.close()
        self._links = {}

    def create_group(self, key: str) -> None:
        """Create the topic that offsets are committed for, and that of the offsets."""
        server = [*self.servers.values()][self.who.thread % len(self.servers)]
        self._at(server).ask(wire.create_topic_request(TOPIC, min(3, len(self.servers))))
        self._at(server).ask(wire.find_coordinator_request(key))
        self._commit(_companion(key), 1)

    def commit_offset(self, key: str, value: int) -> None:
        self._commit(key, value)

    def committed_offset(self, key: str) -> int | None:
        """Return the offset that a group has committed, None for none."""
        coordinator = self._commit(_companion(key), time.time_ns() >> 20)
        offsets, error = wire.offsets_in(coordinator.ask(wire.fetch_request(key)))
        if error:
            raise NotCommitted(f"error {error}")
        return offsets[0] if offsets else None

    def watch_lag(self) -> None:
        """Request from one broker the offsets of thousands of groups, like an exporter of consumer lag.

        A deposed coordinator that does not know it gets more requests: it remains coordinator until it has answered
        those that were waiting when it learns of its successor, and only its own clients wait behind them.
        """
        self._is_patient = True
        usual, of_deposed = _lag(_GROUPS), _lag(_GROUPS_OF_DEPOSED)
        server = [*self.servers.values()][self.who.thread % len(self.servers)]
        believed = _coordinator_in(self._at(server).ask(wire.metadata_request(OFFSETS)))
        if believed is None or believed[1] != server.node:
            time.sleep(_IDLE_PAUSE_S)
            return
        deposed = self._newest_coordinator() != server.node
        with ExitStack() as opened:  # a broker processes one request per connection at a time
            links = [self._at(server)]
            for _ in range(_MORE_OF_DEPOSED if deposed else 0):
                links.append(opened.enter_context(closing(wire.BrokerConnection(server, PATIENT_S))))
            for link in links:
                link.send(of_deposed if deposed else usual)
            for link in links:
                link.receive()
        time.sleep(_PAUSE_S)

    def _commit(self, group: str, offset: int) -> wire.BrokerConnection:
        """Commit, and return the connection.  Raises NoCoordinator, NotCommitted, OSError, EOFError."""
        if self.who.follows or not OffsetsClient.coordinator:
            OffsetsClient.coordinator = self._newest_coordinator()
        self.answered = OffsetsClient.coordinator
        connection = self._at(self.servers[self.answered])
        known = _coordinator_in(connection.ask(wire.metadata_request(OFFSETS)))
        if known is None or known[1] != self.answered:
            OffsetsClient.coordinator = ""
            raise NoCoordinator(f"{self.answered} is no coordinator")
        (topic,) = connection.ask(wire.commit_request(group, TOPIC, offset)).topics
        if error := topic.partitions[0].error_code:
            raise NotCommitted(f"error {error}")
        return connection

    def _newest_coordinator(self) -> str:
        """Return the coordinator by the newest epoch in any broker's metadata.  Raises NoCoordinator."""
        known = []
        for server in self.servers.values():
            try:
                found = _coordinator_in(self._at(server).ask(wire.metadata_request(OFFSETS)))
            except (OSError, EOFError):
                self._drop(server)
            else:
                known += [found] if found is not None else []
        if not known:
            raise NoCoordinator("no broker knows a coordinator")
        return max(known)[1]

    def _at(self, server: Address) -> wire.BrokerConnection:
        if server.node not in self._links:
            connection = wire.BrokerConnection(server, PATIENT_S if self._is_patient else QUICK_S)
            self._links = {**self._links, server.node: connection}
        return self._links[server.node]

    def _drop(self, server: Address) -> None:
        """Drop a connection, because a late answer must not be taken for that of the next request."""
        left = dict(self._links)
        if (connection := left.pop(server.node, None)) is not None:
            connection.close()
        self._links = left


@cache
def _lag(groups: int) -> bytes:
    """Return the frame of a request for the offsets of this number of groups."""
    return wire.frame(wire.fetch_many_request([f"g{number:05}" for number in range(groups)]))


def _companion(group: str) -> str:
    """Return the group for which a commit precedes each read of this one."""
    return f"b{group}"


def _coordinator_in(metadata: Entity) -> tuple[int, str] | None:
    """Return (epoch, name) of the broker that leads the partition of offsets, by one broker's metadata."""
    partition = wire.partitions_in(metadata).get(OFFSETS, {}).get(0)
    if partition is None or partition.leader_id <= 0:
        return None
    return partition.leader_epoch, wire.node_of(partition.leader_id)
