"""The in-sync replicas of the partitions that a broker leads: those that answer; a replica silent for long is out.

    keeper.heard(broker, epoch, now_s)        a replica answered
    keeper.proposals(image, now_s)            what to report with AlterPartition

The leader proposes and the controller decides: the in-sync set is what stands in the metadata, never what was proposed.
A member is proposed with the epoch of the incarnation that answered (KIP-903).  The leader does not ask whether a
broker is fenced or restarted meanwhile: its metadata may be old, so that is for the controller to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records.metadata import PartitionRecord


@dataclass(frozen=True, slots=True)
class Proposal:
    """isr: (broker, epoch) of each member.  leader_epoch, partition_epoch: what the proposal rests on."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class InSyncKeeper:
    """me: the broker that leads.  lag_s: a member that is silent for longer is dropped (replica.lag.time.max.ms)."""

    def __init__(self, me: int, lag_s: float) -> None:
        self._me = me
        self._lag_s = lag_s
        self._heard: dict[int, tuple[int, float]] = {}  # broker -> (epoch, when)
        self._leads_since: dict[tuple[UUID, int], tuple[int, float]] = {}  # partition -> (leader epoch, when)

    def heard(self, broker: int, epoch: int, now_s: float) -> None:
        """The broker that is registered with this epoch answered."""
        self._heard[broker] = epoch, now_s

    def followers(self, image: Image) -> set[int]:
        """The brokers that hold replicas of partitions that this one leads."""
        return {replica for partition in self._led(image) for replica in partition.replicas} - {self._me}

    def proposals(self, image: Image, now_s: float) -> list[Proposal]:
        """For each partition whose in-sync set should be another one."""
        own = image.brokers.get(self._me)
        if own is None:
            return []
        found: list[Proposal] = []
        led: dict[tuple[UUID, int], tuple[int, float]] = {}
        for partition in self._led(image):
            key = partition.topic_id, partition.partition
            since = self._leads_since.get(key, (-1, 0.0))
            led[key] = since if since[0] == partition.leader_epoch else (partition.leader_epoch, now_s)
            isr = [(self._me, own.broker_epoch), *self._others(image, partition, led[key][1], now_s)]
            if {broker for broker, _ in isr} != set(partition.isr):
                found.append(Proposal(*key, partition.leader_epoch, partition.partition_epoch, tuple(isr)))
        self._leads_since = led
        return found

    def _led(self, image: Image) -> list[PartitionRecord]:
        partitions = (p for topic in image.topics.values() for p in topic.partitions.values())
        return [partition for partition in partitions if partition.leader == self._me]

    def _others(
        self, image: Image, partition: PartitionRecord, leads_since_s: float, now_s: float
    ) -> Iterator[tuple[int, int]]:
        """The members but the leader, with their epochs.

        A member stays until it is silent for too long; another replica joins when it answers.
        """
        for replica in partition.replicas:
            epoch, heard_s = self._heard.get(replica, (-1, -math.inf))
            if replica == self._me:
                continue
            if now_s - heard_s <= self._lag_s:
                yield replica, epoch
            elif replica in partition.isr and replica in image.brokers and now_s - leads_since_s <= self._lag_s:
                yield replica, image.brokers[replica].broker_epoch
