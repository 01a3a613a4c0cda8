"""Reads Kafka's record batches (magic 2) from bytes: their headers and their CRC-32C.

    batch   int64 base offset, int32 length of what follows, int32 leader epoch, int8 magic, uint32 CRC-32C of all that
            follows it, int16 attributes, int32 last offset delta, int64 first and int64 last timestamp, int64 producer
            id, int16 producer epoch, int32 first sequence, int32 number of records; then the records.  Big endian.
    record  length, int8 attributes, timestamp delta, offset delta, key, value, headers; numbers are zigzag varints
            (KIP-98), keys and values are preceded by their length, -1 for null.

`scan` walks the headers and checks the CRCs; `config_records.py` reads the records.  Both check a length before they
read what lies behind it.

CRC-32C (Castagnoli) processes eight bytes at a time with eight tables (Kounavis & Berry 2005).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int32, Int64, UInt8, UInt32
from checkers.kernels.jit import inner_kernel, kernel

HEADER_SIZE_BYTES = 61

# Why a scan ended.  An unfinished append may cause the codes up to BAD_CRC, if no data follows it.
COMPLETE, SHORT_HEADER, BAD_LENGTH, INCOMPLETE, BAD_MAGIC, BAD_CRC, OFFSET_WENT_BACK, WRONG_COUNT, COMPRESSED = range(9)

CONTROL = 1 << 5
"""The attribute bit of a batch that holds control records."""

_COMPRESSION = 0b111
_LENGTH_FROM = 12
_CRC_FROM = 21


class Batches(NamedTuple):
    """Complete batches, one entry each: base offset, leader epoch, CRC field, number of records, attributes, and the
    bytes at which it begins and ends."""

    base: Int64
    epoch: Int32
    crc: Int64
    records: Int32
    attributes: Int32
    start: Int64
    stop: Int64

    def first(self, count: int) -> Batches:
        """Return the first `count` batches."""
        return Batches._make(column[:count] for column in self)

    def without_first(self, count: int) -> Batches:
        """Return all but the first `count` batches."""
        return Batches._make(column[count:] for column in self)


def scan(data: UInt8, start: int, log_end: int, limit: int | None = None) -> tuple[Batches, int, int, int]:
    """Read the complete batches of a segment from byte `start` on, at most `limit`.

    log_end: the log end offset before byte `start`.
    Returns (batches, why the scan ended, the byte at which the next batch begins, the byte at which its length field
    ends it).  The last one lies beyond the data if that field is missing or too small.
    """
    most = (len(data) - start) // HEADER_SIZE_BYTES
    most = most if limit is None else min(most, limit)
    batches = Batches(
        np.empty(most, np.int64),
        np.empty(most, np.int32),
        np.empty(most, np.int64),
        np.empty(most, np.int32),
        np.empty(most, np.int32),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
    )
    count, why, position, stop = _scan(data, start, log_end, _CRC_TABLES, batches)
    return batches.first(count), why, position, stop


@kernel
def _scan(data: UInt8, start: int, log_end: int, tables: UInt32, batches: Batches) -> tuple[int, int, int, int]:
    """Fill `batches`.  Returns (their number, why the scan ended, and the two bytes that `scan` returns)."""
    size = data.shape[0]
    position = start
    found = 0
    reached = log_end
    while position < size and found < batches.base.shape[0]:
        left = size - position
        if left < HEADER_SIZE_BYTES:
            return found, SHORT_HEADER, position, size + 1
        length = _int32(data, position + 8)
        if length < HEADER_SIZE_BYTES - _LENGTH_FROM:
            return found, BAD_LENGTH, position, size + 1
        end = position + _LENGTH_FROM + length
        if end > size:
            return found, INCOMPLETE, position, end
        if data[position + 16] != 2:
            return found, BAD_MAGIC, position, end
        stated = _int32(data, position + 17) & 0xFFFFFFFF
        if _crc32c(data, position + _CRC_FROM, end, tables) != stated:
            return found, BAD_CRC, position, end
        first = _int64(data, position)
        records = _int32(data, position + 23) + 1
        if first < reached:
            return found, OFFSET_WENT_BACK, position, end
        if records < 1 or _int32(data, position + 57) != records:
            return found, WRONG_COUNT, position, end
        flags = (np.int32(data[position + 21]) << 8) | np.int32(data[position + 22])
        if flags & _COMPRESSION:
            return found, COMPRESSED, position, end
        batches.base[found] = first
        batches.epoch[found] = _int32(data, position + 12)
        batches.crc[found] = stated
        batches.records[found] = records
        batches.attributes[found] = flags
        batches.start[found], batches.stop[found] = position, end
        reached = first + records
        position = end
        found += 1
    if position < size and size - position < HEADER_SIZE_BYTES:
        return found, SHORT_HEADER, position, size + 1
    return found, COMPLETE, position, position


RESUME_CRC_FACTOR = 16
"""The search for a later batch reads at most this many times the size of the file; then it answers yes."""


def resumes(data: UInt8, position: int) -> bool:
    """Whether a complete batch with a correct CRC begins at any byte from `position` on.

    True also if the search would cost too much, so that damage is never mistaken for a torn tail.
    """
    return bool(_resumes(data, position, RESUME_CRC_FACTOR * len(data), _CRC_TABLES))


@kernel
def _resumes(data: UInt8, position: int, budget: int, tables: UInt32) -> bool:
    size = data.shape[0]
    for start in range(position, size - HEADER_SIZE_BYTES + 1):
        if data[start + 16] != 2:
            continue
        length = _int32(data, start + 8)
        end = start + _LENGTH_FROM + length
        if length < HEADER_SIZE_BYTES - _LENGTH_FROM or end > size:
            continue
        budget -= length
        if budget < 0:
            return True
        if _crc32c(data, start + _CRC_FROM, end, tables) == _int32(data, start + 17) & 0xFFFFFFFF:
            return True
    return False


@inner_kernel
def _int32(data: UInt8, at: int) -> int:
    word = np.uint32(0)
    for i in range(4):
        word = (word << np.uint32(8)) | np.uint32(data[at + i])
    return int(np.int32(word))


@inner_kernel
def _int64(data: UInt8, at: int) -> int:
    word = np.uint64(0)
    for i in range(8):
        word = (word << np.uint64(8)) | np.uint64(data[at + i])
    return int(np.int64(word))


def crc32c(data: UInt8) -> int:
    """Return the CRC-32C of some bytes."""
    return int(_crc32c(data, 0, len(data), _CRC_TABLES))


@kernel
def _crc32c(data: UInt8, start: int, stop: int, tables: UInt32) -> int:
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= stop:
        low = crc ^ (
            np.uint32(data[at])
            | (np.uint32(data[at + 1]) << np.uint32(8))
            | (np.uint32(data[at + 2]) << np.uint32(16))
            | (np.uint32(data[at + 3]) << np.uint32(24))
        )
        crc = (
            tables[7, low & np.uint32(0xFF)]
            ^ tables[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8
    while at < stop:
        crc = tables[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        at += 1
    return int(crc ^ np.uint32(0xFFFFFFFF))


def _crc_tables() -> UInt32:
    """Return tables[k][b], the CRC of byte b followed by k zero bytes; polynomial 0x1EDC6F41, reflected."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        before = tables[k - 1]
        tables[k] = tables[0][before & 0xFF] ^ (before >> 8)
    return tables


_CRC_TABLES = _crc_tables()
