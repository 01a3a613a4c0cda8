"""Sealing: from the stream a run leaves behind to the files that checkers read.

    history.arrows  ->  history.parquet          every event, in index order
                        buckets/bucket-NNN       the operations of some keys, paired (`key_buckets.py`)

Sealing verifies the history's grammar once (`kernels/history/grammar.py`), so that no checker need do so, and pairs
invokes
with completions on the way.  A bucket is one task of the judge: all operations of a key lie in one bucket, so nothing
need be sorted or shuffled again.  Keys are dealt to buckets so that all have as much to do, and a key that has more
than a bucket's share has one to itself; bucket 000 holds most.

It may be interrupted anywhere and called again: every file appears under its name only when it is whole, and the
stream goes only when all the others are there.  A stream that was damaged stays, and is read again.

Buckets are derived: `made_of.json` beside them names the hash of the history they were made of, and size and hash of
each.  Where one of these differs, all are made again.

Cost: 0.2 to 0.4 s per million events on two cores, half of it for writing `history.parquet`, which goes on beside the
rest; about 100 bytes of memory per event besides the history itself.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.arrays import Int32, Int64
from checkers.base.columns import read_history, read_stream_to
from checkers.base.history import CREATE, MalformedHistory, Type
from checkers.base.json_file import BrokenFile, read_object, write_json_whole
from checkers.base.stored_run import StoredRun
from checkers.kernels.history import grammar
from checkers.kernels.jit import kernel
from checkers.kernels.operations import CAS, KINDS, MISMATCH, NIL, OPEN, OTHER, Events, lay_out
from checkers.sealing.history_rows import MISMATCH_ERRORS, ROWS_PER_GROUP
from checkers.sealing.key_buckets import write_bucket
from checkers.sealing.manifest import MANIFEST, SEALED, STREAM, entry_of, hash_of, is_bound, sealed

MADE_OF = "made_of.json"
BUCKETS_MIN, BUCKETS_MAX = 8, 64
EVENTS_PER_BUCKET = 2_000_000

_MAX_PROCESS_IN_PLACE = 1 << 22
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
    history, torn = read_stream_to(stream) if fresh else (read_history(files.root), "")
    columns = _Columns.of(history, files.root.name)
    mate = _mates(history, columns, _numpy(history, "index"), files.root.name)
    with ThreadPoolExecutor(1) as beside:
        written = beside.submit(_write_whole, history, files.history) if fresh else None
        partial = files.buckets.with_name(files.buckets.name + ".partial")
        _write_buckets(history, columns, mate, partial)
        if written is not None:
            written.result()
    write_json_whole(partial / MADE_OF, {"history": hash_of(files.history), "buckets": _entries(partial)})
    shutil.rmtree(files.buckets, ignore_errors=True)
    partial.replace(files.buckets)
    changed = fresh and (files.root / MANIFEST).exists() and not is_bound(files.root, STREAM)
    if fresh and not changed:
        sealed(files.root)
    if not torn and not changed:
        stream.unlink(missing_ok=True)


def _made_of_history(files: StoredRun) -> bool:
    """Whether the buckets are those that were made of the history as it is now."""
    try:
        said = read_object(files.buckets / MADE_OF)
    except BrokenFile:
        return False
    return bool(said) and said == {"history": hash_of(files.history), "buckets": _entries(files.buckets)}


def _entries(folder: Path) -> dict[str, Any]:
    return {path.name: entry_of(path) for path in sorted(folder.glob("bucket-*.parquet"))}


def verify(history: pa.Table, named: str = "history") -> None:
    """Raises MalformedHistory, naming the first row that breaks the grammar."""
    _mates(history, _Columns.of(history, named), _numpy(history, "index"), named)


def write_buckets(history: pa.Table, folder: Path, count: int | None = None) -> None:
    """Write the buckets of a history whose indices may have gaps: rows are what counts.

    count: how many buckets at most; None for as many as its size asks for.  Raises MalformedHistory as `verify`.
    """
    columns = _Columns.of(history, "history")
    mate = _mates(history, columns, np.arange(len(history)), "history")
    _write_buckets(history, columns, mate, folder, count)


def bucket_count(events: int) -> int:
    """How many buckets a history of so many client events is split into: a power of two from 8 to 64.

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
    indices = [chunk.indices if not chunk.null_count else chunk.indices.fill_null(-1) for chunk in column.chunks]
    codes = np.concatenate([np.asarray(each) for each in indices]).astype(np.int32, copy=False)
    return codes, column.chunk(0).dictionary.to_pylist()


@dataclass(frozen=True, slots=True)
class _Columns:
    """What sealing needs of a history, as arrays; key and f as codes, -1 where there is none."""

    process: npt.NDArray[np.int32]
    dense: npt.NDArray[np.int32]
    process_count: int
    type: npt.NDArray[np.int8]
    f: npt.NDArray[np.int32]
    functions: list[str]
    key: npt.NDArray[np.int32]
    keys: list[str]

    @staticmethod
    def of(history: pa.Table, named: str) -> _Columns:
        """Raises MalformedHistory where a value is missing or there are more events than can be numbered."""
        for name in ("index", "time_ns", "process", "type", "f", "node"):
            if history.column(name).null_count:
                raise MalformedHistory(f"{named}: column {name} holds a null, and every event must have one")
        if len(history) >= OPEN:
            raise MalformedHistory(f"{named}: {len(history)} events are more than the {OPEN - 1} that can be judged")
        process = _numpy(history, "process")
        dense, count = dense_processes(process)
        f, functions = dictionary_codes(history.column("f"))
        key, keys = dictionary_codes(history.column("key"))
        return _Columns(process, dense, count, _numpy(history, "type"), f, functions, key, keys)

    def as_judged(self) -> tuple[Int32, Int32, npt.NDArray[np.int8], Int32, Int32, int]:
        """As `grammar.first_fault` takes them."""
        return self.process, self.dense, self.type, self.f, self.key, self.process_count


def _mates(history: pa.Table, columns: _Columns, index: Int64, named: str) -> Int32:
    """Verify the grammar; the mate of every row (`operations.mates`)."""
    mate = np.empty(len(history), np.int32)
    rule, row, earlier = grammar.first_fault(index, *columns.as_judged(), mate)
    if rule != grammar.SOUND:
        raise MalformedHistory(f"{named}, row {row}: {_what_is_wrong(history, rule, row, earlier)}")
    return mate


def _write_buckets(history: pa.Table, columns: _Columns, mate: Int32, folder: Path, count: int | None = None) -> None:
    """Pair the client events that have a key, those of set-up left out (`history.CREATE`), and write the buckets."""
    events, keys = _events(history, columns, mate)
    sizes = np.bincount(events.key + 1, minlength=len(keys) + 1)[1:]
    asked = np.flatnonzero(sizes)
    count = count or bucket_count(int(sizes.sum()))
    bucket, filled = deal(sizes, asked[np.argsort(-sizes[asked], kind="stable")], count)
    rank = np.empty(count, np.int32)
    rank[np.argsort(-filled, kind="stable")] = np.arange(count, dtype=np.int32)
    in_order = asked[np.argsort(rank[bucket[asked]], kind="stable")]
    place = np.full(len(keys) + 1, -1, np.int32)  # the last one is for rows without a key
    place[in_order] = np.arange(len(in_order), dtype=np.int32)
    names = [keys[k] for k in in_order]
    ops = lay_out(events._replace(key=place[events.key]), mate, len(names))
    bounds = np.searchsorted(rank[bucket[in_order]], np.arange(count + 1))

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def write(number: int) -> None:
        low, high = int(bounds[number]), int(bounds[number + 1])
        if low < high:
            write_bucket(folder / f"bucket-{number:03d}.parquet", names, ops, low, high)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(count)))


def _events(history: pa.Table, columns: _Columns, mate: Int32) -> tuple[Events, list[str]]:
    """The events as kernels read them, with key -1 where nobody judges them; and the names of the keys."""
    set_up = np.array([f == CREATE for f in columns.functions], bool)
    key = np.where((columns.process >= 0) & ~set_up[columns.f], columns.key, np.int32(-1))
    kind = np.array([KINDS.get(f, OTHER) for f in columns.functions], np.int8)[columns.f]
    _mark_mismatches(history, columns, kind, mate)
    value, wrong = _values(history, "value")
    value2, wrong2 = _values(history, "value2")
    return Events(key, columns.dense, columns.type, kind, value, value2, (wrong | wrong2).view(np.int8)), columns.keys


def _mark_mismatches(history: pa.Table, columns: _Columns, kind: npt.NDArray[np.int8], mate: Int32) -> None:
    """Give every cas that failed as a mismatch the kind MISMATCH, in both its rows."""
    failed = np.flatnonzero((columns.type == Type.FAIL) & (kind == CAS) & (columns.process >= 0))
    if len(failed):
        error, errors = dictionary_codes(history.column("error"))
        answers = [-1] + [code for code, text in enumerate(errors) if text in MISMATCH_ERRORS]
        failed = failed[np.isin(error[failed], answers)]
        kind[failed] = MISMATCH
        kind[mate[failed]] = MISMATCH


def _values(history: pa.Table, name: str) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """A value column with NIL for null; and where it holds NIL itself."""
    column = history.column(name)
    if column.null_count == len(column):
        return np.full(len(column), NIL, np.int64), np.zeros(len(column), bool)
    values = np.concatenate([np.asarray(chunk.fill_null(NIL)) for chunk in column.chunks])
    if np.count_nonzero(values == NIL) == column.null_count:
        return values, np.zeros(len(values), bool)
    return values, ~np.asarray(column.is_null().combine_chunks()) & (values == NIL)


def _write_whole(history: pa.Table, path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    text = [field.name for field in history.schema if not pa.types.is_integer(field.type)]
    pq.write_table(
        history,
        partial,
        compression="zstd",
        row_group_size=ROWS_PER_GROUP,
        use_dictionary=[*text, "process", "type", "value2"],
        column_encoding=_RISING,
    )
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
