"""Operations on records of Kafka through librdkafka, the library for most languages other than Java: send, poll,
subscribe, transactions.

librdkafka finds the leader of each partition by itself.  An operation is one attempt, which never sends a record twice.
A `send` fails only if its answer proves that nothing was appended; every other error leaves the outcome unknown.
`NOT_LEADER_OR_FOLLOWER` proves nothing, because a leader that is deposed while it waits for its followers also returns
it.

*Groups* assign the partitions to consumers that subscribe, and store the offsets that these consumers commit.  A record
counts as processed once the poll that returned it is in the history.  Only then does the workload commit the offset
after it, so whatever happens to a consumer, the group delivers an unprocessed record again.  An unanswered poll may
have advanced the position of the consumer.  So the workload subscribes again, which creates another consumer; the group
removes the old consumer after its session.  Sometimes a consumer crashes during processing.

*Transactions* send records to several partitions, and consumers must see all or none of these records.  Or they forward
consumed records, and commit the offsets of the consumed records.  A transaction without any attempt to commit certainly
never happened, because the next producer of the same name, or the time limit of the transaction, aborts it.  Once a
commit was attempted, only its success proves anything.  An idempotent producer retries by itself; a broker must
recognize repeated records by their sequence numbers, and otherwise the checkers find the duplicate.

The library is imported inside functions, because it need not be installed on the machine of the harness.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from system_under_test.client import Client

ATTEMPT_MS = 1500
"""Maximum milliseconds of one request.  It is below the 2 s of an operation, so that the library reports the outcome of
a record in time.
"""

NEVER_AGAIN_MS = 60_000
"""Milliseconds until the library sends a record again.  After NOT_LEADER_OR_FOLLOWER the library sends it again
regardless of `retries`, although the record may already be in the log; so this pause is longer than the lifetime of a
record.
"""

TO_END = -1
"""Value that requests all records, in place of the offset at which a poll begins."""

READ_UNCOMMITTED = "read-uncommitted"
UNCLEAN = ("acks-one-unclean", "min-insync-one")
"""Planted bugs with which a replica that is not in sync may lead, and one in-sync replica suffices for an
acknowledgement.
"""

COMMIT_FIRST = "commit-before-processing"
CLASSIC, KIP_848, MIXED = "classic", "consumer", "mixed"
"""Protocols of a group.  Mixed: the members on every second client node use KIP-848, the others use the classic
protocol.  If all members with KIP-848 are cut off, the group returns to the classic protocol.
"""
POLL_S, RECORDS_MAX = 0.2, 100
CRASH_EVERY, FIRST_CRASH = 40, 8
"""Number of polls that returned records between two crashes of a consumer, and before its first crash."""

ONCE, REPEATED = "once", "repeated"
LIMITS: Mapping[str, Mapping[str, int]] = {
    ONCE: {"message.timeout.ms": ATTEMPT_MS, "transaction.timeout.ms": 5000},
    REPEATED: {"message.timeout.ms": 9000, "transaction.timeout.ms": 15_000, "socket.timeout.ms": 500},
}
"""Settings of a transactional producer, by the setting `transactions` of the system.

Once: a producer ends after an unanswered request, and the next producer has another epoch.  Repeated: the library
retries the request until the message times out, and the producer continues with its next transaction.
"""

OFFSETS_OUTSIDE = "offsets-outside"
NO_GUESS = {"auto.offset.reset": "error"}
"""Setting with which a member of a group that processes in transactions never starts without a committed offset.
librdkafka 2.16 starts without it although an offset is committed, if a rebalance happens while the library fetches an
offset that an open transaction is about to replace.  With "earliest" the member would then process all records again.
"""


class NotAppended(Exception):
    """The answer proves that nothing was appended."""


class StillOpen(Exception):
    """An open transaction hides the end of a log from consumers."""


class Crashed(Exception):
    """The consumer has ended."""


class NeverCommitted(Exception):
    """No commit was attempted, so the transaction certainly never happens."""


class NothingProcessed(Exception):
    """Records were sent, and there is no result."""


class RecordsClient(Client):
    """A client of records.  Each key is a topic of one partition."""

    refused: tuple[type[BaseException], ...] = (NotAppended, NeverCommitted)
    routes_by_itself = True

    made: ClassVar[dict[str, Any]] = {}
    """The library's producers and consumers of this process, by name.

    They outlive a failed operation, as in any program: late reports and records cannot be mistaken for those of the
    next operation, and closing a producer or consumer would wait for brokers that may be cut off.
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

    @property
    def _admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        if "admin" not in self.made:
            self.made["admin"] = AdminClient(self._common)
        return self.made["admin"]

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
        """Return the partitions.  The client does nothing else, because each poll contains its offset."""
        return keys

    def poll_records(self, key: str, offset: int) -> list[Any]:
        """Return all records from this offset to the current end of the leader's log.

        offset: TO_END for the whole log; an open transaction that hides its end is then an error
        """
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

    # ---- groups ------------------------------------------------------------------------------------------------------

    def create_consumed(self, key: str) -> None:
        """Create a topic; the first request for its offsets creates the topic of offsets."""
        self.create(key)
        self._committed(key)

    def subscribe_topics(self, keys: list[str]) -> list[str]:
        self._subscribe(keys, {})
        return keys

    def _subscribe(self, keys: list[str], settings: dict[str, Any]) -> None:
        """Make this process a member of the group.

        settings: settings of the library that replace the client's defaults
        """
        from confluent_kafka import Consumer

        protocol = self.settings.get("group_protocol", CLASSIC)
        if protocol == MIXED:
            protocol = (KIP_848, CLASSIC)[self.who.thread % 2]
        of_protocol = {"group.protocol": protocol}
        if protocol == CLASSIC:
            of_protocol |= {"session.timeout.ms": 3000, "heartbeat.interval.ms": 500}
            of_protocol["partition.assignment.strategy"] = "roundrobin"
        consumer = Consumer({**self._of_group, **of_protocol, "enable.partition.eof": False, **settings})
        moved: list[str] = []

        def note(_: Any, partitions: list[Any]) -> None:
            moved.extend(each.topic for each in partitions)

        consumer.subscribe(keys, on_assign=note, on_revoke=note)
        self.made.update({"member": consumer, "moved": moved, "moved before": []})

    def poll_subscribed(self, key: str, offset: int) -> list[Any]:
        """Return the next records of this member, and the partitions assigned or revoked since the poll before the
        previous one.

        A partition may be revoked after the last record of an answer, so each assignment or revocation is reported in
        two answers.

        offset: TO_END requests the unprocessed records of the topic `key`, up to its end
        """
        if offset == TO_END:
            return [["poll", {key: self._poll(key, self._committed(key), to_end=True)}]]
        if "member" not in self.made:
            raise Crashed("the process of the member has ended")
        moved, before = self.made["moved"], self.made["moved before"]
        found: dict[str, list[list[int]]] = {}
        for message in self.made["member"].consume(RECORDS_MAX, POLL_S):
            if message.error() is None:
                found.setdefault(message.topic(), []).append([message.offset(), int(message.value())])
        if found and self.bug == COMMIT_FIRST:
            self.made["member"].commit(asynchronous=False)
        if found:
            self._crash_now_and_then()
        named, self.made["moved before"] = sorted({*moved, *before}), [*moved]
        moved.clear()
        return [["poll", found], *([["rebalance", named]] if named else [])]

    def commit_processed(self, positions: dict[str, int]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        wanted = [TopicPartition(key, 0, offset) for key, offset in positions.items()]
        for each in self.made["member"].commit(offsets=wanted, asynchronous=False):
            if each.error is not None:
                raise KafkaException(each.error)

    def _crash_now_and_then(self) -> None:
        """Count one batch of records; raise Crashed after FIRST_CRASH batches, and every CRASH_EVERY batches after
        that.
        """
        self.made["batches"] = self.made.get("batches", 0) + 1
        if self.made["batches"] % CRASH_EVERY == FIRST_CRASH:
            raise Crashed("in the middle of processing")

    @property
    def _of_group(self) -> dict[str, Any]:
        return {**self._common, **self._reads, "auto.offset.reset": "earliest", "group.id": "subscribed"}

    def _committed(self, key: str) -> int:
        """Return the offset that the group has committed; 0 if it has committed none."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        if "observer" not in self.made:
            self.made["observer"] = Consumer(self._of_group)
        (found,) = self.made["observer"].committed([TopicPartition(key, 0)], timeout=ATTEMPT_MS / 1000)
        if found.error is not None:
            raise KafkaException(found.error)
        return max(int(found.offset), 0)

    # ---- transactions ------------------------------------------------------------------------------------------------

    def create_transacted(self, key: str) -> None:
        """Create a topic; the first transactional producer creates the topic of the coordinators."""
        self.create(key)
        self.made["transactional"] = self.made.get("transactional") or self._new_producer()

    def transact_records(self, steps: list[list[Any]], aborts: int) -> list[list[Any]]:
        """Send records in one transaction.

        aborts: 1 to abort the transaction on purpose
        """
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
        """Create a topic, and the topic of its results.  Commit offset 0 for the group, because the group needs a
        committed offset (`NO_GUESS`).
        """
        from confluent_kafka import TopicPartition

        self.create_consumed(key)
        self.made["observer"].commit(offsets=[TopicPartition(key, 0, 0)], asynchronous=False)
        self.create_transacted(_results_of(key))

    def send_to_process(self, key: str, value: int) -> None:
        self._send(key, value)

    def process_records(self) -> None:
        """Consume some records as a member of the group, and forward each record, in one transaction.  Sometimes the
        member crashes before the commit.
        """
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
        """Return the results in order, followed by the unprocessed records."""
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
        """Return a producer that aborts open transactions of an earlier producer of this thread."""
        from confluent_kafka import Producer

        name = {"transactional.id": f"krucible-{self.who.thread}", "linger.ms": 0}
        producer = Producer({**self._common, **self._limits, **name})
        producer.init_transactions(ATTEMPT_MS / 1000)
        return producer


def _results_of(topic: str) -> str:
    return f"{topic}-results"
