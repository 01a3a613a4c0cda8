"""Stretches of the main phase in which a working system answers: they lie outside all faults and their grace.

A system may answer for the first second of a run and then hang.  Counts over the whole run hide that, because a fast
system answers enough in a second.  So the time outside faults is cut into equal stretches, and each of them must
have an ok answer.

Nothing is demanded where a sound system may be silent:

* A stretch in which hardly anything was invoked shows nothing.
* After a heal the system has the whole recovery limit, up to its first answer.  The checker `recovery` judges how long
  it takes after the last heal.
* After a fault that servers may not survive, such as damaged files or the loss of what a majority had fsynced, nothing
  is demanded any more.

The spans of a run stand here, too: its main phase, the faults in force, and what lies between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from checkers.base.stored_run import StoredRun
from checkers.record.faults import FaultRecord
from checkers.run_quality.criteria import minimums
from checkers.run_quality.faults_installed import INSTALLED, achieved

GRACE_NS = 10_000_000_000
"""After a heal: time for stalled connections, an election, and a server that catches up."""
STRETCH_S_LEAST = 5.0
TIMEOUTS_LEAST = 2
"""A stretch lasts at least so many operation timeouts: within the first, each client of a hung system invokes again."""
INVOKED_LEAST = 5
"""Of so many operations, invoked early enough to end within the stretch, one must be ok."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """begin_ns, end_ns: since the test began; the end is exclusive.  early_ns: an operation that is invoked before it
    times out within the stretch.  calm: number of the span without faults to which it belongs.
    healed_ns: when the last fault before it was healed; -1 if there was none.  grace: it only shows recovery."""

    begin_ns: int
    end_ns: int
    early_ns: int
    calm: int
    healed_ns: int
    grace: bool = False


def stretches(
    main: tuple[int, int], faults: Sequence[FaultRecord], op_timeout_s: float, holds: float = 1.0
) -> list[Stretch]:
    """The stretches of a main phase, in order of time and disjoint.  main: [from, to) in ns since the test began.

    holds: of the demands; the grace and the stretches are so many times as long."""
    length_ns = int(max(STRETCH_S_LEAST * holds, TIMEOUTS_LEAST * op_timeout_s) * 1e9)
    grace_ns = int(GRACE_NS * holds)
    lasting = [replace(fault, healed_ns=-1) if _may_end_the_system(fault) else fault for fault in faults]
    found = []
    for calm, (begin, end) in enumerate(minimums.calm(main, lasting, grace_ns)):
        healed_ns = begin - grace_ns if begin > main[0] else -1
        if healed_ns >= 0:
            found.append(Stretch(healed_ns, begin, begin, calm, healed_ns, grace=True))
        count = max(0, end - begin) // length_ns
        edges = [begin + (end - begin) * i // count for i in range(count + 1)] if count else []
        for one, other in pairwise(edges):
            found.append(Stretch(one, other, other - int(op_timeout_s * 1e9), calm, healed_ns))
    return found


def _may_end_the_system(fault: FaultRecord) -> bool:
    return fault.may_stay_down or fault.over_budget


def silent(
    of_run: Sequence[Stretch], invoked: Sequence[int], ok: Sequence[int], recovery_limit_s: float
) -> tuple[list[Stretch], int]:
    """Returns (the stretches that have no ok answer and should have one, how many should have one).

    invoked: for each stretch, operations invoked before its `early_ns`.  ok: for each stretch, its ok answers.
    """
    without, demanded = [], 0
    recovered: dict[int, bool] = {}
    for stretch, invoked_here, ok_here in zip(of_run, invoked, ok, strict=True):
        late = stretch.begin_ns >= stretch.healed_ns + int(recovery_limit_s * 1e9)
        had_time = stretch.healed_ns < 0 or late or recovered.get(stretch.calm, False)
        recovered[stretch.calm] = recovered.get(stretch.calm, False) or ok_here > 0
        if stretch.grace or not had_time or invoked_here < INVOKED_LEAST:
            continue
        demanded += 1
        if not ok_here:
            without.append(stretch)
    return without, demanded


END_OF_TIME = np.iinfo(np.int64).max


def main_phase(run: StoredRun) -> list[tuple[int, int]]:
    """[from, to) of the main phase in ns since the test began; empty if it did not end."""
    main = run.outcome.phase("main")
    return [(main.start_ns, main.end_ns)] if main is not None and main.end_ns >= 0 else []


def calm_spans(run: StoredRun) -> list[tuple[int, int]]:
    """[from, to) of what of the main phase lies outside faults and their aftermath."""
    aftermath_ns = int(minimums.AFTERMATH_NS * run.demands.holds)
    return [span for main in main_phase(run) for span in minimums.calm(main, run.faults, aftermath_ns)]


def stretches_of(run: StoredRun) -> list[Stretch]:
    """The stretches of the main phase in which the system must answer something."""
    demands = run.demands
    of_phases = (stretches(main, run.faults, demands.op_timeout_s, demands.holds) for main in main_phase(run))
    return [stretch for of_phase in of_phases for stretch in of_phase]


def windows(faults: Sequence[FaultRecord]) -> list[tuple[int, int]]:
    """[from, to) in ns since the test began, of every fault that was installed; an unhealed one lasts to the end."""
    return [
        (f.injected_ns, f.heal_ordered_ns if f.heal_ordered_ns >= 0 else END_OF_TIME)
        for f in faults
        if achieved(f).word == INSTALLED
    ]
