"""The grammar of a history: what every checker may rely on without looking again.

a process invokes, then that operation completes (ok, fail or info), then the process may invoke again;
a completion has the f and the key of its invoke;
after an info the process is retired and never seen again;
index counts from 0 without gaps; faults (process -1) have no grammar.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
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

_INVOKE, _INFO = int(Type.INVOKE), int(Type.INFO)


@kernel
def first_fault(
    index: Int64,
    process: Int32,
    dense_process: Int32,
    type_: Int8,
    f: Int32,
    key: Int32,
    process_count: int,
    mate: Int32,
) -> tuple[int, int, int]:
    """The first row that breaks the grammar: (which rule, row, the earlier row it clashes with or -1).

    All columns in the order of the history; dense_process numbers the processes 0 to process_count - 1; f and key
    are dictionary codes, key -1 where there is none.  mate: filled as by `operations.mates`, -1 for faults.
    """
    mate[:] = -1
    idle, retired = -1, -2
    open_row = np.full(process_count, idle, np.int64)
    last_row = np.full(process_count, -1, np.int64)
    for row in range(index.shape[0]):
        if index[row] != row:
            return INDEX_GAP, row, -1
        if type_[row] < 0 or type_[row] > _INFO:
            return UNKNOWN_TYPE, row, -1
        if process[row] == NEMESIS:
            continue
        if process[row] < 0:
            return BAD_PROCESS, row, -1
        p = dense_process[row]
        if open_row[p] == retired:
            return PROCESS_REUSED, row, last_row[p]
        if type_[row] == _INVOKE:
            if open_row[p] != idle:
                return INVOKE_WHILE_OPEN, row, open_row[p]
            open_row[p] = row
        else:
            invoked = open_row[p]
            if invoked == idle:
                return COMPLETION_WITHOUT_INVOKE, row, -1
            if f[row] != f[invoked]:
                return OTHER_FUNCTION, row, invoked
            if key[row] != key[invoked]:
                return OTHER_KEY, row, invoked
            mate[row], mate[invoked] = invoked, row
            open_row[p] = retired if type_[row] == _INFO else idle
        last_row[p] = row
    return SOUND, -1, -1
