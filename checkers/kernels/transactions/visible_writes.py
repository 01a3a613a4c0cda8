"""Requirements of read-atomic and causal on the order of commits (Biswas & Enea 2019; Møldrup & Pavlogiannis 2025).

Both let a transaction read from any transaction that is *visible* to it, but of the visible writers of a key it must
read from the one that commits last:

    read-atomic   the transactions that it read from and the earlier ones of its session are visible
    causal        all transactions that are visible to these are visible, too

So if t read x from w, every other visible writer of x commits before w.  One order must satisfy these pairs, the reads,
and the order of sessions.  Visibility does not depend on the order of commits, so one round finds all pairs, and the
question is decided in polynomial time.

Causal keeps a clock for each transaction: for each chain of transactions, the last visible one.  Sessions are chains.
If sessions do not count, transactions that read from one another form chains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.codes import grouped
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import Edges
from checkers.kernels.transactions.dependencies import PROCESS, WW
from checkers.kernels.transactions.order_problem import OrderProblem


@kernel
def atomic_pairs(problem: OrderProblem, by_session: Int32, process: Int32, sessions: bool) -> Edges:
    """Return the pairs that read-atomic requires.  by_session: transactions by process, then by invocation."""
    keys = problem.version_txn.shape[0] - problem.write_key.shape[0]
    latest, latest_of = np.empty(keys, np.int32), np.full(keys, -1, np.int64)
    read, reading = np.empty(keys, np.int32), np.zeros(keys // _BITS + 1, np.uint64)
    reads = _room_of_reads(problem)
    source, target = np.empty(1024, np.int32), np.empty(1024, np.int32)
    n = 0
    for t in by_session:
        count = _look_up(problem, t, reads)
        for i in range(count):
            read[reads.key[i]] = reads.version[i]
            reading[reads.key[i] // _BITS] |= _bit(reads.key[i])
        for i in range(count):
            by, key = reads.by[i], reads.key[i]
            writes = 0 if by < 0 else problem.write_first[by + 1] - problem.write_first[by]
            if n + writes + 1 > source.shape[0]:
                source = np.concatenate((source, np.empty(source.shape[0] + writes, np.int32)))
                target = np.concatenate((target, np.empty(target.shape[0] + writes, np.int32)))
            if sessions and latest_of[key] == process[t] and latest[key] != by:
                source[n], target[n] = _pair(latest[key], by, t)
                n += 1
            for v in range(problem.write_first[by] if by >= 0 else 0, problem.write_first[by + 1] if by >= 0 else 0):
                other = problem.write_key[v]
                if reading[other // _BITS] & _bit(other) != 0 and read[other] != v:
                    source[n], target[n] = _pair(by, problem.version_txn[read[other]], t)
                    n += 1
        for i in range(count):
            reading[reads.key[i] // _BITS] = 0
        for v in range(problem.write_first[t], problem.write_first[t + 1]):
            latest[problem.write_key[v]], latest_of[problem.write_key[v]] = t, process[t]
    return Edges(source[:n].copy(), target[:n].copy(), np.full(n, WW, np.int8))


_BITS = 64


@inner_kernel
def _bit(key: int) -> np.uint64:
    return np.uint64(1) << np.uint64(key % _BITS)


class _Reads(NamedTuple):
    """Room for the reads of one transaction: the version, its writer or -1, and the key of each."""

    version: Int32
    by: Int32
    key: Int32


@kernel
def _room_of_reads(problem: OrderProblem) -> _Reads:
    most = 0
    for t in range(problem.happened.shape[0]):
        most = max(most, problem.read_first[t + 1] - problem.read_first[t])
    return _Reads(np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int32))


@inner_kernel
def _look_up(problem: OrderProblem, t: int, reads: _Reads) -> int:
    """Write the reads of a transaction into `reads`.  Returns the number of reads.

    The versions are far apart in memory.  The processor fetches them concurrently if nothing depends on them yet.
    """
    first = problem.read_first[t]
    count = problem.read_first[t + 1] - first
    for i in range(count):
        version = problem.read_version[first + i]
        reads.version[i], reads.by[i] = version, problem.version_txn[version]
        reads.key[i] = _key_of(problem, version)
    return int(count)


@inner_kernel
def _key_of(problem: OrderProblem, version: int) -> int:
    writes = problem.write_key.shape[0]
    return int(problem.write_key[version] if version < writes else version - writes)


@inner_kernel
def _pair(visible: int, by: int, t: int) -> tuple[int, int]:
    """Return the pair (visible writer, writer that was read): the former commits before the latter.

    No writer commits before the initial state, so reading the initial state would be a contradiction.
    """
    return (visible, by) if by >= 0 else (t, visible)


@kernel
def reading_chains(problem: OrderProblem, order: Int32) -> tuple[Int32, Int32, int]:
    """Partition writers into chains along reads.

    Returns (int32 per transaction, its chain or -1; its place in the chain; number of chains).

    order: all transactions, each after those that it read from
    """
    m = problem.happened.shape[0]
    chain, place, end = np.full(m, -1, np.int32), np.zeros(m, np.int32), np.empty(m, np.int32)
    count = 0
    for t in order:
        if problem.write_first[t] == problem.write_first[t + 1]:
            continue
        for z in range(problem.read_first[t], problem.read_first[t + 1]):
            by = problem.version_txn[problem.read_version[z]]
            if by >= 0 and end[chain[by]] == by:
                chain[t], place[t] = chain[by], place[by] + 1
                break
        if chain[t] < 0:
            chain[t] = count
            count += 1
        end[chain[t]] = t
    return chain, place, count


@kernel
def session_chains(process: Int32, process_count: int, order: Int32) -> tuple[Int32, Int32, int]:
    """Return the sessions in the form of `reading_chains`.  order: transactions, sessions in their order."""
    place, size = np.zeros(process.shape[0], np.int32), np.zeros(process_count, np.int32)
    for t in order:
        place[t] = size[process[t]]
        size[process[t]] += 1
    return process.copy(), place, process_count


class _Writers(NamedTuple):
    """The writes of each key, in groups: those of one chain to one key, in the order of the chain.

    key_first: int64[keys + 1]; the groups of a key are key_first[key] to key_first[key + 1] - 1
    chain: int32 per group
    first: int64[groups + 1]; the writers of group g are writer[first[g]:first[g + 1]]
    group: int32 per write
    met: int64 per group, the end of the writers that have been visited
    last: int32 per group, the place of the last of these writers, or -1
    """

    key_first: Int64
    chain: Int32
    first: Int64
    writer: Int32
    group: Int32
    met: Int64
    last: Int32


class _Newest(NamedTuple):
    """The two newest writers of each key so far, as indices in `order`; -1 if there is none."""

    first: Int32
    second: Int32


@kernel
def causal_pairs(problem: OrderProblem, order: Int32, chain: Int32, place: Int32, chains: int) -> Edges:
    """Return the pairs that causal requires.

    Most reads add no pair: all other writers of the key lie before the *horizon* of the writer that was read, and this
    writer saw all of them.  Only for the other reads the chains that wrote the key are searched.

    Time: a clock for each transaction, and the chains that wrote the key for each of these reads.  Memory: 4 bytes for
    each transaction and chain.

    order: all transactions, each after those that are visible to it
    """
    m = problem.happened.shape[0]
    keys = problem.version_txn.shape[0] - problem.write_key.shape[0]
    clock = np.full((m, chains), -1, np.int32)
    writers = _writers_by_key(problem, order, chain, chains)
    chain_first, in_chain = grouped(chain[order], chains)  # places in `order` of the members of each chain
    rank, horizon = np.full(m, -1, np.int32), np.zeros(m, np.int32)
    newest = _Newest(np.full(keys, -1, np.int32), np.full(keys, -1, np.int32))
    reads = _room_of_reads(problem)
    source, target = np.empty(1024, np.int32), np.empty(1024, np.int32)
    n = 0
    for at in range(order.shape[0]):
        t = order[at]
        rank[t] = at
        for i in range(problem.before.first[t], problem.before.first[t + 1]):
            if problem.after.kind[problem.before.edge[i]] == PROCESS:
                _advance(clock, t, problem.before.source[i], chain, place)
        count = _look_up(problem, t, reads)
        for i in range(count):
            by = reads.by[i]
            if by >= 0 and clock[t, chain[by]] < place[by]:
                _advance(clock, t, by, chain, place)
        for i in range(count):
            by, key = reads.by[i], reads.key[i]
            other = newest.first[key]
            if by >= 0 and other == rank[by]:
                other = newest.second[key]
            if other < (horizon[by] if by >= 0 else 0):
                continue
            groups = writers.key_first[key + 1] - writers.key_first[key]
            if n + groups > source.shape[0]:
                source = np.concatenate((source, np.empty(source.shape[0] + groups, np.int32)))
                target = np.concatenate((target, np.empty(target.shape[0] + groups, np.int32)))
            n = _pair_visible(writers, clock, place, t, by, key, source, target, n)
        if problem.write_first[t] < problem.write_first[t + 1]:
            horizon[t] = _horizon(clock, t, chain_first, in_chain, at)
        for v in range(problem.write_first[t], problem.write_first[t + 1]):
            key = problem.write_key[v]
            newest.second[key], newest.first[key] = newest.first[key], at
            writers.met[writers.group[v]] += 1
            writers.last[writers.group[v]] = place[t]
    return Edges(source[:n].copy(), target[:n].copy(), np.full(n, WW, np.int8))


@inner_kernel
def _horizon(clock: Int32, t: int, chain_first: Int64, in_chain: Int32, at: int) -> int:
    """Return the first index in `order` before `at` whose member of a chain is not visible; `at` if all are."""
    horizon = at
    for c in range(clock.shape[1]):
        following = chain_first[c] + clock[t, c] + 1
        if following < chain_first[c + 1]:
            horizon = min(horizon, in_chain[following])
    return int(horizon)


@inner_kernel
def _pair_visible(
    writers: _Writers,
    clock: Int32,
    place: Int32,
    t: int,
    by: int,
    key: int,
    source: Int32,
    target: Int32,
    n: int,
) -> int:
    """Pair the last visible writer of the key in each chain with `by`, whose write of the key t read.

    Writes that `by` saw need no pair, because they commit before `by` anyway.  Returns the number of pairs.
    """
    for g in range(writers.key_first[key], writers.key_first[key + 1]):
        of = writers.chain[g]
        seen = clock[by, of] if by >= 0 else -1
        if writers.last[g] <= seen:
            continue
        low, high = writers.first[g], writers.met[g]
        if writers.last[g] <= clock[t, of]:
            low = high
        while low < high:
            middle = (low + high) // 2
            if place[writers.writer[middle]] <= clock[t, of]:
                low = middle + 1
            else:
                high = middle
        if low == writers.first[g]:
            continue
        latest = writers.writer[low - 1]
        if latest != by and place[latest] > seen:
            source[n], target[n] = _pair(latest, by, t)
            n += 1
    return n


@inner_kernel
def _advance(clock: Int32, t: int, by: int, chain: Int32, place: Int32) -> None:
    mine, its = clock[t], clock[by]
    for s in range(np.uint64(clock.shape[1])):
        mine[s] = max(mine[s], its[s])
    if chain[by] >= 0:
        clock[t, chain[by]] = max(clock[t, chain[by]], place[by])


@kernel
def _writers_by_key(problem: OrderProblem, order: Int32, chain: Int32, chains: int) -> _Writers:
    """Sort the writes by key, by chain and by place.

    The writes are counted, not compared, because `order` keeps the order of each chain.
    """
    writes = problem.write_key.shape[0]
    keys = problem.version_txn.shape[0] - writes
    in_order, n = np.empty(writes, np.int32), 0
    for t in order:
        for v in range(problem.write_first[t], problem.write_first[t + 1]):
            in_order[n] = v
            n += 1
    at, rows = grouped(problem.write_key[in_order], keys)
    by_key = in_order[rows]
    key_first, group_chain = np.zeros(keys + 1, np.int64), np.empty(writes, np.int32)
    group, size = np.empty(writes, np.int32), np.zeros(writes + 1, np.int64)
    group_of_chain, n = np.full(chains, -1, np.int64), 0
    for key in range(keys):
        for i in range(at[key], at[key + 1]):
            of = chain[problem.version_txn[by_key[i]]]
            if group_of_chain[of] < key_first[key]:
                group_of_chain[of], group_chain[n] = n, of
                n += 1
            group[by_key[i]] = group_of_chain[of]
            size[group_of_chain[of] + 1] += 1
        key_first[key + 1] = n
    first = np.cumsum(size[: n + 1])
    met, writer = first[:n].copy(), np.empty(writes, np.int32)
    for i in range(writes):
        g = group[by_key[i]]
        writer[met[g]] = problem.version_txn[by_key[i]]
        met[g] += 1
    return _Writers(key_first, group_chain[:n], first, writer, group, first[:n].copy(), np.full(n, -1, np.int32))
