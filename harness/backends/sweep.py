"""The sweep: at the start of a run, remove what an earlier, dead run left; never touch one whose owner may live."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.backends.owner import is_dead


def sweep(runs: Mapping[str, str], remove: Callable[[str], None]) -> list[str]:
    """Call `remove` for every run (run -> owner) whose owner is certainly dead; returns those runs."""
    dead = [run_id for run_id, owner in runs.items() if is_dead(owner)]
    for run_id in dead:
        remove(run_id)
    return dead
