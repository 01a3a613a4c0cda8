"""The grammar of a history, on which every checker relies without verifying it again.

- A process invokes an operation.  The operation completes (ok, fail or info).  Then the process may invoke again.
- A completion has the f and the key of its invoke.
- After an info the process is retired: it has no later row.
- The index counts from 0 without gaps.  Faults (process -1) follow no grammar.

`mark_contradictions` compares answers with invokes, for functions whose answer must repeat the value of the invoke.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import NEMESIS, Type
from checkers.kernels.jit import kernel

SOUND = 0
INDEX_GAP = 1
UNKNOWN_TYPE = 2
BAD_PROCESS = 3
INVOKE_WHILE_OPEN = 4
COMPLETION_WITHOUT_INVOKE = 5
PROCESS_REUSED = 6
OTHER_FUNCTION = 7
OTHER_KEY = 8

IDLE, RETIRED = -1, -2

_INVOKE, _OK, _INFO = int(Type.INVOKE), int(Type.OK), int(Type.INFO)


class Open(NamedTuple):
    """State of every process before the next rows, indexed by the dense number of the process.

    row: int64, the invoke of its open operation, or IDLE, or RETIRED
    last: int64, its last row, or -1
    f, key: int32, those of the open operation
    """

    row: Int64
    last: Int64
    f: Int32
    key: Int32


def no_process_yet(count: int) -> Open:
    """Return the state before the first row, with room for `count` processes."""
    idle, none = np.full(count, IDLE, np.int64), np.full(count, -1, np.int64)
    return Open(idle, none, np.full(count, -1, np.int32), np.full(count, -1, np.int32))


class GrammarColumns(NamedTuple):
    """Columns of consecutive rows of a history.

    row_index: the index that each row states
    dense_process: the index of each process in `Open`
    f, key: dictionary codes; key is -1 if the row has none
    """

    row_index: Int64
    process: Int32
    dense_process: Int32
    type: Int8
    f: Int32
    key: Int32


@kernel
def first_fault(first_row: int, rows: GrammarColumns, open_: Open) -> tuple[int, int, int]:
    """Return the first row that violates the grammar: (the rule, the row, the earlier row it contradicts or -1).

    O(rows).

    rows: consecutive rows of a history, from `first_row` on
    open_: updated by the function, so that a caller may pass a history piece by piece
    """
    index, process, type_, f, key = rows.row_index, rows.process, rows.type, rows.f, rows.key
    for i in range(index.shape[0]):
        row = first_row + i
        if index[i] != row:
            return INDEX_GAP, row, -1
        if type_[i] < 0 or type_[i] > _INFO:
            return UNKNOWN_TYPE, row, -1
        if process[i] == NEMESIS:
            continue
        if process[i] < 0:
            return BAD_PROCESS, row, -1
        p = rows.dense_process[i]
        if open_.row[p] == RETIRED:
            return PROCESS_REUSED, row, open_.last[p]
        if type_[i] == _INVOKE:
            if open_.row[p] != IDLE:
                return INVOKE_WHILE_OPEN, row, open_.row[p]
            open_.row[p], open_.f[p], open_.key[p] = row, f[i], key[i]
        else:
            if open_.row[p] == IDLE:
                return COMPLETION_WITHOUT_INVOKE, row, -1
            if f[i] != open_.f[p]:
                return OTHER_FUNCTION, row, open_.row[p]
            if key[i] != open_.key[p]:
                return OTHER_KEY, row, open_.row[p]
            open_.row[p] = RETIRED if type_[i] == _INFO else IDLE
        open_.last[p] = row
    return SOUND, -1, -1


class Values(NamedTuple):
    """Two values: of each row, or of each process's last invoke, indexed by its dense number.  int64 each."""

    value: Int64
    value2: Int64


def nothing_invoked(count: int) -> Values:
    """Return the state before the first row, with room for `count` processes."""
    return Values(np.zeros(count, np.int64), np.zeros(count, np.int64))


_State = TypeVar("_State", Open, Values)


def with_more(state: _State, first: _State) -> _State:
    """Return a larger state that begins with the same processes.  first: initial state of the larger size."""
    pairs: Iterable[tuple[Any, Any]] = zip(first, state, strict=True)
    for column, known in pairs:
        column[: len(known)] = known
    return first


@kernel
def mark_contradictions(
    mine: Bools, process: Int32, type_: Int8, values: Values, invoked: Values, wrong: Bools
) -> None:
    """Set `wrong` at every ok whose values differ from those of its invoke.  O(rows).

    The columns contain consecutive rows of a history that follows the grammar.

    mine: True for rows of functions whose answer repeats the invoke.  Answers without a value contradict nothing, so
        they must be False.
    process: dense numbers
    invoked: updated by the function, so that a caller may pass a history piece by piece
    """
    for i in range(mine.shape[0]):
        if not mine[i]:
            continue
        p = process[i]
        if type_[i] == _INVOKE:
            invoked.value[p], invoked.value2[p] = values.value[i], values.value2[i]
        elif type_[i] == _OK and (values.value[i] != invoked.value[p] or values.value2[i] != invoked.value2[p]):
            wrong[i] = True
