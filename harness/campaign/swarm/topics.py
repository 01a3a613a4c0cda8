"""What an administrator of a storm does to topics: made, grown, deleted, and leaders of their partitions elected.

The objects of the clients are topics, too.  Those are grown and get other leaders, and are never deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from kio.schema.errors import ErrorCode

from harness.campaign.swarm.scenario import StormCard
from system_under_test.kraft.controller.brokers import UNCLEAN_ELECTION, elects_unclean
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import elect_leaders
from system_under_test.kraft.controller.partition_rules import Election
from system_under_test.kraft.controller.topics import (
    MorePartitions,
    NewTopic,
    create_partitions,
    create_topics,
    delete_topics,
    registered,
)

FACTOR = 3
"""Replicas of a partition, if there are so many brokers."""
PARTITIONS_MAX = 6
CONFIGS: Sequence[Mapping[str, str]] = (
    {},
    {"max.message.bytes": "4711"},
    {"min.insync.replicas": "2"},
    {UNCLEAN_ELECTION: "true"},
)
"""None of those that clients write."""


@dataclass(frozen=True, slots=True)
class TopicRequest:
    """how: create, grow, delete, preferred or unclean.  number: of the topic, and what else is drawn from it."""

    how: str
    number: int

    @staticmethod
    def of(card: StormCard) -> TopicRequest:
        return TopicRequest(card.how, int(card.size))

    @property
    def name(self) -> str:
        of_clients = self.how not in ("create", "delete") and self.number % 2
        return f"{'k' if of_clients else 't'}{self.number % 4}"

    def decide(
        self, image: Image, new_id: Callable[[], UUID], bugs: Collection[str]
    ) -> tuple[list[bytes], Collection[ErrorCode]]:
        """The records of the request, and the error of each topic or partition.  Raises Refused."""
        if self.how == "create":
            wanted = new_topic(image, self.name, 1 + self.number % 3, CONFIGS[self.number // 4 % len(CONFIGS)])
            records, results = create_topics(image, [wanted], registered(image), new_id)
            return records, [each.error for each in results]
        if self.how == "delete":
            records, results = delete_topics(image, [self.name])
            return records, [each.error for each in results]
        topic = image.topics.get(self.name)
        partitions = () if topic is None else topic.partitions
        if self.how == "grow":
            if len(partitions) >= PARTITIONS_MAX:
                return [], [ErrorCode.invalid_partitions]
            more = MorePartitions(self.name, len(partitions) + 1)
            records, results = create_partitions(image, [more], registered(image))
            return records, [each.error for each in results]
        # No record says who wanted an unclean election, so only topics that allow one get one.
        unclean = self.how == "unclean" and elects_unclean(image, self.name)
        election = Election.UNCLEAN if unclean else Election.PREFERRED
        records, answers = elect_leaders(image, [(self.name, number) for number in partitions], election, bugs)
        return records, [each.error for each in answers]


def new_topic(image: Image, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> NewTopic:
    """With FACTOR replicas, or one on each broker."""
    return NewTopic(name, partitions, min(FACTOR, max(1, len(image.brokers))), configs=dict(configs or {}))
