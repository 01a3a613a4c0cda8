"""The client of all workloads of Kafka: records (`records.py`), topics, and the offsets that groups commit.

*Topics* are created, changed, extended and deleted through librdkafka's admin client, and partitions move.  A broker
forwards each of these requests to the active controller, and retries if it gets no answer.  So an error proves nothing,
because the first attempt may have been executed.

A broker answers requests from its own copy of the metadata, which may be old.  So a read first writes a marker, waits
until its broker shows this marker, and only then reads: it returns every change acknowledged before the read began.

*Offsets*: each key is a group, and its committed offset is a register.  One request is one attempt, and a client names
the broker that answered.  Half of the clients follow the coordinator that the brokers report; half stay with the
coordinator that they know until it reports that it is no coordinator, so that a deposed coordinator also receives
requests.

A deposed coordinator that has not noticed its deposition answers a read with old offsets.  Kafka documents this for
consumers that are not members of the group.  But such a coordinator cannot commit.  So each read first commits for
another group, at the same coordinator.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import cache

from checkers.cluster.topic_states import MADE_BEFORE, STATES, state_of
from system_under_test.client import Address, Client, Placement
from system_under_test.kafka import wire
from system_under_test.kafka.records import ATTEMPT_MS, RecordsClient
from system_under_test.kraft.wire.frames import Entity

UNMARKED_READS = "unmarked-reads"
RETENTION, MINIMUM = "retention.ms", "min.insync.replicas"
MAKE, ALTER, WIDEN, REMOVE = range(4)
"""Actions on a topic: the second value of a change."""
_LIMIT_S = ATTEMPT_MS / 1000
_AGAIN_S, _MINIMUM_EVERY_S, _MOVE_EVERY_S = 0.01, 1.0, 0.5
ANY, IN_TURN, PAIRS = "any", "in-turn", "pairs"
"""Modes of moves: move any partition; move only partitions whose reassignment is complete; move these to two brokers
each.
"""
_TAKEN_BACK = 0.15
"""Fraction of moves that cancel the reassignment in progress instead."""
_UNKNOWN_TOPIC = 3

OFFSETS = "__consumer_offsets"
TOPIC = "krucible"
"""The topic whose offsets are committed."""
QUICK_S, PATIENT_S = 0.8, 15.0
"""Maximum seconds to wait for an answer, for a client that follows the coordinator and for a client that stays with
one.
"""
_GROUPS, _GROUPS_OF_DEPOSED = 8_000, 30_000
"""Numbers of groups in a request for lag.  The answer to a request for _GROUPS groups takes 40 ms on an idle
machine.
"""
_PAUSE_S, _IDLE_PAUSE_S = 0.002, 0.2
"""Seconds between requests for lag, to a coordinator and to another broker."""
_MORE_OF_DEPOSED = 2
"""Number of additional concurrent requests to a deposed coordinator that has not noticed its deposition."""


class NotShown(Exception):
    """The broker answered with an error, and neither returned a state nor changed anything."""


class NoCoordinator(Exception):
    """No broker reports a coordinator, or the coordinator denies that it is one, so nothing was committed."""


class NotCommitted(Exception):
    """The coordinator answered with an error: the commit may still be in its log."""


class OffsetsClient(Client):
    refused: tuple[type[BaseException], ...] = (NoCoordinator,)

    coordinator = ""
    """Broker at which this client commits.  It is stored in the class, because each error replaces the client."""
    _links: Mapping[str, wire.BrokerConnection] = {}

    def __init__(self, who: Placement, servers: Mapping[str, Address]) -> None:
        super().__init__(who, servers)
        self._is_patient = not who.follows

    def close(self) -> None:
        for connection in self._links.values():
            connection.close()
        self._links = {}

    def create_group(self, key: str) -> None:
        """Create the topic for which offsets are committed, and the topic that stores the offsets."""
        server = [*self.servers.values()][self.who.thread % len(self.servers)]
        self._at(server).ask(wire.create_topic_request(TOPIC, min(3, len(self.servers))))
        self._at(server).ask(wire.find_coordinator_request(key))
        self._commit(_companion(key), 1)

    def commit_offset(self, key: str, value: int) -> None:
        self._commit(key, value)

    def committed_offset(self, key: str) -> int | None:
        """Return the offset that a group has committed; None if it has committed none."""
        coordinator = self._commit(_companion(key), time.time_ns() >> 20)
        offsets, error = wire.offsets_in(coordinator.ask(wire.fetch_request(key)))
        if error:
            raise NotCommitted(f"error {error}")
        return offsets[0] if offsets else None

    def watch_lag(self) -> None:
        """Request from one broker the offsets of thousands of groups, like an exporter of consumer lag.

        A deposed coordinator that has not noticed its deposition receives more requests.  When it learns of its
        successor, it first answers the waiting requests, and remains coordinator until then; only its own clients wait
        meanwhile.
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
        """Commit an offset of a group, and return the connection to the coordinator.  Raises NoCoordinator,
        NotCommitted, OSError, EOFError.
        """
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
        """Return the coordinator with the newest epoch in any broker's metadata.  Raises NoCoordinator if there is
        none.
        """
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
        """Drop a connection, because a late answer must not be mistaken for the answer to the next request."""
        left = dict(self._links)
        if (connection := left.pop(server.node, None)) is not None:
            connection.close()
        self._links = left


class KafkaClient(RecordsClient, OffsetsClient):
    refused: tuple[type[BaseException], ...] = (*RecordsClient.refused, *OffsetsClient.refused)

    def change_topic(self, key: str, value: int, action: int) -> None:
        """Execute one change of a topic.

        value: state of the topic after the change
        action: MAKE, ALTER, WIDEN or REMOVE
        """
        from confluent_kafka import admin as library

        retention, count = divmod(value, STATES)
        replicas, limits = min(3, len(self.servers)), {"request_timeout": _LIMIT_S, "operation_timeout": _LIMIT_S}
        if action == MAKE:
            topic = library.NewTopic(key, count, replicas, config={RETENTION: str(retention)})
            (answer,) = self._admin.create_topics([topic], **limits).values()
        elif action == WIDEN:
            (answer,) = self._admin.create_partitions([library.NewPartitions(key, count)], **limits).values()
        elif action == REMOVE:
            (answer,) = self._admin.delete_topics([key], **limits).values()
        else:
            of_entry = {"incremental_operation": library.AlterConfigOpType.SET}
            entries = [library.ConfigEntry(RETENTION, str(retention), **of_entry)]
            topic = library.ConfigResource(library.ResourceType.TOPIC, key, incremental_configs=entries)
            (answer,) = self._admin.incremental_alter_configs([topic], request_timeout=_LIMIT_S).values()
        answer.result(_LIMIT_S)

    def shown_topic(self, key: str) -> int | None:
        """Return the state of a topic that one broker reports; None for the initial state."""
        server = [*self.servers.values()][self.who.thread % len(self.servers)]
        self.answered, until_s = server.node, time.monotonic() + _LIMIT_S
        broker = wire.BrokerConnection(server, _LIMIT_S)
        try:
            if self.bug != UNMARKED_READS:
                self._wait_until_shown(broker, until_s)
            while True:  # repeat if the topic changes between two requests
                before = _retention(broker, key)
                count = len(wire.partitions_in(broker.ask(wire.metadata_request(key))).get(key, {}))
                if before == _retention(broker, key) and (before is None) == (count == 0):
                    break
                _give_up_after(until_s, f"{key} changes all the time")
        finally:
            broker.close()
        state = state_of(before or 0, count)
        return None if state == MADE_BEFORE else state

    def _wait_until_shown(self, broker: wire.BrokerConnection, until_s: float) -> None:
        """Write a marker through this broker, and wait until the broker shows it."""
        topic, mark = f"mark-{self.who.thread}", time.time_ns() // 1_000_000
        while error := broker.ask(wire.set_config_request(topic, RETENTION, str(mark))).responses[0].error_code:
            if error != _UNKNOWN_TOPIC:
                raise NotShown(f"error {error}")
            broker.ask(wire.create_topic_request(topic, min(3, len(self.servers))))
            _give_up_after(until_s, f"{topic} cannot be made")
        while _retention(broker, topic) != mark:
            _give_up_after(until_s, f"{self.answered} does not show what the controller has committed")

    def change_minimum(self) -> None:
        """Change the minimum number of in-sync replicas, for all topics without their own config.

        A controller then clears the eligible leaders of every topic, including those that are created or deleted
        meanwhile.
        """
        server = [*self.servers.values()][self.who.thread % len(self.servers)]
        lowest = int(time.monotonic() / _MINIMUM_EVERY_S) % 2 + 1
        with closing(wire.BrokerConnection(server, _LIMIT_S)) as broker:
            answer = broker.ask(wire.set_config_request("", MINIMUM, str(lowest), wire.BROKER))
        if error := answer.responses[0].error_code:
            raise NotShown(f"error {error}")
        time.sleep(_MINIMUM_EVERY_S)

    def move_partition(self, seed: int) -> None:
        """Move a partition to other replicas, at least two if there are two brokers; or cancel its reassignment."""
        chance, moves = random.Random(seed), self.settings.get("moves", ANY)
        server = chance.choice([*self.servers.values()])
        with closing(wire.BrokerConnection(server, _LIMIT_S)) as broker:
            shown = wire.partitions_in(broker.ask(wire.metadata_request()))
            moving, error = set[str](), 0
            if moves != ANY:
                answer = broker.ask(wire.moves_request())
                moving, error = {topic.name for topic in answer.topics}, answer.error_code
            still = [(n, each) for n, found in sorted(shown.items()) if n not in moving for each in found.values()]
            if error or not still:
                raise NotShown(f"error {error}" if error else "no partition can be moved")
            topic, partition = chance.choice(still)
            apart = wire.BROKERS_APART if max(partition.replica_nodes) > wire.BROKERS_APART else 0
            brokers = [int(name[1:]) + apart for name in self.servers]
            counts = (2, 2 if moves == PAIRS else 3)
            target = chance.sample(brokers, min(chance.randint(*counts), len(brokers)))
            wanted = target if chance.random() > _TAKEN_BACK else None
            errors = wire.errors_of_move(broker.ask(wire.move_request(topic, partition.partition_index, wanted)))
        if errors:
            raise NotShown(f"error {errors[0]}")
        time.sleep(_MOVE_EVERY_S)


@cache
def _lag(groups: int) -> bytes:
    """Return the frame of a request for the offsets of this number of groups."""
    return wire.frame(wire.fetch_many_request([f"g{number:05}" for number in range(groups)]))


def _companion(group: str) -> str:
    """Return the other group for which the client commits before each read of this group."""
    return f"b{group}"


def _coordinator_in(metadata: Entity) -> tuple[int, str] | None:
    """Return (epoch, name) of the broker that leads the partition of offsets according to one broker's metadata."""
    partition = wire.partitions_in(metadata).get(OFFSETS, {}).get(0)
    if partition is None or partition.leader_id <= 0:
        return None
    return partition.leader_epoch, wire.node_of(partition.leader_id)


def _retention(broker: wire.BrokerConnection, topic: str) -> int | None:
    """Return the retention of a topic that a broker reports; 0 if none was set, None if there is no such topic."""
    value, error = wire.config_in(broker.ask(wire.config_request(topic, RETENTION)))
    if error and error != _UNKNOWN_TOPIC:
        raise NotShown(f"error {error}")
    return None if error else int(value or 0)


def _give_up_after(until_s: float, why: str) -> None:
    if time.monotonic() > until_s:
        raise TimeoutError(why)
    time.sleep(_AGAIN_S)
