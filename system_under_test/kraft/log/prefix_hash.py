"""One number for everything a log holds up to an offset.

This definition suffices to compute it from the files.  Take the record batches of the log in order, from the log's
start.  Begin with h = 0.  For every batch replace h by

    the first 8 bytes, read as a big-endian signed 64-bit integer, of
    BLAKE2b(digest size 8 bytes, no key, no salt) over the 24 bytes
        int64  h (the value so far)
        int64  the batch's base offset
        int32  the batch's leader epoch
        uint32 the batch's CRC field
    all big endian, without padding (Python: struct.pack(">qqiI", h, base_offset, epoch, crc)).

The hash at an offset is the value after the last batch that ends there; inside a batch there is none.  The CRC stands
for the records; base offset and epoch are added because Kafka's CRC covers neither.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

EMPTY = 0
"""The hash of a log without batches."""

_INPUT = struct.Struct(">qqiI")
_OUTPUT = struct.Struct(">q")


def extend(prefix: int, base_offset: int, epoch: int, crc: int) -> int:
    """The prefix hash after one more batch; int64."""
    digest = blake2b(_INPUT.pack(prefix, base_offset, epoch, crc), digest_size=8).digest()
    hashed: int = _OUTPUT.unpack(digest)[0]
    return hashed
