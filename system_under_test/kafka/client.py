"""The client of Kafka's workloads: records through librdkafka, offsets in frames."""

from __future__ import annotations

from system_under_test.kafka.offsets import NoCoordinator, OffsetsClient
from system_under_test.kafka.records import NotAppended, RecordsClient


class KafkaClient(RecordsClient, OffsetsClient):
    refused: tuple[type[BaseException], ...] = (NotAppended, NoCoordinator)
    routes_by_itself = True
