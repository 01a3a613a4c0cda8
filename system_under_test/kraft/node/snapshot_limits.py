"""When a node takes a snapshot, and how much of log and snapshots it keeps; apart from what does it, so that reading a
configuration loads nothing of a running node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """Kafka's configs of the same names, with its defaults; `retention_bytes` counts the log and all snapshots."""

    max_record_bytes_between_snapshots: int = 20 << 20
    max_snapshot_interval_ms: int = 60 * 60 * 1000
    retention_bytes: int = 100 << 20
    retention_ms: int = 7 * 24 * 60 * 60 * 1000


KAFKA_LIMITS = SnapshotLimits()
