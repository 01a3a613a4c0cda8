"""Reads rows of a sealed history: single rows for a witness, or all rows chunk by chunk.

The number of a row is its index.  To read a few rows of `history.parquet` costs only the row groups that hold them.

Turns words and process numbers into small integers, so that kernels can use them as indices of arrays.

Pairs the invokes of a history with their completions on whole columns; `history.paired` does it row by row.

It stands apart from `columns.py`, which commands import that must begin without NumPy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.arrays import Int32
from checkers.base.checker import Part
from checkers.base.columns import HISTORY
from checkers.base.history import CREATE, MISMATCH_ERRORS, Type

if TYPE_CHECKING:
    import pyarrow as pa


ROWS_PER_GROUP = 1 << 17
"""Rows of a row group of `history.parquet`.  To read one group takes 10 to 20 ms."""

ROWS_PER_PART = 32 * ROWS_PER_GROUP
"""Rows of one part, if a checker reads the whole history: some hundred megabytes as arrays."""

GROUPS_PER_CHUNK = 8
"""Row groups in memory at once while a function reads the history: a million rows."""

Row = dict[str, Any]

History: TypeAlias = Path | str | pa.Table
"""`history.parquet`, or the rows of a history that has no file."""


def read_rows(history: History, rows: Sequence[int], columns: Sequence[str] = HISTORY.names) -> list[Row]:
    """Read these rows of a history as dicts, in the given order.  `type` is a number."""
    if isinstance(history, pa.Table):
        chosen: list[Row] = history.select(list(columns)).take(pa.array(rows, pa.int64())).to_pylist()
        return chosen
    found: dict[int, Row] = {}
    with pq.ParquetFile(history) as file:
        starts = np.cumsum([0] + [file.metadata.row_group(g).num_rows for g in range(file.metadata.num_row_groups)])
        wanted = np.unique(np.asarray(rows, np.int64))
        group_of = np.searchsorted(starts, wanted, side="right") - 1
        for group in np.unique(group_of).tolist():
            mine = wanted[group_of == group]
            table = file.read_row_group(group, list(columns)).take(pa.array(mine - starts[group]))
            found.update(zip(mine.tolist(), table.to_pylist(), strict=True))
    return [found[int(row)] for row in rows]


def parts_of_history(history: Path, params: Mapping[str, Any]) -> list[Part]:
    """Split a history into parts of consecutive row groups, about ROWS_PER_PART rows each.  An empty history has none.

    A part has these `params`: the given ones, "first" and "end" (row groups, the end exclusive), and "row" (number of
    its first row).
    """
    metadata = pq.read_metadata(history)
    parts: list[Part] = []
    first, start, rows = 0, 0, 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        if rows >= ROWS_PER_PART or group == metadata.num_row_groups - 1:
            parts.append(Part((str(history),), {**params, "first": first, "end": group + 1, "row": start}))
            first, start, rows = group + 1, start + rows, 0
    return parts


def chunks_of_groups(history: History, columns: Sequence[str], first: int = 0, end: int = -1) -> Iterator[pa.Table]:
    """The rows of the row groups from `first` to before `end`, GROUPS_PER_CHUNK groups at a time.

    end: -1 for all.  Keys are dictionary-encoded.
    """
    if isinstance(history, pa.Table):
        yield history.select(list(columns))
        return
    with pq.ParquetFile(history, read_dictionary=["key"]) as file:
        stop = file.num_row_groups if end < 0 else end
        for group in range(first, stop, GROUPS_PER_CHUNK):
            groups = list(range(group, min(stop, group + GROUPS_PER_CHUNK)))
            rows = file.read_row_groups(groups, list(columns), use_threads=False)
            if len(rows):
                yield rows


def functions_besides(history: History, known: Collection[str]) -> dict[str, list[str]]:
    """The functions that clients invoked and that are neither CREATE nor in `known`: key -> sorted names.

    Takes about 0.1 s per million events.  Memory: one chunk of rows.
    """
    found: dict[str, set[str]] = {}
    for rows in chunks_of_groups(history, ("process", "type", "f", "key")):
        invokes = pc.and_(pc.equal(rows["type"], int(Type.INVOKE)), pc.greater_equal(rows["process"], 0))
        strange = pc.invert(pc.is_in(pc.cast(rows["f"], pa.string()), value_set=pa.array([*known, CREATE])))
        some = rows.select(["key", "f"]).filter(pc.and_(invokes, strange))
        for key, f in set(zip(*(pc.cast(some[name], pa.string()).to_pylist() for name in ("key", "f")), strict=True)):
            found.setdefault(key, set()).add(f)
    return {key: sorted(names) for key, names in found.items()}


def refused(history: History, key: str, value: int | None, count_mismatches: bool) -> tuple[Row, Row] | None:
    """The invoke and the completion of the first failed write or cas that would have put `value` into `key`.

    None if there is none.  count_mismatches: whether a cas counts that failed because it did not match.
    """
    invokes: dict[int, Row] = {}
    for rows in chunks_of_groups(history, HISTORY.names):
        mine = pc.fill_null(pc.equal(pc.cast(rows["key"], pa.string()), key), False)
        mine = pc.and_(mine, pc.greater_equal(rows["process"], 0))
        would = [
            pc.fill_null(pc.equal(rows[name], pa.scalar(value, rows[name].type)), value is None)
            for name in ("value", "value2")
        ]
        tries = pc.and_(pc.equal(rows["type"], int(Type.INVOKE)), pc.or_(*would))
        mine = pc.and_(mine, pc.or_(tries, pc.equal(rows["type"], int(Type.FAIL))))
        for row in rows.filter(mine).to_pylist():
            if row["type"] == Type.INVOKE:
                invokes[row["process"]] = dict(row)
                continue
            matters = count_mismatches or row["error"] not in MISMATCH_ERRORS
            wrote = row["f"] == "write" and row["value"] == value
            swapped = row["f"] == "cas" and row["value2"] == value and matters
            if (wrote or swapped) and (invoke := invokes.get(row["process"])) is not None:
                return invoke, dict(row)
    return None


_MAX_PROCESS_IN_PLACE = 1 << 22


def dense_processes(process: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], int]:
    """Process numbers as indices of an array, and the length of that array.  Negative numbers become 0."""
    highest = int(process.max(initial=0))
    if highest < _MAX_PROCESS_IN_PLACE:
        return np.maximum(process, 0), highest + 1
    distinct, dense = np.unique(process, return_inverse=True)
    return dense.astype(np.int32), len(distinct)


def dictionary_codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A string column as codes (-1 for null), and the string of each code."""
    from pyarrow.types import is_dictionary

    if not is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    if column.num_chunks == 0:
        return np.empty(0, np.int32), []
    indices = [chunk.indices if not chunk.null_count else chunk.indices.fill_null(-1) for chunk in column.chunks]
    codes = np.concatenate([np.asarray(each) for each in indices]).astype(np.int32, copy=False)
    return codes, column.chunk(0).dictionary.to_pylist()


class Words:
    """Numbers the words of a column that is read chunk by chunk: 0, 1, 2, ... in the order of first appearance.

    words: the word of each number.  Memory: about 150 bytes per distinct word.
    """

    def __init__(self) -> None:
        self.words: list[str] = []
        self._number_of: dict[str, int] = {}

    def codes(self, column: pa.ChunkedArray) -> Int32:
        """The numbers of the words in the next chunk of the column; -1 for null."""
        local, words = dictionary_codes(column)
        for word in words:
            if word not in self._number_of:
                self._number_of[word] = len(self.words)
                self.words.append(word)
        number_of = np.array([*(self._number_of[word] for word in words), -1], np.int32)
        return number_of[local]


class Processes:
    """Turns process numbers into indices of an array, chunk by chunk.

    A number below 2^22 stays the same, and a negative number becomes 0.  Higher numbers get the indices from 2^22 on.
    count: the length of the array.
    """

    def __init__(self) -> None:
        self.count = 1
        self._high: dict[int, int] = {}

    def dense(self, process: Int32) -> Int32:
        """The indices of the next chunk."""
        highest = int(process.max(initial=0))
        if highest < _MAX_PROCESS_IN_PLACE:
            self.count = max(self.count, highest + 1)
            return np.maximum(process, 0)
        distinct, place = np.unique(process, return_inverse=True)
        numbers = np.array([self._number(int(p)) for p in distinct], np.int32)
        self.count = max(self.count, int(numbers.max()) + 1)
        return numbers[place]

    def _number(self, process: int) -> int:
        if process < _MAX_PROCESS_IN_PLACE:
            return max(process, 0)
        return self._high.setdefault(process, _MAX_PROCESS_IN_PLACE + len(self._high))


def paired_rows(index: np.ndarray, process: np.ndarray, type_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The columnar form of `history.paired`: (row of each invoke, row of its completion), in order of invocation.

    index, process, type_: columns of a history, of one length, in any order of rows.  A row is a position in them;
    -1 is the completion of an open operation.  Cost: a sort of the rows.
    """
    order = np.lexsort((index, process))
    invokes = np.flatnonzero(type_[order] == Type.INVOKE)
    following = np.minimum(invokes + 1, len(order) - 1)
    ends = (following > invokes) & (process[order[following]] == process[order[invokes]])
    ends &= type_[order[following]] != Type.INVOKE
    first = order[invokes]
    by_index = np.argsort(index[first], kind="stable")
    return first[by_index], np.where(ends, order[following], -1)[by_index]
