"""Requests about registered brokers: one that is down is unregistered, and one gets a block of producer ids."""

from __future__ import annotations

from dataclasses import dataclass

from system_under_test.kraft.controller.brokers import Sessions, require_broker, unregister
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import allocate_producer_ids
from system_under_test.kraft.records.metadata import encode

UNREGISTER, PRODUCER_IDS = "unregister", "producer-ids"


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """how: UNREGISTER or PRODUCER_IDS.  epoch: of the incarnation that is meant.  A later one is left alone: a broker
    that runs and is unregistered comes back only when it is started anew."""

    how: str
    broker: int
    epoch: int

    def decide(self, image: Image, sessions: Sessions) -> list[bytes]:
        """The records of the request.  Raises Refused."""
        if self.how == PRODUCER_IDS:
            return allocate_producer_ids(image, self.broker, self.epoch)[0]
        require_broker(image, self.broker, self.epoch)
        return [encode(record) for record in unregister(image, sessions, self.broker)]
