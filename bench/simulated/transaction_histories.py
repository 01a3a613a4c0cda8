"""Large histories of transactions, strictly serializable by construction, and anomalies put into them.

Each transaction takes effect at one instant between its invoke and its completion.  An anomaly is a small history on
keys of its own (`transaction_anomalies.py`): *spliced* in, its transactions run at one place in between all others;
*strewn*, its micro-operations belong to transactions that are there already, far apart, so that everything between them
is on a cycle.
"""

from __future__ import annotations

import numpy as np

from bench.simulated.transaction_anomalies import history, smallest
from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.transactions.columns import NEVER, NIL_VALUE, OK, READ, WRITE, Transactions
from checkers.transactions.read import Model, read_transactions

PROCESSES, ACTIVE_KEYS, WRITES_PER_KEY, OPERATIONS_MAX = 20, 10, 32, 4


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


def small(model: Model, name: str) -> tuple[Transactions, int]:
    """(columns, events) of the smallest history of an anomaly."""
    texts, together, _ = smallest(model, name)
    transcript = read_transactions(history(texts, together), model)
    return transcript.txns, transcript.event_count


def spliced(txns: Transactions, events: int, model: Model, name: str, at: float = 0.5) -> tuple[Transactions, int]:
    """The history with an anomaly at a share `at` of it, whose processes and keys are new ones."""
    few, few_events = small(model, name)
    position = int(events * at)
    i = int(np.searchsorted(txns.invoked, position))
    row, element = int(txns.first[i]), int(txns.list_first[txns.first[i]])
    key_count, process_count = int(txns.key.max()) + 1, int(txns.process.max()) + 1

    def later(column: Int64) -> Int64:
        return np.where((column >= position) & (column != NEVER), column + few_events, column)

    few_completed = np.where(few.completed == NEVER, NEVER, few.completed + position)
    joined = Transactions(
        process=np.insert(txns.process, i, few.process + process_count),
        status=np.insert(txns.status, i, few.status),
        invoked=np.insert(later(txns.invoked), i, few.invoked + position),
        completed=np.insert(later(txns.completed), i, few_completed),
        first=np.concatenate([txns.first[:i], few.first[:-1] + row, txns.first[i:] + few.first[-1]]),
        kind=np.insert(txns.kind, row, few.kind),
        key=np.insert(txns.key, row, few.key + key_count),
        value=np.insert(txns.value, row, few.value),
        list_first=np.concatenate(
            [txns.list_first[:row], few.list_first[:-1] + element, txns.list_first[row:] + few.list_first[-1]]
        ),
        lists=np.insert(txns.lists, element, few.lists),
    )
    return joined, events + few_events


def strewn(txns: Transactions, model: Model, name: str) -> tuple[Transactions, list[int]]:
    """(the history with an anomaly of transactions that committed, done by those of it that are far apart; which)."""
    few, _ = small(model, name)
    count = len(few.status)
    owners = [len(txns.status) * (i + 1) // (count + 2) for i in range(count)]
    at = np.repeat(txns.first[np.array(owners) + 1], np.diff(few.first))
    key_count = int(txns.key.max()) + 1
    sizes = np.insert(np.diff(txns.list_first), at, np.diff(few.list_first))
    more = np.zeros(len(txns.status) + 1, np.int64)
    more[np.array(owners) + 1] = np.diff(few.first)
    joined = txns._replace(
        first=txns.first + np.cumsum(more),
        kind=np.insert(txns.kind, at, few.kind),
        key=np.insert(txns.key, at, few.key + key_count),
        value=np.insert(txns.value, at, few.value),
        list_first=np.concatenate([[0], np.cumsum(sizes)]),
        lists=np.insert(txns.lists, np.repeat(txns.list_first[at], np.diff(few.list_first)), few.lists),
    )
    return joined, owners


def with_stale_reads(txns: Transactions, count: int, seed: int = 1) -> Transactions:
    """Lists: so many reads, anywhere, miss the last element that they saw."""
    sizes = np.diff(txns.list_first)
    chosen = np.random.default_rng(seed).choice(np.flatnonzero((txns.kind == READ) & (sizes > 0)), count, replace=False)
    kept = np.ones(len(txns.lists), np.bool_)
    kept[txns.list_first[chosen + 1] - 1] = False
    sizes[chosen] -= 1
    return txns._replace(list_first=np.concatenate([[0], np.cumsum(sizes)]), lists=txns.lists[kept])
