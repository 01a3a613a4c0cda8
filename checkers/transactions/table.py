"""Reads transactions from the columns of a history with kernels (`kernels/transactions/payloads.py`).

If the kernels cannot read a payload, `read.py` reads the history event by event.  It is slower, and its error names
what is wrong if a payload is no transaction.  `checker.py` reads those of a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import CREATE, Event, Type
from checkers.formats.rows import HistoryColumns
from checkers.kernels.codes import dense_processes, members
from checkers.kernels.transactions import payloads
from checkers.kernels.transactions.columns import WRITE, Transactions
from checkers.kernels.transactions.payloads import Bytes, are_dense, number_values
from checkers.transactions.read import Lazily, Model, Transcript, read_transactions


def read_history(history: HistoryColumns, model: Model) -> Transcript:
    """Read the transactions of a history in memory.

    Raises MalformedHistory if a payload is no list of micro-operations of this model.
    """
    rows = history.rows
    transcript = transcript_of_columns(
        rows.process,
        rows.type,
        rows.f != history.code(CREATE),
        history.payloads,
        model,
        lambda row: history.events([row])[0],
    )
    return transcript or read_transactions(history.events(), model)


def transcript_of_columns(
    process: Int32,
    type_: Int8,
    is_transaction: Bools,
    stretches: Sequence[tuple[Bytes, Int64]],
    model: Model,
    event_of: Callable[[int], Event],
) -> Transcript | None:
    """Read the columns; returns None if a payload needs the slower reader, or if an answer contradicts its invoke.

    event_of: the event of a row.
    """
    dense, process_count = dense_processes(process)
    pairs = payloads.pair(process, dense, process_count, type_, (process >= 0) & is_transaction)
    owner = np.full(len(process), -1, np.int32)
    owner[pairs.described] = np.arange(len(pairs.described), dtype=np.int32)
    keys, lists = payloads.new_texts(), model == "list-append"
    read = _columns_of(stretches, owner, pairs.status, keys, lists)
    if read is None or not _agree(pairs, read, len(owner), stretches, lists):
        return None
    columns, keys = read
    names = _key_names(keys)
    values: Sequence[Sequence[Any]] = ()
    if not are_dense(columns, len(names)):
        base, known = _with_numbers(columns, len(names))
        values = Lazily(len(names), lambda key: known[base[key] : base[key + 1]].tolist())
    txns = Transactions._make([*pairs[:4], *columns])
    return Transcript(model, txns, names, values, paired_events(pairs, event_of), len(owner))


def _with_numbers(columns: payloads.Columns, key_count: int) -> tuple[Int64, Int64]:
    """Replace values by their numbers, those of writes first.  Returns `base` and `names` of `number_values`."""
    wrote = columns.kind == WRITE
    chosen = [np.flatnonzero(wrote), np.flatnonzero(~wrote & (columns.value >= 0))]
    keys = [*(columns.key[rows] for rows in chosen), np.repeat(columns.key, np.diff(columns.list_first))]
    values = [*(columns.value[rows] for rows in chosen), columns.lists]
    numbers, base, names = number_values(np.concatenate(keys).astype(np.int64), np.concatenate(values), key_count)
    ends = np.cumsum([len(each) for each in values])
    for rows, part in zip(chosen, np.split(numbers, ends[:2]), strict=False):
        columns.value[rows] = part
    columns.lists[:] = numbers[ends[1] :]
    return base, names


def _columns_of(
    stretches: Sequence[tuple[Bytes, Int64]], owner: Int32, status: Int8, keys: payloads.Texts, lists: bool
) -> tuple[payloads.Columns, payloads.Texts] | None:
    """Return the micro-operations of rows with an owner, and all keys known then; None if a payload is strange."""
    count = len(status)
    sizes, elements = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    first_row = 0
    for data, bounds in stretches:
        if payloads.count(data, bounds, first_row, owner, sizes[1:], elements[1:]):
            return None
        first_row += len(bounds) - 1
    first, element_first = np.cumsum(sizes), np.cumsum(elements)
    rows = int(first[-1])
    columns = payloads.Columns(
        first,
        np.empty(rows, np.int8),
        np.empty(rows, np.int32),
        np.empty(rows, np.int32),
        np.full(rows + 1, element_first[-1], np.int64),
        np.empty(int(element_first[-1]), np.int32),
    )
    first_row = 0
    for data, bounds in stretches:
        keys, strange = payloads.write(data, bounds, first_row, owner, status, element_first, lists, keys, columns)
        if strange:
            return None
        first_row += len(bounds) - 1
    return columns, keys


def _agree(
    pairs: payloads.Pairs,
    read: tuple[payloads.Columns, payloads.Texts],
    row_count: int,
    stretches: Sequence[tuple[Bytes, Int64]],
    lists: bool,
) -> bool:
    """Return whether every answer repeats the micro-operations that were invoked, except for what reads saw.

    An invoke without a payload allows any answer.  Returns False also if an invoke cannot be read here.
    """
    columns, keys = read
    rows_invoked = np.where(pairs.described != pairs.invoked, pairs.invoked, -1)
    size_bytes = np.concatenate([np.diff(bounds) for _, bounds in stretches] or [np.empty(0, np.int64)])
    chosen = np.flatnonzero((rows_invoked >= 0) & (size_bytes[rows_invoked] > 0))
    owner = np.full(row_count, -1, np.int32)
    owner[rows_invoked[chosen]] = np.arange(len(chosen), dtype=np.int32)
    not_answered = np.full(len(chosen), int(Type.INFO), np.int8)
    invoked = _columns_of(stretches, owner, not_answered, keys, lists)
    if invoked is None:
        return False
    before = invoked[0]
    rows, first = members(columns.first, chosen)
    if not np.array_equal(before.first, first):
        return False
    writes = before.kind == WRITE
    return (
        np.array_equal(before.kind, columns.kind[rows])
        and np.array_equal(before.key, columns.key[rows])
        and np.array_equal(before.value[writes], columns.value[rows][writes])
    )


def _key_names(keys: payloads.Texts) -> list[Any]:
    text, first = keys.text.tobytes(), keys.first.tolist()
    return [json.loads(text[first[n] : first[n + 1]]) for n in range(int(keys.counts[0]))]


def paired_events(pairs: payloads.Pairs, event_of: Callable[[int], Event]) -> Sequence[tuple[Event, ...]]:
    """Return the events of each transaction.  event_of: the event of a row; a witness needs few of them."""

    def of(t: int) -> tuple[Event, ...]:
        rows = [int(pairs.invoked[t]), int(pairs.ended[t])]
        return tuple(event_of(row) for row in rows if row >= 0)

    return Lazily(len(pairs.described), of)
