"""Finds impossible operations in a stored bucket, and widens the columns of the others for the kernels.

Kernels use these numbers as indices and check nothing.  So a damaged or forged bucket must be rejected here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import MISMATCH, NIL, OPEN, OTHER, Operations


class StoredColumns(NamedTuple):
    """Columns of a bucket, a row for each operation.  a, b: as `numbering.number_keys` returns them."""

    kind: Int8
    a: Int32
    b: Int32
    call: Int32
    ret: Int32


@kernel
def check_and_widen(offsets: Int64, positions: Int32, unfit: Int8, stored: StoredColumns) -> tuple[int, Operations]:
    """Return (the first impossible row or -1, copies of the operations whose values are numbers, without rows).

    O(operations).
    """
    kind, a, b, call, ret = stored.kind, stored.a, stored.b, stored.call, stored.ret
    new_a, new_b = np.empty(kind.shape[0], np.int64), np.empty(kind.shape[0], np.int64)
    wrong = -1
    for k in range(positions.shape[0]):
        numbers = 2 * (offsets[k + 1] - offsets[k])
        for op in range(offsets[k], offsets[k + 1]):
            if not _is_possible(stored, op, numbers, positions[k]):
                wrong = op
                break
            new_a[op] = NIL if a[op] < 0 else a[op]
            new_b[op] = NIL if b[op] < 0 else b[op]
        if wrong >= 0:
            break
    rows = np.empty(0, np.int32)
    return wrong, Operations(
        offsets.copy(),
        positions.copy(),
        unfit.copy(),
        kind.copy(),
        new_a,
        new_b,
        call.copy(),
        ret.copy(),
        rows,
        rows,
    )


@inner_kernel
def _is_possible(stored: StoredColumns, op: int, numbers: int, positions: int) -> bool:
    """Whether kernels may use the columns of one operation as indices."""
    kind, a, b, call, ret = stored.kind[op], stored.a[op], stored.b[op], stored.call[op], stored.ret[op]
    if not 0 <= kind <= MISMATCH or kind == OTHER:
        return False
    if not (-1 <= a < numbers and -1 <= b < numbers):
        return False
    return bool(0 <= call < positions and (ret == OPEN or call < ret < positions))
