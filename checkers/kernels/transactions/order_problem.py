"""The question that decides a level completely: in which order could transactions have taken effect?

A transaction starts, and later commits.  All its reads look at the state of its start; all its writes appear at its
commit.  A level demands of an order of these *events*:

    serializable         start and commit of a transaction are one event
    snapshot isolation   two transactions that write one key do not overlap: one commits before the other starts
                         (Berenson et al. 1995; Cerone & Gotsman 2016)

and of both, that each read sees the last version of its key that was committed before.  Sessions and the known order of
list versions demand more: that one transaction commits before another starts.  Real time demands it, too; it is no
edge here, because it has quadratically many pairs (`order_search.py`).

Versions are numbered by the writes of transactions, in the order of transactions.  The initial version of key k has the
number writes + k.  Only transactions that happened take part.  One of unknown outcome whose writes were seen certainly
happened.  One that was not seen may be left out: an order with it is still an order without it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import OK, WRITE, Edges, Transactions, Written, holds
from checkers.kernels.transactions.dependencies import PROCESS, WR, WW, Graph, Reverse, build_graph, reverse
from checkers.kernels.transactions.list_versions import Versions


class OrderProblem(NamedTuple):
    """Reads, writes and demanded order of transactions that happened.

    read_first, read_version: the versions that transaction t read are read_version[read_first[t]:read_first[t + 1]].
    write_first, write_key: the keys that it wrote, likewise; the place of a write is the number of its version.
    reader_first, reader: the transactions that read each version; empty if the question does not need them.
    version_txn: int32 per version, its writer, or -1 for an initial version.
    after, before: transactions that must start after the commit of t, and those that must commit before t starts.
    """

    happened: Bools
    read_first: Int64
    read_version: Int32
    write_first: Int64
    write_key: Int32
    reader_first: Int64
    reader: Int32
    version_txn: Int32
    after: Graph
    before: Reverse


@kernel
def problem_of_registers(
    txns: Transactions, base: Int64, written: Written, sessions: Int32, readers: bool
) -> OrderProblem:
    """Make the problem of a history of registers, from the transactions that happened by `written`.

    sessions: int32 per transaction, the next one of its session or -1; empty if sessions do not count.
    readers: whether the question needs the readers of each version.
    """
    m, key_count = txns.status.shape[0], base.shape[0] - 1
    unusable, happened = written.unusable, written.happened
    version_of, write_first, write_key = _number_writes(txns, base, written.final, unusable, happened)
    read_first, read_version = np.zeros(m + 1, np.int64), np.empty(txns.kind.shape[0], np.int32)
    touched = np.full(key_count, -1, np.int32)
    n = 0
    for t in range(m):
        if happened[t] and txns.status[t] == OK:
            for row in range(txns.first[t], txns.first[t + 1]):
                key, value = txns.key[row], txns.value[row]
                first = touched[key] != t
                touched[key] = t
                if unusable[key] != 0 or txns.kind[row] == WRITE or not first:
                    continue
                version = write_key.shape[0] + key
                if value >= 0:
                    version = version_of[base[key] + value] if holds(base, written.writer, key, value) else -1
                if version >= 0:
                    read_version[n] = version
                    n += 1
        read_first[t + 1] = n
    room = _room_of_sessions(sessions)
    nothing = Edges(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int8))
    _link_sessions(sessions, room)
    return _gathered(
        m, key_count, happened, read_first, read_version[:n], write_first, write_key, room, nothing, readers
    )


@kernel
def problem_of_lists(
    txns: Transactions, base: Int64, versions: Versions, sessions: Int32, readers: bool
) -> OrderProblem:
    """Make the problem of a history of lists.  All appends of a transaction to one key are one write of that key.

    The first list that a transaction read of a key names the version, also if it had appended to the key before: the
    version ends before its own elements.

    sessions, readers: as in `problem_of_registers`.
    """
    written, happened = versions.written, versions.written.happened
    m, key_count = txns.status.shape[0], base.shape[0] - 1
    version_of, write_first, write_key = _number_writes(txns, base, written.final, written.unusable, happened)
    read_first, read_version = np.zeros(m + 1, np.int64), np.empty(txns.kind.shape[0], np.int32)
    read_by = np.full(key_count, -1, np.int32)
    n = 0
    for t in range(m):
        if happened[t] and txns.status[t] == OK:
            for row in range(txns.first[t], txns.first[t + 1]):
                key = txns.key[row]
                if written.unusable[key] != 0 or txns.kind[row] == WRITE or read_by[key] == t:
                    continue
                read_by[key] = t
                version = write_key.shape[0] + key
                for at in range(txns.list_first[row + 1] - 1, txns.list_first[row] - 1, -1):
                    element = base[key] + txns.lists[at]
                    if written.writer[element] != t and happened[written.writer[element]]:
                        version = version_of[element]
                        break
                if version >= 0:
                    read_version[n] = version
                    n += 1
        read_first[t + 1] = n
    room = _room_of_sessions(sessions)
    _link_sessions(sessions, room)
    order = _order_of_lists(txns, base, versions, write_key.shape[0])
    return _gathered(m, key_count, happened, read_first, read_version[:n], write_first, write_key, room, order, readers)


@kernel
def _number_writes(
    txns: Transactions, base: Int64, final: Bools, unusable: Int8, happened: Bools
) -> tuple[Int32, Int64, Int32]:
    """Return (the version of each element that is the last write of its key in its transaction, or -1; the writes)."""
    m = txns.status.shape[0]
    version_of = np.full(final.shape[0], -1, np.int32)
    write_first, write_key = np.zeros(m + 1, np.int64), np.empty(final.shape[0], np.int32)
    n = 0
    for t in range(m):
        if happened[t]:
            for row in range(txns.first[t], txns.first[t + 1]):
                key = txns.key[row]
                if txns.kind[row] == WRITE and unusable[key] == 0:
                    element = base[key] + txns.value[row]
                    if final[element]:
                        version_of[element] = n
                        write_key[n] = key
                        n += 1
        write_first[t + 1] = n
    return version_of, write_first, write_key[:n].copy()


@kernel
def _room_of_sessions(sessions: Int32) -> Edges:
    n = 0
    for t in range(sessions.shape[0]):
        n += sessions[t] >= 0
    return Edges(np.empty(n, np.int32), np.empty(n, np.int32), np.full(n, PROCESS, np.int8))


@inner_kernel
def _link_sessions(sessions: Int32, room: Edges) -> None:
    n = 0
    for t in range(sessions.shape[0]):
        if sessions[t] >= 0:
            room.source[n], room.target[n] = t, sessions[t]
            n += 1


@kernel
def _order_of_lists(txns: Transactions, base: Int64, versions: Versions, write_count: int) -> Edges:
    """Link the writers along each longest list, and its last writer to those whose appends no list shows."""
    written, key_count = versions.written, base.shape[0] - 1
    room = int(versions.length.sum()) + write_count + txns.kind.shape[0]
    source, target = np.empty(room, np.int32), np.empty(room, np.int32)
    last_writer = np.full(key_count, -1, np.int32)
    n = 0
    for key in range(key_count):
        if versions.longest[key] < 0 or written.unusable[key] != 0:
            continue
        start = txns.list_first[versions.longest[key]]
        for i in range(versions.length[key]):
            by = written.writer[base[key] + txns.lists[start + i]]
            if not written.happened[by]:
                continue
            if last_writer[key] >= 0 and last_writer[key] != by:
                source[n], target[n] = last_writer[key], by
                n += 1
            last_writer[key] = by
    for t in range(txns.status.shape[0]):
        if not written.happened[t]:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if txns.kind[row] != WRITE or last_writer[key] < 0 or last_writer[key] == t:
                continue
            if versions.position[base[key] + txns.value[row]] < 0:
                source[n], target[n] = last_writer[key], t
                n += 1
    return Edges(source[:n].copy(), target[:n].copy(), np.full(n, WW, np.int8))


@kernel
def _gathered(
    m: int,
    key_count: int,
    happened: Bools,
    read_first: Int64,
    read_version: Int32,
    write_first: Int64,
    write_key: Int32,
    sessions: Edges,
    order: Edges,
    readers: bool,
) -> OrderProblem:
    versions = write_key.shape[0] + key_count
    reader_first, reader = np.zeros(1, np.int64), np.empty(0, np.int32)
    if readers:
        reader_first, reader = _readers(m, versions, read_first, read_version)
    version_txn = np.full(versions, -1, np.int32)
    for t in range(m):
        version_txn[write_first[t] : write_first[t + 1]] = t
    after, _ = build_graph(sessions, order, m)
    return OrderProblem(
        happened,
        read_first,
        read_version,
        write_first,
        write_key,
        reader_first,
        reader,
        version_txn,
        after,
        reverse(after),
    )


@kernel
def _readers(m: int, versions: int, read_first: Int64, read_version: Int32) -> tuple[Int64, Int32]:
    reader_first = np.zeros(versions + 1, np.int64)
    for z in range(read_version.shape[0]):
        reader_first[read_version[z] + 1] += 1
    for v in range(versions):
        reader_first[v + 1] += reader_first[v]
    cursor = reader_first[:-1].copy()
    reader = np.empty(read_version.shape[0], np.int32)
    for t in range(m):
        for z in range(read_first[t], read_first[t + 1]):
            reader[cursor[read_version[z]]] = t
            cursor[read_version[z]] += 1
    return reader_first, reader


@kernel
def problem_of_edges(happened: Bools, first: Edges, second: Edges) -> OrderProblem:
    """Make a problem that demands only these orders: that the source commits before the target starts."""
    m = happened.shape[0]
    after, _ = build_graph(first, second, m)
    nothing = np.empty(0, np.int32)
    return OrderProblem(
        happened,
        np.zeros(m + 1, np.int64),
        nothing,
        np.zeros(m + 1, np.int64),
        nothing,
        np.zeros(1, np.int64),
        nothing,
        nothing,
        after,
        reverse(after),
    )


def without_overwriting(problem: OrderProblem) -> OrderProblem:
    """Make a problem of the same order and reads in which no write waits for the readers of another version.

    problem: one without readers.
    """
    return problem._replace(write_first=np.zeros_like(problem.write_first))


def with_pairs(problem: OrderProblem, pairs: Edges) -> OrderProblem:
    """Demand also that the source of each pair commits before its target starts."""
    after, m = problem.after, len(problem.happened)
    source = np.repeat(np.arange(m, dtype=np.int32), np.diff(after.first))
    joined, _ = build_graph(Edges(source, after.target, after.kind), pairs, m)
    return problem._replace(after=joined, before=reverse(joined))


@kernel
def writers_before_readers(txns: Transactions, base: Int64, writer: Int32, unusable: Int8, happened: Bools) -> Edges:
    """Link every read of a register to the writer of its value, also the second read of a key."""
    source, target = np.empty(txns.kind.shape[0], np.int32), np.empty(txns.kind.shape[0], np.int32)
    n = 0
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            if txns.kind[row] == WRITE or unusable[key] != 0 or not holds(base, writer, key, value):
                continue
            by = writer[base[key] + value]
            if by != t and happened[by]:
                source[n], target[n] = by, t
                n += 1
    return Edges(source[:n].copy(), target[:n].copy(), np.full(n, WR, np.int8))


@kernel
def appenders_before_readers(txns: Transactions, base: Int64, versions: Versions) -> Edges:
    """Link every read of a list to the writer of its last element that another transaction appended."""
    written = versions.written
    source, target = np.empty(txns.kind.shape[0], np.int32), np.empty(txns.kind.shape[0], np.int32)
    n = 0
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key = txns.key[row]
            if txns.kind[row] == WRITE or written.unusable[key] != 0:
                continue
            for at in range(txns.list_first[row + 1] - 1, txns.list_first[row] - 1, -1):
                by = written.writer[base[key] + txns.lists[at]]
                if by != t and written.happened[by]:
                    source[n], target[n] = by, t
                    n += 1
                    break
    return Edges(source[:n].copy(), target[:n].copy(), np.full(n, WR, np.int8))


@kernel
def session_edges(sessions: Int32) -> Edges:
    """Link each transaction to the next one of its session; sessions: as in `problem_of_registers`."""
    room = _room_of_sessions(sessions)
    _link_sessions(sessions, room)
    return room


@kernel
def list_edges(txns: Transactions, base: Int64, versions: Versions) -> Edges:
    """Link the writers of each list in its order, and the last of them to those whose appends no list shows."""
    return _order_of_lists(txns, base, versions, versions.written.final.shape[0])


@kernel
def joined_edges(one: Edges, other: Edges) -> Edges:
    return Edges(
        np.concatenate((one.source, other.source)),
        np.concatenate((one.target, other.target)),
        np.concatenate((one.kind, other.kind)),
    )
