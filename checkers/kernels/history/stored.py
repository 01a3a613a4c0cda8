"""Operations as a bucket keeps them, made ready for the kernels: looked over, widened, and read in one of two ways.

A bucket keeps every cas that failed as a mismatch, with its positions.  Where such a cas counts as "did not happen" it
is left out here, and the positions of its key are numbered anew.

Kernels index arrays with what they are given and check nothing; so numbers that cannot be (of a file that somebody
wrote over) must not get past this point.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int8, Int32, Int64
from checkers.kernels.jit import kernel
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
    """Operations with numbers as their values and no rows; and the first row that makes no sense, -1 if all do.

    a, b: as of `numbering.number_keys`.  O(operations + positions).
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
            fits = 0 <= kind[op] <= MISMATCH and kind[op] != OTHER
            fits = fits and -1 <= a[op] < numbers and -1 <= b[op] < numbers
            fits = fits and 0 <= call[op] < positions[k]
            fits = fits and (ret[op] == OPEN or call[op] < ret[op] < positions[k])
            if not fits:
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


@kernel
def _close_gaps(call: Int32, ret: Int32, positions: int) -> int:
    """Number the positions that are left anew, in place; returns how many there are."""
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
