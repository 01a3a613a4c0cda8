"""Reads the ConfigRecords inside the record batches of Kafka's metadata log; these are the records clients wrote.

`record_batch.py` finds the batches.  This module too checks every length before it uses it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int32, Int64, UInt8
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.kafka_files.record_batch import CONTROL, HEADER_SIZE_BYTES, Batches


class Configs(NamedTuple):
    """One entry per record.

    name_at, name_size: where the name of its resource stands; size -1 if the record concerns no wanted config.
    value: the number it sets, or appends to a list.  known: False if the record removes the config."""

    name_at: Int64
    name_size: Int32
    value: Int64
    known: Bools


class WantedConfigs(NamedTuple):
    """kind: of the resource.  number, pairs: names of configs, as in `find_configs`."""

    kind: int
    number: UInt8
    pairs: UInt8


def find_configs(data: UInt8, batches: Batches, kind: int, number: UInt8, pairs: UInt8) -> tuple[Configs, int]:
    """Find the records of the metadata log that change one of two configs of a resource of this kind, or remove it.

    number: the name of a config that holds an integer.  pairs: of one that holds a list such as "7:0,3:0".  Such a list
    only grows, so its record appends the first number of its last pair.

    A ConfigRecord (type 4 of Kafka's metadata records, framed as frame version, type and version; KIP-482's compact
    strings): int8 kind, name, config, value or null.  Control batches contain none.
    Returns (one entry per record of the batches, the first batch with a record that cannot be decoded or -1).
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
"""The number of digits of the largest int64."""


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
            _, at = _zigzag(data, at + 1, after)  # behind the attributes: delta of the timestamp
            _, at = _zigzag(data, at, after)  # delta of the offset
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
    """Note what one record sets; returns False if the record cannot be decoded."""
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
    """Return (where the first number of the last pair begins, its length); length 0 of what is no pair."""
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
    """Return (whether the text is a whole number of 64 bits, the number)."""
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
    """Return (number, the position behind it); the position is _BROKEN if the number does not end in time."""
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
    """Return (where a compact nullable string begins, its size or -1 for null, the position behind it)."""
    size, at = _uvarint(data, at, end)
    if at < 0 or size - 1 > end - at:
        return 0, 0, _BROKEN
    return at, size - 1, at + max(size - 1, 0)


def gather(data: UInt8, at: Int64, size: Int32) -> tuple[UInt8, Int64]:
    """Copy strings from anywhere in the data one behind the other; a size of -1 (null) counts as 0 bytes.

    Returns (their bytes, int64[n + 1]: where each begins, and where the last one ends).
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
