"""Large histories of transactions, strictly serializable by construction, and anomalies inserted into them.

Each transaction takes effect at one instant between its invoke and its completion.  An anomaly is a small history on
keys of its own, the smallest that has it (`anomalies.toml`).  If it is *spliced* in, its transactions run at one place
between all others.  If it is *strewn*, its micro-operations are added to existing transactions that are far apart, so
everything between them is on a cycle.

*Sessions.*  A serial database and one with snapshots, of registers with unique values.

Every session runs one transaction after another.  A transaction is invoked, starts, commits and completes, and other
sessions continue between these moments.  In the serial database, a transaction starts and commits at one instant.  In
the database with snapshots, it reads at its start and writes at its commit.  It aborts if another transaction has
written one of its keys between its start and its commit.  A transaction reads or writes each of its keys once.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.history import Event
from checkers.formats.session_files import SessionHistory
from checkers.kernels.jit import kernel
from checkers.kernels.transactions.columns import FAIL, NEVER, NIL_VALUE, OK, READ, WRITE, Transactions
from checkers.transactions.read import Model, Transcript, read_transactions
from checkers.transactions.read_sessions import transcript_of
from checkers.transactions.tape import Tape

PROCESSES, ACTIVE_KEYS, WRITES_PER_KEY, OPERATIONS_MAX = 20, 10, 32, 4


@kernel
def _simulate(
    count: int, seed: int
) -> tuple[Int32, Int64, Int64, Int64, Int32, Int32, Int32, Int32]:  # pragma: no cover (compiled)
    """Return process, invoke, completion and first row of each transaction; kind, key, and value written or number of
    elements read, of each micro-operation; and the orders of keys.
    """
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
    """Return (columns, number of events) of a strictly serializable history."""
    process, invoked, completed, first, kind, key, value, orders = _simulate(count, seed)
    sizes = np.where((kind == READ) & (model == "list-append"), value, 0)
    list_first = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    row = np.repeat(np.arange(len(kind)), sizes)
    lists = orders[key[row] * WRITES_PER_KEY + (np.arange(list_first[-1]) - list_first[row])]
    last = orders[key * WRITES_PER_KEY + np.maximum(value - 1, 0)]
    seen = np.where(value > 0, last, NIL_VALUE)
    values = np.where(kind == READ, seen, value).astype(np.int32)
    rows = (first, kind.astype(np.int8), key, values, list_first, lists.astype(np.int32))
    return Transactions(process, np.full(count, OK, np.int8), invoked, completed, *rows), 2 * count


def small(model: Model, name: str) -> tuple[Transactions, int]:
    """Return (columns, number of events) of the smallest history of an anomaly."""
    texts, together, _ = smallest(model, name)
    transcript = read_transactions(history(texts, together), model)
    return transcript.txns, transcript.event_count


def spliced(txns: Transactions, events: int, model: Model, name: str, at: float = 0.5) -> tuple[Transactions, int]:
    """Return the history with the smallest history of an anomaly inserted at fraction `at`.  The inserted transactions
    use processes and keys of their own.
    """
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
    """Return the history with an anomaly whose micro-operations are added to committed transactions that are far apart,
    and the indices of these transactions.
    """
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
    """Return a history of lists in which `count` random reads lack the last element of their answer."""
    sizes = np.diff(txns.list_first)
    chosen = np.random.default_rng(seed).choice(np.flatnonzero((txns.kind == READ) & (sizes > 0)), count, replace=False)
    kept = np.ones(len(txns.lists), np.bool_)
    kept[txns.list_first[chosen + 1] - 1] = False
    sizes[chosen] -= 1
    return txns._replace(list_first=np.concatenate([[0], np.cumsum(sizes)]), lists=txns.lists[kept])


Smallest = dict[str, tuple[tuple[str, ...], bool, set[str]]]
"""Name of an anomaly -> (transactions, True if they run concurrently, other anomalies that always come with it)."""


def _smallest_of(model: str) -> Smallest:
    rows = tomllib.loads(Path(__file__).with_name("anomalies.toml").read_text(encoding="utf-8"))[model]
    return {
        name: (tuple(row["transactions"]), not row.get("in_turn", False), set(row.get("with", ())))
        for name, row in rows.items()
    }


LISTS, REGISTERS = _smallest_of("lists"), _smallest_of("registers")


def smallest(model: Model, name: str) -> tuple[tuple[str, ...], bool, set[str]]:
    return (LISTS if model == "list-append" else REGISTERS)[name]


def history(texts: tuple[str, ...], together: bool, first_process: int = 0) -> list[Event]:
    """Return the events of transactions from one of the tables; x and y are their keys."""
    tape = Tape()
    if together:
        return tape.at_once(*texts, first_process=first_process).events
    if texts[0].startswith("+"):
        return tape.script(*texts, first_process=first_process).events
    for process, text in enumerate(texts, first_process):
        tape.run(process, text)
    return tape.events


SESSIONS = 24


@kernel
def _simulate_sessions(
    count: int, size: int, keys: int, read_share: float, snapshots: bool, seed: int
) -> tuple[Int32, Int8, Int64, Int64, Int64, Int64, Int8, Int32, Int32]:  # pragma: no cover (compiled)
    """Return process, status, invoke, completion, beginning and end of each transaction; kind, key, and number of the
    write that was read or done, of each micro-operation.
    """
    np.random.seed(seed)
    process, status = np.empty(count, np.int32), np.full(count, OK, np.int8)
    invoked, completed = np.empty(count, np.int64), np.empty(count, np.int64)
    begin, end = np.empty(count, np.int64), np.empty(count, np.int64)
    kind, key = np.empty(count * size, np.int8), np.empty(count * size, np.int32)
    value = np.empty(count * size, np.int32)
    latest, written_at = np.full(keys, -1, np.int32), np.full(keys, -1, np.int64)
    issued = np.zeros(keys, np.int32)
    taken = np.full(keys, -1, np.int64)
    phase, current = np.zeros(SESSIONS, np.int8), np.zeros(SESSIONS, np.int64)
    begun = ended = now = moment = 0
    while ended < count:
        p = np.random.randint(SESSIONS)
        t = current[p]
        if phase[p] == 0:
            if begun == count:
                continue
            t = current[p] = begun
            begun += 1
            process[t], invoked[t] = p, now
            now += 1
            for row in range(t * size, t * size + size):
                k = np.random.randint(keys)
                while taken[k] == t:
                    k = np.random.randint(keys)
                taken[k] = t
                key[row], kind[row] = k, READ if np.random.random() < read_share else WRITE
            phase[p] = 1
        elif phase[p] == 3:
            completed[t] = now
            now += 1
            ended += 1
            phase[p] = 0
        else:
            moment += 1
            if phase[p] == 1:
                begin[t] = moment
                for row in range(t * size, t * size + size):
                    if kind[row] == READ:
                        value[row] = latest[key[row]]
            if phase[p] == 2 or not snapshots:
                end[t] = moment
                for row in range(t * size, t * size + size):
                    if snapshots and kind[row] == WRITE and written_at[key[row]] > begin[t]:
                        status[t] = FAIL
                for row in range(t * size, t * size + size):
                    if kind[row] == WRITE:
                        value[row] = issued[key[row]]
                        issued[key[row]] += 1
                        if status[t] == OK:
                            latest[key[row]], written_at[key[row]] = value[row], moment
            phase[p] = 2 if snapshots and phase[p] == 1 else 3
    return process, status, invoked, completed, begin, end, kind, key, value


def simulate_sessions(
    count: int, size: int, keys: int, *, read_share: float = 0.5, snapshots: bool = False, seed: int = 1
) -> tuple[Transcript, Int64, Int64]:
    """Return a history with real time, and the moments at which its transactions began and ended in the database."""
    process, status, invoked, completed, begin, end, kind, key, value = _simulate_sessions(
        count, size, keys, read_share, snapshots, seed
    )
    rows = np.arange(count + 1, dtype=np.int64) * size
    nothing = np.zeros(count * size + 1, np.int64)
    txns = Transactions(process, status, invoked, completed, rows, kind, key, value, nothing, np.empty(0, np.int32))
    return Transcript("rw-register", txns, (), (), (), 2 * count), begin, end


def shuffled(history: Transcript, seed: int = 1) -> Transcript:
    """Return the same history without any time: transactions in random order, each in a session of its own."""
    txns = history.txns
    count = len(txns.status)
    order = np.random.default_rng(seed).permutation(count)
    sizes = np.diff(txns.first)[order]
    rows = (
        np.repeat(txns.first[:-1][order], sizes) + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    )
    alone = txns._replace(
        process=np.arange(count, dtype=np.int32),
        status=txns.status[order],
        first=np.concatenate([[0], np.cumsum(sizes)]),
        kind=txns.kind[rows],
        key=txns.key[rows],
        value=txns.value[rows],
    )
    return by_session(replace(history, txns=alone))


def by_session(history: Transcript, stamps: tuple[Int64, Int64] | None = None) -> Transcript:
    """Return the same history as in a file of sessions: without real time, with or without time stamps."""
    txns = history.txns
    nowhere = np.empty(0, np.int64)
    begin, end = stamps if stamps is not None else (nowhere, nowhere)
    key, value = txns.key.astype(np.int64), txns.value.astype(np.int64)
    nil = (txns.kind == READ) & (txns.value == NIL_VALUE)
    columns = (txns.process, txns.status, txns.first, txns.kind, key, value, nil, txns.list_first)
    return transcript_of(SessionHistory("simulated", False, *columns, nowhere, False, begin, end))
