"""Reads a sealed history: single rows for a witness, all rows chunk by chunk, or SQL tables.

The number of a row is its index.  Reading a few rows of `history.parquet` costs only the row groups that contain them.

`paired_rows` pairs the invokes of a history with their completions on complete columns; `history.paired` pairs them
row by row.

*Tables* answer relational questions: which client did how much, when and how often.  DuckDB runs in this process,
reads only the columns that a query names, and writes to disk what does not fit into memory.  So a history may have any
length, and counts need not be merged from parts.

    events       what clients did: schema HISTORY, without the rows of the nemesis
    operations   one row per invoke of a client.  Its invoke: process, f, key, value, payload, "index", invoked_ns.
                 Its completion: type, ended_ns, ended_index, node, value (answered) and payload (answer); null while
                 the operation is open
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, MISMATCH_ERRORS, MalformedHistory, Type
from checkers.kernels.operations import KINDS

if TYPE_CHECKING:
    import duckdb


ROWS_PER_GROUP = 1 << 17
"""Number of rows in a row group of `history.parquet`.  Reading one group takes 10 to 20 ms."""

GROUPS_PER_CHUNK = 8
"""Number of row groups in memory at once while a function reads the history: a million rows."""

Row = dict[str, Any]

History: TypeAlias = Path | str | pa.Table
"""`history.parquet`, or the rows of a history that has no file."""


def read_rows(history: History, rows: Sequence[int], columns: Sequence[str] = HISTORY.names) -> list[Row]:
    """Read the rows with these numbers as dicts, in the given order.  `type` is a number."""
    if isinstance(history, pa.Table):
        chosen: list[Row] = history.select(list(columns)).take(pa.array(rows, pa.int64())).to_pylist()
        return chosen
    found: dict[int, Row] = {}
    with pq.ParquetFile(history) as file:
        starts = np.cumsum([0] + [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)])
        wanted = np.unique(np.asarray(rows, np.int64))
        group_of = np.searchsorted(starts, wanted, side="right") - 1
        for group in np.unique(group_of).tolist():
            mine = wanted[group_of == group]
            table = file.read_row_group(group, list(columns)).take(pa.array(mine - starts[group]))
            found.update(zip(mine.tolist(), table.to_pylist(), strict=True))
    return [found[int(row)] for row in rows]


def numpy_of(table: pa.Table, name: str) -> npt.NDArray[Any]:
    return np.asarray(table.column(name).combine_chunks())


def chunks_of_groups(history: History, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows, GROUPS_PER_CHUNK row groups at a time.  Keys are dictionary-encoded."""
    if isinstance(history, pa.Table):
        yield history.select(list(columns))
        return
    with pq.ParquetFile(history, read_dictionary=["key"]) as file:
        for group in range(0, file.num_row_groups, GROUPS_PER_CHUNK):
            groups = list(range(group, min(file.num_row_groups, group + GROUPS_PER_CHUNK)))
            rows = file.read_row_groups(groups, list(columns), use_threads=False)
            if len(rows):
                yield rows


def no_functions_of_registers(history: History) -> dict[str, list[str]]:
    """Return {key: sorted functions} of what clients invoked, without CREATE and the functions of registers.

    Takes about 0.1 s per million events.  Memory: one chunk of rows.
    """
    found: dict[str, set[str]] = {}
    for rows in chunks_of_groups(history, ("process", "type", "f", "key")):
        invokes = pc.and_(pc.equal(rows["type"], int(Type.INVOKE)), pc.greater_equal(rows["process"], 0))
        strange = pc.invert(pc.is_in(pc.cast(rows["f"], pa.string()), value_set=pa.array([*KINDS, CREATE])))
        some = rows.select(["key", "f"]).filter(pc.and_(invokes, strange))
        for key, f in set(zip(*(pc.cast(some[name], pa.string()).to_pylist() for name in ("key", "f")), strict=True)):
            found.setdefault(key, set()).add(f)
    return {key: sorted(names) for key, names in found.items()}


def refused(history: History, key: str, value: int | None, count_mismatches: bool) -> tuple[Row, Row] | None:
    """Return the invoke and the completion of the first failed write or cas that would have set `key` to `value`.

    Returns None if there is none.  count_mismatches: True if a cas that failed as a mismatch counts.
    """
    invokes: dict[int, Row] = {}
    for rows in chunks_of_groups(history, HISTORY.names):
        mine = pc.fill_null(pc.equal(pc.cast(rows["key"], pa.string()), key), False)
        mine = pc.and_(mine, pc.greater_equal(rows["process"], 0))
        would = [
            pc.fill_null(pc.equal(rows[name], pa.scalar(value, rows[name].type)), value is None)
            for name in ("value", "value2")
        ]
        tries = pc.and_(pc.equal(rows["type"], int(Type.INVOKE)), pc.or_(*would))
        mine = pc.and_(mine, pc.or_(tries, pc.equal(rows["type"], int(Type.FAIL))))
        for row in rows.filter(mine).to_pylist():
            if row["type"] == Type.INVOKE:
                invokes[row["process"]] = dict(row)
                continue
            matters = count_mismatches or row["error"] not in MISMATCH_ERRORS
            wrote = row["f"] == "write" and row["value"] == value
            swapped = row["f"] == "cas" and row["value2"] == value and matters
            if (wrote or swapped) and (invoke := invokes.get(row["process"])) is not None:
                return invoke, dict(row)
    return None


def paired_rows(index: np.ndarray, process: np.ndarray, type_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (row of each invoke, row of its completion or -1 if it is open), in order of invocation.

    This is the columnar form of `history.paired`.  A row is a position in the columns.  Cost: a sort of the rows.

    index, process, type_: columns of a history, of equal length, in any order of rows
    """
    order = np.lexsort((index, process))
    invokes = np.flatnonzero(type_[order] == Type.INVOKE)
    following = np.minimum(invokes + 1, len(order) - 1)
    ends = (following > invokes) & (process[order[following]] == process[order[invokes]])
    ends &= type_[order[following]] != Type.INVOKE
    first = order[invokes]
    by_index = np.argsort(index[first], kind="stable")
    return first[by_index], np.where(ends, order[following], -1)[by_index]


MEMORY = "2GB"
"""Memory limit of the database, which writes to disk what does not fit."""
_ENDED = "CASE WHEN lead(type) OVER later > 0 THEN lead({}) OVER later END"
_TABLES = f"""
CREATE VIEW events AS SELECT * FROM history WHERE process >= 0;
CREATE TABLE operations AS
SELECT * EXCLUDE (began) FROM (
    SELECT "index", process, f, key, time_ns AS invoked_ns, type = 0 AS began,
        {_ENDED.format("type")} AS type, {_ENDED.format("time_ns")} AS ended_ns,
        {_ENDED.format("node")} AS node, {_ENDED.format('"index"')} AS ended_index, value, payload,
        {_ENDED.format("value")} AS answered, {_ENDED.format("payload")} AS answer
    FROM events WINDOW later AS (PARTITION BY process ORDER BY "index")
) WHERE began;
"""


@contextmanager
def history_tables(history: Path | pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a history as tables.  Raises MalformedHistory if the history is not sealed.

    The tables of the last file are cached, because the checkers of one run query them one after another."""
    if isinstance(history, Path):
        try:
            state = history.stat()
        except FileNotFoundError:
            raise MalformedHistory(f"{history.parent}: the history is not sealed, there is no {history.name}") from None
        database = _tables_of_file(str(history), (state.st_ino, state.st_size, state.st_mtime_ns))
    else:
        database = new_database()
        database.register("history", history)
        database.execute(_TABLES)
    with database.cursor() as sql:
        yield sql


@lru_cache(maxsize=1)
def _tables_of_file(path: str, state: tuple[int, ...]) -> duckdb.DuckDBPyConnection:
    """Return the tables of a file.  state: part of the cache key that changes with the file."""
    database = new_database()
    give_files(database, "history", [path])
    database.execute(_TABLES)
    return database


def new_database() -> duckdb.DuckDBPyConnection:
    """Open a database in memory without any table."""
    import duckdb  # the import takes 0.25 s, and most commands need no database

    return duckdb.connect(":memory:", config={"temp_directory": tempfile.gettempdir(), "memory_limit": MEMORY})


def give_files(sql: duckdb.DuckDBPyConnection, name: str, paths: Iterable[str]) -> None:
    """Create a view of the rows of Parquet files."""
    sql.read_parquet([escape(path) for path in paths], hive_partitioning=False).create_view(name)


def dicts(sql: duckdb.DuckDBPyConnection, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
    """Return the result of a query, each row as {column: value}.  values: the parameters for its question marks."""
    answer = sql.execute(query, values)
    columns = [each[0] for each in answer.description]
    return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]


def give_spans(sql: duckdb.DuckDBPyConnection, name: str, spans: Iterable[tuple[Any, int, int]]) -> None:
    """Register a table of time spans.  spans: (name, begin_ns, end_ns)."""
    columns = list(zip(*spans, strict=True)) or [(), (), ()]
    kinds = (pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    sql.register(name, pa.table(arrays, ["name", "begin_ns", "end_ns"]))


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping spans, and return them in order."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined
