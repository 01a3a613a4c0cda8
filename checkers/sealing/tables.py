"""The history as tables of SQL, for questions that are relational: who did how much, when and how often.

DuckDB answers in this process, reads only the columns that a question names, and writes to disk what does not fit into
memory.  So the length of a history does not matter, and counting needs no parts that must be joined again.

    events       what clients did: schema HISTORY, without the rows of the nemesis
    operations   each invoke of a client: process, f, key, value, payload, "index", invoked_ns; how (type) and when
                 (ended_ns, ended_index) it ended, which node answered, and with which value (answered) and payload
                 (answer); null while it is open
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkers.base.history import MalformedHistory

if TYPE_CHECKING:
    import duckdb

MEMORY = "2GB"
"""What does not fit is written to disk meanwhile."""
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
    """Open a history as tables.  Raises MalformedHistory if it is not sealed.

    Checkers of one run ask one after another, so the tables of the last file are kept."""
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
    """state: what changes with the file."""
    database = new_database()
    give_files(database, "history", [path])
    database.execute(_TABLES)
    return database


def new_database() -> duckdb.DuckDBPyConnection:
    """Open a database in memory without any table."""
    import duckdb  # the import takes 0.25 s, and most commands judge nothing

    return duckdb.connect(":memory:", config={"temp_directory": tempfile.gettempdir(), "memory_limit": MEMORY})


def give_files(sql: duckdb.DuckDBPyConnection, name: str, paths: Iterable[str]) -> None:
    """Make a table of the rows of Parquet files."""
    sql.read_parquet([escape(path) for path in paths], hive_partitioning=False).create_view(name)


def dicts(sql: duckdb.DuckDBPyConnection, query: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
    """Return the answer to a query, each row as {column: value}.  values: of its question marks."""
    answer = sql.execute(query, values)
    columns = [each[0] for each in answer.description]
    return [dict(zip(columns, row, strict=True)) for row in answer.fetchall()]


def give_spans(sql: duckdb.DuckDBPyConnection, name: str, spans: Iterable[tuple[Any, int, int]]) -> None:
    """Make a table of spans of time.  spans: (a name, begin_ns, end_ns)."""
    columns = list(zip(*spans, strict=True)) or [(), (), ()]
    kinds = (pa.string(), pa.int64(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    sql.register(name, pa.table(arrays, ["name", "begin_ns", "end_ns"]))


def merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans without overlaps, in order."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined
