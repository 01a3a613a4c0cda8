"""Reads Krucible's own histories: Parquet files, and the Arrow stream that is written while a test runs.

Both are read into memory completely and checked before use, because a footer, a page or a single row may be corrupt.
Every error names the first unreadable row (from 0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import HISTORY
from checkers.base.history import NEMESIS, Event, MalformedHistory, Type
from checkers.base.values import parse
from checkers.formats.rows import Line

_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError)
"""Errors that pyarrow raises for corrupt bytes.  UnicodeDecodeError is a ValueError."""


def read_parquet(content: bytes) -> Iterator[Line]:
    """Read the rows of a Parquet file.  Raises MalformedHistory ("row N: ...")."""
    try:
        table = pq.read_table(pa.BufferReader(content), use_threads=False)
        table = table.select(HISTORY.names).cast(HISTORY)
        table.validate(full=True)
    except _DAMAGE as problem:
        raise MalformedHistory(f"row 0: not a history of Krucible ({_first_line(problem)})") from problem
    yield from _lines(table, 0)


def read_stream(content: bytes) -> Iterator[Line]:
    """Read the rows of an Arrow stream.  Raises MalformedHistory ("row N: ...").

    The stream may lack its end mark if its writer was killed.  An incomplete batch is an error.
    """
    return _rows_of(content, lambda source: iter(pa.ipc.open_stream(source)))


def read_file(content: bytes) -> Iterator[Line]:
    """Read the rows of an Arrow file.  Raises MalformedHistory ("row N: ...")."""
    return _rows_of(content, lambda source: iter(pa.ipc.open_file(source).read_all().to_batches()))


def _rows_of(content: bytes, batches_of: Callable[[pa.BufferReader], Iterator[pa.RecordBatch]]) -> Iterator[Line]:
    try:
        batches = batches_of(pa.BufferReader(content))
    except _DAMAGE as problem:
        raise MalformedHistory(f"row 0: not a history of Krucible ({_first_line(problem)})") from problem
    row = 0
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            table = pa.Table.from_batches([batch]).select(HISTORY.names).cast(HISTORY)
            table.validate(full=True)
        except _DAMAGE as problem:
            words = f"from here on the stream is damaged or cut off ({_first_line(problem)})"
            raise MalformedHistory(f"row {row}: {words}") from problem
        yield from _lines(table, row)
        row += len(table)


def _lines(table: pa.Table, first: int) -> Iterator[Line]:
    try:
        rows = table.to_pylist()
    except _DAMAGE as problem:
        raise MalformedHistory(f"row {first}: not a history of Krucible ({_first_line(problem)})") from problem
    before = -1
    for number, row in enumerate(rows, first):
        event = _event(row, number)
        if event.index <= before:
            raise MalformedHistory(f"row {number}: index {event.index} does not come after {before}")
        before = event.index
        yield Line(number, event)


def _event(row: dict[str, Any], number: int) -> Event:
    for name in ("index", "time_ns", "process", "type", "f", "node"):
        if row[name] is None:
            raise MalformedHistory(f"row {number}: it has no {name}")
    if row["type"] not in list(Type):
        raise MalformedHistory(f"row {number}: type {row['type']} is none of {', '.join(t.name.lower() for t in Type)}")
    if row["process"] < NEMESIS:
        words = f"process {row['process']} is neither a client (0 or more) nor the nemesis ({NEMESIS})"
        raise MalformedHistory(f"row {number}: {words}")
    if row["payload"] is not None and row["value"] is not None and row["process"] != NEMESIS:
        raise MalformedHistory(f"row {number}: it has both a value and a payload, but an operation has only one value")
    if row["payload"] is not None and row["process"] != NEMESIS:  # rows of the nemesis contain text
        try:
            parse(row["payload"])
        except (ValueError, RecursionError) as problem:
            raise MalformedHistory(f"row {number}: its payload is not JSON ({problem})") from problem
    return Event.of_row(row)


def _first_line(problem: Exception) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0][:160]
