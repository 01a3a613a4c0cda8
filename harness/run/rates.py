"""The rate that was really achieved outside faults, to hold against the one that was scheduled.

If the harness could not keep up on its own, what it measured under faults says little (soundness: the report says so).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from checkers.base.columns import read_history
from checkers.base.history import NEMESIS, Type
from nemesis.faults import FaultRecord

AFTERMATH_NS = 3_000_000_000
"""Stalled connections and operations that still wait for their timeout belong to the fault that was just healed."""


def achieved_rate_hz(run_folder: Path, start_ns: int, end_ns: int, faults: Iterable[FaultRecord]) -> float | None:
    """Operations invoked per second of [start_ns, end_ns) outside faults; None where faults left less than 1 s."""
    history = read_history(run_folder)
    time_ns = history["time_ns"].to_numpy()
    is_invoke = (history["type"].to_numpy() == Type.INVOKE) & (history["process"].to_numpy() != NEMESIS)
    calm_ns = end_ns - start_ns
    calm = is_invoke & (time_ns >= start_ns) & (time_ns < end_ns)
    covered_until = start_ns
    for fault in faults:
        if fault.injected_ns < 0:
            continue
        begin = max(fault.injected_ns - int(fault.apply_ms * 1e6), covered_until)
        end = min((fault.healed_ns if fault.healed_ns >= 0 else end_ns) + AFTERMATH_NS, end_ns)
        calm_ns -= max(0, end - begin)
        calm &= ~((time_ns >= begin) & (time_ns < end))
        covered_until = max(covered_until, end)
    return float(np.count_nonzero(calm)) / (calm_ns / 1e9) if calm_ns >= 1_000_000_000 else None
