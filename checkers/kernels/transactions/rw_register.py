"""Transactions over registers: which version order can be concluded from unique writes, and the dependencies.

Theory (Elle, section 5).  A read of a register names the transaction that wrote the value, and nothing else.  What is
concluded, and why it is certain:

    the initial state (nil) comes before every write of the key;
    a transaction that read v1 and then wrote v2 put v2 after v1: any other order would be a cycle of one wr and one
        ww, so that whoever denies it has admitted G1c.

Hence wr from writer to reader, and rw from the readers of a version to the writers of versions known to follow it.
*Not* concluded here: any order between two blind writes, so no ww and no G0, nor lost updates by them; anything from
reads or writes of transactions whose outcome is unknown and of which nothing was seen; and nothing from time, which
orders versions only under some models (`versions_in_time.py`).

Only a transaction's last write of a key is a version.  Reading an earlier one is an anomaly and orders nothing more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import (
    ABORTED_READ,
    CYCLIC_VERSIONS,
    DIRTY_UPDATE,
    FAIL,
    FUTURE_READ,
    INFO,
    INTERMEDIATE_READ,
    INTERNAL,
    OK,
    READ,
    UNWRITTEN_READ,
    WRITE,
    Edges,
    Findings,
    Transactions,
    holds,
    index_writers,
    note,
    note_update,
)
from checkers.kernels.transactions.dependencies import RW, WR


class Registers(NamedTuple):
    """writer, final: per element, see `index_writers`.  unusable: int8 per key.  happened: per transaction."""

    writer: Int32
    final: Bools
    unusable: Int8
    happened: Bools


class Orders(NamedTuple):
    """Version orders as groups: who read a version (`before`), and who wrote one that follows it (`after`).

    A version is its element, or elements + key for the initial state of a key.
    """

    before: Int32
    before_version: Int32
    before_kind: Int8
    after: Int32
    after_version: Int32


@kernel
def read_registers(txns: Transactions, base: Int64, found: Findings) -> Registers:
    """Who wrote what, who happened, and the anomalies of single reads."""
    key_count = base.shape[0] - 1
    unusable = np.zeros(key_count, np.int8)
    writer, final = index_writers(txns, base, unusable, found)
    happened = txns.status == OK
    touched = np.full(key_count, -1, np.int32)
    latest = np.full(key_count, -1, np.int64)
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            external = touched[key] != t
            touched[key] = t
            if txns.kind[row] == READ:
                if not external:
                    if value != txns.value[latest[key]]:
                        note(found, INTERNAL, t, row, latest[key])
                elif value >= 0:
                    element = base[key] + value
                    if not holds(base, writer, key, value):
                        note(found, UNWRITTEN_READ, t, row, 0)
                    else:
                        _check_read(txns, t, row, writer[element], final[element], happened, found)
            latest[key] = row
    return Registers(writer, final, unusable, happened)


@inner_kernel
def _check_read(
    txns: Transactions, t: int, row: int, by: int, is_final: bool, happened: Bools, found: Findings
) -> None:
    """One external read of a value that transaction `by` wrote."""
    if by == t:
        for later in range(row + 1, txns.first[t + 1]):
            if txns.kind[later] == WRITE and txns.key[later] == txns.key[row] and txns.value[later] == txns.value[row]:
                note(found, FUTURE_READ, t, row, later)
        return
    if not is_final:
        note(found, INTERMEDIATE_READ, t, row, by)
    if txns.status[by] == FAIL:
        note(found, ABORTED_READ, t, row, by)
        for later in range(row + 1, txns.first[t + 1]):
            if txns.kind[later] == WRITE and txns.key[later] == txns.key[row]:
                note(found, DIRTY_UPDATE, by, t, txns.key[row])
                break
    elif txns.status[by] == INFO:
        happened[by] = True


@kernel
def link(txns: Transactions, base: Int64, registers: Registers, found: Findings) -> tuple[Edges, Orders]:
    """wr edges among transactions that happened, and the groups that `dependencies.link_groups` turns into rw."""
    key_count = base.shape[0] - 1
    elements = base[key_count]
    rows = txns.kind.shape[0]
    edges = Edges(np.empty(rows, np.int32), np.empty(rows, np.int32), np.full(rows, WR, np.int8))
    before, before_version = np.empty(rows, np.int32), np.empty(rows, np.int32)
    after, after_version = np.empty(2 * rows, np.int32), np.empty(2 * rows, np.int32)
    n, b, a = 0, 0, 0
    touched = np.full(key_count, -1, np.int32)
    wrote = np.full(key_count, -1, np.int32)
    read = np.full(key_count, -1, np.int64)  # the version read first in this transaction, -1 if none
    update_of = np.full(elements + key_count, -1, np.int32)
    previous = np.full(elements, -1, np.int64)
    for t in range(txns.status.shape[0]):
        if not registers.happened[t]:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            if registers.unusable[key] != 0:
                continue
            if txns.kind[row] == READ:
                if txns.status[t] != OK or touched[key] == t:
                    continue
                touched[key] = t
                read[key] = -1
                version = base[key] + value if value >= 0 else elements + key
                if value >= 0:
                    by = registers.writer[version] if holds(base, registers.writer, key, value) else np.int32(-1)
                    if by < 0 or by == t or not registers.happened[by]:
                        continue
                    edges.source[n], edges.target[n] = by, t
                    n += 1
                    if not registers.final[version]:
                        continue
                before[b], before_version[b] = t, version
                b += 1
                read[key] = version
                continue
            if touched[key] != t:
                touched[key] = t
                read[key] = -1
            if wrote[key] == t:
                if registers.final[base[key] + value] and read[key] >= 0 and read[key] < elements:
                    previous[base[key] + value] = read[key]
                continue
            wrote[key] = t
            after[a], after_version[a] = t, elements + key
            a += 1
            if read[key] < 0:
                continue
            version = read[key]
            if version < elements:
                after[a], after_version[a] = t, version
                a += 1
                if registers.final[base[key] + value]:
                    previous[base[key] + value] = version
            note_update(update_of, version, t, row, found)
    _find_cyclic_versions(base, previous, found)
    orders = Orders(before[:b], before_version[:b], np.full(b, RW, np.int8), after[:a], after_version[:a])
    return Edges(edges.source[:n], edges.target[:n], edges.kind[:n]), orders


@kernel
def _find_cyclic_versions(base: Int64, previous: Int64, found: Findings) -> None:
    """Versions that precede themselves; each has one known predecessor at most, so that chains are simply walked."""
    walk = np.full(previous.shape[0], -1, np.int64)
    key = 0
    for start in range(previous.shape[0]):
        while start >= base[key + 1]:
            key += 1
        element = start
        while element >= 0 and walk[element] < 0:
            walk[element] = start
            element = previous[element]
        if element >= 0 and walk[element] == start:
            note(found, CYCLIC_VERSIONS, key, previous[element] - base[key], element - base[key])
