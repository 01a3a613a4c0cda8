"""Workloads that only Kafka can run.

`kafka-queue`, `kafka-consumers`, `kafka-transactions`: records are sent to partitions and polled by consumers.  At the
end of the run each partition is polled to its end.  A poll of assigned partitions contains the offset at which it
begins: the offset after the last record that the consumer received.  So a consumer skips no record when an answer is
lost, and the system lost any record that is skipped.  A consumer that subscribes begins at the committed offset of its
group, and commits the offset after the last record that it received.

`kafka-moves`: the same as `kafka-queue`, while partitions move between brokers.

`kafka-processing`: records are consumed and sent on in transactions; the results and the unprocessed records are judged
as one queue.

`kafka-offsets`: consumer groups commit offsets, and a committed offset is a register.

In parallel, an exporter of consumer lag requests the offsets of thousands of groups from the brokers.  A coordinator
that is deposed meanwhile then needs more time between two steps, so that errors between these steps become visible.

`kafka-admin`: topics are created, changed, extended by partitions and deleted, and the state of a topic is a register.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from checkers.base.history import CREATE, Type
from checkers.cluster.topic_states import ABSENT, MADE_BEFORE, STATES
from system_under_test.client import Outcome, Placement, Request
from system_under_test.functions import Function
from system_under_test.kafka.client import ALTER, MAKE, REMOVE, WIDEN
from system_under_test.kafka.records import TO_END
from workloads.generators import Call, Generator, Step, Turn
from workloads.objects import Register
from workloads.workload import MixedWorkload, Workload, fresh

_POLL = json.dumps([["poll"]])

STEPS_MAX, ABORT_SHARE = 4, 0.1
READ_SHARE, REMOVE_SHARE, WIDEN_SHARE, PARTITIONS_MAX = 0.3, 0.15, 0.25, 6
TOPICS_A_KEY = 8
"""Number of topics of `kafka-admin` per key.  A topic is retired after a change that got no answer."""


@dataclass(frozen=True)
class AssignedConsumer(Generator):
    """One thread that polls one partition.

    offset: offset of the next record; -1 before the partition is assigned
    """

    key: str
    offset: int = -1

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if self.offset < 0:
            return Request("assign", self.key, payload=json.dumps([self.key])), self
        return Request("poll", self.key, self.offset, payload=_POLL), self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if outcome.type is Type.INFO:  # another process replaces this process and starts over
            return AssignedConsumer(self.key)
        if outcome.type is not Type.OK:
            return self
        if request.f == "assign":
            return replace(self, offset=0)
        polled = json.loads(outcome.payload or "[]")[0][1].get(self.key, [])
        return replace(self, offset=polled[-1][0] + 1) if polled else self


class KafkaQueue(Workload):
    name = "kafka-queue"
    summary = "records are sent to partitions, and polled by consumers with assigned partitions"
    checkers = ("kafka-read-to-end",)
    own_functions: ClassVar[Mapping[str, Function]] = {
        "send_records": Function("send records; the steps with [offset, value]", "payload", "anything"),
        "assign_partitions": Function("read these partitions from now on", "payload", "anything", observes=True),
        "poll_records": Function("the records from an offset on", "key value", "anything", observes=True),
    }
    functions: ClassVar[Mapping[str, str]] = {
        "send": "send_records",
        "assign": "assign_partitions",
        "poll": "poll_records",
    }
    reads = frozenset({"poll"})
    writes = frozenset({"send"})
    real_test = (
        "Records are acknowledged during faults, and each partition is polled to its end after the last of them."
    )
    final_needs_recovery = True

    def generator(self, placement: Placement) -> Generator:
        key = self.names[placement.thread % len(self.names)]
        if placement.reads_only:
            return AssignedConsumer(key)
        return Call(lambda turn: self._send(turn))

    def _send(self, turn: Turn) -> Request:
        key = turn.rng.choice(self.names)
        return Request("send", key, payload=json.dumps([["send", key, turn.fresh()]]))

    def final(self) -> Sequence[Request]:
        return [Request("poll", name, TO_END, payload=_POLL) for name in self.names]


class KafkaMoves(KafkaQueue):
    name = "kafka-moves"
    summary = "records are sent to partitions and polled, while replicas move from broker to broker"
    own_functions: ClassVar[Mapping[str, Function]] = {
        **KafkaQueue.own_functions,
        "move_partition": Function("give a partition other replicas, chosen at random by this seed", "value"),
    }
    background: ClassVar[Mapping[str, int]] = {"move_partition": 1}
    invoked_share = 0.6  # an operation times out if a leader has moved
    real_test = "Records are acknowledged and replicas move during faults; each partition is polled to its end."


@dataclass(frozen=True)
class SubscribedConsumer(Generator):
    """One thread that is a member of the group.

    key: topic that serves as the key of its requests in the history
    processed: offsets that it commits next, topic -> offset as JSON
    """

    names: tuple[str, ...]
    key: str
    subscribed: bool = False
    processed: str = ""

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        if not self.subscribed:
            return Request("subscribe", self.key, payload=json.dumps(self.names)), self
        if self.processed:
            return Request("commit", self.key, payload=self.processed), self
        return Request("poll", self.key, 0, payload=_POLL), self

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        if request.f == "commit":  # a later commit covers a failed one
            return replace(self, processed="")
        if outcome.type is not Type.OK:
            return SubscribedConsumer(self.names, self.key)
        if request.f == "subscribe":
            return replace(self, subscribed=True)
        polled = json.loads(outcome.payload or "[]")[0][1]
        ends = {key: records[-1][0] + 1 for key, records in polled.items()}
        return replace(self, processed=json.dumps(ends) if ends else "")


class KafkaConsumers(KafkaQueue):
    name = "kafka-consumers"
    summary = "records are sent to partitions, and processed by consumers that subscribe and commit"
    own_functions: ClassVar[Mapping[str, Function]] = {
        "create_consumed": Function("make a topic that a group consumes", "key"),
        "send_records": KafkaQueue.own_functions["send_records"],
        "subscribe_topics": Function("consume these topics as a member of the group", "payload", "anything"),
        "poll_subscribed": Function(
            "the next records, and partitions that moved", "key value", "anything", observes=True
        ),
        "commit_processed": Function("commit these offsets for the group", "payload"),
    }
    functions: ClassVar[Mapping[str, str]] = {
        CREATE: "create_consumed",
        "send": "send_records",
        "subscribe": "subscribe_topics",
        "poll": "poll_subscribed",
        "commit": "commit_processed",
    }
    real_test = "Consumers lose answers and partitions during faults, and what they left is polled at the end."

    def generator(self, placement: Placement) -> Generator:
        if placement.reads_only:
            return SubscribedConsumer(self.names, self.names[placement.thread % len(self.names)])
        return super().generator(placement)


class KafkaTransactions(KafkaQueue):
    name = "kafka-transactions"
    summary = "transactions that send records to several partitions, some aborted on purpose, and consumers"
    own_functions: ClassVar[Mapping[str, Function]] = {
        "create_transacted": Function("make a topic that transactions send to", "key"),
        "transact_records": Function("send records in one transaction, 1 to abort it", "payload value", "anything"),
        **{name: KafkaQueue.own_functions[name] for name in ("assign_partitions", "poll_records")},
    }
    functions: ClassVar[Mapping[str, str]] = {
        CREATE: "create_transacted",
        "txn": "transact_records",
        "assign": "assign_partitions",
        "poll": "poll_records",
    }
    writes: ClassVar[frozenset[str]] = frozenset({"txn"})
    real_test = "Transactions over several partitions are committed and aborted during faults, while consumers poll."
    ok_share = 1 - ABORT_SHARE
    invoked_share = 0.6  # if one leader or coordinator is cut off, the whole transaction waits

    def _send(self, turn: Turn) -> Request:
        places = range(turn.rng.randint(1, STEPS_MAX))
        steps = [["send", turn.rng.choice(self.names), turn.fresh(place)] for place in places]
        return Request("txn", str(steps[0][1]), int(turn.rng.random() < ABORT_SHARE), payload=json.dumps(steps))


class KafkaProcessing(MixedWorkload):
    """Records and their results as one queue.  Each record must be processed once, in order.  The drain returns the
    results and the unprocessed records.
    """

    name = "kafka-processing"
    summary = "records are consumed, and in one transaction sent on and their offsets committed"
    checkers = ("queue",)
    own_functions: ClassVar[Mapping[str, Function]] = {
        "create_processed": Function("make a topic whose records are processed", "key"),
        "send_to_process": Function("send a record that is to be processed", "key value"),
        "processed_records": Function("the results, and what is left to process", "key", "numbers", observes=True),
        "process_records": Function("process some records of all topics", "nothing"),
    }
    functions: ClassVar[Mapping[str, str]] = {
        CREATE: "create_processed",
        "enqueue": "send_to_process",
        "drain": "processed_records",
    }
    background: ClassVar[Mapping[str, int]] = {"process_records": 3}
    reads = frozenset({"drain"})
    writes = frozenset({"enqueue"})
    final_repeats = False
    final_needs_recovery = True
    real_test = "Records are acknowledged and processed during faults, and all results are read after the last of them."
    mix = ((1.0, "enqueue", fresh),)
    final_function = "drain"


class KafkaOffsets(Register):
    name = "kafka-offsets"
    summary = "offsets that consumer groups commit, each a linearizable register; an exporter of lag asks meanwhile"
    own_functions: ClassVar[Mapping[str, Function]] = {
        "create_group": Function("make what a group commits offsets for", "key"),
        "commit_offset": Function("commit an offset of a group", "key value"),
        "committed_offset": Function("the offset that a group has committed", "key", "number or nil", observes=True),
        "watch_lag": Function("ask for the offsets of many groups", "nothing"),
    }
    functions: ClassVar[Mapping[str, str]] = {
        CREATE: "create_group",
        "read": "committed_offset",
        "write": "commit_offset",
    }
    background: ClassVar[Mapping[str, int]] = {"watch_lag": 6}


@dataclass(frozen=True)
class OwnTopic:
    """A topic in the state in which its only owner left it.

    removed: True if it was removed once; its state ABSENT is not used again
    retired: True if a change got no answer and may still happen
    """

    state: int = MADE_BEFORE
    removed: bool = False
    retired: bool = False


@dataclass(frozen=True)
class TopicOwner(Generator):
    """One thread that changes its own topics, with one change of a topic after another, and reads all topics.

    unanswered: True if its last change got no answer. Then it only reads until a read succeeds, because each further
        change without an answer would retire a topic.
    """

    names: tuple[str, ...]
    topics: Mapping[str, OwnTopic] = field(default_factory=dict)
    unanswered: bool = False

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        topics = self.topics or dict.fromkeys(self.names[turn.placement.thread :: turn.threads], OwnTopic())
        after, own = replace(self, topics=topics), [name for name, topic in topics.items() if not topic.retired]
        if not own or self.unanswered or turn.rng.random() < READ_SHARE:
            return Request("read", turn.rng.choice(self.names)), after
        name = turn.rng.choice(own)
        return Request("write", name, *_change(topics[name], turn)), after

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        answered = outcome.type is Type.OK
        if request.f == "read":
            return replace(self, unanswered=False) if answered else self
        if outcome.type is Type.FAIL:
            return self
        name = request.key or ""
        topic = replace(self.topics[name], retired=True)
        if answered:
            topic = OwnTopic(request.value or ABSENT, self.topics[name].removed or request.value2 == REMOVE)
        return replace(self, topics={**self.topics, name: topic}, unanswered=not answered)


def _change(topic: OwnTopic, turn: Turn) -> tuple[int, int]:
    """Return the next state of a topic, and the action that changes the topic to that state."""
    fresh, count, chosen = turn.fresh() * STATES, topic.state % STATES, turn.rng.random()
    if topic.state == ABSENT:
        return fresh + 1, MAKE
    if chosen < REMOVE_SHARE and not topic.removed:
        return ABSENT, REMOVE
    if chosen < REMOVE_SHARE + WIDEN_SHARE and count < PARTITIONS_MAX:
        return topic.state + 1, WIDEN
    return fresh + count, ALTER


class KafkaAdmin(MixedWorkload):
    name = "kafka-admin"
    summary = "topics are made, changed, widened and removed, and read at single brokers"
    checkers = ("linearizability", "topics-against-log")
    own_functions: ClassVar[Mapping[str, Function]] = {
        "change_topic": Function("bring a topic into this state", "key value value2"),
        "shown_topic": Function("the state of a topic that a broker shows", "key", "number or nil", observes=True),
        "change_minimum": Function("change how many replicas must be in sync", "nothing"),
    }
    functions: ClassVar[Mapping[str, str]] = {"read": "shown_topic", "write": "change_topic"}
    background: ClassVar[Mapping[str, int]] = {"change_minimum": 1}
    reads = frozenset({"read"})
    writes = frozenset({"write"})
    real_test = "Topics are changed during faults, and every topic is read after the last of them."
    final_function = "read"

    @staticmethod
    def objects(key_count: int) -> int:
        return TOPICS_A_KEY * key_count

    def generator(self, placement: Placement) -> Generator:
        return TopicOwner(self.names)
