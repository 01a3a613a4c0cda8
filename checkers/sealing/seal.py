"""Sealing: from the stream a run leaves behind to the files that checkers read.

    history.arrows  ->  history.parquet          every event, in index order
                        buckets/bucket-NNN       the operations of some keys, paired (`key_buckets.py`)

Sealing verifies the history's grammar once (`walk.py`), so that no checker need do so.  Then it deals the keys to
buckets, and pairs invokes with completions (`dealing.py`).

It may be interrupted anywhere and called again: every file appears under its name only when it is whole, and the
stream goes only when all the others are there.  A stream that was damaged stays, and is read again.

Buckets are derived: `made_of.json` beside them names the hash of the history they were made of, and size and hash of
each.  Where one of these differs, all are made again.

Cost: about 0.5 s per million events on two cores, half of it for writing `history.parquet`, which goes on beside the
rest.  Disk: 62 bytes per event besides, until it is done.  Memory does not grow with the history: a chunk of a million
rows in three stages of work, and the buckets of as many keys as there are cores (`dealing.py`), in all about 1 GB.
What grows is the list of keys, by 150 bytes a key, and the largest key, whose operations have to lie in one bucket.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.columns import HISTORY, StreamReader
from checkers.base.history import MalformedHistory
from checkers.base.json_file import BrokenFile, read_object, write_json_whole
from checkers.base.stored_run import StoredRun
from checkers.sealing.dealing import BucketWriter
from checkers.sealing.history_rows import ROWS_PER_GROUP
from checkers.sealing.manifest import MANIFEST, SEALED, STREAM, entry_of, hash_of, is_bound, sealed
from checkers.sealing.walk import Walk, chunks_of, history_batches

MADE_OF = "made_of.json"

_RISING = dict.fromkeys(("index", "time_ns"), "DELTA_BINARY_PACKED")


def seal(run_folder: Path) -> None:
    """Write `history.parquet` and `buckets/`, and remove the stream.  What is already there and right stays.

    Raises MalformedHistory, naming the row, if the history breaks its grammar; then nothing is written.
    """
    files = StoredRun(Path(run_folder))
    stream = files.root / STREAM
    fresh = stream.exists() and not is_bound(files.root, SEALED)
    if not fresh and files.history.exists():
        stream.unlink(missing_ok=True)
        if _made_of_history(files):
            return
    torn = _seal_stream(files, stream) if fresh else _make_buckets_again(files)
    changed = fresh and (files.root / MANIFEST).exists() and not is_bound(files.root, STREAM)
    if fresh and not changed:
        sealed(files.root)
    if not torn and not changed:
        stream.unlink(missing_ok=True)


def verify(history: pa.Table, named: str = "history") -> None:
    """Raises MalformedHistory, naming the first row that breaks the grammar."""
    walk = Walk(named)
    for chunk in chunks_of(history.to_batches()):
        walk.verify(chunk)


def write_buckets(history: pa.Table, folder: Path, count: int | None = None) -> None:
    """Write the buckets of a history whose indices may have gaps: rows are what counts.

    count: how many buckets at most; None for as many as its size asks for.  Raises MalformedHistory as `verify`.
    """
    walk, buckets = Walk("history"), BucketWriter(folder)
    for chunk in chunks_of(history.to_batches()):
        buckets.take(walk.events(chunk, gaps=True))
    buckets.write(walk, count)


def _seal_stream(files: StoredRun, stream: Path) -> str:
    """Write both from the stream; why reading it stopped before its end, "" if it did not."""
    reader = StreamReader(stream)
    with HistoryWriter(files.history) as history:
        partial = _buckets_of(chunks_of(reader), files, history)
    _in_place(partial, files)
    return reader.torn


def _make_buckets_again(files: StoredRun) -> str:
    _in_place(_buckets_of(chunks_of(history_batches(files.root)), files, None), files)
    return ""


def _buckets_of(chunks: Iterable[pa.Table], files: StoredRun, history: HistoryWriter | None) -> Path:
    """The folder of new buckets, beside the place of the old ones; the chunks go to `history` as well."""
    walk, partial = Walk(files.root.name), files.buckets.with_name(files.buckets.name + ".partial")
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


def _in_place(partial: Path, files: StoredRun) -> None:
    """Let new buckets take the place of the old ones.  The history has its own name by now."""
    write_json_whole(partial / MADE_OF, {"history": hash_of(files.history), "buckets": _entries(partial)})
    shutil.rmtree(files.buckets, ignore_errors=True)
    partial.replace(files.buckets)


def _made_of_history(files: StoredRun) -> bool:
    """Whether the buckets are those that were made of the history as it is now."""
    try:
        said = read_object(files.buckets / MADE_OF)
    except BrokenFile:
        return False
    return bool(said) and said == {"history": hash_of(files.history), "buckets": _entries(files.buckets)}


def _entries(folder: Path) -> dict[str, Any]:
    return {path.name: entry_of(path) for path in sorted(folder.glob("bucket-*.parquet"))}


class HistoryWriter:
    """Writes `history.parquet` chunk by chunk, beside what its caller does.

    The file has its name only after the block ended without an exception; after one nothing is left of it.
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
        """Wait for the chunk before this one, and begin to write this one."""
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
