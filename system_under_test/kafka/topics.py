"""Topics that clients create, change, extend and delete through librdkafka's admin client, and partitions that move.

A broker forwards each of these requests to the active controller, and retries if it got no answer.  So an error proves
nothing: the first one may have been carried out.

A broker answers requests from its own copy of the metadata, which may be old.  So a read first writes a marker, waits
until its broker shows this marker, and only then reads: it returns every change acknowledged before the read began.
"""

from __future__ import annotations

import random
import time
from contextlib import closing
from typing import Any

from checkers.cluster.topic_states import MADE_BEFORE, STATES, state_of
from system_under_test.kafka import wire
from system_under_test.kafka.records import ATTEMPT_MS, RecordsClient

UNMARKED_READS = "unmarked-reads"
RETENTION, MINIMUM = "retention.ms", "min.insync.replicas"
MAKE, ALTER, WIDEN, REMOVE = range(4)
"""Actions on a topic: the second value of a change."""
_LIMIT_S = ATTEMPT_MS / 1000
_AGAIN_S, _MINIMUM_EVERY_S, _MOVE_EVERY_S = 0.01, 1.0, 0.5
ANY, IN_TURN, PAIRS = "any", "in-turn", "pairs"
"""Partitions that are moved: also those whose reassignment is not complete, or only the others; these to two brokers.
"""
_TAKEN_BACK = 0.15
"""Share of moves that end the reassignment in progress instead."""
_UNKNOWN_TOPIC = 3


class NotShown(Exception):
    """The broker answered with an error, and shows or changes nothing."""


class TopicsClient(RecordsClient):
    def change_topic(self, key: str, value: int, action: int) -> None:
        """Carry out one change.  value: the state of the topic after it."""
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
        """Return the state that one broker shows; None for the initial state of a topic."""
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
        """Give a partition other replicas: at least two, if there are two brokers; or end its reassignment."""
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

    @property
    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if "admin" not in self.made:
            self.made["admin"] = AdminClient(self._common)
        return self.made["admin"]


def _retention(broker: wire.BrokerConnection, topic: str) -> int | None:
    """Return the retention of a topic that a broker shows, 0 if none was set, None if there is no such topic."""
    value, error = wire.config_in(broker.ask(wire.config_request(topic, RETENTION)))
    if error and error != _UNKNOWN_TOPIC:
        raise NotShown(f"error {error}")
    return None if error else int(value or 0)


def _give_up_after(until_s: float, why: str) -> None:
    if time.monotonic() > until_s:
        raise TimeoutError(why)
    time.sleep(_AGAIN_S)
