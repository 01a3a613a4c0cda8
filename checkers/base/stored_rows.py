"""Reads rows of a run's logs and traces from Parquet files, and converts columns to NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Bools, Int64
from checkers.base.checker import Budget, Part

_NAMES_IN_TRACES = ["node", "event", "peer", "role"]
"""Columns with few distinct strings.  They are read as dictionaries."""


def over_budget(part: Part, budget: Budget, columns: Sequence[str] | None = None) -> str | None:
    """Return the reason why a part's files exceed the budget; None if they fit.  Reads only Parquet footers.

    columns: the columns that will be read; None for all
    """
    size_bytes = 0
    for path in part.paths:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                if columns is None or chunk.path_in_schema in columns:
                    size_bytes += chunk.total_uncompressed_size
    if size_bytes > budget.size_bytes:
        return f"{len(part.paths)} files of {size_bytes} bytes exceed the budget of {budget.size_bytes} bytes"
    return None


def read_table(path: str, columns: Sequence[str] | None = None, copy: int | None = None) -> pa.Table:
    """Return the rows of a Parquet file.

    copy: number of the copy of a log whose rows are returned; None for all rows
    Reads in one thread, because parts are already judged in parallel.
    """
    file = pq.ParquetFile(path)
    if copy is None:
        return file.read(columns, use_threads=False)
    groups = [group.number for group in log_groups(file.metadata, copy)]
    read = None if columns is None else list(dict.fromkeys(["copy", *columns]))
    table = file.read_row_groups(groups, read, use_threads=False)
    return table.filter(pc.equal(table["copy"], copy))


class LogGroup(NamedTuple):
    """A row group of a log.

    number: its number in the file
    first, last: its lowest and highest offset
    copy: number of the copy whose rows it contains; -1 for several copies
    """

    number: int
    first: int
    last: int
    copy: int


def log_groups(metadata: pq.FileMetaData, copy: int | None = None) -> list[LogGroup]:
    """Return the row groups of a log's file that are not empty.

    copy: return only the row groups that may contain rows of this copy
    Raises ValueError if the file has no statistics of the offsets.
    """
    at = [metadata.schema.names.index(name) for name in ("offset", "copy")]
    groups = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows == 0:
            continue
        offsets, copies_there = (group.column(column).statistics for column in at)
        if offsets is None or not offsets.has_min_max:
            raise ValueError(f"row group {number} has no statistics of its offsets; write the log with statistics")
        bounded = copies_there is not None and copies_there.has_min_max
        if copy is not None and bounded and not copies_there.min <= copy <= copies_there.max:
            continue
        alone = bounded and copies_there.min == copies_there.max
        groups.append(LogGroup(number, offsets.min, offsets.max, copies_there.min if alone else -1))
    return groups


def log_start(path: str, copy: int) -> int:
    """Return the first offset of a copy of a log; 0 if the copy is empty.  A log after a snapshot begins above 0."""
    groups = log_groups(pq.read_metadata(path), copy)
    if all(group.copy == copy for group in groups):
        return min((group.first for group in groups), default=0)
    return pc.min(read_table(path, ("offset",), copy)["offset"]).as_py() or 0


def read_trace(
    path: str, events: Iterable[str], columns: Sequence[str] | None = None, offsets: range | None = None
) -> pa.Table:
    """Return the rows of some events in a trace, in seq order.

    columns: columns to read besides seq and event; None for all.  Name the columns if there may be millions of rows,
    and read the rows of witnesses with `trace_row`.
    offsets: skip row groups that certainly contain no offset in this range
    Reads one row group after another and keeps only the rows of these events.
    """
    file = pq.ParquetFile(path, read_dictionary=_NAMES_IN_TRACES)
    wanted = dict.fromkeys(events, 1)
    read = None if columns is None else list(dict.fromkeys([*columns, "seq", "event"]))
    pieces = []
    at = file.schema_arrow.names.index("offset")
    for group in range(file.num_row_groups):
        known = file.metadata.row_group(group).column(at).statistics
        if offsets and known and known.has_min_max and (known.max < offsets.start or known.min >= offsets.stop):
            continue
        chosen = np.flatnonzero(coded(file.read_row_group(group, ["event"], use_threads=False), "event", wanted) == 1)
        if len(chosen) == 0:
            continue
        rows = file.read_row_group(group, read, use_threads=False)
        pieces.append(rows if len(chosen) == len(rows) else rows.take(pa.array(chosen)))
    schema = file.schema_arrow
    empty = schema if read is None else pa.schema([schema.field(name) for name in read])
    table = pa.concat_tables(pieces).unify_dictionaries() if pieces else empty.empty_table()
    seqs = numbers(table, "seq")
    return table if np.all(seqs[1:] >= seqs[:-1]) else table.sort_by("seq")


def trace_row(path: str, seq: int) -> dict[str, Any]:
    """Return the trace row of this seq with all its columns, as a witness contains it.

    Reads only row groups that may contain the row.  Raises LookupError if there is no such row.
    """
    file = pq.ParquetFile(path)
    at = file.schema_arrow.names.index("seq")
    for group in range(file.num_row_groups):
        statistics = file.metadata.row_group(group).column(at).statistics
        if statistics is None or not statistics.has_min_max or statistics.min <= seq <= statistics.max:
            table = file.read_row_group(group, use_threads=False)
            found = table.filter(pc.equal(table["seq"], seq))
            if len(found):
                return row(found, 0, "trace")
    raise LookupError(f"{path}: there is no row of seq {seq}")


def coded(table: pa.Table, column: str, numbers_of: Mapping[str, int], other: int = -1) -> Int64:
    """Return a column of strings as numbers.

    numbers_of: string -> number
    other: number for all other strings and for null
    """
    pieces = []
    for chunk in table[column].chunks:
        words_there = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        code = np.array([*(numbers_of.get(w, other) for w in words_there.dictionary.to_pylist()), other], np.int64)
        pieces.append(code[np.asarray(pc.fill_null(words_there.indices, len(code) - 1).to_numpy(False), np.int64)])
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def of_events(table: pa.Table, events: Iterable[str]) -> pa.Table:
    """Return the rows of some events in seq order.

    table: the trace of one node
    """
    wanted = pa.array(list(events), pa.string())
    table = table.filter(pc.is_in(pc.cast(table["event"], pa.string()), value_set=wanted))
    return table.sort_by("seq")


def numbers(table: pa.Table, column: str, null: int = -1) -> Int64:
    """Return an integer column as int64.

    null: number that replaces null
    """
    return np.asarray(pc.fill_null(pc.cast(table[column], pa.int64()), null).to_numpy(), np.int64)


def present(table: pa.Table, column: str) -> Bools:
    """Return, for each row, True if the column is not null."""
    return np.asarray(pc.is_valid(table[column]).to_numpy(), np.bool_)


def words(table: pa.Table, column: str) -> list[str | None]:
    """Return a string column, dictionary-encoded or not, as Python strings."""
    values: list[str | None] = pc.cast(table[column], pa.string()).to_pylist()
    return values


def row(table: pa.Table, position: int, name: str) -> dict[str, Any]:
    """Return one row as a witness contains it: its columns, and "table" with the name of the table."""
    return {"table": name, **table.slice(position, 1).to_pylist()[0]}


def log_rows(path: str, copy: int, offsets: Sequence[int]) -> list[dict[str, Any]]:
    """Return the rows of one copy at some offsets, as a witness contains them, in order of offset.

    Offsets that the copy lacks are left out.
    """
    file = pq.ParquetFile(path)
    groups = [g.number for g in log_groups(file.metadata, copy) if any(g.first <= o <= g.last for o in offsets)]
    table = file.read_row_groups(groups, use_threads=False)
    there = pc.is_in(table["offset"], value_set=pa.array(offsets, pa.int64()))
    table = table.filter(pc.and_(there, pc.equal(table["copy"], copy))).sort_by("offset")
    return [row(table, i, "log") for i in range(len(table))]
