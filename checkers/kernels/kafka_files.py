"""Reads Kafka's record batches (magic 2) from bytes: headers, CRC-32C, and the hash of every prefix.

    batch   int64 base offset, int32 length of the following bytes, int32 leader epoch, int8 magic, uint32 CRC-32C of
            all following bytes, int16 attributes, int32 last offset delta, int64 first and int64 last timestamp, int64
            producer id, int16 producer epoch, int32 first sequence, int32 number of records; then the records.  Big
            endian.
    record  length, int8 attributes, timestamp delta, offset delta, key, value, headers; numbers are zigzag varints
            (KIP-98), keys and values are preceded by their length, -1 for null.

`scan` reads the headers and verifies the CRCs.  `find_configs` reads the ConfigRecords inside the batches of a
metadata log, which contain clients' writes.  Both verify every length before they read the bytes after it.

CRC-32C (Castagnoli) processes eight bytes at a time with eight tables (Kounavis & Berry 2005).

*Prefix hash.*  `chain` hashes every prefix of a log of record batches.  If the hashes of two logs are equal after a
batch, all batches up to it are equal.

The hash is BLAKE2b (RFC 7693).
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64, UInt8, UInt32
from checkers.kernels.jit import inner_kernel, kernel

HEADER_SIZE_BYTES = 61

# Reasons why a scan ended.  An unfinished append may cause the codes up to BAD_CRC, if no data follows it.
COMPLETE, SHORT_HEADER, BAD_LENGTH, INCOMPLETE, BAD_MAGIC, BAD_CRC, OFFSET_WENT_BACK, WRONG_COUNT, COMPRESSED = range(9)

CONTROL = 1 << 5
"""The attribute bit of a batch that contains control records."""

_COMPRESSION = 0b111
_LENGTH_FROM = 12
_CRC_FROM = 21


class Batches(NamedTuple):
    """Complete batches, one entry each: base offset, leader epoch, CRC field, number of records, attributes, and the
    positions of its first byte and its end."""

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

    Returns (batches, reason why the scan ended, first byte of the next batch, end of the next batch by its length
    field).  This end is beyond the data if the field is missing or too small.

    log_end: log end offset before byte `start`
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
    """Fill `batches`.  Returns (number of batches, reason why the scan ended, the two positions of `scan`)."""
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
"""Maximum number of bytes that the search for a later batch reads, as a multiple of the file's size.  Beyond this limit
the search returns True."""


def resumes(data: UInt8, position: int) -> bool:
    """Return True if a complete batch with a correct CRC begins at any byte from `position` on.

    Also returns True if the search would cost too much, so that corruption is never mistaken for a torn tail.
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


_LINK = Struct(">qqiI")


def chain(before: int, base: Int64, epoch: Int32, crc: Int64) -> Int64:
    """Return int64[len(base)]: the prefix hash after each batch.

    h := BLAKE2b-64(int64 h, int64 base offset, int32 leader epoch, uint32 CRC), all big endian; the digest is read as
    a big-endian int64.

    before: hash before the first batch
    """
    hashes = np.empty(len(base), np.int64)
    for i, batch in enumerate(zip(base.tolist(), epoch.tolist(), crc.tolist(), strict=True)):
        digest = blake2b(_LINK.pack(before, *batch), digest_size=8).digest()
        before = int.from_bytes(digest, "big", signed=True)
        hashes[i] = before
    return hashes


class Configs(NamedTuple):
    """Changes of configs, one entry per record.

    name_at, name_size: position of the name of the record's resource; size -1 if the record changes no wanted config
    value: number that the record sets, or appends to a list
    known: False if the record removes the config
    """

    name_at: Int64
    name_size: Int32
    value: Int64
    known: Bools


class WantedConfigs(NamedTuple):
    """The configs to find.  kind: kind of the resource.  number, pairs: names of configs, as in `find_configs`."""

    kind: int
    number: UInt8
    pairs: UInt8


def find_configs(data: UInt8, batches: Batches, kind: int, number: UInt8, pairs: UInt8) -> tuple[Configs, int]:
    """Find the records of the metadata log that set or remove one of two configs of a resource of this kind.

    Returns (one entry per record of the batches, the first batch with a record that cannot be decoded or -1).

    A ConfigRecord (type 4 of Kafka's metadata records, framed as frame version, type and version; KIP-482's compact
    strings): int8 kind, name, config, value or null.  Control batches contain none.

    number: name of a config that contains an integer
    pairs: name of a config that contains a list such as "7:0,3:0".  Such a list only grows, so its record appends the
        first number of its last pair.
    """
    size = int(batches.records.sum(dtype=np.int64))
    configs = Configs(
        np.zeros(size, np.int64), np.full(size, -1, np.int32), np.zeros(size, np.int64), np.zeros(size, np.bool_)
    )
    return configs, _find_configs(data, batches, WantedConfigs(kind, number, pairs), configs)


_BROKEN = -1
_CONFIG_RECORD = 4
_COMMA, _COLON, _MINUS = 44, 58, 45
_DIGITS_MAX = 19
"""Maximum number of digits of an int64."""


@kernel
def _find_configs(data: UInt8, batches: Batches, wanted: WantedConfigs, configs: Configs) -> int:
    row = 0
    for batch in range(batches.records.shape[0]):
        if batches.attributes[batch] & CONTROL:
            row += batches.records[batch]
            continue
        end = batches.stop[batch]
        at = batches.start[batch] + HEADER_SIZE_BYTES
        for _ in range(batches.records[batch]):
            length, at = _zigzag(data, at, end)
            after = at + length
            if at < 0 or length < 1 or after > end:
                return batch
            _, at = _zigzag(data, at + 1, after)  # behind the attributes: timestamp delta
            _, at = _zigzag(data, at, after)  # offset delta
            size, at = _zigzag(data, at, after)
            if at < 0 or size > after - at:
                return batch
            size, at = _zigzag(data, at + max(size, 0), after)
            if at < 0 or size > after - at:
                return batch
            if size > 0 and not _read_config(data, at, at + size, wanted, row, configs):
                return batch
            at = after
            row += 1
        if at != end:
            return batch
    return -1


@inner_kernel
def _read_config(data: UInt8, at: int, end: int, wanted: WantedConfigs, row: int, configs: Configs) -> bool:
    """Store the change that one record makes.  Returns False if the record cannot be decoded."""
    _, at = _uvarint(data, at, end)  # version of the frame
    record, at = _uvarint(data, at, end)
    if at < 0:
        return False
    if record != _CONFIG_RECORD:
        return True
    _, at = _uvarint(data, at, end)  # version of the record
    if at < 0 or at >= end:
        return False
    if np.int64(np.int8(data[at])) != wanted.kind:
        return True
    name, name_length, at = _compact(data, at + 1, end)
    if at < 0:
        return False
    what, what_length, at = _compact(data, at, end)
    if at < 0:
        return False
    appends = _is(data, what, what_length, wanted.pairs)
    if name_length < 0 or not (appends or _is(data, what, what_length, wanted.number)):
        return True
    text, text_length, at = _compact(data, at, end)
    if at < 0:
        return False
    if text_length > 0 or (text_length == 0 and not appends):
        if appends:
            text, text_length = _first_of_last_pair(data, text, text_length)
        right, configs.value[row] = _whole_number(data, text, text_length)
        if not right:
            return False
        configs.known[row] = True
    configs.name_at[row], configs.name_size[row] = name, name_length
    return True


@inner_kernel
def _is(data: UInt8, at: int, length: int, word: UInt8) -> bool:
    if length != word.shape[0]:
        return False
    for i in range(length):
        if data[at + i] != word[i]:
            return False
    return True


@inner_kernel
def _first_of_last_pair(data: UInt8, at: int, length: int) -> tuple[int, int]:
    """Return (start, length) of the first number of the last pair; length 0 if there is no pair."""
    end = at + length
    begin = end
    while begin > at and data[begin - 1] != _COMMA:
        begin -= 1
    for i in range(begin, end):
        if data[i] == _COLON:
            return begin, i - begin
    return at, 0


@inner_kernel
def _whole_number(data: UInt8, at: int, length: int) -> tuple[bool, int]:
    """Return (True if the text is a 64-bit integer, the integer)."""
    negative = length > 0 and data[at] == _MINUS
    digits = length - negative
    if digits < 1 or digits > _DIGITS_MAX:
        return False, 0
    number = np.int64(0)
    for i in range(at + negative, at + length):
        digit = np.int64(data[i]) - 48
        if digit < 0 or digit > 9 or number > (np.int64(0x7FFFFFFFFFFFFFFF) - digit) // 10:
            return False, 0
        number = 10 * number + digit
    return True, int(-number if negative else number)


@inner_kernel
def _uvarint(data: UInt8, at: int, end: int) -> tuple[int, int]:
    """Return (number, the position after it).  The position is _BROKEN if the number does not end before `end`."""
    if at < 0:
        return 0, _BROKEN
    number = np.int64(0)
    for i in range(9):
        if at + i >= end:
            return 0, _BROKEN
        byte = np.int64(data[at + i])
        number |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return int(number), at + i + 1
    return 0, _BROKEN


@inner_kernel
def _zigzag(data: UInt8, at: int, end: int) -> tuple[int, int]:
    number, at = _uvarint(data, at, end)
    return (number >> 1) ^ -(number & 1), at


@inner_kernel
def _compact(data: UInt8, at: int, end: int) -> tuple[int, int, int]:
    """Return (start of a compact nullable string, its size or -1 for null, the position after it)."""
    size, at = _uvarint(data, at, end)
    if at < 0 or size - 1 > end - at:
        return 0, 0, _BROKEN
    return at, size - 1, at + max(size - 1, 0)


def gather(data: UInt8, at: Int64, size: Int32) -> tuple[UInt8, Int64]:
    """Concatenate strings from anywhere in the data; a size of -1 (null) counts as 0 bytes.

    Returns (their bytes, int64[n + 1]: the start of each, and the end of the last one).
    """
    begins = np.zeros(len(at) + 1, np.int64)
    np.cumsum(np.maximum(size, 0), dtype=np.int64, out=begins[1:])
    return _gather(data, at, begins), begins


@kernel
def _gather(data: UInt8, at: Int64, begins: Int64) -> UInt8:
    joined = np.empty(begins[-1], np.uint8)
    for i in range(at.shape[0]):
        for j in range(begins[i + 1] - begins[i]):
            joined[begins[i] + j] = data[at[i] + j]
    return joined
