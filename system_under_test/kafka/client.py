"""The client of all of Kafka's workloads, with transactions: records sent to several partitions, which consumers see
all or not at all.

A transaction that nobody tried to commit certainly never happened: the next producer of the same name, or the limit of
the transaction, ends it.  Once a commit was tried, only its success proves anything.  An idempotent producer sends
records again by itself; a broker knows them by their numbers, and one that does not is found as a duplicate.
"""

from __future__ import annotations

from typing import Any

from system_under_test.kafka.groups import GroupsClient
from system_under_test.kafka.offsets import NoCoordinator, OffsetsClient
from system_under_test.kafka.records import ATTEMPT_MS, NotAppended
from system_under_test.kafka.topics import TopicsClient

LIMIT_MS = 5000
"""Milliseconds after which the coordinator aborts a transaction."""


class NeverCommitted(Exception):
    """No commit was tried."""


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

        producer = self.made.pop("transactional", None)  # it comes back unless something fails
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
            if (left := producer.flush(ATTEMPT_MS / 1000)) or errors:
                raise NeverCommitted(errors[0] if errors else f"{left} records were not delivered")
            if aborts:
                producer.abort_transaction(ATTEMPT_MS / 1000)
                self.made["transactional"] = producer
                raise NeverCommitted("aborted on purpose")
        except KafkaException as problem:
            raise NeverCommitted(str(problem)) from problem
        producer.commit_transaction(ATTEMPT_MS / 1000)
        self.made["transactional"] = producer
        return [["send", key, [offsets[value], value]] for _, key, value in steps]

    def _new_producer(self) -> Any:
        """Return a producer that ends what an earlier one of this thread left open."""
        from confluent_kafka import Producer

        limits = {"message.timeout.ms": ATTEMPT_MS, "transaction.timeout.ms": LIMIT_MS, "linger.ms": 0}
        producer = Producer({**self._common, **limits, "transactional.id": f"krucible-{self.who.thread}"})
        producer.init_transactions(ATTEMPT_MS / 1000)
        return producer
