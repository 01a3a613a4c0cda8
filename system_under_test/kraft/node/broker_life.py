"""A broker's own view of its lifecycle, and the in-sync replicas of the partitions that it leads.  This module is pure.

*Lifecycle.*  The lifecycle of a broker (KIP-631) is a state machine whose inputs are times and answers.

    REGISTERING --registered--> FENCED --unfenced by a heartbeat--> SERVING
                                  ^                                    |
                                  +------fenced by a heartbeat---------+
    FENCED | SERVING --leave--> LEAVING --told to stop, or not told in time--> STOPPED

A broker asks to stay fenced until the controller answers that the broker has caught up: it has applied its own
registration record.  As in Kafka, only the controller decides this, by the offset in the heartbeat (KAFKA-13959).

A broker that the controller told to stop has shut down cleanly: its replicas are no longer needed.  The broker then
writes its epoch to the disk.  The next incarnation sends this epoch when it registers.  Without the epoch, the
controller treats the broker's replicas as incomplete (KIP-966).

*In-sync replicas.*  A replica is in sync while it answers; a replica that is silent for too long is removed.  Brokers
store no data of topics.  So real faults change the in-sync sets and the leaders, but there is no data to replicate.

    keeper.heard(broker, epoch, now_s)        a replica answered
    keeper.proposals(image, now_s)            the sets to propose with AlterPartition

The leader proposes and the controller decides: the in-sync set is always the set in the metadata, never a proposed set.
A member is proposed with the epoch of the incarnation that answered (KIP-903).  The leader does not check whether a
broker is fenced or has restarted meanwhile.  The leader's metadata may be old, so the controller must reject such a
proposal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records.metadata import PartitionRecord

UNKNOWN_EPOCH = -1


class LifeState(Enum):
    REGISTERING = "registering"
    FENCED = "fenced"
    SERVING = "serving"
    LEAVING = "leaving"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class AskToRegister:
    """A request to register the broker.

    previous_epoch: broker epoch of the previous incarnation if it shut down cleanly
    """

    previous_epoch: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat.

    metadata_offset: the last offset that the broker has applied
    """

    epoch: int
    metadata_offset: int
    wants_fence: bool
    wants_shutdown: bool


Ask = AskToRegister | Beat


RETRY_S = 0.5
"""Seconds until a request that failed or was not answered is repeated."""
LEAVE_WITHIN_S = 10.0


class Lifecycle:
    """The lifecycle of one incarnation.  At most one request is in flight: `ask` returns the next, then an answer
    arrives.

    epoch: broker epoch; UNKNOWN_EPOCH until the broker is registered
    left_cleanly: True once the controller has told the broker to stop
    heartbeat_interval_s: Kafka's broker.heartbeat.interval.ms
    """

    def __init__(self, now_s: float, previous_epoch: int, heartbeat_interval_s: float) -> None:
        self.state = LifeState.REGISTERING
        self.epoch = UNKNOWN_EPOCH
        self.left_cleanly = False
        self._previous_epoch = previous_epoch
        self._heartbeat_interval_s = heartbeat_interval_s
        self._due_s = now_s
        self._leave_by_s = math.inf
        self._caught_up = False

    @property
    def due_s(self) -> float:
        """Return the time of the next call of `ask`."""
        return math.inf if self.state is LifeState.STOPPED else min(self._due_s, self._leave_by_s)

    def ask(self, now_s: float, metadata_offset: int) -> Ask | None:
        """Return the request that is due, or None."""
        if now_s >= self._leave_by_s:
            self.state = LifeState.STOPPED
        if self.state is LifeState.STOPPED or now_s < self._due_s:
            return None
        if self.state is LifeState.REGISTERING:
            return AskToRegister(self._previous_epoch)
        return Beat(self.epoch, metadata_offset, not self._caught_up, self.state is LifeState.LEAVING)

    def registered(self, now_s: float, epoch: int) -> None:
        """Handle the answer to a registration.  A heartbeat follows at once."""
        if self.state is LifeState.REGISTERING:
            self.state, self.epoch = LifeState.FENCED, epoch
        self._due_s = now_s

    def beaten(self, now_s: float, *, caught_up: bool, fenced: bool, should_shut_down: bool) -> None:
        """Handle the answer to a heartbeat.

        caught_up: True if the metadata offset in the heartbeat covers the broker's own registration record
        """
        if should_shut_down and self.state is LifeState.LEAVING:
            self.state, self.left_cleanly = LifeState.STOPPED, True
        elif self.state in (LifeState.FENCED, LifeState.SERVING):
            self.state = LifeState.FENCED if fenced else LifeState.SERVING
        hurried = self.state in (LifeState.FENCED, LifeState.LEAVING)
        self._due_s = now_s + (RETRY_S if hurried else self._heartbeat_interval_s)
        if caught_up and not self._caught_up:
            self._caught_up = True
            self._due_s = now_s  # the next heartbeat asks to unfence the broker

    def unanswered(self, now_s: float) -> None:
        """Handle a missing answer or an error: the request is repeated soon, possibly to another controller."""
        self._due_s = now_s + RETRY_S

    def leave(self, now_s: float) -> None:
        """Begin a controlled shutdown.  If no controller agrees in time, the broker stops anyway, but not cleanly."""
        if self.state is LifeState.STOPPED:
            return
        if self.state is LifeState.REGISTERING:
            self.state = LifeState.STOPPED
            return
        self.state = LifeState.LEAVING
        self._due_s = now_s
        self._leave_by_s = now_s + LEAVE_WITHIN_S


class Answered:
    """A lease that lasts for `within_s` seconds after the broker sent the last heartbeat that was answered.

    Each method returns the change of the lease in the words of the trace, or None.  A controller receives a heartbeat
    after it was sent, so the time since the sending is at least the time since the controller heard from the broker.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._sent_s = -math.inf
        self._lately = False

    @property
    def due_s(self) -> float:
        """Return the time when `look` has something to report if no answer arrives; infinity while nothing can
        change.
        """
        return self._sent_s + self._within_s if self._lately else math.inf

    def look(self, now_s: float) -> str | None:
        """Note the current time.  The process may have been paused before this call."""
        if now_s < self.due_s:
            return None
        self._lately = False
        return f"unheard {self.for_ms(now_s)}"

    def answered(self, sent_s: float, now_s: float) -> str | None:
        """Note that a heartbeat was answered without an error.  Call `look` first."""
        self._sent_s = sent_s
        if self._lately or now_s - sent_s >= self._within_s:
            return None
        self._lately = True
        return f"heard {round(self._within_s * 1000)}"

    def for_ms(self, now_s: float) -> int:
        """Return the milliseconds since the last answered heartbeat was sent; -1 without one."""
        return -1 if math.isinf(self._sent_s) else math.ceil((now_s - self._sent_s) * 1000)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed in-sync set of one partition.

    leader_epoch, partition_epoch: the versions on which the proposal is based
    isr: (broker, broker epoch) of each member
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]


class InSyncKeeper:
    """The in-sync replicas of the partitions that one broker leads.

    me: id of this broker
    lag_s: seconds of silence after which a member is removed (replica.lag.time.max.ms)
    """

    def __init__(self, me: int, lag_s: float) -> None:
        self._me = me
        self._lag_s = lag_s
        self._heard: dict[int, tuple[int, float]] = {}  # broker -> (epoch, when)
        self._leads_since: dict[tuple[UUID, int], tuple[int, float]] = {}  # partition -> (leader epoch, when)

    def heard(self, broker: int, epoch: int, now_s: float) -> None:
        """Note an answer of the broker that is registered with this broker epoch."""
        self._heard[broker] = epoch, now_s

    def followers(self, image: Image) -> set[int]:
        """Return the other brokers that hold replicas of partitions led by this broker."""
        return {replica for partition in self._led(image) for replica in partition.replicas} - {self._me}

    def proposals(self, image: Image, now_s: float) -> list[Proposal]:
        """Return a proposal for each partition whose in-sync set should change."""
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
        """Yield the members other than the leader, with their broker epochs.

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
