"""Consumers that subscribe: a group assigns the partitions to them, and keeps the offsets that they commit.

A record counts as processed once the poll that returned it is in the history.  Only then does the workload commit the
offset after it, so whatever happens to a consumer, the group delivers an unprocessed record again.

An unanswered poll may have moved the consumer.  The workload subscribes again, which creates another consumer; the
group forgets the old one after its session.  Sometimes a consumer crashes during processing.
"""

from __future__ import annotations

from typing import Any

from system_under_test.kafka.records import ATTEMPT_MS, TO_END, RecordsClient

COMMIT_FIRST = "commit-before-processing"
CLASSIC, KIP_848, MIXED = "classic", "consumer", "mixed"
"""Protocols of a group.  Mixed: the members of every second client node speak KIP-848, the others the classic one.  If
all of the former are cut off, the group goes back to the classic protocol."""
POLL_S, RECORDS_MAX = 0.2, 100
CRASH_EVERY, FIRST_CRASH = 40, 8
"""Interval of a consumer's crashes, and its first one, counted in polls that returned records."""


class Crashed(Exception):
    """The consumer has ended."""


class GroupsClient(RecordsClient):
    def create_consumed(self, key: str) -> None:
        """Create a topic; the first request for its offsets creates the topic of offsets."""
        self.create(key)
        self._committed(key)

    def subscribe_topics(self, keys: list[str]) -> list[str]:
        self._subscribe(keys, {})
        return keys

    def _subscribe(self, keys: list[str], settings: dict[str, Any]) -> None:
        """Make this process a member of the group. settings: of the library, in place of the defaults here."""
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
        last.

        A partition may be revoked after the last record of an answer, so each change is reported in two answers.
        offset: TO_END requests the unprocessed records of the topic `key`, up to its end.
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
        """Count a batch of records; raise Crashed at some numbers."""
        self.made["batches"] = self.made.get("batches", 0) + 1
        if self.made["batches"] % CRASH_EVERY == FIRST_CRASH:
            raise Crashed("in the middle of processing")

    @property
    def _of_group(self) -> dict[str, Any]:
        return {**self._common, **self._reads, "auto.offset.reset": "earliest", "group.id": "subscribed"}

    def _committed(self, key: str) -> int:
        """Return the offset that the group has committed, 0 for none."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        if "observer" not in self.made:
            self.made["observer"] = Consumer(self._of_group)
        (found,) = self.made["observer"].committed([TopicPartition(key, 0)], timeout=ATTEMPT_MS / 1000)
        if found.error is not None:
            raise KafkaException(found.error)
        return max(int(found.offset), 0)
