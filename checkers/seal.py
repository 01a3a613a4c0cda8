"""Sealing: from the stream a run leaves behind to the files that checkers read.

    history.arrows  ->  history.parquet          every event, in index order
                        buckets/bucket-NNN       the client events that have a key, split by a stable hash of it

A bucket is one task of the judge: all events of a key lie in one bucket and in index order, so nothing need be sorted
or shuffled again.  Sealing verifies the history's grammar once (`kernels/grammar.py`), so that no checker need do so.

It may be interrupted anywhere and called again: every file appears under its name only when it is whole, and the
stream goes only when all the others are there.
"""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.checker import RunFiles
from checkers.columns import HISTORY, read_history
from checkers.history import CREATE, MalformedHistory
from checkers.kernels import grammar

BUCKETS_MIN, BUCKETS_MAX = 8, 64
ROWS_PER_BUCKET = 250_000

BUCKET_COLUMNS = [name for name in HISTORY.names if name != "payload"]
BUCKET = pa.schema(
    [HISTORY.field(name) if name != "key" else pa.field("key", HISTORY.field("f").type) for name in BUCKET_COLUMNS]
)
"""Schema of a bucket: HISTORY without payload, the key as a dictionary."""

_MAX_PROCESS_IN_PLACE = 1 << 22


def seal(run_folder: Path) -> None:
    """Write `history.parquet` and `buckets/`, and remove the stream.  Does nothing to a run already sealed.

    Raises MalformedHistory, naming the row, if the history breaks its grammar; then nothing is written.
    """
    files = RunFiles(Path(run_folder))
    stream = files.root / "history.arrows"
    if files.history.exists() and files.buckets.is_dir():
        stream.unlink(missing_ok=True)
        return
    history = read_history(files.root)
    verify(history, named=str(files.root.name))
    if not files.history.exists():
        _write_whole(history, files.history)
    _write_buckets(history, files.buckets)
    stream.unlink(missing_ok=True)


def verify(history: pa.Table, named: str = "history") -> None:
    """Raises MalformedHistory, naming the first row that breaks the grammar."""
    for name in ("index", "time_ns", "process", "type", "f", "node"):
        if history.column(name).null_count:
            raise MalformedHistory(f"{named}: column {name} holds a null, and every event must have one")
    process = _numpy(history, "process")
    dense, count = dense_processes(process)
    rule, row, earlier = grammar.first_fault(
        _numpy(history, "index"),
        process,
        dense,
        _numpy(history, "type"),
        dictionary_codes(history.column("f"))[0],
        dictionary_codes(history.column("key"))[0],
        count,
    )
    if rule != grammar.SOUND:
        raise MalformedHistory(f"{named}, row {row}: {_what_is_wrong(history, rule, row, earlier)}")


def bucket_of(key: str, bucket_count: int) -> int:
    """The bucket a key belongs to: the same on every machine and in every run (CRC-32 of its UTF-8)."""
    return zlib.crc32(key.encode()) % bucket_count


def bucket_count(rows: int) -> int:
    """How many buckets a history of so many client events is split into: a power of two from 8 to 64."""
    wanted = max(1, -(-rows // ROWS_PER_BUCKET))
    return min(BUCKETS_MAX, max(BUCKETS_MIN, 1 << (wanted - 1).bit_length()))


def dense_processes(process: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], int]:
    """Process numbers as indices of an array, and how long that array must be; negative ones become 0."""
    highest = int(process.max(initial=0))
    if highest < _MAX_PROCESS_IN_PLACE:
        return np.maximum(process, 0), highest + 1
    distinct, dense = np.unique(process, return_inverse=True)
    return dense.astype(np.int32), len(distinct)


def dictionary_codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A string column as codes (-1 for null) and the strings they stand for."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    if column.num_chunks == 0:
        return np.empty(0, np.int32), []
    codes = [np.asarray(chunk.indices.fill_null(-1)).astype(np.int32, copy=False) for chunk in column.chunks]
    return np.concatenate(codes), column.chunk(0).dictionary.to_pylist()


def _write_buckets(history: pa.Table, folder: Path) -> None:
    """Split the client events that have a key, those of set-up left out (`history.CREATE`).  One stable sort by bucket
    keeps index order inside each."""
    codes, keys = dictionary_codes(history.column("key"))
    f_codes, functions = dictionary_codes(history.column("f"))
    set_up = np.array([f == CREATE for f in functions], bool)[f_codes]
    mine = np.flatnonzero((codes >= 0) & (_numpy(history, "process") >= 0) & ~set_up)
    count = bucket_count(len(mine))
    bucket_of_key = np.array([bucket_of(key, count) for key in keys], np.uint8)
    bucket_of_row = bucket_of_key[codes[mine]] if len(keys) else np.empty(0, np.uint8)
    order = mine[np.argsort(bucket_of_row, kind="stable")]
    bounds = np.concatenate(([0], np.cumsum(np.bincount(bucket_of_row, minlength=count))))

    plain = [name for name in BUCKET_COLUMNS if name != "key"]
    events = history.select(plain).take(pa.array(order)).combine_chunks()
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for number in range(count):
        low, high = bounds[number], bounds[number + 1]
        if low == high:
            continue
        rows = events.slice(low, high - low)
        key = _own_dictionary(codes[order[low:high]], keys)
        columns = [key if name == "key" else rows.column(name) for name in BUCKET_COLUMNS]
        path = partial / f"bucket-{number:03d}.parquet"
        pq.write_table(pa.table(columns, schema=BUCKET), path, compression="zstd")
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)


def _own_dictionary(codes: npt.NDArray[np.int32], keys: list[str]) -> pa.DictionaryArray:
    """A key column whose dictionary holds the keys it names and no others."""
    named = np.zeros(len(keys), bool)
    named[codes] = True
    place = np.cumsum(named, dtype=np.int32) - 1
    mine = pa.array([keys[code] for code in np.flatnonzero(named)], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(place[codes]), mine)


def _write_whole(history: pa.Table, path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    pq.write_table(history, partial, compression="zstd")
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def _numpy(history: pa.Table, name: str) -> npt.NDArray[Any]:
    return np.asarray(history.column(name).combine_chunks())


def _what_is_wrong(history: pa.Table, rule: int, row: int, earlier: int) -> str:
    event = history.slice(row, 1).to_pylist()[0]
    process = f"process {event['process']}"
    match rule:
        case grammar.INDEX_GAP:
            return f"its index is {event['index']}; indices count from 0 without gaps"
        case grammar.UNKNOWN_TYPE:
            return f"type {event['type']} is none of 0 invoke, 1 ok, 2 fail, 3 info"
        case grammar.BAD_PROCESS:
            return f"{process} is neither a client (0 or more) nor the nemesis (-1)"
        case grammar.INVOKE_WHILE_OPEN:
            return f"{process} invokes although its operation of row {earlier} is still open"
        case grammar.COMPLETION_WITHOUT_INVOKE:
            return f"{process} completes an operation that it never invoked"
        case grammar.PROCESS_REUSED:
            return f"{process} goes on although it was retired by the info of row {earlier}"
        case grammar.OTHER_FUNCTION:
            return f"{process} completes {event['f']!r}, but it had invoked something else in row {earlier}"
        case _:
            return f"{process} completes on key {event['key']!r}, but it had invoked on another in row {earlier}"
