"""Reads transactions from `history.parquet` with kernels (`kernels/transactions/payloads.py`).

If the kernels cannot read a payload, `read.py` reads the history event by event.  It is slower, and its error names
what is wrong if a payload is no transaction.

The reader bounds its memory before it allocates.  The footer of a file is no measure of it, because a repeated text is
stored once.  So the size of rows is counted row group by row group, and that of events before any event is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.checker import Budget
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, Event, Type
from checkers.base.run_evidence import BeyondBudget
from checkers.formats.rows import HistoryColumns
from checkers.kernels.transactions import payloads
from checkers.kernels.transactions.columns import WRITE, Transactions
from checkers.kernels.transactions.payloads import Bytes
from checkers.kernels.transactions.value_numbers import are_dense, number_values
from checkers.sealing.codes import dense_processes, dictionary_codes
from checkers.transactions.read import Lazily, Model, Transcript, members, read_transactions

COLUMNS = ("process", "type", "f", "payload")
"""The columns of a history that are read."""


EVENT_SIZE_BYTES = 1_200
"""Memory of an event and its share of an operation in Python (measured, rounded up)."""


def read_columns(path: str, size_bytes_max: int) -> pa.Table:
    """Read COLUMNS of a sealed history.  Raises BeyondBudget before they take more than `size_bytes_max`."""
    pieces = []
    with pq.ParquetFile(path) as file:
        size_bytes = rows = 0
        for group in range(file.num_row_groups):
            pieces.append(file.read_row_group(group, list(COLUMNS), use_threads=False))
            size_bytes, rows = size_bytes + pieces[-1].nbytes, rows + len(pieces[-1])
            if size_bytes > size_bytes_max:
                words = f"the first {rows} of {file.metadata.num_rows} rows take {size_bytes} bytes"
                raise BeyondBudget(f"{words}, and the budget is {size_bytes_max}")
    return pa.concat_tables(pieces) if pieces else HISTORY.empty_table().select(COLUMNS)


def demand_room_for_events(rows: int, size_bytes_max: int) -> None:
    """Raise BeyondBudget if so many rows cannot be read one by one within `size_bytes_max`."""
    if rows * EVENT_SIZE_BYTES > size_bytes_max:
        words = f"{rows} rows that only the slow reader understands take {rows * EVENT_SIZE_BYTES} bytes"
        raise BeyondBudget(f"{words}, and the budget is {size_bytes_max}")


def read_file(path: str, model: Model, size_bytes_max: int = Budget().size_bytes) -> Transcript:
    """Read the transactions of a sealed history; rows of the nemesis and of set-up are skipped.

    Raises MalformedHistory if a payload is no list of micro-operations of this model, and BeyondBudget.
    """
    table = read_columns(path, size_bytes_max)
    codes, functions = dictionary_codes(table["f"])
    is_transaction = np.array([f != CREATE for f in functions] or [True])[codes]
    process, type_ = (np.asarray(table[name].combine_chunks()) for name in ("process", "type"))
    payload = [stretch(chunk) for chunk in table["payload"].chunks]
    transcript = _transcript(process, type_, is_transaction, payload, model, RowsOfFile(path).event)
    if transcript is None:
        demand_room_for_events(len(table), size_bytes_max)
        return read_transactions(_events(pq.read_table(path)), model)
    return transcript


def read_history(history: HistoryColumns, model: Model) -> Transcript:
    """Read the transactions of a history in memory.  Raises as `read_file`."""
    rows = history.rows
    transcript = _transcript(
        rows.process,
        rows.type,
        rows.f != history.code(CREATE),
        history.payloads,
        model,
        lambda row: history.events([row])[0],
    )
    return transcript or read_transactions(history.events(), model)


def stretch(chunk: pa.Array) -> tuple[Bytes, Int64]:
    """Return (bytes, where each row's text begins) of some payloads; a null has length 0."""
    _, offsets, data = chunk.buffers()
    bounds = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), bounds.astype(np.int64)


def _transcript(
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
        numbered = number_values(columns, len(names))
        base, known = numbered.base, numbered.names
        values = Lazily(len(names), lambda key: known[base[key] : base[key + 1]].tolist())
    txns = Transactions(
        pairs.process,
        pairs.status,
        pairs.invoked,
        pairs.completed,
        columns.first,
        columns.kind,
        columns.key,
        columns.value,
        columns.list_first,
        columns.lists,
    )
    return Transcript(model, txns, names, values, paired_events(pairs, event_of), len(owner))


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


class RowsOfFile:
    """The events of a sealed history, which are read again from the file when they are asked for."""

    def __init__(self, path: str) -> None:
        self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        self._first = np.cumsum([0] + [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])
        self._group = lru_cache(maxsize=2)(self._read_group)

    def event(self, row: int) -> Event:
        """Return the event of a row."""
        group = int(np.searchsorted(self._first, row, side="right")) - 1
        return _events(self._group(group).slice(row - int(self._first[group]), 1))[0]

    def _read_group(self, group: int) -> pa.Table:
        return self._file.read_row_group(group, HISTORY.names, use_threads=False)


def _events(table: pa.Table) -> list[Event]:
    return list(map(Event.of_row, table.select(HISTORY.names).to_pylist()))
