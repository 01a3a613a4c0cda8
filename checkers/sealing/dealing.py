"""Events wait on disk until all keys are known; then keys are dealt to buckets, and the events follow them.

A bucket is one task of the judge: all operations of a key lie in one bucket, so nothing need be sorted or shuffled
again.  Keys are dealt so that all buckets have as much to do, and a key that has more than a bucket's share has one to
itself; bucket 000 holds most.

Cost: each event is written to disk and read twice, 31 bytes each time.  Memory: one chunk of events, and for each core
the events of one bucket at about 150 bytes each.  A bucket holds at most twice EVENTS_PER_BUCKET, unless a single key
has more, or there are more keys with most of the events than buckets can even out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import kernel
from checkers.kernels.operations import MISMATCH, Events, Operations, lay_out, mates
from checkers.sealing.key_buckets import write_bucket
from checkers.sealing.walk import EVENT, ROWS_PER_CHUNK, Walk

BUCKETS_MIN, BUCKETS_MAX = 8, 1024
EVENTS_PER_BUCKET = 2_000_000

_WAITING = "waiting"
"""Folder of events on their way, within that of the buckets."""


def bucket_count(events: int) -> int:
    """How many buckets a history of so many client events is split into: a power of two from 8 to 1024.

    The machine's cores have no say in it: a run has one verdict everywhere, and the budget of the search is shared by
    the keys of a bucket.
    """
    wanted = max(1, -(-events // EVENTS_PER_BUCKET))
    return min(BUCKETS_MAX, max(BUCKETS_MIN, 1 << (wanted - 1).bit_length()))


@kernel
def deal(sizes: Int64, order: Int64, count: int) -> tuple[Int32, Int64]:
    """Put keys, the largest first, each into the bucket with least in it (longest processing time first, Graham 1969).

    sizes: of each key.  order: keys, the largest first.  Returns (bucket of each key, what lies in each bucket); no
    bucket holds more than 4/3 of what the best division would.  O(keys * count).
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
    """Takes the events of a history in order, and writes its buckets into a folder of its own when all are there.

    folder: emptied first.
    """

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folder, self._waiting = folder, folder / _WAITING
        self._waiting.mkdir(parents=True)
        self._all = (self._waiting / "all").open("wb")

    def take(self, events: npt.NDArray[Any]) -> None:
        """events: the next ones (EVENT)."""
        events.tofile(self._all)

    def write(self, walk: Walk, count: int | None = None) -> None:
        """Write the buckets.  walk: it has seen all rows.  count: how many at most; None: as many as their size asks
        for."""
        self._all.close()
        sizes = walk.sizes
        asked = np.flatnonzero(sizes)
        count = count or bucket_count(int(sizes.sum()))
        bucket, filled = deal(sizes, asked[np.argsort(-sizes[asked], kind="stable")], count)
        rank = np.empty(count, np.int32)
        rank[np.argsort(-filled, kind="stable")] = np.arange(count, dtype=np.int32)
        in_order = asked[np.argsort(rank[bucket[asked]], kind="stable")]
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

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(write, range(count)))
        shutil.rmtree(self._waiting)

    def _distribute(self, place: Int32, bucket_of: npt.NDArray[np.uint16], count: int) -> None:
        """Split what waits by bucket, each in the order it came; keys become places among all buckets' keys."""
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
        """The operations of one bucket, whose keys have the places from `first_key` on."""
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
