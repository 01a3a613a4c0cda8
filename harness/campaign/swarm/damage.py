"""Damage to a file that a node keeps, of every kind, and the places at which a node has to cope with it.

    refused  the node notices it: it refuses to start, or to hand out what it read
    mended   the node does without: the file follows from others, or only promises what may be missing

A flipped bit is placed where a reader can notice it.  Kafka's formats leave some bytes without a checksum: the base
offset and the epoch of a batch, and the values in quorum-state and meta.properties.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from simulation.disk import VolatileDisk
from system_under_test.kraft.log import batch as codec

LOG, IN_LAST_BATCH, LAST_BATCH_GONE = "", "last", "gone"
"""Any bit of the newest segment, a bit of its last batch, or that whole batch.

Damage to the last batch looks like a torn append; only the recovery point tells them apart."""
SNAPSHOT, SERVED_SNAPSHOT = "snapshot", "served snapshot"
"""The newest snapshot of a server that is down, or of one that runs and sends it to others."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """pattern: of the file's name.  places: the bytes of a file at which a flip can be noticed."""

    pattern: str
    refused: bool
    places: Callable[[bytes], Sequence[int]]


def last_batch(data: bytes) -> int:
    """Return where the last whole batch of a log begins; 0 if it holds none."""
    return max(_batches(data), default=0)


CRC_COVERS_FROM = 21


def _batches(data: bytes) -> dict[int, int]:
    """Position -> end, of the whole batches at the beginning of a log."""
    found: dict[int, int] = {}
    position = 0
    while position < len(data):
        try:
            end = position + codec.read_header(data, position).size_bytes
        except codec.CorruptBatch:
            break
        found[position] = position = end
    return found


def covered(data: bytes) -> list[int]:
    """The bytes of a log that the CRC of a batch covers, and all behind the last whole batch."""
    batches = _batches(data)
    whole = max(batches.values(), default=0)
    places = [place for begin, end in batches.items() for place in range(begin + CRC_COVERS_FROM, end)]
    return [*places, *range(whole, len(data))]


def _in_last_batch(data: bytes) -> list[int]:
    return [place for place in covered(data) if place >= last_batch(data)]


_JSON_VALUE = re.compile(rb'(?<=:)(-?\d+|"[^"]*")')
_DIRECTORY = re.compile(rb"(?<=directory\.id=).*")


def _outside(values: re.Pattern[bytes]) -> Callable[[bytes], list[int]]:
    def places(data: bytes) -> list[int]:
        inside = {place for found in values.finditer(data) for place in range(*found.span())}
        return [place for place in range(len(data)) if place not in inside]

    return places


def _anywhere(data: bytes) -> range:
    return range(len(data))


FILE_KINDS: Mapping[str, FileKind] = {
    LOG: FileKind("*.log", True, covered),
    IN_LAST_BATCH: FileKind("*.log", True, _in_last_batch),
    LAST_BATCH_GONE: FileKind("*.log", True, _anywhere),
    SNAPSHOT: FileKind("*.checkpoint", True, _anywhere),
    SERVED_SNAPSHOT: FileKind("*.checkpoint", True, _anywhere),
    "quorum-state": FileKind("quorum-state", True, _outside(_JSON_VALUE)),
    "meta.properties": FileKind("meta.properties", True, _outside(_DIRECTORY)),
    "recovery-point": FileKind("recovery-point", False, _anywhere),
    "epochs": FileKind("leader-epoch-checkpoint", False, _anywhere),
    "partition.metadata": FileKind("partition.metadata", False, _anywhere),
}
FLIPS = (*FILE_KINDS, IN_LAST_BATCH, SNAPSHOT, SERVED_SNAPSHOT)
"""Flips that storms draw from; one that stands here twice is twice as likely."""
MENDED = tuple(name for name, kind in FILE_KINDS.items() if not kind.refused)


def damage_file(disk: VolatileDisk, how: str, at: int) -> bool:
    """Damage the newest file of a kind, durably; return False if there is none with content.

    how: of FILE_KINDS.  at: decides the place."""
    kind = FILE_KINDS[how]
    found = [path for path, data in disk.files().items() if data and fnmatch(path.rpartition("/")[2], kind.pattern)]
    if not found:
        return False
    with disk.for_observer():
        file = disk.open(max(found))
        data = file.read_at(0, file.size())
        if how == LAST_BATCH_GONE:
            file.truncate(last_batch(data))
        else:
            places = kind.places(data)
            place = places[at % len(places)]
            file.write_at(place, bytes([data[place] ^ (1 << at % 8)]))
        file.fsync()
    return True
