"""How far one node's log was durable over time, followed through the node's own trace."""

from __future__ import annotations

import numpy as np

from checkers.base.arrays import Int64
from checkers.kernels.jit import kernel

APPEND, FLUSH, TRUNCATE, START, OTHER = 1, 2, 3, 4, 5
"""Trace events as numbers; OTHER: any event that changes no log."""


@kernel
def durable_ends(events: Int64, offsets: Int64) -> Int64:
    """Return the log end that is certainly durable after each row of a trace, in seq order.

    events: as numbered above; offsets: -1 where null.
    """
    durable = np.empty(events.shape[0], np.int64)
    flushed = np.int64(0)
    for i in range(events.shape[0]):
        if events[i] == FLUSH:
            flushed = offsets[i]
        elif events[i] == TRUNCATE or events[i] == START:
            flushed = min(flushed, offsets[i])
        durable[i] = flushed
    return durable
