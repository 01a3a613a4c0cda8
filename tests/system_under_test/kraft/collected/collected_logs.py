"""Small logs in files, as a node leaves them."""

from __future__ import annotations

from pathlib import Path

from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.raft.messages import Batch, LeaderChange
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, NoOpRecord, encode

SEGMENT = "00000000000000000000.log"


def config(topic: str, value: int | None, name: str = "retention.ms", kind: int = TOPIC_RESOURCE) -> bytes:
    return encode(ConfigRecord(kind, topic, name, None if value is None else str(value)))


def written(folder: Path, *batches: bytes, segment: str = SEGMENT) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / segment).write_bytes(b"".join(batches))
    return folder


def a_log() -> list[bytes]:
    """Offsets 0, 1-3, 4 in epoch 2; 5 in epoch 3."""
    return [
        codec.encode(Batch(0, 2, 1, LeaderChange(1, (1, 2, 3), (1, 2))), 1000),
        codec.encode_values(1, 2, [config("k0", 7), encode(NoOpRecord()), config("k1", -1)], 1001),
        codec.encode_values(4, 2, [config("k0", None)], 1002),
        codec.encode(Batch(5, 3, 1, LeaderChange(2, (1, 2, 3), (2, 3))), 1003),
    ]
