"""Represents transactions as columns, which the list-append and rw-register kernels read, and represents findings.

A transaction is a list of micro-operations.  Each is a read or a write of one key; a write of a list is an append.
Writes are *recoverable*: no value is written twice to a key, so an observed value identifies its writer.  The pair
(key, value) is an *element*.  Values of a key count from 0, so one array contains the elements of all keys, and the
index of (key, value) is `base[key] + value`.

An element that was written more than once has no known writer, so kernels conclude nothing about its writer.  Not even
a failed write helps to distinguish the writers, because some models allow reads of failed writes.
`transactions/repeated_values.py` tries every writer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.jit import inner_kernel, kernel

READ, WRITE = 0, 1

NIL_VALUE = -1
"""`value` of a register's read that saw the initial state.  (A list in its initial state is empty.)"""

NEVER = 2**62
"""`completed` of a transaction whose outcome is unknown."""

OK, FAIL, INFO = int(Type.OK), int(Type.FAIL), int(Type.INFO)


class Transactions(NamedTuple):
    """Transactions in order of invocation.

    process: int32[transactions]
    status: int8, Type.OK, FAIL or INFO; kernels ignore reads of transactions that are not OK
    invoked, completed: int64, positions in the history; `completed` is NEVER if the outcome is unknown
    first: int64[transactions + 1]; the micro-operations of t are rows first[t] to first[t + 1] - 1
    kind: int8, READ or WRITE
    key: int32, from 0
    value: int32, see above; ignored for a read of a list
    list_first: int64[rows + 1]; the list that a row read is lists[list_first[row]:list_first[row + 1]]
    lists: int32, the values of all lists, concatenated; registers have empty lists
    """

    process: Int32
    status: Int8
    invoked: Int64
    completed: Int64
    first: Int64
    kind: Int8
    key: Int32
    value: Int32
    list_first: Int64
    lists: Int32


class Edges(NamedTuple):
    """Dependencies, one row each: source and target node (int32) and kind (int8, of `dependencies.py`)."""

    source: Int32
    target: Int32
    kind: Int8


class Rewrites(NamedTuple):
    """Elements that were written more than once.  All arrays are empty if there are none, which saves their memory.

    writes: int32 per element, number of its writes, 0 if there was only one
    failed: int32 per element, number of these writes that failed
    aborted: int32 per element, a transaction that failed to write it, or -1
    """

    writes: Int32
    failed: Int32
    aborted: Int32


NO_WRITER, CONTRADICTED = 1, 2
"""Bits of a key that allows no conclusions: the writer of a value is not known; its lists contradict each other."""


class Written(NamedTuple):
    """The writer of each element, and the transactions that happened.

    `writer` and `final` identify nothing for an element that `is_rewritten`.

    writer: int32 per element, the transaction that wrote it first, or -1
    final: per element, True if it was its writer's last write of the key
    unusable: int8 per key, not 0 if the key allows no conclusions: NO_WRITER, CONTRADICTED, or both
    happened: per transaction, True if it committed; kernels also set it for transactions of unknown outcome whose
        writes were read
    """

    writer: Int32
    final: Bools
    unusable: Int8
    happened: Bools
    rewrites: Rewrites


class Findings(NamedTuple):
    """Findings of a kernel by kind: number of findings, and the first SAMPLES as three numbers (see the kinds)."""

    times: Int64
    sample: Int64


# Kind                 sample
WRITTEN_TWICE = 0  # two transactions, row of the second write: not an anomaly, but the key cannot be judged
UNWRITTEN_READ = 1  # transaction, row, position in the list
DUPLICATE_ELEMENTS = 2  # transaction, row, position of the second
INCOMPATIBLE_ORDER = 3  # row of a read, row of the longest read, first position where they differ
ABORTED_READ = 4  # reader, row, writer
DIRTY_UPDATE = 5  # aborted writer, later writer, key
INTERMEDIATE_READ = 6  # reader, row, writer
INTERNAL = 7  # transaction, row of the read, row of the micro-operation it contradicts
FUTURE_READ = 8  # transaction, row of the read, row of the later write it saw
LOST_UPDATE = 9  # two transactions, row of the second one's read
CYCLIC_VERSIONS = 10  # key, two values that precede one another
REORDERED_APPENDS = 11  # transaction, row of an append, row of an earlier append that is later in the list or missing
KINDS = 12

SAMPLES = 4


@kernel
def new_findings() -> Findings:
    return Findings(np.zeros(KINDS, np.int64), np.zeros((KINDS, SAMPLES, 3), np.int64))


@inner_kernel
def note(found: Findings, kind: int, a: int, b: int, c: int) -> None:
    if found.times[kind] < SAMPLES:
        found.sample[kind, found.times[kind], 0] = a
        found.sample[kind, found.times[kind], 1] = b
        found.sample[kind, found.times[kind], 2] = c
    found.times[kind] += 1


@kernel
def element_bases(txns: Transactions, key_count: int) -> Int64:
    """Return int64[keys + 1]: where the elements of each key begin, and the number of all elements."""
    base = np.zeros(key_count + 1, np.int64)
    for row in range(txns.kind.shape[0]):
        if txns.kind[row] == WRITE:
            key = txns.key[row]
            base[key + 1] = max(base[key + 1], txns.value[row] + 1)
    for key in range(key_count):
        base[key + 1] += base[key]
    return base


@kernel
def index_writers(txns: Transactions, base: Int64, found: Findings) -> Written:
    """Find the writer of each element.  A key to which a value was written twice is unusable."""
    key_count = base.shape[0] - 1
    unusable = np.zeros(key_count, np.int8)
    writer = np.full(base[key_count], -1, np.int32)
    final = np.ones(base[key_count], np.bool_)
    latest = np.full(key_count, -1, np.int64)
    rewrites = Rewrites(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32))
    for t in range(txns.status.shape[0]):
        for row in range(txns.first[t], txns.first[t + 1]):
            if txns.kind[row] != WRITE:
                continue
            key = txns.key[row]
            element = base[key] + txns.value[row]
            if writer[element] >= 0:
                unusable[key] = NO_WRITER
                note(found, WRITTEN_TWICE, writer[element], t, row)
                if rewrites.writes.shape[0] == 0:
                    rewrites = _no_rewrites(writer.shape[0])
                if rewrites.writes[element] == 0:
                    _count_write(txns, rewrites, element, writer[element])
                _count_write(txns, rewrites, element, t)
                continue
            writer[element] = t
            if latest[key] >= 0 and writer[latest[key]] == t:
                final[latest[key]] = False
            latest[key] = element
    return Written(writer, final, unusable, txns.status == OK, rewrites)


@kernel
def _no_rewrites(elements: int) -> Rewrites:
    return Rewrites(np.zeros(elements, np.int32), np.zeros(elements, np.int32), np.full(elements, -1, np.int32))


@inner_kernel
def _count_write(txns: Transactions, rewrites: Rewrites, element: int, t: int) -> None:
    rewrites.writes[element] += 1
    if txns.status[t] == FAIL:
        rewrites.failed[element] += 1
        rewrites.aborted[element] = t


@inner_kernel
def is_rewritten(written: Written, element: int) -> bool:
    """Return True if the element was written more than once, so that its writer is unknown."""
    return bool(written.rewrites.writes.shape[0] > 0 and written.rewrites.writes[element] > 0)


@inner_kernel
def shows_failed(rewrites: Rewrites, element: int, times: int) -> bool:
    """Return True if a rewritten element that was seen `times` times in one place must show a failed write."""
    return bool(times > rewrites.writes[element] - rewrites.failed[element])


@inner_kernel
def note_update(update_of: Int32, version: int, t: int, row: int, found: Findings) -> None:
    """Store that transaction t read a version and then wrote the key.  A second transaction that does so is a finding.

    update_of: per version, the first transaction that did so, or -1
    row: a row of t that names the key
    """
    if update_of[version] >= 0:
        note(found, LOST_UPDATE, update_of[version], t, row)
    else:
        update_of[version] = t


@inner_kernel
def holds(base: Int64, writer: Int32, key: int, value: int) -> bool:
    """Return True if some transaction wrote this value to this key."""
    element = base[key] + value
    return bool(value >= 0 and element < base[key + 1] and writer[element] >= 0)
