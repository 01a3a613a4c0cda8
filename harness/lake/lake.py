"""The lake: a folder of Parquet tables with the facts of every run, which grows when a run ends.

    lake/<table>/date=<UTC date>/system=<name>/<run>.parquet      rows of one run
    lake/<table>/date=<UTC date>/system=<name>/merged.parquet     rows of many runs

Theory.  A run that ends writes one small file for each table.  Once a partition holds LOOSE_MAX of them, they are
merged, because ten thousand files take seconds to open.  A run that is judged again replaces its own rows, so a run
never stands there twice.

Writers hold an exclusive lock, readers a shared one.  A merge first moves the loose files into `_merging`, which no
reader looks into; then it replaces `merged.parquet`; then it removes them.  If it is killed in between, the next writer
finishes the merge.  So a kill can hide rows until then, but not duplicate them.

Nothing here is evidence.  A lost lake is rebuilt from the run folders (`krucible runs --rebuild`).
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
    """Return the lake for runs under `results`: the folder that KRUCIBLE_LAKE names, else the nearest `lake` in this
    folder or one above it, else a new one in this folder.
    """
    return existing_lake(results) or results.resolve() / NAME


def existing_lake(folder: Path) -> Path | None:
    """Act like `lake_of`, if there is one or KRUCIBLE_LAKE names one."""
    if named := os.environ.get(VARIABLE):
        return Path(named).resolve()
    folder = folder.resolve()
    return next((at / NAME for at in (folder, *folder.parents) if (at / NAME / _LOCK).exists()), None)


@dataclass(frozen=True, slots=True)
class Lake:
    """folder: may not exist yet; then the lake is empty, and the first run creates it."""

    folder: Path

    def add(self, root: Path) -> RunFacts:
        """Add the run in `root`, or replace its rows.  Raises BrokenFile, and OSError if nothing can be written.

        A run below the parent folder of the lake is stored with its relative path, because both may move together.
        """
        from harness.lake.facts import facts_of  # a listing needs no NumPy

        base = self.folder.parent
        facts = facts_of(root, str(root.relative_to(base)) if root.is_relative_to(base) else str(root))
        self.append(facts)
        return facts

    def append(self, facts: RunFacts) -> None:
        """Write the facts of one run, in place of its earlier rows."""
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
        """Create an empty lake unless it exists: runs below its folder's parent go into it from now on."""
        with self._locked(fcntl.LOCK_SH):
            pass

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Prevent merges meanwhile, so that a reader sees every run exactly once."""
        return self._locked(fcntl.LOCK_SH) if self.folder.exists() else contextlib.nullcontext()

    def read(self, name: str, columns: Sequence[str] | None = None, run: str | None = None) -> pa.Table:
        """Return a table, with its partition's `date` and `system`, in no order. columns: only these. run: only its
        rows.

        Reads footers and pages with pyarrow alone: no JVM.
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
        """Return the files of a table that may contain rows of this run: those of its partition."""
        index = self._indexed(["run", DATE, SYSTEM])
        rows = index.filter(pc.equal(index["run"], run)).select([DATE, SYSTEM]).to_pylist()
        return [path for row in rows for path in sorted(partition_of(self.folder / name, **row).glob("*.parquet"))]

    def _indexed(self, columns: Sequence[str]) -> pa.Table:
        """Return these columns of all rows of the table of runs; `date` and `system` may be among them.

        Opening one file per day and system takes too long for a list.  So all rows are also in one more file,
        `_index.parquet`, with the source file of each and its time; changed files are read again.
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
        """Rewrite the index, and return all of it.  Rows of unchanged files are kept.

        marks: file of the table of runs -> time of its last change."""
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
        """Return the files of a table; hold `reading` while they are used."""
        return sorted((self.folder / name).glob(f"{DATE}=*/{SYSTEM}=*/*.parquet"))

    def rebuild(self, results: Path, say: Callable[[str], None]) -> int:
        """Rebuild the lake from the run folders under `results`; return its number of runs.

        say: receives a sentence for each unusable run.
        """
        with self._locked(fcntl.LOCK_EX):
            for name in TABLES:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / _INDEX).unlink(missing_ok=True)
        from checkers.record.files import BrokenFile  # a listing reads no records

        added = 0
        for root in run_folders(results):
            try:
                self.add(root)
                added += 1
            except BrokenFile as problem:
                say(f"{root} is left out: {problem}")
        return added

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, how)
            yield


def run_folders(results: Path) -> Iterator[Path]:
    """Return every run folder under `results`, in order of names, including replays in run folders.  Links are not
    followed.
    """
    from checkers.record.run_record import TEST  # a listing reads no records

    for folder, names, files in os.walk(results):
        if TEST in files:
            yield Path(folder)
        names[:] = sorted(name for name in names if name not in _NOT_RUNS)


def _loose(partition: Path) -> list[Path]:
    return sorted(path for path in partition.glob("*.parquet") if path.name != _MERGED)


def partition_of(table: _P, date: str, system: str) -> _P:
    """Return the folder of a partition. table: the folder of its table, here or in a store."""
    return table / f"{DATE}={date}" / f"{SYSTEM}={quote(system)}"


def _with_partition(rows: pa.Table, path: Path) -> pa.Table:
    """Return the rows of a file, with the columns that its folder names contain."""
    for part in path.parent.parts[-2:]:
        name, _, value = part.partition("=")
        rows = rows.append_column(name, pa.repeat(pa.scalar(unquote(value)), len(rows)))
    return rows


def _read(path: Path, schema: pa.Schema, columns: list[str]) -> pa.Table:
    """Return rows of a file in the current schema: a column that an older version did not write is null."""
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
    """Act like `pq.read_table`, which loads two more libraries of Arrow than a small listing needs."""
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False)


def _name_in(names: Collection[str], column: str) -> str | None:
    """Return a file's name of a column; None if it has none."""
    return next((name for name in (column, OLD_NAMES.get(column)) if name in names), None)


def _write(rows: pa.Table, path: Path) -> None:
    """Write atomically."""
    part = path.with_name(f"_{path.name}.part")
    pq.write_table(rows, part, compression="zstd")
    part.replace(path)


def _leave_out(merged: Path, run: str) -> None:
    """Remove the rows of a run from a merged file, if it holds any."""
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
    """Merge the files that were set aside.  Rows of its runs that `merged.parquet` has already are replaced, not
    doubled.
    """
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
