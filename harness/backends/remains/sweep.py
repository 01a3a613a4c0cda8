"""The sweep: at the start of a run, remove what earlier runs left behind when they died.

A run whose owner may still live is never touched.  A sweep never fails a run: what cannot be removed is one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.backends.remains.owner import is_dead


@dataclass(frozen=True, slots=True)
class Swept:
    """removed: the runs that are gone.  left: one sentence for each thing that could not be removed."""

    removed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def sweep(runs: Mapping[str, str], remove: Callable[[str], str]) -> Swept:
    """Call `remove` for every run (run -> owner) whose owner is certainly dead.

    `remove` returns "" if the run is gone, else a sentence that says what is left and why.
    """
    answers = {run_id: remove(run_id) for run_id, owner in runs.items() if is_dead(owner)}
    return Swept(
        removed=tuple(run_id for run_id, left in answers.items() if not left),
        left=tuple(left for left in answers.values() if left),
    )
