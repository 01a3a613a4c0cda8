"""When a node takes a snapshot, and how much of log and snapshots it keeps; apart from what does it, so that reading a
configuration loads nothing of a running node."""

from __future__ import annotations

from dataclasses import dataclass

from system_under_test.kraft.log.snapshot_file import BATCH_MAX_BYTES


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Kafka's configs of the same names, with its defaults; `retention_bytes` counts the log and all snapshots.

    part_max_bytes: of a snapshot in one answer, as a follower asks for it.  batch_max_bytes: with so many bytes of
    records a batch of a snapshot is full; each is written in a turn of its own."""

    max_record_bytes_between_snapshots: int = 20 << 20
    max_snapshot_interval_ms: int = 60 * 60 * 1000
    retention_bytes: int = 100 << 20
    retention_ms: int = 7 * 24 * 60 * 60 * 1000
    part_max_bytes: int = 1 << 20
    batch_max_bytes: int = BATCH_MAX_BYTES


KAFKA_LIMITS = SnapshotLimits()
