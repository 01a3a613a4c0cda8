"""Numbers the offsets of all keys: each offset of each key gets a slot, and slots of one key are consecutive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.kafka_log.log_anomalies import KafkaColumns

_GAPS = 8
"""If slots for all offsets would be at most this many per row, each offset gets one; else only those that occur."""


@dataclass(frozen=True, slots=True)
class Slots:
    """of_sent, of_polled: per row, the slot, or -1 if its offset is unknown.  key, offset: per slot."""

    of_sent: Int64
    of_polled: Int64
    key: Int32
    offset: Int64


def slots_of(columns: KafkaColumns, key_count: int) -> Slots:
    key = np.concatenate([columns.key_of[columns.sent], columns.key_of[columns.polled]])
    offset = np.concatenate([columns.sent_offset, columns.polled_offset])
    known = offset >= 0
    ends = np.zeros(key_count, np.int64)
    np.maximum.at(ends, key[known], offset[known] + 1)
    slot = np.full(len(key), -1, np.int64)
    if ends.astype(float).sum() <= _GAPS * len(key) + 1024:
        base = np.concatenate([[0], np.cumsum(ends)])
        slot[known] = base[key[known]] + offset[known]
        key_of_slot = np.repeat(np.arange(key_count, dtype=np.int32), ends)
        offset_of_slot = np.arange(base[-1]) - base[key_of_slot]
    else:
        order = np.flatnonzero(known)[np.lexsort((offset[known], key[known]))]
        new = np.ones(len(order), np.bool_)
        new[1:] = (key[order][1:] != key[order][:-1]) | (offset[order][1:] != offset[order][:-1])
        slot[order] = np.cumsum(new) - 1
        key_of_slot, offset_of_slot = key[order][new], offset[order][new]
    sent = len(columns.sent)
    return Slots(slot[:sent], slot[sent:], key_of_slot.astype(np.int32), offset_of_slot.astype(np.int64))
