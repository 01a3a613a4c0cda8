"""Drops every failed cas of a stored bucket before a search, if a failed cas counts as "did not happen".

A bucket keeps every failed cas as a mismatch, with its positions.  The positions of its key are numbered again.
"""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int32
from checkers.kernels.jit import kernel
from checkers.kernels.operations import FIT, HAS_MISMATCH, MISMATCH, OPEN, Operations


@kernel
def drop_failed_cas(ops: Operations) -> Operations:
    """Return the operations without mismatches of keys that are HAS_MISMATCH; these keys become FIT.

    ops: without rows of events.  The result shares its arrays, which are overwritten.  O(operations + positions).
    """
    if not (ops.unfit == HAS_MISMATCH).any():
        return ops
    place, end = 0, 0
    for k in range(ops.positions.shape[0]):
        drop = ops.unfit[k] == HAS_MISMATCH
        start, end, first = end, ops.offsets[k + 1], place
        for op in range(start, end):
            if drop and ops.kind[op] == MISMATCH:
                continue
            ops.kind[place], ops.a[place], ops.b[place] = ops.kind[op], ops.a[op], ops.b[op]
            ops.call[place], ops.ret[place] = ops.call[op], ops.ret[op]
            place += 1
        if drop:
            ops.unfit[k] = FIT
            ops.positions[k] = _close_gaps(ops.call[first:place], ops.ret[first:place], ops.positions[k])
        ops.offsets[k + 1] = place
    return Operations(
        ops.offsets,
        ops.positions,
        ops.unfit,
        ops.kind[:place],
        ops.a[:place],
        ops.b[:place],
        ops.call[:place],
        ops.ret[:place],
        ops.invoked,
        ops.completed,
    )


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
