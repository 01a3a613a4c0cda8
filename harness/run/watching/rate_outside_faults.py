"""The rate that was really achieved outside faults, to hold against the one that was scheduled.

If the harness could not keep up on its own, what it measured under faults says little (soundness: the report says so).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from checkers.base.history import NEMESIS, Type
from checkers.record.faults import FaultRecord
from checkers.sealing.walk import history_batches

AFTERMATH_NS = 3_000_000_000
"""Stalled connections and operations that still wait for their timeout belong to the fault that was just healed."""


def achieved_rate_hz(run_folder: Path, start_ns: int, end_ns: int, faults: Iterable[FaultRecord]) -> float | None:
    """Operations invoked per second of [start_ns, end_ns) outside faults; None where faults left less than 1 s.

    Reads the history a batch at a time.  Raises MalformedHistory where there is none.
    """
    struck: list[tuple[int, int]] = []
    calm_ns, covered_until = end_ns - start_ns, start_ns
    for fault in faults:
        if fault.injected_ns < 0:
            continue
        begin = max(fault.injected_ns - int(fault.apply_ms * 1e6), covered_until)
        end = min(fault.end_ns(end_ns) + AFTERMATH_NS, end_ns)
        calm_ns -= max(0, end - begin)
        struck.append((begin, end))
        covered_until = max(covered_until, end)
    if calm_ns < 1_000_000_000:
        return None
    return sum(_calm_invokes(rows, (start_ns, end_ns), struck) for rows in history_batches(run_folder)) / (
        calm_ns / 1e9
    )


def _calm_invokes(rows: pa.RecordBatch, main: tuple[int, int], struck: list[tuple[int, int]]) -> int:
    """How many operations clients invoked in this span of time, outside the others."""
    time_ns = rows["time_ns"].to_numpy()
    calm = (rows["type"].to_numpy() == Type.INVOKE) & (rows["process"].to_numpy() != NEMESIS)
    calm &= (time_ns >= main[0]) & (time_ns < main[1])
    for begin, end in struck:
        calm &= ~((time_ns >= begin) & (time_ns < end))
    return int(np.count_nonzero(calm))
