"""The snapshots of one data directory, from their bytes alone: a reader that shares nothing with the subject's codec.

It follows the published layout (KIP-630): record batches of version 2 whose offsets count from 0 and whose epoch is
that of the snapshot; the first is a control batch with the header, the last one with the footer.  Where voters can
change, `kraft.version` and the voters follow the header, in its batch or in batches of their own (KIP-853).

    state hash   of the state that its records amount to (`state_model.py`)
    prefix hash  of the log at the snapshot's end: tag 10000 of the header, which only the bundled system writes; else 0
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkers.kernels.kafka_files import COMPLETE, CONTROL, HEADER_SIZE_BYTES, scan
from system_under_test.kraft.collected.cursor import Cursor, record_of_next
from system_under_test.kraft.collected.state_model import StateModel

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_HEADER, _FOOTER = 3, 4
_OF_VOTERS = [5, 6]
"""Types of control records: KRaftVersion and Voters, in this order (KIP-853)."""
_PREFIX_HASH_TAG = 10_000


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """records: of the state.  error: why it is no complete snapshot, None if it is; the hashes are 0 then."""

    end_offset: int
    epoch: int
    records: int = 0
    state_hash: int = 0
    prefix_hash: int = 0
    error: str | None = None


class _Malformed(ValueError):
    """The rule that the bytes break."""


def snapshot_names(folder: Path) -> list[tuple[int, int, Path]]:
    """(end offset, epoch, path) of every complete snapshot by name, oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("*.checkpoint")]
    return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)


def read_snapshots(folder: Path) -> list[SnapshotFile]:
    """All snapshots of a copied log directory, oldest first.  Never raises for what the files hold.

    The one at offset 0, which Kafka's formatter writes, stands for nothing of the log."""
    return [read_snapshot(path, end, epoch) for end, epoch, path in snapshot_names(folder) if end]


def read_snapshot(path: Path, end_offset: int, epoch: int) -> SnapshotFile:
    data = path.read_bytes()
    try:
        return _read(data, end_offset, epoch)
    except (ValueError, IndexError) as problem:
        words = str(problem) if isinstance(problem, _Malformed) else "a record ends beyond its batch"
        return SnapshotFile(end_offset, epoch, error=f"{path.name}: {words}")


def _read(data: bytes, end_offset: int, epoch: int) -> SnapshotFile:
    batches, why, position, _ = scan(np.frombuffer(data, np.uint8), 0, 0)
    if why != COMPLETE or len(batches.base) < 2:
        raise _Malformed(f"byte {position}: no whole batch with a right CRC, and the footer is missing")
    ends = np.cumsum(batches.records)
    if np.any(batches.base != ends - batches.records) or np.any(batches.epoch != epoch):
        raise _Malformed("its batches do not follow each other, or are of another epoch")
    control = (batches.attributes & CONTROL) != 0
    if not (control[0] and control[-1]):
        raise _Malformed("the header is not its first batch, or the footer not its last")
    kinds = []
    model, records, prefix_hash = StateModel(), 0, 0
    for start, stop, is_control in zip(batches.start.tolist(), batches.stop.tolist(), control.tolist(), strict=True):
        cursor = Cursor(data, start + HEADER_SIZE_BYTES, stop)
        while cursor.at < stop:
            key, value = record_of_next(cursor)
            if not is_control:
                try:
                    model.replay(value)
                except (ValueError, KeyError) as problem:
                    raise _Malformed(f"record {records + 1} cannot be replayed: {problem}") from None
                records += 1
                continue
            kinds.append(int.from_bytes(key[2:4], "big"))
            if kinds == [_HEADER]:
                prefix_hash = _prefix_hash(value)
    if kinds not in ([_HEADER, _FOOTER], [_HEADER, *_OF_VOTERS, _FOOTER]):
        raise _Malformed(f"its control records are of the types {kinds}")
    return SnapshotFile(end_offset, epoch, records, model.state_hash, prefix_hash)


def _prefix_hash(header: bytes) -> int:
    """The prefix hash among the tagged fields of a header; 0 if it is not there."""
    cursor = Cursor(header, 10)
    for _ in range(cursor.uvarint()):
        number, held = cursor.uvarint(), cursor.take(cursor.uvarint())
        if number == _PREFIX_HASH_TAG and len(held) == 8:
            return int.from_bytes(held, "big", signed=True)
    return 0
