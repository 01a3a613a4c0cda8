"""What read-atomic and causal demand of the order of commits (Biswas & Enea 2019; Møldrup & Pavlogiannis, PLDI 2025).

Both let a transaction read from any transaction that is *visible* to it, but of the visible writers of a key it must
read the one that commits last:

    read-atomic   visible is what the transaction read from, and what its session did before
    causal        visible is also all that was visible to these

So if t read x from w, every other visible writer of x commits before w.  These pairs, the reads, and the order of
sessions must have a common order.  What is visible does not depend on the order of commits, so one round finds all
pairs, and the question is decided in polynomial time.

Causal keeps a clock for each transaction: of each chain of transactions, the last one that is visible.  Sessions are
chains.  Where sessions do not count, transactions that read from one another are put into chains.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.transactions.columns import Edges
from checkers.kernels.transactions.dependencies import PROCESS, WW
from checkers.kernels.transactions.order_problem import Problem


@kernel
def atomic_pairs(problem: Problem, by_session: Int32, process: Int32, sessions: bool) -> Edges:
    """Return the pairs of read-atomic.  by_session: transactions ordered by process, then by invocation."""
    keys = problem.version_txn.shape[0] - problem.write_key.shape[0]
    latest, latest_of = np.empty(keys, np.int32), np.full(keys, -1, np.int64)
    read, read_by = np.empty(keys, np.int32), np.full(keys, -1, np.int32)
    source, target = np.empty(1024, np.int32), np.empty(1024, np.int32)
    n = 0
    for t in by_session:
        reads = range(problem.read_first[t], problem.read_first[t + 1])
        for z in reads:
            key = _key_of(problem, problem.read_version[z])
            read[key], read_by[key] = problem.read_version[z], t
        for z in reads:
            version = problem.read_version[z]
            by, key = problem.version_txn[version], _key_of(problem, version)
            writes = 0 if by < 0 else problem.write_first[by + 1] - problem.write_first[by]
            if n + writes + 1 > source.shape[0]:
                source = np.concatenate((source, np.empty(source.shape[0] + writes, np.int32)))
                target = np.concatenate((target, np.empty(target.shape[0] + writes, np.int32)))
            if sessions and latest_of[key] == process[t] and latest[key] != by:
                source[n], target[n] = _pair(latest[key], by, t)
                n += 1
            for v in range(problem.write_first[by] if by >= 0 else 0, problem.write_first[by + 1] if by >= 0 else 0):
                other = problem.write_key[v]
                if read_by[other] == t and read[other] != v:
                    source[n], target[n] = _pair(by, problem.version_txn[read[other]], t)
                    n += 1
        for v in range(problem.write_first[t], problem.write_first[t + 1]):
            latest[problem.write_key[v]], latest_of[problem.write_key[v]] = t, process[t]
    return Edges(source[:n].copy(), target[:n].copy(), np.full(n, WW, np.int8))


@inner_kernel
def _key_of(problem: Problem, version: int) -> int:
    writes = problem.write_key.shape[0]
    return int(problem.write_key[version] if version < writes else version - writes)


@inner_kernel
def _pair(visible: int, by: int, t: int) -> tuple[int, int]:
    """A visible writer commits before the one that was read.  None does before the initial state: a contradiction."""
    return (visible, by) if by >= 0 else (t, visible)


@kernel
def reading_chains(problem: Problem, order: Int32) -> tuple[Int32, Int32, int]:
    """Put writers into chains along reads.  Returns (int32 per transaction, its chain or -1; its place; chains).

    order: all transactions, each after those that it read from.
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


@kernel
def causal_pairs(problem: Problem, order: Int32, chain: Int32, place: Int32, chains: int) -> Edges:
    """Return the pairs of causal.  order: all transactions, each after those that are visible to it.

    Memory: 4 bytes for each transaction and chain.
    """
    m, keys = problem.happened.shape[0], problem.version_txn.shape[0] - problem.write_key.shape[0]
    clock = np.full((m, chains), -1, np.int32)
    for t in order:
        for z in range(problem.read_first[t], problem.read_first[t + 1]):
            by = problem.version_txn[problem.read_version[z]]
            if by >= 0:
                _advance(clock, t, by, chain, place)
        for i in range(problem.before.first[t], problem.before.first[t + 1]):
            if problem.after.kind[problem.before.edge[i]] == PROCESS:
                _advance(clock, t, problem.before.source[i], chain, place)
    first, writer = _writers_by_key(problem, chain, place, keys)
    source, target = np.empty(1024, np.int32), np.empty(1024, np.int32)
    n = 0
    for t in order:
        for z in range(problem.read_first[t], problem.read_first[t + 1]):
            version = problem.read_version[z]
            by, key = problem.version_txn[version], _key_of(problem, version)
            at = first[key]
            while at < first[key + 1]:
                of, end = chain[writer[at]], at
                while end < first[key + 1] and chain[writer[end]] == of:
                    end += 1
                low, high = at, end
                while low < high:
                    middle = (low + high) // 2
                    if place[writer[middle]] <= clock[t, of]:
                        low = middle + 1
                    else:
                        high = middle
                latest = writer[low - 1] if low > at else -1
                at = end
                if latest < 0 or latest == by or (by >= 0 and clock[by, of] >= place[latest]):
                    continue
                if n == source.shape[0]:
                    source = np.concatenate((source, np.empty(n, np.int32)))
                    target = np.concatenate((target, np.empty(n, np.int32)))
                source[n], target[n] = _pair(latest, by, t)
                n += 1
    return Edges(source[:n].copy(), target[:n].copy(), np.full(n, WW, np.int8))


@inner_kernel
def _advance(clock: Int32, t: int, by: int, chain: Int32, place: Int32) -> None:
    for s in range(clock.shape[1]):
        clock[t, s] = max(clock[t, s], clock[by, s])
    if chain[by] >= 0:
        clock[t, chain[by]] = max(clock[t, chain[by]], place[by])


@kernel
def _writers_by_key(problem: Problem, chain: Int32, place: Int32, keys: int) -> tuple[Int64, Int32]:
    """Return (where the writers of each key begin; writers by key, by chain, by place)."""
    writes = problem.write_key.shape[0]
    rank = np.empty(writes, np.int64)
    for v in range(writes):
        t = problem.version_txn[v]
        rank[v] = (np.int64(chain[t]) << 32) | np.int64(place[t])
    ordered = np.argsort(rank)
    first = np.zeros(keys + 1, np.int64)
    for v in range(writes):
        first[problem.write_key[v] + 1] += 1
    for key in range(keys):
        first[key + 1] += first[key]
    cursor, writer = first[:keys].copy(), np.empty(writes, np.int32)
    for v in ordered:
        key = problem.write_key[v]
        writer[cursor[key]] = problem.version_txn[v]
        cursor[key] += 1
    return first, writer
