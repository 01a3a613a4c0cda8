"""An active controller without a log: decisions are replayed at once.  For tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from system_under_test.kraft.controller import brokers as life
from system_under_test.kraft.controller.brokers import BrokerState, Heartbeat, Registration, Sessions
from system_under_test.kraft.controller.configs import MIN_INSYNC
from system_under_test.kraft.controller.features import supported_ranges
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.records import metadata

BROKERS = (1, 2, 3)
ORDERS = UUID(int=7)


@dataclass
class Controller:
    """An active controller: its image, its log's end, its clock, and what it remembers of brokers."""

    image: Image = field(default_factory=Image)
    end_offset: int = 100
    now_s: float = 1000.0
    sessions: Sessions = field(init=False)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.image, self.now_s)

    def take(self, records: Iterable[metadata.Record]) -> list[metadata.Record]:
        taken = list(records)
        for record in taken:
            self.image.replay(metadata.encode(record))
            self.end_offset += 1
        return taken

    def register(self, broker: int, incarnation: int = 1, previous_epoch: int = -1) -> int:
        request = Registration(
            broker,
            UUID(int=incarnation),
            (metadata.Endpoint("PLAINTEXT", f"n{broker}", 9092),),
            features=supported_ranges(),
            previous_epoch=previous_epoch,
        )
        self.take(life.register(self.image, self.sessions, request, self.end_offset, self.now_s))
        return self.image.brokers[broker].broker_epoch

    def beat(self, broker: int, *, behind: int = 0, epoch: int | None = None, **wants: bool) -> BrokerState:
        known = self.image.brokers[broker].broker_epoch if epoch is None else epoch
        request = Heartbeat(broker, known, self.end_offset - 1 - behind, **wants)
        records, state = life.heartbeat(self.image, self.sessions, request, self.end_offset, self.now_s)
        self.take(records)
        return state

    def with_topic(self, min_insync: int = 1) -> Controller:
        for broker in BROKERS:
            self.register(broker)
            assert self.beat(broker) is BrokerState.UNFENCED
        self.take(
            [
                metadata.TopicRecord("orders", ORDERS),
                metadata.ConfigRecord(metadata.TOPIC_RESOURCE, "orders", MIN_INSYNC, str(min_insync)),
            ]
        )
        for number in range(3):
            replicas = (BROKERS * 2)[number : number + 3]
            partition = metadata.PartitionRecord(
                number, ORDERS, replicas, replicas, leader=replicas[0], leader_epoch=0, partition_epoch=0
            )
            self.take([partition])
        return self

    def leaders(self) -> list[int]:
        return [partition.leader for _, partition in sorted(self.image.topics["orders"].partitions.items())]
