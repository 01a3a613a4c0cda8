"""Turns words and process numbers into small integers, the indices of arrays, and sorts rows by such numbers.

A check of a valid history imports this module, which therefore imports no tables (pyarrow).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from checkers.base.arrays import Int32, Int64
from checkers.kernels.jit import kernel

if TYPE_CHECKING:
    import pyarrow as pa


_MAX_PROCESS_IN_PLACE = 1 << 22


def dense_processes(process: Int32) -> tuple[Int32, int]:
    """Return process numbers as indices of an array, and the length of that array.  Negative numbers become 0."""
    highest = int(process.max(initial=0))
    if highest < _MAX_PROCESS_IN_PLACE:
        return np.maximum(process, 0), highest + 1
    distinct, dense = np.unique(process, return_inverse=True)
    return dense.astype(np.int32), len(distinct)


def dictionary_codes(column: pa.ChunkedArray) -> tuple[Int32, list[str]]:
    """Return a string column as codes (-1 for null), and the string of each code."""
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

    words: list of the words, in order of their numbers.  Memory: about 150 bytes per distinct word.
    """

    def __init__(self) -> None:
        self.words: list[str] = []
        self._number_of: dict[str, int] = {}

    def codes(self, column: pa.ChunkedArray) -> Int32:
        """Return the numbers of the words in the next chunk of the column; -1 for null."""
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

    count: length of the array
    """

    def __init__(self) -> None:
        self.count = 1
        self._high: dict[int, int] = {}

    def dense(self, process: Int32) -> Int32:
        """Return the indices of the processes in the next chunk."""
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


@kernel
def grouped(group_of: Int32, count: int) -> tuple[Int64, Int32]:
    """Sort rows by small numbers, by counting: the compressed rows of graphs, keys and operations.

    Returns (first, rows): the rows of group g, in order, are rows[first[g]:first[g + 1]].  O(rows + count).

    group_of: int32 per row, below `count`; rows of a negative group are left out
    """
    first = np.zeros(count + 1, np.int64)
    for row in range(group_of.shape[0]):
        if group_of[row] >= 0:
            first[group_of[row] + 1] += 1
    for group in range(count):
        first[group + 1] += first[group]
    cursor = first[:count].copy()
    rows = np.empty(first[count], np.int32)
    for row in range(group_of.shape[0]):
        group = group_of[row]
        if group >= 0:
            rows[cursor[group]] = row
            cursor[group] += 1
    return first, rows


def members(first: Int64, chosen: Int64) -> tuple[Int64, Int64]:
    """Return the members of some groups, one group after another, and the bounds of these groups in the result.

    first: bounds of all groups: where each begins, and the end of the last
    chosen: numbers of groups"""
    sizes = np.diff(first)[chosen]
    begins = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return np.repeat(first[:-1][chosen] - begins[:-1], sizes) + np.arange(begins[-1]), begins
