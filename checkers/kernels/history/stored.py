"""Prepares the operations of a stored bucket for the kernels: checks them, widens them, and decides on failed cas.

A bucket keeps every failed cas as a mismatch, with its positions.  If a failed cas counts as "did not happen", this
module drops it and numbers the positions of its key again.

Kernels use these numbers as indices and check nothing.  So a damaged or forged bucket must be rejected here.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import inner_kernel, kernel
from checkers.kernels.operations import FIT, HAS_MISMATCH, MISMATCH, NIL, OPEN, OTHER, Operations


@kernel
def make_ready(
    offsets: Int64,
    positions: Int32,
    unfit: Int8,
    kind: Int8,
    a: Int32,
    b: Int32,
    call: Int32,
    ret: Int32,
    mismatch_observed: bool,
) -> tuple[int, Operations]:
    """Return (the first impossible row or -1, operations whose values are numbers, without rows of events).

    a, b: as `numbering.number_keys` returns them.  O(operations + positions).
    """
    keys, total = positions.shape[0], kind.shape[0]
    new_offsets = np.zeros(keys + 1, np.int64)
    new_positions, new_unfit = positions.copy(), unfit.copy()
    new_kind = np.empty(total, np.int8)
    new_a, new_b = np.empty(total, np.int64), np.empty(total, np.int64)
    new_call, new_ret = np.empty(total, np.int32), np.empty(total, np.int32)
    rows = np.empty(0, np.int32)
    wrong = -1
    place = 0
    for k in range(keys):
        numbers = 2 * (offsets[k + 1] - offsets[k])
        drop = unfit[k] == HAS_MISMATCH and not mismatch_observed
        first = place
        for op in range(offsets[k], offsets[k + 1]):
            if not _is_possible(kind[op], a[op], b[op], call[op], ret[op], numbers, positions[k]):
                wrong = op
                break
            if drop and kind[op] == MISMATCH:
                continue
            new_kind[place] = kind[op]
            new_a[place] = NIL if a[op] < 0 else a[op]
            new_b[place] = NIL if b[op] < 0 else b[op]
            new_call[place] = call[op]
            new_ret[place] = ret[op]
            place += 1
        if wrong >= 0:
            break
        if drop:
            new_unfit[k] = FIT
            new_positions[k] = _close_gaps(new_call[first:place], new_ret[first:place], positions[k])
        new_offsets[k + 1] = place
    return wrong, Operations(
        new_offsets,
        new_positions,
        new_unfit,
        new_kind[:place],
        new_a[:place],
        new_b[:place],
        new_call[:place],
        new_ret[:place],
        rows,
        rows,
    )


@inner_kernel
def _is_possible(kind: int, a: int, b: int, call: int, ret: int, numbers: int, positions: int) -> bool:
    """Whether kernels may use these columns of one operation as indices."""
    if not 0 <= kind <= MISMATCH or kind == OTHER:
        return False
    if not (-1 <= a < numbers and -1 <= b < numbers):
        return False
    return 0 <= call < positions and (ret == OPEN or call < ret < positions)


@kernel
def _close_gaps(call: Int32, ret: Int32, positions: int) -> int:
    """Number the remaining positions from 0, in place; returns their count."""
    new = np.full(positions, -1, np.int32)
    for op in range(call.shape[0]):
        new[call[op]] = 0
        if ret[op] != OPEN:
            new[ret[op]] = 0
    left = 0
    for position in range(positions):
        if new[position] == 0:
            new[position] = left
            left += 1
    for op in range(call.shape[0]):
        call[op] = new[call[op]]
        if ret[op] != OPEN:
            ret[op] = new[ret[op]]
    return left
