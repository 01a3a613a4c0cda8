"""The lake: a folder of Parquet tables with the facts of every run, which grows when a run ends.

    lake/<table>/date=<UTC date>/system=<name>/<run>.parquet      rows of one run
    lake/<table>/date=<UTC date>/system=<name>/merged.parquet     rows of many runs

Theory.  A run that ends writes one small file for each table.  Once a partition holds LOOSE_MAX of them, they are
merged, because ten thousand files take seconds to open.  A run that is judged again replaces its own rows, so a run
never stands there twice.

Writers hold an exclusive lock, readers a shared one.  A merge first moves the loose files into `_merging`, which no
reader looks into; then it replaces `merged.parquet`; then it removes them.  If it is killed in between, the next
writer finishes the merge.  So a kill can hide rows until then, and cannot double them.

Nothing here is evidence.  A lake that was lost is made again from the run folders (`krucible runs --rebuild`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.record.files import BrokenFile
from checkers.record.reading import TEST
from harness.lake.tables import DATE, SYSTEM, TABLES

if TYPE_CHECKING:
    from harness.lake.facts import Facts

NAME = "lake"
VARIABLE = "KRUCIBLE_LAKE"
LOOSE_MAX = 32
_MERGED, _MERGING, _LOCK = "merged.parquet", "_merging", "_lock"
_NOT_RUNS = frozenset({NAME, "nodes", "buckets", "tables", "plots", "trace", "mutants"})


def lake_of(results: Path) -> Path:
    """The lake that runs kept under `results` go into: the folder that KRUCIBLE_LAKE names, else the nearest `lake`
    in this folder or one above it, else a new one in this folder."""
    return existing_lake(results) or results.resolve() / NAME


def existing_lake(folder: Path) -> Path | None:
    """As `lake_of`, if there is one or KRUCIBLE_LAKE names one."""
    if named := os.environ.get(VARIABLE):
        return Path(named).resolve()
    folder = folder.resolve()
    return next((at / NAME for at in (folder, *folder.parents) if (at / NAME / _LOCK).exists()), None)


@dataclass(frozen=True, slots=True)
class Lake:
    """folder: may not exist yet; then the lake is empty, and the first run makes it."""

    folder: Path

    def add(self, root: Path) -> Facts:
        """Add the run kept in `root`, or replace its rows.  Raises BrokenFile, and OSError if nothing can be written.

        A run below the folder in which the lake lies is noted with its relative path: both may move together.
        """
        from harness.lake.facts import facts_of  # a listing needs no NumPy

        base = self.folder.parent
        facts = facts_of(root, str(root.relative_to(base)) if root.is_relative_to(base) else str(root))
        self.append(facts)
        return facts

    def append(self, facts: Facts) -> None:
        """Write the facts of one run; the rows that the lake had of it go."""
        with self._locked(fcntl.LOCK_EX):
            for name, rows in facts.rows.items():
                partition = self.folder / name / f"{DATE}={facts.date}" / f"{SYSTEM}={quote(facts.system)}"
                partition.mkdir(parents=True, exist_ok=True)
                _finish_merge(partition, TABLES[name])
                _leave_out(partition / _MERGED, facts.run)
                _write(rows, partition / f"{facts.run}.parquet")
                if len(_loose(partition)) >= LOOSE_MAX:
                    _merge(partition, TABLES[name])

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While this lasts nothing is merged, so that a reader meets every run exactly once."""
        if not self.folder.exists():
            yield
            return
        with self._locked(fcntl.LOCK_SH):
            yield

    def read(self, name: str, columns: Sequence[str] | None = None, run: str | None = None) -> pa.Table:
        """A table, with its partition's `date` and `system`, in no order.  columns: only these.  run: only its rows.

        Reads footers and pages with pyarrow alone: no JVM.
        """
        schema = TABLES[name]
        wanted = [*schema.names, DATE, SYSTEM] if columns is None else list(columns)
        own = [column for column in wanted if column in schema.names]
        of_run = None if run is None else [("run", "=", run)]
        found = []
        with self.reading():
            for path in self.files(name):
                date, system = (unquote(part.partition("=")[2]) for part in path.parent.parts[-2:])
                rows = _read(path, schema, list(dict.fromkeys([*own, "run"])), of_run)
                for column, value in ((DATE, date), (SYSTEM, system)):
                    if column in wanted:
                        rows = rows.append_column(column, pa.repeat(pa.scalar(value), len(rows)))
                found.append(rows.select(wanted))
        if found:
            return pa.concat_tables(found)
        both = {
            field.name: field.type for field in [*schema, pa.field(DATE, pa.string()), pa.field(SYSTEM, pa.string())]
        }
        return pa.table({column: pa.array([], both[column]) for column in wanted})

    def files(self, name: str) -> list[Path]:
        """The files of a table; hold `reading` while they are used."""
        return sorted((self.folder / name).glob(f"{DATE}=*/{SYSTEM}=*/*.parquet"))

    def rebuild(self, results: Path, say: Callable[[str], None]) -> int:
        """Make the lake anew from the run folders under `results`; returns how many runs it holds then.

        say: gets a sentence for each run that cannot be used.
        """
        with self._locked(fcntl.LOCK_EX):
            for name in TABLES:
                shutil.rmtree(self.folder / name, ignore_errors=True)
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
    """Every run folder under `results`, in order of names, replays in run folders included.  Links are not followed."""
    for folder, names, files in os.walk(results):
        if TEST in files:
            yield Path(folder)
        names[:] = sorted(name for name in names if name not in _NOT_RUNS)


def _loose(partition: Path) -> list[Path]:
    return sorted(path for path in partition.glob("*.parquet") if path.name != _MERGED)


def _read(
    path: Path, schema: pa.Schema, columns: list[str], filters: list[tuple[str, str, str]] | None = None
) -> pa.Table:
    """Rows of a file as the schema of today has them: a column that an older version did not write is null."""
    with pq.ParquetFile(path) as file:
        there = [column for column in columns if column in file.schema_arrow.names]
        rows = file.read(there, use_threads=False)
    if filters is not None:
        rows = rows.filter(pc.equal(rows["run"], filters[0][2]))
    arrays = [
        rows[column].cast(schema.field(column).type)
        if column in there
        else pa.nulls(len(rows), schema.field(column).type)
        for column in columns
    ]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _write(rows: pa.Table, path: Path) -> None:
    """Whole or not at all."""
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
    rows = pq.read_table(merged, partitioning=None)
    _write(rows.filter(pc.not_equal(rows["run"], run)), merged)


def _merge(partition: Path, schema: pa.Schema) -> None:
    aside = partition / _MERGING
    aside.mkdir()
    for path in _loose(partition):
        path.replace(aside / path.name)
    _finish_merge(partition, schema)


def _finish_merge(partition: Path, schema: pa.Schema) -> None:
    """Merge what was set aside.  Rows of its runs that `merged.parquet` has already are replaced, not doubled."""
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
