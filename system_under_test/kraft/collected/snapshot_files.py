"""The snapshots of one data directory, from their bytes alone: a reader that shares nothing with the subject's codec.

It follows the published layout (KIP-630): record batches of version 2 whose offsets count from 0 and whose epoch is
that of the snapshot; the first is a control batch with the header, the last one with the footer.  Where voters can
change, two control batches with `kraft.version` and the voters follow the header (KIP-853).

    state hash   XOR over the values of all data records of int64(BLAKE2b-8(value)), big endian and signed
    prefix hash  of the log at the snapshot's end: tag 10000 of the header, which only the bundled system writes; else 0
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from checkers.kernels.kafka_files.record_batch import COMPLETE, CONTROL, HEADER_SIZE_BYTES, scan

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
    """Which rule the bytes break."""


def snapshot_names(folder: Path) -> list[tuple[int, int, Path]]:
    """(end offset, epoch, path) of every complete snapshot by name, oldest first."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("*.checkpoint")]
    return sorted((int(match[1]), int(match[2]), path) for match, path in found if match)


def read_snapshots(folder: Path) -> list[SnapshotFile]:
    """All snapshots of a copied log directory, oldest first.  Never raises for what the files hold."""
    return [read_snapshot(path, end, epoch) for end, epoch, path in snapshot_names(folder)]


def read_snapshot(path: Path, end_offset: int, epoch: int) -> SnapshotFile:
    data = path.read_bytes()
    try:
        return _read(data, end_offset, epoch)
    except (_Malformed, IndexError) as problem:
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
    state_hash = records = 0
    prefix_hash = 0
    for start, stop, is_control in zip(batches.start.tolist(), batches.stop.tolist(), control.tolist(), strict=True):
        for key, value in _records(data[start:stop]):
            if not is_control:
                state_hash ^= int.from_bytes(blake2b(value, digest_size=8).digest(), "big", signed=True)
                records += 1
                continue
            kinds.append(int.from_bytes(key[2:4], "big"))
            if kinds == [_HEADER]:
                prefix_hash = _tagged(value, 10)
    if kinds not in ([_HEADER, _FOOTER], [_HEADER, *_OF_VOTERS, _FOOTER]):
        raise _Malformed(f"its control records are of the types {kinds}")
    return SnapshotFile(end_offset, epoch, records, state_hash, prefix_hash)


def _tagged(value: bytes, at: int) -> int:
    """The prefix hash among the tagged fields that begin at a byte; 0 if it is not there."""
    count, at = _uvarint(value, at)
    for _ in range(count):
        number, at = _uvarint(value, at)
        size, at = _uvarint(value, at)
        if number == _PREFIX_HASH_TAG and size == 8:
            return int.from_bytes(value[at : at + 8], "big", signed=True)
        at += size
    return 0


def _records(batch: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each record of a batch; a key that is null is empty."""
    at = HEADER_SIZE_BYTES
    while at < len(batch):
        size, at = _varint(batch, at)
        end = at + size
        _, at = _varint(batch, at + 1)  # behind the attributes: the timestamp delta
        _, at = _varint(batch, at)  # offset delta
        size, at = _varint(batch, at)
        key = batch[at : at + max(size, 0)]
        size, at = _varint(batch, at + max(size, 0))
        if size < 0 or at + size > end or end > len(batch):
            raise _Malformed("a record without a value, or one that overruns its batch")
        yield key, batch[at : at + size]
        at = end


def _uvarint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number, at = _uvarint(data, at)
    return (number >> 1) ^ -(number & 1), at
