"""Sealing: turns the stream of a run into the files that checkers read.

    history.arrows  ->  history.parquet          every event, in index order
                        buckets/bucket-NNN       the paired operations of some keys (`key_buckets.py`)

Sealing verifies the grammar of the history (`walk.py`), so no checker has to verify it again.  It distributes the keys
over buckets, and pairs invokes with completions.

Sealing may be interrupted at any point and called again.  A file gets its name only when it is complete.  The stream is
removed only when all other files are complete.  A corrupt stream is kept.

Each sealing writes the buckets again.  A note of their origin would prove nothing: whoever replaces a bucket can
also replace the note.

Cost: about 0.5 s per million events on two cores.  Half of it is for `history.parquet`, which another thread writes.
Disk: 62 more bytes per event until sealing is done.  Memory: about 1 GB for a history of any length: a chunk
of a million rows in three stages of work, and later one bucket per core.  Only two things
grow: the list of keys, by 150 bytes per key, and the largest key, because one bucket must contain all its operations.

*Buckets.*  Events wait on disk until all keys are known.  Then each event goes to the bucket of its key.

Spark judges one bucket per task.  A bucket contains all operations of its keys, so judging needs no second sort or
shuffle.  Keys are distributed so that all buckets contain about the same number of events.  A key with more events than
that has a bucket to itself.  Bucket 000 contains the most events.  A bucket contains at most twice EVENTS_PER_BUCKET,
unless a single key has more, or the number of buckets is BUCKETS_MAX.

Cost: each event is written to disk and read twice, 31 bytes each time.  Memory: one chunk of events, and for each core
the events of one bucket at about 150 bytes each.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Int32, Int64
from checkers.base.columns import HISTORY, StreamReader
from checkers.base.history import MalformedHistory
from checkers.base.stored_run import StoredRun
from checkers.kernels.jit import kernel
from checkers.kernels.operations import MISMATCH, Events, Operations, lay_out, mates
from checkers.record.files import BrokenFile
from checkers.record.run_record import MAIN
from checkers.sealing.key_buckets import write_bucket
from checkers.sealing.manifest import MANIFEST, SEALED, STREAM, is_bound, sealed
from checkers.sealing.sealed_history import ROWS_PER_GROUP
from checkers.sealing.walk import EVENT, ROWS_PER_CHUNK, Walk, chunks_of, history_batches

BUCKETS_MIN, BUCKETS_MAX = 8, 1024
EVENTS_PER_BUCKET = 2_000_000

_WAITING = "waiting"
"""Folder of the waiting events, inside the folder of the buckets."""


def bucket_count(events: int) -> int:
    """Return the number of buckets for a history with this number of client events: a power of two from 8 to 1024.

    The keys of a bucket share the budget of a search, and a run must get the same verdict on every machine.  So the
    number does not depend on the machine's cores.
    """
    wanted = max(1, -(-events // EVENTS_PER_BUCKET))
    return min(BUCKETS_MAX, max(BUCKETS_MIN, 1 << (wanted - 1).bit_length()))


@kernel
def deal(sizes: Int64, order: Int64, count: int) -> tuple[Int32, Int64]:
    """Put each key, the largest first, into the emptiest bucket (longest processing time first, Graham 1969).

    sizes: number of events of each key
    order: keys, the largest first

    Returns (bucket of each key, number of events in each bucket).  The fullest bucket contains at most 4/3 of the
    events of the fullest bucket in the best distribution.  O(keys * count).
    """
    bucket = np.zeros(sizes.shape[0], np.int32)
    filled = np.zeros(count, np.int64)
    for k in order:
        least = 0
        for candidate in range(count):
            if filled[candidate] < filled[least]:
                least = candidate
        bucket[k] = least
        filled[least] += sizes[k]
    return bucket, filled


class BucketWriter:
    """Takes the events of a history in order, and writes the buckets once it has all events.

    folder: folder of the buckets; its old content is removed
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder, self._waiting = folder, folder / _WAITING
        self._waiting.mkdir(parents=True)
        self._all = (self._waiting / "all").open("wb")

    def take(self, events: npt.NDArray[Any]) -> None:
        """Take the next events (dtype EVENT)."""
        events.tofile(self._all)

    def write(self, walk: Walk, count: int | None = None) -> None:
        """Write the buckets.

        walk: a walk that has read all rows
        count: maximum number of buckets; None: the size of the history decides
        """
        self._all.close()
        sizes = walk.sizes
        used = np.flatnonzero(sizes)
        count = count or bucket_count(int(sizes.sum()))
        bucket, filled = deal(sizes, used[np.argsort(-sizes[used], kind="stable")], count)
        rank = np.empty(count, np.int32)  # rank of each bucket: the fullest is number 0
        rank[np.argsort(-filled, kind="stable")] = np.arange(count, dtype=np.int32)
        in_order = used[np.argsort(rank[bucket[used]], kind="stable")]
        place = np.zeros(len(sizes), np.int32)
        place[in_order] = np.arange(len(in_order), dtype=np.int32)
        self._distribute(place, rank[bucket].astype(np.uint16), count)
        names = [walk.keys[k] for k in in_order]
        bounds = np.searchsorted(rank[bucket[in_order]], np.arange(count + 1)).tolist()

        def write(number: int) -> None:
            first, end = bounds[number], bounds[number + 1]
            if first < end:
                ops = self._operations(number, first, end - first, walk.process_count)
                write_bucket(self._folder / f"bucket-{number:03d}.parquet", names[first:end], ops)

        if count == 1:
            write(0)
        else:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(write, range(count)))
        shutil.rmtree(self._waiting)

    def _distribute(self, place: Int32, bucket_of: npt.NDArray[np.uint16], count: int) -> None:
        """Split the waiting events by bucket, keep their order, and replace each key by its place among all keys.

        place: place of each key when keys are sorted by bucket
        bucket_of: bucket of each key
        """
        for events in self._waiting_chunks():
            bucket = bucket_of[events["key"]]
            events["key"] = place[events["key"]]
            events = events[np.argsort(bucket, kind="stable")]
            ends = np.cumsum(np.bincount(bucket, minlength=count)).tolist()
            for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if first < end:
                    with self._of(number).open("ab") as file:
                        events[first:end].tofile(file)
        (self._waiting / "all").unlink()

    def _waiting_chunks(self) -> Iterator[npt.NDArray[Any]]:
        with (self._waiting / "all").open("rb") as file:
            while len(events := np.fromfile(file, EVENT, ROWS_PER_CHUNK)):
                yield events

    def _of(self, number: int) -> Path:
        return self._waiting / f"{number}"

    def _operations(self, number: int, first_key: int, keys: int, process_count: int) -> Operations:
        """Return the operations of bucket `number`.  Its keys have consecutive places that begin at `first_key`."""
        waiting = np.fromfile(self._of(number), EVENT)
        self._of(number).unlink()
        process, type_, kind = (np.ascontiguousarray(waiting[name]) for name in ("process", "type", "kind"))
        mate = mates(process, type_, process_count)
        mismatched = mate[kind == MISMATCH]
        kind[mismatched] = MISMATCH
        key = waiting["key"] - np.int32(first_key)
        value, value2, wrong = (np.ascontiguousarray(waiting[n]) for n in ("value", "value2", "out_of_range"))
        row = np.append(waiting["row"], np.int32(-1))
        del waiting
        ops = lay_out(Events(key, process, type_, kind, value, value2, wrong), mate, keys)
        return ops._replace(invoked=row[ops.invoked], completed=row[ops.completed])


_RISING = dict.fromkeys(("index", "time_ns"), "DELTA_BINARY_PACKED")


def seal(run_folder: Path) -> None:
    """Write `history.parquet` and `buckets/`, and remove the stream.

    If there is no stream, or the manifest already lists `history.parquet`, only the buckets are written again, and a
    remaining stream is removed.  Otherwise the stream is kept if it is corrupt, if it differs from the manifest, or if
    another machine signed the manifest.
    Raises MalformedHistory, which names the row, if the history breaks its grammar.  Then nothing is written.
    """
    files = StoredRun(Path(run_folder))
    stream = files.root / STREAM
    if not stream.exists() or is_bound(files.root, SEALED):
        stream.unlink(missing_ok=True)
        _in_place(_buckets_of(chunks_of(history_batches(files.root)), files, None), files)
        return
    reader = StreamReader(stream)
    with HistoryWriter(files.history) as history:
        partial = _buckets_of(chunks_of(reader), files, history)
    _in_place(partial, files)
    changed = (files.root / MANIFEST).exists() and not is_bound(files.root, STREAM)
    if not changed and sealed(files.root) and not reader.torn:
        stream.unlink(missing_ok=True)


def write_buckets(history: pa.Table, folder: Path, count: int | None = None) -> None:
    """Write the buckets of a history.  Its indices may have gaps, because only the order of the rows matters.

    count: maximum number of buckets; None: the size of the history decides

    Raises MalformedHistory, which names the first row that breaks the grammar.
    """
    walk, buckets = Walk("history"), BucketWriter(folder)
    for chunk in chunks_of(history.to_batches()):
        buckets.take(walk.events(chunk, gaps=True))
    buckets.write(walk, count)


def _buckets_of(chunks: Iterable[pa.Table], files: StoredRun, history: HistoryWriter | None) -> Path:
    """Write new buckets next to the old ones, and the chunks to `history`.  Returns the folder of the new buckets."""
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
    """Return the first row of the main phase; None if it is not known.

    The check `evidence` reports a broken journal.
    """
    try:
        return next((phase.first_row for phase in files.record.phases if phase.name == MAIN), None)
    except BrokenFile:
        return None


def _in_place(partial: Path, files: StoredRun) -> None:
    """Replace the old buckets by the new ones.  The history must be complete and have its final name."""
    shutil.rmtree(files.buckets, ignore_errors=True)
    partial.replace(files.buckets)


class HistoryWriter:
    """Writes `history.parquet` chunk by chunk in a separate thread.

    It is a context manager: the file gets its name when the block ends, and is removed if the block raises.
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
        """Wait until the previous chunk is written, and begin to write this one."""
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
