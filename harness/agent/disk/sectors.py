"""Sectors: a disk writes each of them whole, or not at all.

Programs rely on that.  etcd, for example, knows a torn append by a sector of zeros, and takes half of a sector for
damage.  So a torn write is cut where a sector ends.  A sector that is on the disk holds what all writes before had put
into it, because the kernel writes pages and not calls: a later write brings along the bytes of earlier ones.

An offset in a file is one on the disk, too: file systems give files whole blocks of sectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class FileWrite:
    """A write of a file: from an offset to an end.  truncates: everything from `end` on is cut off instead."""

    file: int
    offset: int
    end: int
    truncates: bool = False


Piece = tuple[int, int]
"""The first byte of a part of a write, and the byte behind it; counted from the beginning of the write."""


def torn_at(write: FileWrite, rng: Random) -> int:
    """The bytes that are kept of a torn write: up to the end of a sector in it, none if it lies in one sector."""
    first = write.offset // SECTOR_BYTES + 1
    ends = range(first * SECTOR_BYTES, write.end, SECTOR_BYTES)
    return rng.choice(ends) - write.offset if ends else 0


def some_of(writes: Sequence[FileWrite], chosen: Sequence[bool]) -> list[list[Piece]]:
    """The pieces that the disk holds of each write, in order, if it keeps those that are chosen and not the others.

    A write that is not chosen leaves the bytes that share a sector with a later one that is.  A truncation with a later
    write that is chosen happened before it: it is kept, with the piece (0, 0).
    """
    found: list[list[Piece]] = [[] for _ in writes]
    sectors: dict[int, list[tuple[int, int]]] = {}  # of later writes that are chosen, per file
    for place in reversed(range(len(writes))):
        write = writes[place]
        later = sectors.setdefault(write.file, [])
        if write.truncates:
            found[place] = [(0, 0)] if chosen[place] or later else []
            sectors[write.file] = [(first, min(end, write.end)) for first, end in later]
        elif chosen[place]:
            found[place] = [(0, write.end - write.offset)]
            later.append((_down(write.offset), _down(write.end + SECTOR_BYTES - 1)))
        else:
            parts = ((max(first, write.offset), min(end, write.end)) for first, end in later)
            found[place] = sorted({(a - write.offset, b - write.offset) for a, b in parts if a < b})
    return found


def _down(offset: int) -> int:
    return offset // SECTOR_BYTES * SECTOR_BYTES
