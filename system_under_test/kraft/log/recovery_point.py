"""Recovery point: how far the log is known to be durable: one offset in a small file, which recovery compares with what
it finds.

    recovery-point    int64 offset, big endian | uint32 CRC-32C of these eight bytes

The file is written after each fsync of the log, and it is not fsynced itself.  So it may be old, but it never promises
too much: everything below the value that survives a crash was fsynced before.  A killed process leaves it exact.
Before the log is truncated the point is lowered, and that is fsynced.  A missing or torn file promises nothing.

Without it a flipped bit in the last batch of a clean log looks like an append that a power loss tore.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from system_under_test.kraft.ports import Disk

NAME = "recovery-point"
_CONTENT = struct.Struct(">qI")
_OFFSET = struct.Struct(">q")


class RecoveryPoint:
    """offset: everything below it was fsynced; -1 where that is not known."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._file = disk.open(f"{folder}/{NAME}")
        self.offset = read(self._file.read_at(0, _CONTENT.size))

    def raise_to(self, offset: int) -> None:
        """Call it after the fsync that made everything below `offset` durable."""
        if offset != self.offset:
            self._write(offset)

    def lower_to(self, offset: int) -> None:
        """Call it before the log is cut to `offset`.  Durable on return."""
        if offset < self.offset:
            self._write(offset)
            self._file.fsync()

    def close(self) -> None:
        self._file.close()

    def _write(self, offset: int) -> None:
        self._file.write_at(0, _CONTENT.pack(offset, crc32c(_OFFSET.pack(offset))))
        self.offset = offset


def read(content: bytes) -> int:
    """Return what the file promises; -1 for nothing."""
    if len(content) < _CONTENT.size:
        return -1
    offset, crc = _CONTENT.unpack(content)
    return offset if offset >= 0 and crc == crc32c(_OFFSET.pack(offset)) else -1
