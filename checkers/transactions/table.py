"""Transactions out of `history.parquet`, at the speed of kernels (`kernels/transactions/payloads.py`).

A history that holds what those do not read is read event by event instead (`read.py`): slower, and with a sentence
about what is wrong where a payload is no transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Int8, Int32, Int64
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, Event, Type
from checkers.kernels.transactions import payloads
from checkers.kernels.transactions.columns import WRITE, Transactions
from checkers.kernels.transactions.payloads import Bytes
from checkers.kernels.transactions.value_numbers import Numbered, are_dense, number_values
from checkers.sealing.codes import dense_processes, dictionary_codes
from checkers.transactions.read import Model, Transcript, read_transactions

COLUMNS = ("process", "type", "f", "payload")
"""What is read of a history."""


def read_file(path: str, model: Model) -> Transcript:
    """The transactions of a sealed history, those of the nemesis and of set-up passed over.

    Raises MalformedHistory where a payload is no list of micro-operations of this model.
    """
    table = pq.ParquetFile(path).read(list(COLUMNS), use_threads=False)
    process = np.asarray(table["process"].combine_chunks())
    dense, process_count = dense_processes(process)
    codes, functions = dictionary_codes(table["f"])
    asked = np.array([f != CREATE for f in functions] or [True])
    pairs = payloads.pair(
        process, dense, process_count, np.asarray(table["type"].combine_chunks()), (process >= 0) & asked[codes]
    )
    owner = np.full(len(table), -1, np.int32)
    owner[pairs.told] = np.arange(len(pairs.told), dtype=np.int32)
    transcript = _transcript(path, model, pairs, owner, [stretch(chunk) for chunk in table["payload"].chunks])
    return transcript or read_transactions(_events(pq.read_table(path)), model)


def stretch(chunk: pa.Array) -> tuple[Bytes, Int64]:
    """(bytes, where each row's text begins) of some payloads; those of null have no length."""
    _, offsets, data = chunk.buffers()
    bounds = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), bounds.astype(np.int64)


def _transcript(
    path: str, model: Model, pairs: payloads.Pairs, owner: Int32, stretches: Sequence[tuple[Bytes, Int64]]
) -> Transcript | None:
    """None where some payload has to be read by the slower reader, or an answer is not one to what was invoked."""
    keys, lists = payloads.new_texts(), model == "list-append"
    read = _columns_of(stretches, owner, pairs.status, keys, lists)
    if read is None or not _agree(pairs, read, len(owner), stretches, lists):
        return None
    columns, keys = read
    names = _key_names(keys)
    values = () if are_dense(columns, len(names)) else _Values(number_values(columns, len(names)))
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
    return Transcript(model, txns, names, values, EventsOfFile(path, pairs), len(owner))


def _columns_of(
    stretches: Sequence[tuple[Bytes, Int64]], owner: Int32, status: Int8, keys: payloads.Texts, lists: bool
) -> tuple[payloads.Columns, payloads.Texts] | None:
    """The micro-operations of the rows that have an owner, and all keys known then.  None if one is strange."""
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
    """Whether every answer holds the micro-operations that were invoked; one whose invoke has no payload may hold any.

    What reads saw is for the answer alone.  False too where an invoke cannot be read here.
    """
    columns, keys = read
    asked = np.where(pairs.told != pairs.invoked, pairs.invoked, -1)
    size_bytes = np.concatenate([np.diff(bounds) for _, bounds in stretches] or [np.empty(0, np.int64)])
    chosen = np.flatnonzero((asked >= 0) & (size_bytes[asked] > 0))
    owner = np.full(row_count, -1, np.int32)
    owner[asked[chosen]] = np.arange(len(chosen), dtype=np.int32)
    not_answered = np.full(len(chosen), int(Type.INFO), np.int8)
    invoked = _columns_of(stretches, owner, not_answered, keys, lists)
    if invoked is None:
        return False
    before = invoked[0]
    sizes, answered = np.diff(before.first), np.diff(columns.first)[chosen]
    if not np.array_equal(sizes, answered):
        return False
    rows = np.repeat(columns.first[:-1][chosen] - before.first[:-1], sizes) + np.arange(int(before.first[-1]))
    writes = before.kind == WRITE
    return (
        np.array_equal(before.kind, columns.kind[rows])
        and np.array_equal(before.key, columns.key[rows])
        and np.array_equal(before.value[writes], columns.value[rows][writes])
    )


def _key_names(keys: payloads.Texts) -> list[Any]:
    text, first = keys.text.tobytes(), keys.first.tolist()
    return [json.loads(text[first[n] : first[n + 1]]) for n in range(int(keys.counts[0]))]


class _Values(Sequence[list[int]]):
    """Per key, what each value number stands for."""

    def __init__(self, numbered: Numbered) -> None:
        self._numbered = numbered

    def __len__(self) -> int:
        return len(self._numbered.base) - 1

    @overload
    def __getitem__(self, key: int) -> list[int]: ...
    @overload
    def __getitem__(self, key: slice) -> list[list[int]]: ...
    def __getitem__(self, key: int | slice) -> list[int] | list[list[int]]:
        if isinstance(key, slice):
            return [self[k] for k in range(*key.indices(len(self)))]
        base = self._numbered.base
        of_key: list[int] = self._numbered.names[base[key] : base[key + 1]].tolist()
        return of_key


class EventsOfFile(Sequence[tuple[Event, ...]]):
    """Per transaction its events, read again from the file when a witness shows them: few are."""

    def __init__(self, path: str, pairs: payloads.Pairs) -> None:
        self._pairs = pairs
        self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        self._first = np.cumsum([0] + [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)])
        self._group = lru_cache(maxsize=2)(self._read_group)

    def __len__(self) -> int:
        return len(self._pairs.told)

    @overload
    def __getitem__(self, t: int) -> tuple[Event, ...]: ...
    @overload
    def __getitem__(self, t: slice) -> list[tuple[Event, ...]]: ...
    def __getitem__(self, t: int | slice) -> tuple[Event, ...] | list[tuple[Event, ...]]:
        if isinstance(t, slice):
            return [self[i] for i in range(*t.indices(len(self)))]
        rows = [int(self._pairs.invoked[t]), int(self._pairs.ended[t])]
        return tuple(self._event(row) for row in rows if row >= 0)

    def _event(self, row: int) -> Event:
        group = int(np.searchsorted(self._first, row, side="right")) - 1
        return _events(self._group(group).slice(row - int(self._first[group]), 1))[0]

    def _read_group(self, group: int) -> pa.Table:
        return self._file.read_row_group(group, HISTORY.names, use_threads=False)


def _events(table: pa.Table) -> list[Event]:
    rows = table.select(HISTORY.names).to_pylist()
    return [Event(**{**row, "type": Type(row["type"])}) for row in rows]
