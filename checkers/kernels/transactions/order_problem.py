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

*Forced order.*  Finds what every answer to a problem of orders has in common, by reachability, to a fixpoint.

A search decides for one order of two writers of a key, and learns from circles what was wrong.  If nothing is known of
when transactions ran, it learns the same things again and again.  Much is certain before any decision:

    a writer comes before the readers of its version; readers of the initial state come before all writers of the key
    of two writers of a key, b cannot come first if a leads to b, or to a reader of b's version
    then a comes first, and so do all readers of a's version

What is certain makes a graph.  Each round finds what leads to what, and adds what follows; it ends when nothing does
(the saturation of Cobra, OSDI 2020, and of Biswas & Enea, OOPSLA 2019).  It is no decision: an order may still not
exist.  For events that are transactions, so not for snapshots.

One bit for each pair of transactions, and O(dependencies x transactions / 64) a round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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


_ONE, _NONE = np.uint64(1), np.uint64(0)
_WORDS_PER_STEP = 32
"""A step of the search takes as long as so many words."""

_EDGES_MAX = 20_000_000


class Forced(NamedTuple):
    """edges: the source commits before the target starts in every answer; a circle of them proves that there is none.

    place: int64 per transaction, how many come before it less how many come after it: a guess of its place.
    steps: what it cost, in steps of the search.
    """

    edges: Edges
    place: Int64
    steps: int


@kernel
def forced_order(problem: OrderProblem, steps_max: int) -> Forced:
    """Return what is forced; less of it if the steps run out.  problem: with readers."""
    m, writes = problem.happened.shape[0], problem.write_key.shape[0]
    keys = problem.version_txn.shape[0] - writes
    key_first, by_key = _writes_by_key(problem.write_key, keys)
    nothing = Edges(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int8))
    place = np.zeros(m, np.int64)
    steps = _known_at_most(problem, key_first)
    if steps > min(steps_max, _EDGES_MAX):
        return Forced(nothing, place, 0)
    pairs, n = _known(problem, key_first, by_key, steps)
    while True:
        edges = Edges(pairs[0, :n], pairs[1, :n], np.full(n, WW, np.int8))
        graph, incoming = build_graph(edges, nothing, m)
        order = _topological(graph, incoming)
        steps += 2 * (n + m) * (m // 64 + 1) // _WORDS_PER_STEP
        if order.shape[0] < m or steps > steps_max:
            return Forced(edges, place, steps)
        after = _reachable(graph.first, graph.target, order[::-1])
        known = n
        for key in range(keys):
            for i in range(key_first[key], key_first[key + 1]):
                if steps > steps_max or n > _EDGES_MAX:
                    return Forced(edges, place, steps)
                for j in range(key_first[key], key_first[key + 1]):
                    a, b = by_key[i], by_key[j]
                    steps += 1
                    if i == j or not _comes_first(problem, after, a, b):
                        continue
                    room = problem.reader_first[a + 1] - problem.reader_first[a] + 1
                    if n + room > pairs.shape[1]:
                        pairs = np.concatenate((pairs, np.empty((2, n + room), np.int32)), axis=1)
                    n = _force(problem, after, a, b, pairs, n)
        if n == known:
            backward = reverse(graph)
            before = _reachable(backward.first, backward.source, order)
            for t in range(m):
                place[t] = _count(before, t) - _count(after, t)
            return Forced(edges, place, steps)


@kernel
def _writes_by_key(write_key: Int32, keys: int) -> tuple[Int64, Int32]:
    first = np.zeros(keys + 1, np.int64)
    for v in range(write_key.shape[0]):
        first[write_key[v] + 1] += 1
    for key in range(keys):
        first[key + 1] += first[key]
    cursor = first[:-1].copy()
    versions = np.empty(write_key.shape[0], np.int32)
    for v in range(write_key.shape[0]):
        versions[cursor[write_key[v]]] = v
        cursor[write_key[v]] += 1
    return first, versions


@kernel
def _known_at_most(problem: OrderProblem, key_first: Int64) -> int:
    """Return how many edges `_known` finds at most."""
    writes = problem.write_key.shape[0]
    count = problem.after.target.shape[0] + problem.reader.shape[0]
    for v in range(writes, problem.version_txn.shape[0]):
        readers = problem.reader_first[v + 1] - problem.reader_first[v]
        count += readers * (key_first[v - writes + 1] - key_first[v - writes])
    return int(count)


@kernel
def _known(problem: OrderProblem, key_first: Int64, by_key: Int32, room: int) -> tuple[Int32, int]:
    """Return the demanded order, and what a read alone shows: int32[2, room], sources and targets, and their number.

    Readers of an initial state come before the first writers of the key, which are not known yet: before all of them.
    """
    writes, versions = problem.write_key.shape[0], problem.version_txn.shape[0]
    pairs = np.empty((2, room), np.int32)
    n = 0
    for t in range(problem.happened.shape[0]):
        for e in range(problem.after.first[t], problem.after.first[t + 1]):
            pairs[0, n], pairs[1, n] = t, problem.after.target[e]
            n += 1
    for v in range(versions):
        for i in range(problem.reader_first[v], problem.reader_first[v + 1]):
            reader = problem.reader[i]
            if v < writes:
                if problem.version_txn[v] != reader:
                    pairs[0, n], pairs[1, n] = problem.version_txn[v], reader
                    n += 1
                continue
            for j in range(key_first[v - writes], key_first[v - writes + 1]):
                if problem.version_txn[by_key[j]] != reader:
                    pairs[0, n], pairs[1, n] = reader, problem.version_txn[by_key[j]]
                    n += 1
    return pairs, n


@kernel
def _topological(graph: Graph, incoming: Int32) -> Int32:
    """Return the nodes in an order of the edges; fewer than all if there is a circle.  Consumes `incoming`."""
    m = incoming.shape[0]
    order = np.empty(m, np.int32)
    n = 0
    for node in range(m):
        if incoming[node] == 0:
            order[n] = node
            n += 1
    at = 0
    while at < n:
        for e in range(graph.first[order[at]], graph.first[order[at] + 1]):
            other = graph.target[e]
            incoming[other] -= 1
            if incoming[other] == 0:
                order[n] = other
                n += 1
        at += 1
    return order[:n]


Words = npt.NDArray[Any]
"""uint64[nodes, words]: bit u of row t is set if t leads to u, and for t itself."""


@kernel
def _reachable(first: Int64, target: Int32, order: Int32) -> Words:
    """Return what each node leads to.  order: the nodes, each after those that it has edges to."""
    m = order.shape[0]
    words = np.zeros((m, m // 64 + 1), np.uint64)
    for node in order:
        words[node, node >> 6] |= _ONE << np.uint64(node & 63)
        for e in range(first[node], first[node + 1]):
            for i in range(words.shape[1]):
                words[node, i] |= words[target[e], i]
    return words


@inner_kernel
def _leads(after: Words, t: int, u: int) -> bool:
    return bool((after[t, u >> 6] >> np.uint64(u & 63)) & _ONE)


@kernel
def _count(words: Words, t: int) -> int:
    total = 0
    for i in range(words.shape[1]):
        word = words[t, i]
        while word != _NONE:
            word &= word - _ONE
            total += 1
    return total


@inner_kernel
def _comes_first(problem: OrderProblem, after: Words, a: int, b: int) -> bool:
    """Return whether version a certainly comes before version b of the same key: a leads to b, or to a reader of b."""
    by = problem.version_txn[a]
    if _leads(after, by, problem.version_txn[b]):
        return True
    for i in range(problem.reader_first[b], problem.reader_first[b + 1]):
        if problem.reader[i] != by and _leads(after, by, problem.reader[i]):
            return True
    return False


@inner_kernel
def _force(problem: OrderProblem, after: Words, a: int, b: int, pairs: Int32, n: int) -> int:
    """Add that version a and its readers come before version b, where it is new; returns the number of edges."""
    by, then = problem.version_txn[a], problem.version_txn[b]
    if not _leads(after, by, then):
        pairs[0, n], pairs[1, n] = by, then
        n += 1
    for i in range(problem.reader_first[a], problem.reader_first[a + 1]):
        reader = problem.reader[i]
        if reader != then and not _leads(after, reader, then):
            pairs[0, n], pairs[1, n] = reader, then
            n += 1
    return n
