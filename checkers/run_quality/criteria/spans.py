"""Spans of time of a run: the main phase, the faults in force, and what lies between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from checkers.base.stored_run import StoredRun
from checkers.record.faults import FaultRecord
from checkers.run_quality.criteria import minimums, stretches
from checkers.run_quality.faults_installed import INSTALLED, achieved

END_OF_TIME = np.iinfo(np.int64).max


def main_phase(run: StoredRun) -> list[tuple[int, int]]:
    """[from, to) of the main phase in ns since the test began; empty if it did not end."""
    main = run.outcome.phase("main")
    return [(main.start_ns, main.end_ns)] if main is not None and main.end_ns >= 0 else []


def calm_spans(run: StoredRun) -> list[tuple[int, int]]:
    """[from, to) of what of the main phase lies outside faults and their aftermath."""
    aftermath_ns = int(minimums.AFTERMATH_NS * run.demands.holds)
    return [span for main in main_phase(run) for span in minimums.calm(main, run.faults, aftermath_ns)]


def stretches_of(run: StoredRun) -> list[stretches.Stretch]:
    """The stretches of the main phase in which the system must answer something."""
    demands = run.demands
    of_phases = (stretches.stretches(main, run.faults, demands.op_timeout_s, demands.holds) for main in main_phase(run))
    return [stretch for of_phase in of_phases for stretch in of_phase]


def windows(faults: Sequence[FaultRecord]) -> list[tuple[int, int]]:
    """[from, to) in ns since the test began, of every fault that was installed; an unhealed one lasts to the end."""
    return [
        (f.injected_ns, f.heal_ordered_ns if f.heal_ordered_ns >= 0 else END_OF_TIME)
        for f in faults
        if achieved(f).word == INSTALLED
    ]
