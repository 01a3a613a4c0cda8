"""The lake: a folder of Parquet tables with the facts of every run.  A run adds its facts when it ends.

    lake/<table>/date=<UTC date>/system=<name>/<run>.parquet      rows of one run
    lake/<table>/date=<UTC date>/system=<name>/merged.parquet     rows of many runs

Theory.  A run that ends writes one small file for each table.  When a partition contains LOOSE_MAX small files, they
are merged, because opening ten thousand files takes seconds.  When a run is judged again, its new rows replace the old
rows, so no run is in the lake twice.

Writers hold an exclusive lock, readers a shared lock.  A merge first moves the small files to `_merging`, which readers
ignore; then it replaces `merged.parquet`; then it removes the small files.  If a merge is killed, the next writer
finishes it.  So a kill may hide rows until the next write, but never duplicates rows.

The lake is no evidence.  A lost lake is rebuilt from the run folders (`krucible runs --rebuild`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.lake.tables import DATE, OLD_NAMES, PARTITIONS, RUNS, SYSTEM, TABLES

if TYPE_CHECKING:
    from harness.lake.facts import RunFacts

_P = TypeVar("_P", bound=PurePath)

NAME = "lake"
VARIABLE = "KRUCIBLE_LAKE"
LOOSE_MAX = 32
_MERGED, _MERGING, _LOCK, _INDEX = "merged.parquet", "_merging", "_lock", "_index.parquet"
_FILE, _MARK = "file", "mark"
_INDEX_SCHEMA = pa.schema([*TABLES[RUNS], *PARTITIONS, pa.field(_FILE, pa.string()), pa.field(_MARK, pa.int64())])
_NOT_RUNS = frozenset({NAME, "nodes", "buckets", "tables", "plots", "trace", "mutants"})


def lake_of(results: Path) -> Path:
    """Return the folder of the lake for runs below `results`: the value of KRUCIBLE_LAKE, else the nearest lake in
    `results` or a folder above it, else `results/lake`, which may not exist yet.
    """
    return existing_lake(results) or results.resolve() / NAME


def existing_lake(folder: Path) -> Path | None:
    """Return the value of KRUCIBLE_LAKE, else the nearest lake in this folder or a folder above it, else None."""
    if named := os.environ.get(VARIABLE):
        return Path(named).resolve()
    folder = folder.resolve()
    return next((at / NAME for at in (folder, *folder.parents) if (at / NAME / _LOCK).exists()), None)


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake.

    folder: folder of the lake.  If it does not exist, the lake is empty, and the first run creates the folder."""

    folder: Path

    def add(self, root: Path) -> RunFacts:
        """Add the run in `root`, or replace its rows.  Raises BrokenFile, and OSError if the lake cannot be written.

        If the run is below the lake's parent folder, its relative path is stored, because both may be moved together.
        """
        from harness.lake.facts import facts_of  # imported here, because a list of runs needs no NumPy

        base = self.folder.parent
        facts = facts_of(root, str(root.relative_to(base)) if root.is_relative_to(base) else str(root))
        self.append(facts)
        return facts

    def append(self, facts: RunFacts) -> None:
        """Write the facts of one run, and remove its earlier rows."""
        with self._locked(fcntl.LOCK_EX):
            for name, rows in facts.rows.items():
                partition = partition_of(self.folder / name, facts.date, facts.system)
                partition.mkdir(parents=True, exist_ok=True)
                _finish_merge(partition, TABLES[name])
                _leave_out(partition / _MERGED, facts.run)
                _write(rows, partition / f"{facts.run}.parquet")
                if len(_loose(partition)) >= LOOSE_MAX:
                    _merge(partition, TABLES[name])

    def make(self) -> None:
        """Create an empty lake unless it exists.  From then on, `lake_of` finds it for runs below its parent folder."""
        with self._locked(fcntl.LOCK_SH):
            pass

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which no file is merged, so that a reader sees every run exactly once."""
        return self._locked(fcntl.LOCK_SH) if self.folder.exists() else contextlib.nullcontext()

    def read(self, name: str, columns: Sequence[str] | None = None, run: str | None = None) -> pa.Table:
        """Return a table with the columns `date` and `system`, in no order.  Only pyarrow is used, and no JVM.

        columns: columns to return; None for all
        run: run whose rows to return; None for all runs
        """
        schema = TABLES[name]
        wanted = [*schema.names, DATE, SYSTEM] if columns is None else list(columns)
        with self.reading():
            if name == RUNS:
                rows = self._indexed(list(dict.fromkeys([*wanted, "run"])))
                rows = rows if run is None else rows.filter(pc.equal(rows["run"], run))
                return rows.select(wanted)
            paths = self.files(name) if run is None else self._files_of(name, run)
            own = list(dict.fromkeys([*(column for column in wanted if column in schema.names), "run"]))
            found = [_with_partition(_read(path, schema, own), path) for path in paths]
        whole = pa.concat_tables(found) if found else pa.schema([*schema, *PARTITIONS]).empty_table()
        return (whole if run is None else whole.filter(pc.equal(whole["run"], run))).select(wanted)

    def _files_of(self, name: str, run: str) -> list[Path]:
        """Return the files of a table that may contain rows of this run, which are those of the run's partition."""
        index = self._indexed(["run", DATE, SYSTEM])
        rows = index.filter(pc.equal(index["run"], run)).select([DATE, SYSTEM]).to_pylist()
        return [path for row in rows for path in sorted(partition_of(self.folder / name, **row).glob("*.parquet"))]

    def _indexed(self, columns: Sequence[str]) -> pa.Table:
        """Return these columns, which may include `date` and `system`, of all rows of the table of runs.

        Opening a file per day and system would take too long for a list.  So `_index.parquet` contains a copy of all
        rows, each with the name of its file and the time of the file's last change.  Changed files are read again.
        """
        marks = {str(path.relative_to(self.folder)): path.stat().st_mtime_ns for path in self.files(RUNS)}
        path = self.folder / _INDEX
        if path.exists():
            with pq.ParquetFile(path) as file:
                if file.schema_arrow == _INDEX_SCHEMA:  # otherwise another version wrote it
                    index = file.read([*dict.fromkeys([*columns, _FILE, _MARK])], use_threads=False)
                    if set(zip(index[_FILE].to_pylist(), index[_MARK].to_pylist(), strict=True)) == marks.items():
                        return index.select(list(columns))
        return self._index_anew(marks).select(list(columns))

    def _index_anew(self, marks: Mapping[str, int]) -> pa.Table:
        """Rewrite the index, and return it.  Rows of unchanged files are kept.

        marks: file of the table of runs -> time of its last change"""
        path = self.folder / _INDEX
        index = _whole(path) if path.exists() else _INDEX_SCHEMA.empty_table()
        if index.schema != _INDEX_SCHEMA:
            index = _INDEX_SCHEMA.empty_table()
        pairs = set(zip(index[_FILE].to_pylist(), index[_MARK].to_pylist(), strict=True))
        held = {name for name, mark in pairs if marks.get(name) == mark}
        parts = [index.filter(pc.is_in(index[_FILE], pa.array(sorted(held), pa.string())))]
        for name in sorted(marks.keys() - held):
            rows = _with_partition(_read(self.folder / name, TABLES[RUNS], TABLES[RUNS].names), self.folder / name)
            rows = rows.append_column(_FILE, pa.repeat(pa.scalar(name), len(rows)))
            parts.append(rows.append_column(_MARK, pa.repeat(pa.scalar(marks[name]), len(rows))).cast(_INDEX_SCHEMA))
        index = pa.concat_tables(parts)
        with contextlib.suppress(OSError):  # the folder may be read-only; then every listing reads all files
            _write(index, path)
        return index

    def files(self, name: str) -> list[Path]:
        """Return the files of a table.  Use them only inside the context `reading`."""
        return sorted((self.folder / name).glob(f"{DATE}=*/{SYSTEM}=*/*.parquet"))

    def rebuild(self, results: Path, say: Callable[[str], None]) -> int:
        """Rebuild the lake from the run folders below `results`, and return its number of runs.

        say: called with a sentence about each unusable run
        """
        with self._locked(fcntl.LOCK_EX):
            for name in TABLES:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / _INDEX).unlink(missing_ok=True)
        from checkers.record.files import BrokenFile  # imported here, because a list of runs needs no records

        added = 0
        for root in run_folders(results):
            try:
                self.add(root)
                added += 1
            except BrokenFile as problem:
                say(f"{root} is omitted: {problem}")
        return added

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, how)
            yield


def run_folders(results: Path) -> Iterator[Path]:
    """Yield all run folders below `results`, in order of names, including replays in run folders.  Links are not
    followed.
    """
    from checkers.record.run_record import TEST  # imported here, because a list of runs needs no records

    for folder, names, files in os.walk(results):
        if TEST in files:
            yield Path(folder)
        names[:] = sorted(name for name in names if name not in _NOT_RUNS)


def _loose(partition: Path) -> list[Path]:
    return sorted(path for path in partition.glob("*.parquet") if path.name != _MERGED)


def partition_of(table: _P, date: str, system: str) -> _P:
    """Return the folder of a partition.

    table: folder of the table, on this machine or in a store"""
    return table / f"{DATE}={date}" / f"{SYSTEM}={quote(system)}"


def _with_partition(rows: pa.Table, path: Path) -> pa.Table:
    """Return the rows of a file, with the columns that are encoded in the names of its folders."""
    for part in path.parent.parts[-2:]:
        name, _, value = part.partition("=")
        rows = rows.append_column(name, pa.repeat(pa.scalar(unquote(value)), len(rows)))
    return rows


def _read(path: Path, schema: pa.Schema, columns: list[str]) -> pa.Table:
    """Return the rows of a file in the current schema.  Columns that an older version did not write are null."""
    with pq.ParquetFile(path) as file:
        names = {column: _name_in(file.schema_arrow.names, column) for column in columns}
        there = [name for name in names.values() if name is not None]
        rows = file.read(there, use_threads=False)
    arrays = [
        rows[name].cast(schema.field(column).type)
        if (name := names[column]) is not None
        else pa.nulls(len(rows), schema.field(column).type)
        for column in columns
    ]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _whole(path: Path) -> pa.Table:
    """Return all rows of a file.  Unlike `pq.read_table`, this does not load two further libraries of Arrow."""
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False)


def _name_in(names: Collection[str], column: str) -> str | None:
    """Return the name of a column in a file, which may be an old name; None if the file does not have the column."""
    return next((name for name in (column, OLD_NAMES.get(column)) if name in names), None)


def _write(rows: pa.Table, path: Path) -> None:
    """Write a Parquet file atomically."""
    part = path.with_name(f"_{path.name}.part")
    pq.write_table(rows, part, compression="zstd")
    part.replace(path)


def _leave_out(merged: Path, run: str) -> None:
    """Remove the rows of a run from a merged file, if there are any."""
    if not merged.exists():
        return
    held = pq.read_table(merged, columns=["run"], partitioning=None)["run"]
    if run not in pc.unique(held).to_pylist():
        return
    rows = _whole(merged)
    _write(rows.filter(pc.not_equal(rows["run"], run)), merged)


def _merge(partition: Path, schema: pa.Schema) -> None:
    aside = partition / _MERGING
    aside.mkdir()
    for path in _loose(partition):
        path.replace(aside / path.name)
    _finish_merge(partition, schema)


def _finish_merge(partition: Path, schema: pa.Schema) -> None:
    """Merge the files in `_merging` into `merged.parquet`.  Rows of the same runs that are already there are
    replaced."""
    aside, merged = partition / _MERGING, partition / _MERGED
    if not aside.exists():
        return
    fresh = [_read(path, schema, schema.names) for path in sorted(aside.glob("*.parquet"))]
    names = pa.array([path.stem for path in sorted(aside.glob("*.parquet"))], pa.string())
    if merged.exists():
        before = _read(merged, schema, schema.names)
        fresh.insert(0, before.filter(pc.invert(pc.is_in(before["run"], names))))
    if fresh:
        _write(pa.concat_tables(fresh).cast(schema), merged)
    shutil.rmtree(aside)
