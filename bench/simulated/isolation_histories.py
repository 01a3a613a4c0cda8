"""Histories of a serial database and of one with snapshots, of registers with unique values, by sessions.

Every session runs one transaction after another.  A transaction is invoked, starts, commits and completes, and between
these moments other sessions go on.  In the serial database it starts and commits at one instant.  In the other one it
reads at its start and writes at its commit, unless another transaction has written one of its keys meanwhile: then it
aborts.  A transaction reads a key or writes it once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.formats.session_files import SessionHistory
from checkers.kernels.jit import kernel
from checkers.kernels.transactions.columns import FAIL, NIL_VALUE, OK, READ, WRITE, Transactions
from checkers.transactions.read import Transcript
from checkers.transactions.read_sessions import transcript_of

SESSIONS = 24


@kernel
def _simulate(
    count: int, size: int, keys: int, read_share: float, snapshots: bool, seed: int
) -> tuple[Int32, Int8, Int64, Int64, Int64, Int64, Int8, Int32, Int32]:  # pragma: no cover (compiled)
    """Process, status, invoke, completion, begin, end; kind, key, number of the write that was read or done."""
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


def simulate(
    count: int, size: int, keys: int, *, read_share: float = 0.5, snapshots: bool = False, seed: int = 1
) -> tuple[Transcript, Int64, Int64]:
    """(a history with real time; the moments at which its transactions began and ended in the database)."""
    process, status, invoked, completed, begin, end, kind, key, value = _simulate(
        count, size, keys, read_share, snapshots, seed
    )
    rows = np.arange(count + 1, dtype=np.int64) * size
    nothing = np.zeros(count * size + 1, np.int64)
    txns = Transactions(process, status, invoked, completed, rows, kind, key, value, nothing, np.empty(0, np.int32))
    return Transcript("rw-register", txns, (), (), (), 2 * count), begin, end


def shuffled(history: Transcript, seed: int = 1) -> Transcript:
    """Return the same history without any time: transactions in a random order, each in a session of its own."""
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
    """Return the same history as a file of sessions shows it: without real time, with or without time stamps."""
    txns = history.txns
    nowhere = np.empty(0, np.int64)
    begin, end = stamps if stamps is not None else (nowhere, nowhere)
    return transcript_of(
        SessionHistory(
            "simulated",
            False,
            txns.process,
            txns.status,
            txns.first,
            txns.kind,
            txns.key.astype(np.int64),
            txns.value.astype(np.int64),
            (txns.kind == READ) & (txns.value == NIL_VALUE),
            txns.list_first,
            nowhere,
            False,
            begin,
            end,
        )
    )
