"""The problem of orders, whose answer decides an isolation level: in which order could transactions have taken effect?

A transaction starts, and later commits.  All its reads look at the state of its start; all its writes appear at its
commit.  A level requires of an order of these *events*:

    serializable         start and commit of a transaction are one event
    snapshot isolation   two transactions that write one key do not overlap: one commits before the other starts
                         (Berenson et al. 1995; Cerone & Gotsman 2016)

and both require that each read sees the last version of its key that was committed before the read.  Sessions and the
known order of list versions also require that certain transactions commit before others start.  Real time requires
this, too; but it is not stored as edges, because it has quadratically many pairs (`order_search.py`).

Versions are numbered by the writes of transactions, in the order of transactions.  The initial version of key k has the
number writes + k.  Only transactions that happened take part.  A transaction of unknown outcome certainly happened if
its writes were seen.  Otherwise it may be left out, because an order that contains it remains an order without it.

*Forced order.*  `forced_order` finds, by reachability and to a fixpoint, what is true in every answer to a problem.

A search chooses an order of two writers of a key, and learns from circles which choices were wrong.  If nothing is
known about when transactions ran, it learns the same things again and again.  Much is certain before any choice:

    a writer comes before the readers of its version; readers of the initial state come before all writers of the key
    of two writers of a key, b cannot come first if a leads to b, or to a reader of b's version
    then a comes first, and so do all readers of a's version

These facts form a graph.  Each round computes reachability and adds the facts that follow, until none is new
(the saturation of Cobra, OSDI 2020, and of Biswas & Enea, OOPSLA 2019).  The result does not decide the problem: an
order may still not exist.  The method applies to serializability, where events are transactions, and not to snapshots.

One bit for each pair of transactions, and O(dependencies x transactions / 64) per round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Bools, Int32, Int64
from checkers.kernels.codes import grouped, members
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import OK, WRITE, Edges, Transactions, Written, holds
from checkers.kernels.transactions.dependencies import (
    PROCESS,
    WR,
    WW,
    Graph,
    Reverse,
    build_graph,
    gathered,
    new_links,
    reverse,
)
from checkers.kernels.transactions.list_versions import Versions, link_versions


class OrderProblem(NamedTuple):
    """Reads, writes and required order of transactions that happened.

    read_first, read_version: the versions that transaction t read are read_version[read_first[t]:read_first[t + 1]]
    write_first, write_key: the keys that it wrote, likewise; the index of a write is the number of its version
    reader_first, reader: the transactions that read each version, likewise; empty if the question does not need them
    version_txn: int32 per version, its writer, or -1 for an initial version
    after, before: transactions that must start after the commit of t, and transactions that must commit before t starts
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


INITIAL, NOT_SHOWN = -1, -2
"""Returned instead of an element: a read shows the initial state; a row shows nothing written by other transactions."""


def problem_of(
    txns: Transactions, base: Int64, written: Written, versions: Versions | None, sessions: Int32, readers: bool
) -> OrderProblem:
    """Make the problem of a history, from the transactions that happened according to `written`.

    All appends of a transaction to one key are one write of that key.  The first list that a transaction read of a key
    identifies the version, even if the transaction had appended to the key before: the version ends before its own
    elements.

    versions: versions of lists; None: the history is one of registers
    sessions: int32 per transaction, the next one of its session or -1; empty if sessions do not count
    readers: True if the question needs the readers of each version
    """
    m, key_count, lists = len(txns.status), len(base) - 1, versions is not None
    version_of, write_first, write_key = _number_writes(txns, base, written)
    shown = shown_by_reads(txns, base, written, lists)
    read_first, read_version = _number_reads(txns, written, shown, version_of, len(write_key), lists)
    version_count = len(write_key) + key_count
    reader_first, reader = np.zeros(1, np.int64), np.empty(0, np.int32)
    numbers = np.arange(m, dtype=np.int32)
    if readers:
        reader_first, rows = grouped(read_version, version_count)
        reader = np.repeat(numbers, np.diff(read_first))[rows]
    order = NO_EDGES if versions is None else list_edges(txns, base, versions)
    after, _ = build_graph(session_edges(sessions), order, m)
    return OrderProblem(
        written.happened,
        read_first,
        read_version,
        write_first,
        write_key,
        reader_first,
        reader,
        np.concatenate([np.repeat(numbers, np.diff(write_first)), np.full(key_count, -1, np.int32)]),
        after,
        reverse(after),
    )


@kernel
def shown_by_reads(txns: Transactions, base: Int64, written: Written, lists: bool) -> Int32:
    """Return the element of other transactions that each row shows: int32, or INITIAL or NOT_SHOWN.

    A list shows the last of its elements that another transaction appended.
    """
    shown = np.full(txns.kind.shape[0], NOT_SHOWN, np.int32)
    for t in range(txns.status.shape[0]):
        if txns.status[t] != OK:
            continue
        for row in range(txns.first[t], txns.first[t + 1]):
            key, value = txns.key[row], txns.value[row]
            if txns.kind[row] == WRITE or written.unusable[key] != 0:
                continue
            if not lists:
                if value < 0 or holds(base, written.writer, key, value):
                    shown[row] = base[key] + value if value >= 0 else INITIAL
                continue
            shown[row] = INITIAL
            for at in range(txns.list_first[row + 1] - 1, txns.list_first[row] - 1, -1):
                element = base[key] + txns.lists[at]
                if written.writer[element] != t and written.happened[written.writer[element]]:
                    shown[row] = element
                    break
    return shown


@kernel
def _number_reads(
    txns: Transactions, written: Written, shown: Int32, version_of: Int32, writes: int, lists: bool
) -> tuple[Int64, Int32]:
    """Return the versions that transactions read first of each key: `read_first` and `read_version`.

    A read of a register that the transaction itself had written shows no version.
    """
    m = txns.status.shape[0]
    read_first, read_version = np.zeros(m + 1, np.int64), np.empty(shown.shape[0], np.int32)
    touched = np.full(written.unusable.shape[0], -1, np.int32)
    n = 0
    for t in range(m):
        for row in range(txns.first[t], txns.first[t + 1] if written.happened[t] else 0):
            key = txns.key[row]
            first = touched[key] != t
            if not lists or txns.kind[row] != WRITE:
                touched[key] = t
            if shown[row] == NOT_SHOWN or not first:
                continue
            version = writes + key if shown[row] == INITIAL else version_of[shown[row]]
            if version >= 0:
                read_version[n] = version
                n += 1
        read_first[t + 1] = n
    return read_first, read_version[:n].copy()


@kernel
def _number_writes(txns: Transactions, base: Int64, written: Written) -> tuple[Int32, Int64, Int32]:
    """Return (the version of each element that is its transaction's last write of the key, or -1; the writes)."""
    m = txns.status.shape[0]
    version_of = np.full(written.final.shape[0], -1, np.int32)
    write_first, write_key = np.zeros(m + 1, np.int64), np.empty(written.final.shape[0], np.int32)
    n = 0
    for t in range(m):
        if written.happened[t]:
            for row in range(txns.first[t], txns.first[t + 1]):
                key = txns.key[row]
                if txns.kind[row] == WRITE and written.unusable[key] == 0:
                    element = base[key] + txns.value[row]
                    if written.final[element]:
                        version_of[element] = n
                        write_key[n] = key
                        n += 1
        write_first[t + 1] = n
    return version_of, write_first, write_key[:n].copy()


def list_edges(txns: Transactions, base: Int64, versions: Versions) -> Edges:
    """Link the writers of each list in its order, and the last of them to the writers whose appends no list shows."""
    links = new_links(int(versions.length.sum()), len(base), 0)
    last_writer = link_versions(txns, base, versions, links)
    rows = np.flatnonzero((txns.kind == WRITE) & (last_writer[txns.key] >= 0))
    unread = rows[versions.position[base[txns.key[rows]] + txns.value[rows]] < 0]
    source = last_writer[txns.key[unread]]
    target = (np.searchsorted(txns.first, unread, side="right") - 1).astype(np.int32)
    linked = (source != target) & versions.written.happened[target]
    more = Edges(source[linked], target[linked], np.full(np.count_nonzero(linked), WW, np.int8))
    return joined_edges(gathered(links)[0], more)


def problem_of_edges(happened: Bools, *demanded: Edges) -> OrderProblem:
    """Make a problem that requires only these edges: the source commits before the target starts."""
    m, nothing = len(happened), np.empty(0, np.int32)
    after, _ = build_graph(NO_EDGES, joined_edges(*demanded), m)
    none_first = np.zeros(m + 1, np.int64)
    return OrderProblem(
        happened,
        none_first,
        nothing,
        none_first,
        nothing,
        np.zeros(1, np.int64),
        nothing,
        nothing,
        after,
        reverse(after),
    )


def without_overwriting(problem: OrderProblem) -> OrderProblem:
    """Make a problem of the same required order and reads, in which no write waits for readers of another version.

    problem: a problem without readers
    """
    return problem._replace(write_first=np.zeros_like(problem.write_first))


def with_pairs(problem: OrderProblem, pairs: Edges) -> OrderProblem:
    """Make a problem that also requires that the source of each pair commits before its target starts."""
    after, m = problem.after, len(problem.happened)
    source = np.repeat(np.arange(m, dtype=np.int32), np.diff(after.first))
    joined, _ = build_graph(Edges(source, after.target, after.kind), pairs, m)
    return problem._replace(after=joined, before=reverse(joined))


def writers_before_readers(txns: Transactions, base: Int64, written: Written, lists: bool) -> Edges:
    """Link every read, even a second read of a key, to the writer of the element that it shows."""
    shown = shown_by_reads(txns, base, written, lists)
    rows = np.flatnonzero(shown >= 0)
    by, reader = written.writer[shown[rows]], np.searchsorted(txns.first, rows, side="right") - 1
    others = (by != reader) & written.happened[by]
    return Edges(by[others], reader[others].astype(np.int32), np.full(np.count_nonzero(others), WR, np.int8))


def session_edges(sessions: Int32) -> Edges:
    """Link each transaction to the next one of its session.  sessions: as in `problem_of`."""
    source = np.flatnonzero(sessions >= 0).astype(np.int32)
    return Edges(source, sessions[source], np.full(len(source), PROCESS, np.int8))


def joined_edges(*several: Edges) -> Edges:
    return Edges(*(np.concatenate(columns) for columns in zip(*several, strict=True)))


NO_EDGES = Edges(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int8))

_ONE = np.uint64(1)
_WORDS_PER_STEP = 32
"""Number of words read in the time of one step of the search."""

_EDGES_MAX = 20_000_000


class Forced(NamedTuple):
    """The order that is forced.

    edges: the source commits before the target starts in every answer; a circle of edges proves that there is none
    place: int64 per transaction, number of its predecessors minus number of its successors: a guess of its place
    steps: cost, in steps of the search
    """

    edges: Edges
    place: Int64
    steps: int


def forced_order(problem: OrderProblem, steps_max: int) -> Forced:
    """Return the forced order, or a part of it if the steps run out.  problem: a problem with readers."""
    writes = len(problem.write_key)
    key_first, by_key = grouped(problem.write_key, len(problem.version_txn) - writes)
    versions = np.repeat(np.arange(len(problem.version_txn)), np.diff(problem.reader_first))
    initial = versions >= writes
    writers = np.diff(key_first)[versions[initial] - writes]
    steps = len(problem.after.target) + len(versions) - len(writers) + int(writers.sum())
    if steps > min(steps_max, _EDGES_MAX):
        return Forced(NO_EDGES, np.zeros(len(problem.happened), np.int64), 0)
    rows, _ = members(key_first, versions[initial] - writes)
    demanded = np.repeat(np.arange(len(problem.happened)), np.diff(problem.after.first)), problem.after.target
    seen = problem.version_txn[versions[~initial]], problem.reader[~initial]
    unseen = np.repeat(problem.reader[initial], writers), problem.version_txn[by_key[rows]]
    pairs = np.concatenate([np.stack(each) for each in (demanded, seen, unseen)], axis=1).astype(np.int32)
    others = np.ascontiguousarray(pairs[:, pairs[0] != pairs[1]])
    return _saturated(problem, key_first, by_key, others, steps_max)


@kernel
def _saturated(problem: OrderProblem, key_first: Int64, by_key: Int32, pairs: Int32, steps_max: int) -> Forced:
    """Add the edges that follow from `pairs` (int32[2, pairs], sources and targets), until no new edge follows."""
    m, keys, n = problem.happened.shape[0], key_first.shape[0] - 1, pairs.shape[1]
    nothing = Edges(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int8))
    place, steps = np.zeros(m, np.int64), n
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
def _topological(graph: Graph, incoming: Int32) -> Int32:
    """Return the nodes in an order of the edges, or only some of them if there is a circle.  Consumes `incoming`."""
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
"""uint64[nodes, words]: bit u of row t is set if t leads to u; bit t is also set."""


@kernel
def _reachable(first: Int64, target: Int32, order: Int32) -> Words:
    """Return the nodes to which each node leads.  order: the nodes, each after the targets of its edges."""
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
        left = words[t, i]
        while left != 0:
            left &= left - _ONE
            total += 1
    return total


@inner_kernel
def _comes_first(problem: OrderProblem, after: Words, a: int, b: int) -> bool:
    """Return True if version a certainly precedes version b of the same key: a leads to b, or to a reader of b."""
    by = problem.version_txn[a]
    if _leads(after, by, problem.version_txn[b]):
        return True
    for i in range(problem.reader_first[b], problem.reader_first[b + 1]):
        if problem.reader[i] != by and _leads(after, by, problem.reader[i]):
            return True
    return False


@inner_kernel
def _force(problem: OrderProblem, after: Words, a: int, b: int, pairs: Int32, n: int) -> int:
    """Add the new edges from version a and its readers to version b.  Returns the number of edges."""
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
