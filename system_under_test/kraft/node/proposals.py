"""How decided writes become the batches of one proposal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from system_under_test.kraft.node.state_machine import Write

BATCH_MAX_BYTES = 8 << 20
BATCH_MAX_RECORDS = 10_000


def batches_of(writes: Sequence[Write], *, single: bool) -> list[tuple[Any, int]]:
    """(body, record count) of each batch.  A write's records are never parted, unless each is to be a batch (`single`).

    A write without records adds nothing.
    """
    if single:
        return [((record,), 1) for write in writes for record in write.records]
    bodies: list[tuple[Any, int]] = []
    batch: list[bytes] = []
    size_bytes = 0
    for write in writes:
        added_bytes = sum(map(len, write.records))
        full = size_bytes + added_bytes > BATCH_MAX_BYTES or len(batch) + len(write.records) > BATCH_MAX_RECORDS
        if batch and full:
            bodies.append((tuple(batch), len(batch)))
            batch, size_bytes = [], 0
        batch += write.records
        size_bytes += added_bytes
    if batch:
        bodies.append((tuple(batch), len(batch)))
    return bodies
