"""Sealing: turns the stream of a run into the files that checkers read.

    history.arrows  ->  history.parquet          every event, in index order
                        buckets/bucket-NNN       the paired operations of some keys (`key_buckets.py`)

Sealing verifies the grammar of the history (`walk.py`), so no checker has to verify it again.  It deals the keys to
buckets, and pairs invokes with completions (`deal_keys_to_buckets.py`).

Sealing may be interrupted at any point and called again.  A file gets its name only when it is complete.  The stream is
removed only when all other files are complete.  A damaged stream stays.

Each sealing makes the buckets again.  A note of their origin would prove nothing: a forger who exchanges a bucket can
also write the note.

Cost: about 0.5 s per million events on two cores.  Half of it is for `history.parquet`, which another thread writes.
Disk: 62 more bytes per event until sealing is done.  Memory: about 1 GB for a history of any length.  It holds a chunk
of a million rows in three stages of work, and later one bucket per core (`deal_keys_to_buckets.py`).  Only two things
grow: the list of keys, by 150 bytes per key, and the largest key, because one bucket must hold all its operations.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import HISTORY, StreamReader
from checkers.base.history import MalformedHistory
from checkers.base.stored_run import StoredRun
from checkers.record.files import BrokenFile
from checkers.record.journal import MAIN
from checkers.sealing.deal_keys_to_buckets import BucketWriter
from checkers.sealing.history_rows import ROWS_PER_GROUP
from checkers.sealing.manifest import MANIFEST, SEALED, STREAM, is_bound, sealed
from checkers.sealing.walk import Walk, chunks_of, history_batches

_RISING = dict.fromkeys(("index", "time_ns"), "DELTA_BINARY_PACKED")


def seal(run_folder: Path) -> None:
    """Write `history.parquet` and `buckets/`, and remove the stream.

    If there is no stream, or the manifest already names `history.parquet`, only the buckets are made again, and a
    stream that is left is removed.  Otherwise the stream stays if it is damaged, if it differs from the manifest, or if
    another machine signed the manifest.
    Raises MalformedHistory if the history breaks its grammar, and names the row.  Then nothing is written.
    """
    files = StoredRun(Path(run_folder))
    stream = files.root / STREAM
    if not stream.exists() or is_bound(files.root, SEALED):
        stream.unlink(missing_ok=True)
        _make_buckets_again(files)
        return
    torn = _seal_stream(files, stream)
    changed = (files.root / MANIFEST).exists() and not is_bound(files.root, STREAM)
    if changed:
        return
    if sealed(files.root) and not torn:
        stream.unlink(missing_ok=True)


def verify(history: pa.Table, named: str = "history") -> None:
    """Raises MalformedHistory, which names the first row that breaks the grammar.  named: the name in messages."""
    walk = Walk(named)
    for chunk in chunks_of(history.to_batches()):
        walk.verify(chunk)


def write_buckets(history: pa.Table, folder: Path, count: int | None = None) -> None:
    """Write the buckets of a history.  Its indices may have gaps: only the order of the rows matters.

    count: the largest number of buckets; None: the size of the history decides.  Raises MalformedHistory as `verify`.
    """
    walk, buckets = Walk("history"), BucketWriter(folder)
    for chunk in chunks_of(history.to_batches()):
        buckets.take(walk.events(chunk, gaps=True))
    buckets.write(walk, count)


def _seal_stream(files: StoredRun, stream: Path) -> str:
    """Write the history and the buckets.  Returns why the stream is not complete, "" if it is."""
    reader = StreamReader(stream)
    with HistoryWriter(files.history) as history:
        partial = _buckets_of(chunks_of(reader), files, history)
    _in_place(partial, files)
    return reader.torn


def _make_buckets_again(files: StoredRun) -> None:
    _in_place(_buckets_of(chunks_of(history_batches(files.root)), files, None), files)


def _buckets_of(chunks: Iterable[pa.Table], files: StoredRun, history: HistoryWriter | None) -> Path:
    """Write new buckets beside the old ones, and the chunks to `history`.  Returns the folder of the new buckets."""
    walk = Walk(files.root.name, _main_row(files))
    partial = files.buckets.with_name(files.buckets.name + ".partial")
    buckets = BucketWriter(partial)
    try:
        for chunk in chunks:
            if history is not None:
                history.take(chunk)
            buckets.take(walk.events(chunk))
    except MalformedHistory:
        shutil.rmtree(partial)
        raise
    buckets.write(walk)
    return partial


def _main_row(files: StoredRun) -> int | None:
    """The first row of the main phase; None if that is not known.  `evidence` reports a journal that is broken."""
    try:
        return next((phase.first_row for phase in files.record.phases if phase.name == MAIN), None)
    except BrokenFile:
        return None


def _in_place(partial: Path, files: StoredRun) -> None:
    """Replace the old buckets by the new ones.  The history is complete and has its name by now."""
    shutil.rmtree(files.buckets, ignore_errors=True)
    partial.replace(files.buckets)


class HistoryWriter:
    """Writes `history.parquet` chunk by chunk in a thread of its own.

    It is a context manager.  The file gets its name when the block ends.  If the block raises, the file is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(path.name + ".partial")
        text = [field.name for field in HISTORY if not pa.types.is_integer(field.type)]
        self._writer = pq.ParquetWriter(
            self._partial,
            HISTORY,
            compression="zstd",
            use_dictionary=[*text, "process", "type", "value2"],
            column_encoding=_RISING,
        )
        self._beside = ThreadPoolExecutor(1)
        self._written: Future[None] | None = None

    def take(self, chunk: pa.Table) -> None:
        """Wait until the chunk before this one is written, and begin to write this one."""
        self._wait()
        self._written = self._beside.submit(self._writer.write_table, chunk, ROWS_PER_GROUP)

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._beside.shutdown()
        if problem is not None:
            self._writer.close()
            self._partial.unlink()
            return
        self._wait()
        self._writer.close()
        with self._partial.open("rb+") as file:
            os.fsync(file.fileno())
        self._partial.replace(self._path)
