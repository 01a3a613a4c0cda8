"""Clients that read and write registers of one log: their events part by part, and what they wrote into the log.

A write gets its place in the log when it is invoked.  It is committed, with all writes before it, when the first of
them is answered.  Reads see what is committed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel

PROCESSES_MAX = 1_000
WRITES_OF = 12
"""One operation in this many is a write."""
UNKNOWN_OF = 2_000

_IDLE, _READ, _WRITE, _REFUSED = 0, 1, 2, 3


class ClientsState(NamedTuple):
    """State of the system and its clients between two parts.

    doing, key, value, offset, called: the open operation of each client; number: its process.
    now, before, changed: for each key the committed value, the one before, and the row of the change; -1: none.
    fresh: the next value of each key.  pending: offset, key and value of entries that are not committed.
    counts: [entries of the log, entries committed, pending ones, processes ever, stale reads, lost writes].
    """

    doing: Int8
    key: Int32
    value: Int64
    offset: Int64
    called: Int64
    number: Int32
    now: Int64
    before: Int64
    changed: Int64
    fresh: Int64
    pending: Int64
    counts: Int64


class HistoryPart(NamedTuple):
    """Rows of clients; entries of the log; and the end offset and the row of each commit."""

    process: Int32
    type: Int8
    f: Int8
    key: Int32
    value: Int64
    entry_key: Int32
    entry_value: Int64
    ends: Int64
    rows: Int64


def new_state(keys: int, processes: int) -> ClientsState:
    """Nothing was invoked, and no key holds anything."""
    none = np.full(keys, -1, np.int64)
    idle = np.zeros(processes, np.int64)
    counts = np.array([1, 1, 0, processes, 0, 0])  # the leader's own entry is the first
    number = np.arange(processes, dtype=np.int32)
    doing, key = np.zeros(processes, np.int8), np.zeros(processes, np.int32)
    pending = np.zeros(3 * 4 * PROCESSES_MAX, np.int64).reshape(-1, 3)
    return ClientsState(
        doing, key, idle, idle.copy(), idle.copy(), number, none, none.copy(), none.copy(), none + 1, pending, counts
    )


@inner_kernel
def _invoke(state: ClientsState, client: int, row: int) -> None:
    """The client begins a read or a write; a write that will not be refused gets its place in the log."""
    state.key[client], state.value[client], state.called[client] = np.random.randint(state.now.shape[0]), -1, row
    state.doing[client] = _READ
    if np.random.randint(WRITES_OF) != 0:
        return
    key = state.key[client]
    state.value[client] = state.fresh[key]
    state.fresh[key] += 1
    state.doing[client] = _REFUSED if np.random.randint(UNKNOWN_OF) == 0 else _WRITE
    if state.doing[client] == _WRITE:
        state.offset[client] = state.counts[0]
        waiting = state.counts[2]
        state.pending[waiting, 0], state.pending[waiting, 1] = state.counts[0], key
        state.pending[waiting, 2] = state.value[client]
        state.counts[0] += 1
        state.counts[2] += 1


@inner_kernel
def _commit(state: ClientsState, row: int) -> None:
    """Everything in the log is committed."""
    for i in range(state.counts[2]):
        key = state.pending[i, 1]
        state.before[key], state.changed[key] = state.now[key], row
        state.now[key] = state.pending[i, 2]
    state.counts[1], state.counts[2] = state.counts[0], 0


@inner_kernel
def _read(state: ClientsState, client: int, row: int, wrong_from: int) -> None:
    """The client reads what is committed; or once, from the row `wrong_from` on, what was overwritten long before."""
    key = state.key[client]
    state.value[client] = state.now[key]
    late = 0 <= wrong_from <= row and state.counts[4] == 0
    since = state.called[client] - 10 * state.doing.shape[0]  # by then what was overwritten was answered
    if late and state.before[key] >= 0 and state.changed[key] < since:
        state.value[client] = state.before[key]
        state.counts[4] = 1


@kernel
def simulate(state: ClientsState, rows: int, first_row: int, seed: int, wrong_from: int, drain: bool) -> HistoryPart:
    """The next `rows` events, or fewer if `drain` lets open operations end and none begin.

    wrong_from: the row from which the violations are planted as soon as they can be; -1 for none.
    """
    np.random.seed(seed)
    part = HistoryPart(
        np.empty(rows, np.int32),
        np.empty(rows, np.int8),
        np.empty(rows, np.int8),
        np.empty(rows, np.int32),
        np.full(rows, -1, np.int64),
        np.empty(rows, np.int32),
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
        np.empty(rows, np.int64),
    )
    entries, commits, at, client = 0, 0, 0, -1
    while at < rows:
        client = client + 1 if drain else np.random.randint(state.doing.shape[0])
        if client >= state.doing.shape[0]:
            break
        row, doing = first_row + at, state.doing[client]
        if doing == _IDLE:
            if drain:
                continue
            _invoke(state, client, row)
            if state.doing[client] == _WRITE:
                part.entry_key[entries], part.entry_value[entries] = state.key[client], state.value[client]
                entries += 1
            type_ = 0
        else:
            type_ = 2 if doing == _REFUSED else 3 if np.random.randint(UNKNOWN_OF) == 0 else 1
            if type_ == 1 and doing == _WRITE and state.offset[client] >= state.counts[1]:
                _commit(state, row)
                part.ends[commits], part.rows[commits] = state.counts[1], row
                commits += 1
            if type_ == 1 and doing == _READ:
                _read(state, client, row, wrong_from)
            state.doing[client] = _IDLE
        part.process[at], part.type[at], part.f[at] = state.number[client], type_, 0
        part.f[at] = 0 if (state.doing[client] if type_ == 0 else doing) == _READ else 1
        part.key[at], part.value[at] = state.key[client], state.value[client]
        if type_ == 3:
            state.number[client] = state.counts[3]
            state.counts[3] += 1
        at += 1
    return HistoryPart(
        part.process[:at],
        part.type[:at],
        part.f[:at],
        part.key[:at],
        part.value[:at],
        part.entry_key[:entries],
        part.entry_value[:entries],
        part.ends[:commits],
        part.rows[:commits],
    )


def drained(state: ClientsState, first_row: int) -> HistoryPart:
    """The ends of all open operations."""
    return simulate(state, len(state.doing), first_row, 1, -1, True)


def final_reads(state: ClientsState) -> HistoryPart:
    """One process reads every key."""
    keys = len(state.now)
    none = np.empty(0, np.int64)
    value = np.full(2 * keys, -1, np.int64)
    value[1::2] = state.now
    return HistoryPart(
        np.full(2 * keys, state.counts[3], np.int32),
        np.tile(np.array([0, 1], np.int8), keys),
        np.zeros(2 * keys, np.int8),
        np.repeat(np.arange(keys, dtype=np.int32), 2),
        value,
        none.astype(np.int32),
        none,
        none,
        none,
    )
