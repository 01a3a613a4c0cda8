"""Which brokers get the replicas of new partitions.  Pure.

Replicas of a partition are spread over racks, one rack after another.  Brokers that are alive come first.  A fenced one
gets a replica only if there are too few others, and it is not in sync then.  The first replica leads.  It moves on by
one rack, and within a rack by one broker, from partition to partition, so leaders spread evenly.  (Kafka begins
at a random rack and broker; here `first` decides, so that a run can be repeated.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.refused import Refused


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    """A broker that can hold replicas.  alive: it is neither fenced nor shutting down."""

    id: int
    rack: str | None = None
    alive: bool = True


def of_ids(ids: Iterable[int]) -> list[PlacementCandidate]:
    """Brokers of which nothing but the id is known."""
    return [PlacementCandidate(number) for number in ids]


def registered(image: Image) -> list[PlacementCandidate]:
    """Every broker that is registered."""
    return [
        PlacementCandidate(broker.broker_id, broker.rack, not broker.fenced and not broker.in_controlled_shutdown)
        for broker in image.brokers.values()
    ]


def spread(count: int, factor: int, brokers: Sequence[PlacementCandidate], first: int) -> list[tuple[int, ...]]:
    """The replicas of `count` partitions.  first: the number of the first, counted over all topics.

    Raises Refused if there are too few brokers, or if none is alive.
    """
    if factor > len(brokers):
        message = f"Replication factor {factor} is larger than the number of brokers, {len(brokers)}."
        raise Refused(ErrorCode.invalid_replication_factor, message)
    if not any(broker.alive for broker in brokers):
        raise Refused(ErrorCode.invalid_replication_factor, "All brokers are currently fenced.")
    groups = [_by_rack(brokers, alive=alive) for alive in (True, False)]
    placed = []
    for partition in range(first, first + count):
        replicas: list[int] = []
        for racks in groups:
            replicas += _taken(racks, factor - len(replicas), partition)
        placed.append(tuple(replicas))
    return placed


def _by_rack(brokers: Iterable[PlacementCandidate], *, alive: bool) -> list[list[int]]:
    racks: dict[str, list[int]] = {}
    for broker in sorted(brokers, key=lambda each: (each.rack or "", each.id)):
        if broker.alive == alive:
            racks.setdefault(broker.rack or "", []).append(broker.id)
    return list(racks.values())


def _taken(racks: Sequence[Sequence[int]], wanted: int, partition: int) -> list[int]:
    """Up to `wanted` brokers, one rack after another, beginning further on for each partition."""
    found: list[int] = []
    size = max(map(len, racks), default=0)
    for turn in range(size):
        for step in range(len(racks)):
            rack = racks[(partition + step) % len(racks)]
            if turn < len(rack) and len(found) < wanted:
                found.append(rack[(partition // len(racks) + turn) % len(rack)])
    return found
