"""Transactions as columns: what the list-append and rw-register kernels read, and how they report findings.

A transaction is a list of micro-operations, each a read or a write (an append, for lists) of one key.  Writes are
*recoverable*: no value is written twice to a key, so that a value seen names the transaction that wrote it.  The pair
(key, value) is an *element*; values of a key count from 0, so that elements of all keys lie side by side in one array
and (key, value) is found without hashing, at `base[key] + value`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.jit import inner_kernel, kernel

READ, WRITE = 0, 1

NIL_VALUE = -1
"""`value` of a register's read that saw the initial state; lists say so by being empty."""

NEVER = 2**62
"""`completed` of a transaction whose outcome is unknown."""

OK, FAIL, INFO = int(Type.OK), int(Type.FAIL), int(Type.INFO)


class Transactions(NamedTuple):
    """Transactions in order of invocation.

    process: int32[transactions].  status: int8, Type.OK, FAIL or INFO (reads of the latter two are not looked at).
    invoked, completed: int64, positions in the history; NEVER where the outcome is unknown.
    first: int64[transactions + 1]; the micro-operations of t are rows first[t] to first[t + 1].
    kind: int8, READ or WRITE.  key: int32, from 0.  value: int32, see above (of a list's read: ignored).
    list_first: int64[rows + 1]; the list that a row read is lists[list_first[row]:list_first[row + 1]].
    lists: int32, values, concatenated.  Registers have empty lists.
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


class Written(NamedTuple):
    """Who wrote what, and who happened.

    writer: int32 per element, the transaction that wrote it, -1 without any.  final: per element, whether it was its
    writer's last write of the key.  unusable: int8 per key, 1 where nothing may be concluded from the key.
    happened: per transaction; at first those that committed, and later those of which something was seen.
    """

    writer: Int32
    final: Bools
    unusable: Int8
    happened: Bools


class Findings(NamedTuple):
    """What a kernel found, by kind: how often, and the first SAMPLES of each as three numbers (see the kinds)."""

    times: Int64
    sample: Int64


# Kind                 sample
WRITTEN_TWICE = 0  # the two transactions, the row of the second write: not an anomaly, the key cannot be judged
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
REORDERED_APPENDS = 11  # transaction, row of an append, row of its earlier one that stands later or nowhere
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
    """int64[keys + 1]: where each key's elements begin; the last entry is how many there are in all."""
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
    """Who wrote each element.  Marks keys unusable where a value was written twice."""
    key_count = base.shape[0] - 1
    unusable = np.zeros(key_count, np.int8)
    writer = np.full(base[key_count], -1, np.int32)
    final = np.ones(base[key_count], np.bool_)
    latest = np.full(key_count, -1, np.int64)
    for t in range(txns.status.shape[0]):
        for row in range(txns.first[t], txns.first[t + 1]):
            if txns.kind[row] != WRITE:
                continue
            key = txns.key[row]
            element = base[key] + txns.value[row]
            if writer[element] >= 0:
                unusable[key] = 1
                note(found, WRITTEN_TWICE, writer[element], t, row)
                continue
            writer[element] = t
            if latest[key] >= 0 and writer[latest[key]] == t:
                final[latest[key]] = False
            latest[key] = element
    return Written(writer, final, unusable, txns.status == OK)


@inner_kernel
def note_update(update_of: Int32, version: int, t: int, row: int, found: Findings) -> None:
    """Transaction t read a version and then wrote the key.  No other one may do so to the same version.

    update_of: per version, the transaction that did so first, or -1.  row: of t, where the key's name is found.
    """
    if update_of[version] >= 0:
        note(found, LOST_UPDATE, update_of[version], t, row)
    else:
        update_of[version] = t


@inner_kernel
def holds(base: Int64, writer: Int32, key: int, value: int) -> bool:
    """Whether some transaction wrote this value to this key."""
    element = base[key] + value
    return bool(value >= 0 and element < base[key + 1] and writer[element] >= 0)
