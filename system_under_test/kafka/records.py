"""Records of Kafka: clients send and poll through librdkafka, the library of most languages other than Java.

librdkafka finds the leader of each partition by itself.  An operation is one attempt: it never sends a record twice. A
`send` fails only if its answer proves that nothing was appended; every other error leaves the outcome unknown.
`NOT_LEADER_OR_FOLLOWER` is no such answer, because a leader that is deposed while it waits for its followers also gives
it.

The library is imported where it is used, because the machine of the harness need not have it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from system_under_test.client import Client

ATTEMPT_MS = 1500
"""Limit of one request, below the 2 s of an operation, so that the library reports the outcome of a record."""

NEVER_AGAIN_MS = 60_000
"""Seconds until the library sends a record again.  After NOT_LEADER_OR_FOLLOWER it does so regardless of `retries`, and
the record may already be in the log; so the pause is longer than the lifetime of a record.
"""

TO_END = -1
"""Requests all records, instead of the offset at which a poll begins."""

READ_UNCOMMITTED = "read-uncommitted"
UNCLEAN = ("acks-one-unclean", "min-insync-one")
"""Planted bugs: a replica that is not in sync may lead, and one in-sync replica suffices for an acknowledgement."""


class NotAppended(Exception):
    """The answer proves that nothing was appended."""


class StillOpen(Exception):
    """An open transaction hides the end of a log."""


class RecordsClient(Client):
    """Each key is a topic of one partition."""

    refused: tuple[type[BaseException], ...] = (NotAppended,)
    routes_by_itself = True

    made: ClassVar[dict[str, Any]] = {}
    """The library's producer and consumer of this process.  They outlive a failed operation, as in any program: the
    report of a record and the records of an assignment cannot be taken for those of the next one, and closing either
    waits for brokers that may be cut off.
    """

    @property
    def _common(self) -> dict[str, Any]:
        every = ",".join(f"{server.host}:{server.port}" for server in self.servers.values())
        return {
            "bootstrap.servers": every,
            "log_level": 0,
            "socket.timeout.ms": ATTEMPT_MS,
            "socket.connection.setup.timeout.ms": 1000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
        }

    def create(self, key: str) -> None:  # type: ignore[override]
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        replicas = min(3, len(self.servers))
        risky = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        safe = {"min.insync.replicas": str(min(int(self.settings.get("min_insync", 2)), replicas))}
        topic = NewTopic(key, 1, replicas, config=risky if self.bug in UNCLEAN else safe)
        admin = AdminClient(self._common)  # garbage collection of the client would cancel its requests
        try:
            admin.create_topics([topic], request_timeout=ATTEMPT_MS / 1000)[key].result(ATTEMPT_MS / 1000)
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def send_records(self, steps: list[list[Any]]) -> list[list[Any]]:
        return [["send", key, [self._send(key, value), value]] for _, key, value in steps]

    def _send(self, key: str, value: int) -> int:
        """Return the offset of the record."""
        from confluent_kafka import KafkaError, KafkaException, Producer

        if "producer" not in self.made:
            limits = {"message.timeout.ms": ATTEMPT_MS, "request.timeout.ms": ATTEMPT_MS - 100, "linger.ms": 0}
            once = {"retries": 0, "enable.idempotence": False, "max.in.flight": 1}
            once |= dict.fromkeys(("retry.backoff.ms", "retry.backoff.max.ms"), NEVER_AGAIN_MS)
            acks = "1" if self.bug == "acks-one-unclean" else "all"
            self.made["producer"] = Producer({**self._common, **limits, **once, "acks": acks})
        deliveries: list[Any] = []
        self.made["producer"].produce(
            key, str(value).encode(), partition=0, on_delivery=lambda *delivery: deliveries.append(delivery)
        )
        self.made["producer"].flush(ATTEMPT_MS / 1000 + 0.2)
        if not deliveries:
            raise TimeoutError("the library does not know what became of the record")
        error, message = deliveries[0]
        if error is not None and error.code() == KafkaError.NOT_ENOUGH_REPLICAS:
            raise NotAppended(error.str())
        if error is not None:
            raise KafkaException(error)
        return int(message.offset())

    def assign_partitions(self, keys: list[str]) -> list[str]:
        """Poll these from the beginning; nothing is done here, because each poll names its offset."""
        return keys

    def poll_records(self, key: str, offset: int) -> list[Any]:
        """Return all records from this offset to the current end of the leader's log.

        offset: TO_END means the whole log, which an open transaction must not hide."""
        return [["poll", {key: self._poll(key, max(offset, 0), to_end=offset == TO_END)}]]

    def _poll(self, key: str, offset: int, *, to_end: bool = False) -> list[list[int]]:
        from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

        if "consumer" not in self.made:
            self.made["consumer"] = Consumer({**self._common, **self._reads, "group.id": "assigned"})
        consumer = self.made["consumer"]
        _, end = consumer.get_watermark_offsets(TopicPartition(key, 0), timeout=ATTEMPT_MS / 1000)
        if to_end and end < (high := self._high_watermark(key)):
            raise StillOpen(f"a transaction is open: {key} is shown to {end} and ends at {high}")
        consumer.assign([TopicPartition(key, 0, offset)])
        found: list[list[int]] = []
        while offset < end:
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is None:
                    found.append([message.offset(), int(message.value())])
                offset = message.offset() + (error is None)
        return found

    @property
    def _reads(self) -> dict[str, Any]:
        level = "read_uncommitted" if self.bug == READ_UNCOMMITTED else "read_committed"
        reads = {"auto.offset.reset": "error", "isolation.level": level, "fetch.wait.max.ms": 50}
        return {**reads, "enable.auto.commit": False, "enable.partition.eof": True}

    def _high_watermark(self, key: str) -> int:
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import AdminClient, OffsetSpec

        asked = {TopicPartition(key, 0): OffsetSpec.latest()}
        options = {"isolation_level": IsolationLevel.READ_UNCOMMITTED, "request_timeout": ATTEMPT_MS / 1000}
        admin = AdminClient(self._common)  # garbage collection of the client would cancel its requests
        (answer,) = admin.list_offsets(asked, **options).values()
        return int(answer.result(ATTEMPT_MS / 1000).offset)
