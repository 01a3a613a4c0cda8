"""Finds what clients wrote, and which entries of a log are those writes.

A workload writes every value at most once per key, so that a stale answer differs from a repeated one.  So (key, value)
names a write, in the history and in a log alike.

A search for names reads the whole history, a chunk of a million rows at a time.  Memory: about 60 bytes for each name,
one chunk, and two bits for each row of the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.history import NEMESIS, Type
from checkers.base.run_evidence import log_groups, numbers, present
from checkers.kernels.raft import OPEN, Fates, NameTable, Under, follow, look_up, number_names
from checkers.sealing.codes import Processes, Words, dictionary_codes
from checkers.sealing.history_rows import chunks_of_groups, read_rows

OFFSETS_PER_RANGE = 1 << 22
"""The size of a range of a log: judging such a range of healthy logs takes about half a gigabyte."""

SIZE_BYTES_PER_NAME = 60

WRITES = ("write", "add", "append")
"""The functions that put one value into a log: into a register, a set or a log of a client."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of one log that touch a client's object, in offset order.

    offset: int64[n].  key: int32[n], a number of `keys` that all entries share.  value: int64[n], 0 where null.
    has_value: bool[n]; an entry without one removes the object.
    """

    offset: Int64
    key: Int32
    value: Int64
    has_value: Bools

    def __len__(self) -> int:
        return len(self.offset)

    @staticmethod
    def of(rows: pa.Table, keys: Words) -> Entries:
        """Take the entries of rows of schema LOG, with the columns offset, key and value."""
        key = keys.codes(rows["key"])
        kept = np.flatnonzero(key >= 0)
        has_value = present(rows, "value")[kept]
        return Entries(numbers(rows, "offset")[kept], key[kept], numbers(rows, "value", 0)[kept], has_value)

    def taken(self, places: Int64) -> Entries:
        """Return the chosen entries."""
        return Entries(self.offset[places], self.key[places], self.value[places], self.has_value[places])

    def same_as(self, other: Entries) -> bool:
        pairs = ((getattr(self, name), getattr(other, name)) for name in ("offset", "key", "value", "has_value"))
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class WantedNames:
    """The wanted names.  keys: strings, the words of the codes.  table: the table of the names."""

    keys: pa.Array
    table: NameTable

    def __len__(self) -> int:
        return len(self.table.code)

    @staticmethod
    def of(contents: Sequence[Entries], keys: Words) -> tuple[WantedNames, list[Int32]]:
        """Return (the names of all entries, per log the name of each entry, -1 if it has no value)."""
        code = np.concatenate([np.where(e.has_value, e.key, np.int32(-1)) for e in contents] or [np.empty(0, np.int32)])
        value = np.concatenate([e.value for e in contents] or [np.empty(0, np.int64)])
        number, table = number_names(code.astype(np.int32), value)
        ends = np.cumsum([len(e) for e in contents])
        return WantedNames(pa.array(keys.words, pa.string()), table), np.split(number, ends)[: len(contents)]

    def number(self, rows: pa.Table, wanted: Bools) -> Int32:
        """Return the name of each wanted row of a history, -1 for other rows and for unknown names."""
        name = np.full(len(rows), -1, np.int32)
        at = np.flatnonzero(wanted & present(rows, "value"))
        local, words = dictionary_codes(rows["key"])
        known = pc.index_in(pa.array(words, pa.string()), value_set=self.keys)
        code_of = np.array([*pc.fill_null(known, -1).to_pylist(), -1], np.int32)
        name[at] = look_up(self.table, code_of[local[at]], numbers(rows, "value", 0)[at])
        return name


@dataclass(frozen=True, slots=True)
class WritesInHistory:
    """Record of what a history shows of some names.  fates: by name, and bits by row.  rows: the number of rows of the
    history.
    acknowledged: writes, those of other names too."""

    fates: Fates
    rows: int
    acknowledged: int


def read_writes(history: str, names: WantedNames) -> WritesInHistory:
    """Look for the writes (f of WRITES) of some names in a sealed history.  Linear in its rows."""
    total = pq.read_metadata(history).num_rows
    count, bits = len(names), -(-total // 8)
    fates = Fates(
        row=np.full(count, -1, np.int64),
        completed=np.full(count, OPEN, np.int64),
        outcome=np.full(count, int(Type.INFO), np.int8),
        times=np.zeros(count, np.int32),
        acknowledged=np.zeros(bits, np.uint8),
        shared=np.zeros(bits, np.uint8),
    )
    under, processes = _idle(64), Processes()
    first_row = acknowledged = 0
    for rows in chunks_of_groups(history, ("process", "type", "f", "key", "value")):
        process = np.asarray(rows["process"].combine_chunks())
        dense = processes.dense(process)
        if processes.count > len(under.row):
            under = _idle(max(processes.count, 2 * len(under.row)), under)
        type_ = np.asarray(rows["type"].combine_chunks())
        is_write = function_is(rows, *WRITES) & present(rows, "key") & present(rows, "value")
        name = names.number(rows, is_write)
        acknowledged += follow(first_row, dense, type_, is_write, name, process != NEMESIS, under, fates)
        first_row += len(rows)
    return WritesInHistory(fates, total, acknowledged)


def _idle(count: int, known: Under | None = None) -> Under:
    """Make the state of `count` processes without open operations, except for the known ones."""
    under = Under(np.full(count, -1, np.int64), np.full(count, -2, np.int32))
    if known is not None:
        under.row[: len(known.row)], under.name[: len(known.row)] = known
    return under


def _group_of(metadata: pq.FileMetaData, row: int) -> tuple[int, int]:
    """Return the row group of a row, and the number of that group's first row."""
    first = 0
    for group in range(metadata.num_row_groups):
        if row < first + metadata.row_group(group).num_rows:
            return group, first
        first += metadata.row_group(group).num_rows
    return metadata.num_row_groups, first


def function_is(rows: pa.Table, *names: str) -> Bools:
    """Return which rows have one of these functions."""
    codes, words = dictionary_codes(rows["f"])
    return np.array([*(word in names for word in words), False], np.bool_)[codes]


def offset_ranges(logs: Iterable[str]) -> list[tuple[int, int]]:
    """Return ranges of OFFSETS_PER_RANGE offsets (first, end) that cover all of these logs; at least one."""
    groups = [group for path in logs for group in log_groups(pq.read_metadata(path))]
    first, end = min((g.first for g in groups), default=0), max((g.last for g in groups), default=0) + 1
    return [(at, at + OFFSETS_PER_RANGE) for at in range(first, end, OFFSETS_PER_RANGE)]


def invoke_of(history: str, key: str, value: int) -> int | None:
    """Return the row of the invoke of a write; None if no client wrote it."""
    first_row = 0
    for rows in chunks_of_groups(history, ("type", "f", "key", "value")):
        wanted = pc.and_(pc.equal(pc.cast(rows["key"], pa.string()), key), pc.equal(rows["value"], value))
        wanted = pc.and_(pc.fill_null(wanted, False), pc.equal(rows["type"], int(Type.INVOKE)))
        found = np.flatnonzero(np.asarray(wanted.to_numpy(), np.bool_) & function_is(rows, *WRITES))
        if len(found):
            return first_row + int(found[0])
        first_row += len(rows)
    return None


def operations(history: str, invoked: Sequence[int]) -> list[dict[str, Any]]:
    """Return the invoke and completion of some operations, in index order, in the form of a witness.

    invoked: rows of invokes.  The search for a completion reads from there up to the next row of the process.
    """
    rows = set(invoked)
    for row, event in zip(invoked, read_rows(Path(history), invoked, ["process"]), strict=True):
        answer = _next_of(history, event["process"], row)
        rows |= set() if answer is None else {answer}
    return read_rows(Path(history), sorted(rows))


def _next_of(history: str, process: int, row: int) -> int | None:
    """Return the row in which a process completes the operation that it invoked in `row`."""
    group, first_row = _group_of(pq.read_metadata(history), row)
    for rows in chunks_of_groups(history, ("process", "type"), group):
        mine = np.flatnonzero(numbers(rows, "process") == process)
        mine = mine[first_row + mine > row]
        if len(mine):
            completes = rows["type"][int(mine[0])].as_py() != Type.INVOKE
            return first_row + int(mine[0]) if completes else None
        first_row += len(rows)
    return None
