"""The client of all of Kafka's workloads, with transactions: records in several partitions, of which consumers see all
or none; and records that are consumed and forwarded, with their offsets committed in the same transaction.

A transaction without any attempt to commit certainly never happened: the next producer of the same name, or the time
limit of the transaction, aborts it.  Once a commit was tried, only its success proves anything.  An idempotent producer
retries by itself; a broker recognizes repeated records by their numbers, and otherwise the duplicate is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from system_under_test.kafka.groups import POLL_S, RECORDS_MAX, GroupsClient
from system_under_test.kafka.offsets import NoCoordinator, OffsetsClient
from system_under_test.kafka.records import ATTEMPT_MS, NotAppended, StillOpen
from system_under_test.kafka.topics import TopicsClient

ONCE, REPEATED = "once", "repeated"
LIMITS: Mapping[str, Mapping[str, int]] = {
    ONCE: {"message.timeout.ms": ATTEMPT_MS, "transaction.timeout.ms": 5000},
    REPEATED: {"message.timeout.ms": 9000, "transaction.timeout.ms": 15_000, "socket.timeout.ms": 500},
}
"""Settings of a transactional producer, by the setting `transactions` of the system.

Once: a producer ends after an unanswered request, and the next one has another epoch.  Repeated: the library retries it
until the message times out, and the producer continues with its next transaction.
"""

OFFSETS_OUTSIDE = "offsets-outside"
NO_GUESS = {"auto.offset.reset": "error"}
"""A member of a group that processes in transactions never starts without a committed offset.

librdkafka 2.16 does so although an offset is committed, if a rebalance happens while the library fetches an offset that
an open transaction is about to replace: with "earliest" it would process all records again.
"""


class NeverCommitted(Exception):
    """No commit was tried."""


class NothingProcessed(Exception):
    """Records were sent, and there is no result."""


class KafkaClient(GroupsClient, TopicsClient, OffsetsClient):
    refused: tuple[type[BaseException], ...] = (NotAppended, NeverCommitted, NoCoordinator)
    routes_by_itself = True

    def create_transacted(self, key: str) -> None:
        """Create a topic; the first transactional producer creates the topic of the coordinators."""
        self.create(key)
        self.made["transactional"] = self.made.get("transactional") or self._new_producer()

    def transact_records(self, steps: list[list[Any]], aborts: int) -> list[list[Any]]:
        """Send records in one transaction.  aborts: 1 to abort it on purpose."""
        from confluent_kafka import KafkaException

        producer = self.made.pop("transactional", None)  # put back unless an operation fails
        limit_s = self._limits["message.timeout.ms"] / 1000
        offsets: dict[int, int | None] = {}
        errors: list[str] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error.str())
            else:
                offsets[int(message.value())] = message.offset() if message.offset() >= 0 else None

        try:
            producer = producer or self._new_producer()
            producer.begin_transaction()
            for _, key, value in steps:
                producer.produce(key, str(value).encode(), partition=0, on_delivery=delivered)
                if (left := producer.flush(limit_s)) or errors:
                    raise NeverCommitted(errors[0] if errors else f"{left} records were not delivered")
            if aborts:
                producer.abort_transaction(limit_s)
                self.made["transactional"] = producer
                raise NeverCommitted("aborted on purpose")
        except KafkaException as problem:
            raise NeverCommitted(str(problem)) from problem
        producer.commit_transaction(limit_s)
        self.made["transactional"] = producer
        return [["send", key, [offsets[value], value]] for _, key, value in steps]

    def create_processed(self, key: str) -> None:
        """Create a topic, and the topic of results.  The group begins at its first record (`NO_GUESS`)."""
        from confluent_kafka import TopicPartition

        self.create_consumed(key)
        self.made["observer"].commit(offsets=[TopicPartition(key, 0, 0)], asynchronous=False)
        self.create_transacted(_results_of(key))

    def send_to_process(self, key: str, value: int) -> None:
        self._send(key, value)

    def process_records(self) -> None:
        """Consume some records as a member of the group, and forward each.  Sometimes it crashes before the end."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        if "member" not in self.made:
            topics = self._admin.list_topics(timeout=ATTEMPT_MS / 1000).topics
            self._subscribe(sorted(name for name in topics if _results_of(name) in topics), NO_GUESS)
        member, producer = self.made.pop("member"), self.made.pop("transactional", None)
        messages = member.consume(RECORDS_MAX, POLL_S)
        for error in filter(None, (message.error() for message in messages)):
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
        records = [message for message in messages if message.error() is None]
        if records:
            producer = producer or self._new_producer()
            producer.begin_transaction()
            for record in records:
                producer.produce(_results_of(record.topic()), record.value(), partition=0)
            ends = {record.topic(): record.offset() + 1 for record in records}
            offsets = [TopicPartition(topic, 0, end) for topic, end in ends.items()]
            if self.bug == OFFSETS_OUTSIDE:
                producer.commit_transaction(ATTEMPT_MS / 1000)
                self._crash_now_and_then()
                member.commit(offsets=offsets, asynchronous=False)
            else:
                group = member.consumer_group_metadata()
                producer.send_offsets_to_transaction(offsets, group, ATTEMPT_MS / 1000)
                self._crash_now_and_then()
                producer.commit_transaction(ATTEMPT_MS / 1000)
        # not after an error, because the positions are unknown then
        self.made.update(member=member, transactional=producer)

    def processed_records(self, key: str) -> list[int]:
        """Return the results in order, followed by the records not processed yet."""
        committed = self._committed(key)
        results = self._poll(_results_of(key), 0, to_end=True)
        left = self._poll(key, committed, to_end=True)
        if self._committed(key) != committed:
            raise StillOpen(f"{key} was processed meanwhile")
        if left and not results:
            raise NothingProcessed(key)
        return [value for _, value in (*results, *left)]

    @property
    def _limits(self) -> Mapping[str, int]:
        return LIMITS[str(self.settings.get("transactions", ONCE))]

    def _new_producer(self) -> Any:
        """Return a producer that ends open transactions of an earlier one of this thread."""
        from confluent_kafka import Producer

        name = {"transactional.id": f"krucible-{self.who.thread}", "linger.ms": 0}
        producer = Producer({**self._common, **self._limits, **name})
        producer.init_transactions(ATTEMPT_MS / 1000)
        return producer


def _results_of(topic: str) -> str:
    return f"{topic}-results"
