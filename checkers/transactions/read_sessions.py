"""Turns a history that is recorded by session (`formats/session_files.py`) into a transcript: numbers keys and values,
and guesses an order of the transactions.

A history by session has no real time.  The guessed order respects the order of each session.  It follows the commit
timestamps if there are any; otherwise it assumes that all sessions began and ended together.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from checkers.base.arrays import Bools, Int8, Int64
from checkers.base.history import Type
from checkers.formats.session_files import READ, WRITE, SessionHistory
from checkers.kernels.codes import members
from checkers.kernels.transactions.columns import NEVER, NIL_VALUE, Transactions
from checkers.kernels.transactions.payloads import number_values
from checkers.transactions.read import Lazily, Model, Transcript


def model_of(history: SessionHistory) -> Model:
    """Return the model to which the history's operations belong."""
    return "list-append" if history.lists else "rw-register"


def transcript_of(history: SessionHistory) -> Transcript:
    """Return the transcript; transactions are numbered in the guessed order."""
    history = _without_initial_transaction(history)
    count = len(history.session)
    order, end, begin = _guess(history)
    rows, first = members(history.first, order)
    elements, list_first = members(history.list_first, rows)
    kind, raw_key, raw_value = history.kind[rows], history.key[rows], history.value[rows]
    keys, key = np.unique(raw_key, return_inverse=True)
    nothing, initial = _initial_state(history, rows, kind, key, raw_value, len(keys))
    nothing |= (kind == READ) & history.lists
    numbers, base, names = number_values(
        np.concatenate([key[~nothing], np.repeat(key, np.diff(list_first))]),
        np.concatenate([raw_value[~nothing], history.lists_read[elements]]),
        len(keys),
    )
    value = np.full(len(kind), NIL_VALUE, np.int32)
    value[~nothing] = numbers[: np.count_nonzero(~nothing)]
    status = history.status[order]
    txns = Transactions(
        history.session[order].astype(np.int32),
        status,
        np.arange(count, dtype=np.int64),
        np.where(status == int(Type.INFO), NEVER, count + end).astype(np.int64),
        first,
        kind,
        key.astype(np.int32),
        value,
        list_first,
        numbers[np.count_nonzero(~nothing) :],
    )
    values = Lazily(len(keys), lambda k: names[base[k] : base[k + 1]].tolist())
    also_initial = frozenset((k, values[k].index(0)) for k in initial)
    return Transcript(
        model_of(history),
        txns,
        keys.tolist(),
        values,
        (),
        count + (int(end.max()) + 1 if count else 0),
        timed=False,
        begin=count + begin,
        initial=also_initial,
    )


def _guess(history: SessionHistory) -> tuple[Int64, Int64, Int64]:
    """Return (transactions in the guessed order, rank of the end of each, rank of the begin of each)."""
    count = len(history.session)
    by_session = np.argsort(history.session, kind="stable")
    session = history.session[by_session]
    opens = np.flatnonzero(np.diff(session, prepend=session[:1] - 1)) if count else np.empty(0, np.int64)
    sizes = np.diff(np.append(opens, count))
    place = np.arange(count) - np.repeat(opens, sizes)
    if len(history.end):
        rank = history.end[by_session].copy()
        for at, size in zip(opens.tolist(), sizes.tolist(), strict=True):
            rank[at : at + size] = np.maximum.accumulate(rank[at : at + size])
    else:
        rank = np.argsort(np.argsort((place + 0.5) / np.repeat(sizes, sizes), kind="stable"), kind="stable")
    before = np.where(place > 0, np.concatenate([[0], rank[:-1]]) if count else rank, -1)
    end, begin = np.empty(count, np.int64), np.empty(count, np.int64)
    end[by_session] = rank
    begin[by_session] = before
    if len(history.begin):
        begin = history.begin
    own_place = np.empty(count, np.int64)
    own_place[by_session] = place
    order = np.lexsort((own_place, end))
    return order, end[order], begin[order]


def _initial_state(
    history: SessionHistory, rows: Int64, kind: Int8, key: Int64, value: Int64, key_count: int
) -> tuple[Bools, list[int]]:
    """Return (mask of the reads that show the initial state, keys for which a read of 0 is ambiguous).

    A read of 0 is ambiguous if some transaction wrote 0 to the key: it may show this write or the initial state.
    """
    nothing = history.nothing[rows]
    if not history.zero_is_nothing or history.lists:
        return nothing, []
    zero_written = np.zeros(key_count, np.bool_)
    zero_written[key[(kind == WRITE) & (value == 0)]] = True
    nothing |= (kind == READ) & (value == 0) & ~zero_written[key]
    return nothing, np.flatnonzero(zero_written).tolist()


def _without_initial_transaction(history: SessionHistory) -> SessionHistory:
    """Remove a transaction that is alone in its session and writes 0 to every key: it sets the initial state."""
    zeros = (history.kind == WRITE) & (history.value == 0)
    writers = np.unique(np.searchsorted(history.first, np.flatnonzero(zeros), side="right") - 1)
    if not history.zero_is_nothing or history.lists or len(writers) != 1:
        return history
    t = int(writers[0])
    rows = slice(int(history.first[t]), int(history.first[t + 1]))
    alone = np.count_nonzero(history.session == history.session[t]) == 1
    if not alone or not zeros[rows].all() or len(np.unique(history.key[rows])) < len(np.unique(history.key)):
        return history
    left = np.arange(len(history.session)) != t
    kept = np.ones(len(history.kind), np.bool_)
    kept[rows] = False
    return replace(
        history,
        session=history.session[left],
        status=history.status[left],
        first=np.concatenate([[0], np.cumsum(np.diff(history.first)[left])]).astype(np.int64),
        kind=history.kind[kept],
        key=history.key[kept],
        value=history.value[kept],
        nothing=history.nothing[kept],
        list_first=np.zeros(np.count_nonzero(kept) + 1, np.int64),
        begin=history.begin[left] if len(history.begin) else history.begin,
        end=history.end[left] if len(history.end) else history.end,
    )
