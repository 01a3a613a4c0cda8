"""How long transactional verdicts take, from columns in memory: valid histories, and the same with one anomaly.

    python bench/transactions.py [--transactions 1000000] [--model list-append] [--rounds 3]

Histories are strictly serializable by construction: each transaction takes effect at one instant between its invoke
and its completion.  The anomaly is a pair of transactions in the middle that read each other's appends (G1c), and then
a late read of an old version (G-single-realtime), the dearest one to name: its cycle runs through real time.
Compiled before the first figure; prints a line per figure.  Say how busy the machine was.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from checkers.checker import Budget
from checkers.kernels.jit import kernel
from checkers.kernels.operations import Int32, Int64
from checkers.kernels.transactions import NIL_VALUE, OK, READ, WRITE, Transactions
from checkers.transactions import judge_columns
from checkers.transactions.read import Model

PROCESSES, ACTIVE_KEYS, WRITES_PER_KEY, OPERATIONS_MAX = 20, 10, 32, 4
AMPLE = Budget(steps=2 * 10**9, size_bytes=10**11)


@kernel
def _simulate(
    count: int, seed: int
) -> tuple[Int32, Int64, Int64, Int64, Int32, Int32, Int32, Int32]:  # pragma: no cover (compiled)
    """Process, invoke, completion, first row; kind, key, value written or how many were there; the orders of keys."""
    np.random.seed(seed)
    process = np.empty(count, np.int32)
    invoked, completed = np.empty(count, np.int64), np.empty(count, np.int64)
    first = np.zeros(count + 1, np.int64)
    room = count * OPERATIONS_MAX
    kind, key, value = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    keys_max = ACTIVE_KEYS + room // WRITES_PER_KEY + 1
    orders = np.zeros((keys_max, WRITES_PER_KEY), np.int32)
    length = np.zeros(keys_max, np.int32)
    active, issued = np.arange(ACTIVE_KEYS), np.zeros(ACTIVE_KEYS, np.int32)
    next_key, begun, ended, now, row = ACTIVE_KEYS, 0, 0, 0, 0
    phase, current = np.zeros(PROCESSES, np.int8), np.zeros(PROCESSES, np.int64)
    while ended < count:
        p = np.random.randint(PROCESSES)
        t = current[p]
        if phase[p] == 0:
            if begun == count:
                continue
            t = current[p] = begun
            begun += 1
            process[t], invoked[t] = p, now
            now += 1
            for _ in range(1 + np.random.randint(OPERATIONS_MAX)):
                slot = np.random.randint(ACTIVE_KEYS)
                key[row], kind[row] = active[slot], np.random.randint(2)
                if kind[row] == WRITE:
                    value[row] = issued[slot]
                    issued[slot] += 1
                    if issued[slot] == WRITES_PER_KEY:
                        active[slot], issued[slot] = next_key, 0
                        next_key += 1
                row += 1
            first[t + 1] = row
        elif phase[p] == 1:
            for r in range(first[t], first[t + 1]):
                if kind[r] == WRITE:
                    orders[key[r], length[key[r]]] = value[r]
                    length[key[r]] += 1
                else:
                    value[r] = length[key[r]]
        else:
            completed[t] = now
            now += 1
            ended += 1
        phase[p] = (phase[p] + 1) % 3
    return process, invoked, completed, first, kind[:row], key[:row], value[:row], orders[:next_key].ravel()


def simulate(count: int, model: Model, seed: int = 1) -> tuple[Transactions, int]:
    """(columns, events): a strictly serializable history."""
    process, invoked, completed, first, kind, key, value, orders = _simulate(count, seed)
    sizes = np.where((kind == READ) & (model == "list-append"), value, 0)
    list_first = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    row = np.repeat(np.arange(len(kind)), sizes)
    lists = orders[key[row] * WRITES_PER_KEY + (np.arange(list_first[-1]) - list_first[row])]
    last = orders[key * WRITES_PER_KEY + np.maximum(value - 1, 0)]
    seen = np.where(value > 0, last, NIL_VALUE)
    txns = Transactions(
        process,
        np.full(count, OK, np.int8),
        invoked,
        completed,
        first,
        kind.astype(np.int8),
        key,
        np.where(kind == READ, seen, value).astype(np.int32),
        list_first,
        lists.astype(np.int32),
    )
    return txns, 2 * count


def with_cycle(txns: Transactions, model: Model) -> Transactions:
    """Two transactions in the middle that ran at once also write a, read b, and write b, read a, of two new keys."""
    one = len(txns.status) // 2
    near = range(one + 1, min(one + 1000, len(txns.status)))
    two = next(t for t in near if txns.invoked[t] < txns.completed[one] < txns.completed[t])
    a = int(txns.key.max()) + 1
    b = a + 1
    return _with_rows(txns, model, [(one, WRITE, a, 0), (one, READ, b, 0), (two, WRITE, b, 0), (two, READ, a, 0)])


def with_late_read(txns: Transactions, model: Model) -> Transactions:
    """A transaction in the middle also writes a new key, and one a quarter of the history later reads it as empty."""
    early, late = len(txns.status) // 2, len(txns.status) * 3 // 4
    key = int(txns.key.max()) + 1
    return _with_rows(txns, model, [(early, WRITE, key, 0), (late, READ, key, NIL_VALUE)])


def _with_rows(txns: Transactions, model: Model, rows: list[tuple[int, int, int, int]]) -> Transactions:
    """More micro-operations (transaction, kind, key, value), at the end of theirs; in the order of transactions."""
    owner, kind, key, value = (np.array(column) for column in zip(*rows, strict=True))
    at = txns.first[owner + 1]
    more = np.bincount(owner, minlength=len(txns.status))
    shown = (kind == READ) & (value != NIL_VALUE) & (model == "list-append")
    sizes = np.insert(np.diff(txns.list_first), at, shown.astype(np.int64))
    return txns._replace(
        first=txns.first + np.concatenate([[0], np.cumsum(more)]),
        kind=np.insert(txns.kind, at, kind),
        key=np.insert(txns.key, at, key),
        value=np.insert(txns.value, at, value),
        list_first=np.concatenate([[0], np.cumsum(sizes)]),
        lists=np.insert(txns.lists, txns.list_first[at[shown]], value[shown]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--model", choices=["list-append", "rw-register"], default="list-append")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for make in (None, with_cycle, with_late_read):
        for count in (3000, options.transactions):
            txns, events = simulate(count, options.model)
            if make is not None:
                txns = make(txns, options.model)
            for _ in range(options.rounds if count == options.transactions else 1):
                began, cpu = time.perf_counter(), time.process_time()
                verdict = judge_columns(txns, options.model, events, AMPLE)
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                if count == options.transactions:
                    named = ", ".join(verdict.details["anomalies"]) or "no anomaly"
                    print(
                        f"{count} transactions ({len(txns.kind)} micro-operations, {len(txns.lists)} list elements): "
                        f"{verdict.validity}, {named}: {seconds:.2f} s, of it {cpu:.2f} s of CPU"
                    )
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory of the process, generator included: {peak_bytes / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
