"""Checks the copies of data directories: all servers were copied, with files, whenever a copy was due.

The harness copies all data directories before each heal and at the end.  A trace only grows, so no later copy may find
it shorter.

The harness takes no copy if the hold of a fault is too short (`nemesis/play.py`).  So this check demands a copy only
of a fault that was certainly held for long enough.  A disk that a fault had wiped leaves nothing to copy.
"""

from __future__ import annotations

from collections import defaultdict

from checkers.base.stored_run import FINAL_COPY, StoredRun, before_heal
from checkers.record.journal import MAIN, Copying

HELD_S_MIN = 3.5
"""A fault that was held for so long must have a copy.  This is one second more than the harness needs
(`nemesis.play.COPY_HOLD_S_MIN`), because a slow machine may be late by a second."""


def incomplete(run: StoredRun) -> list[str]:
    """One sentence for each server that a copy leaves out, each copy without files, and each trace that shrank."""
    clauses = []
    for number in sorted({copy.copy for copy in run.copies_index}):
        lacking = set(run.demands.servers) - {copy.node for copy in run.copies_index if copy.copy == number}
        clauses += [f"copy {number} was not taken of {node}" for node in sorted(lacking)]
    longest: dict[str, int] = defaultdict(int)
    for copy in sorted(run.copies_index, key=lambda copy: copy.copy):
        folder, size_bytes, before = run.root / copy.folder, copy.trace_size_bytes, longest[copy.node]
        if not run.is_damaged(copy.copy, copy.node) and (not folder.is_dir() or not any(folder.iterdir())):
            clauses.append(f"copy {copy.copy} of {copy.node} is missing: there is nothing in {copy.folder}")
        if size_bytes < before:
            words = f"its trace has {size_bytes} bytes, and an earlier copy had {before}"
            clauses.append(f"copy {copy.copy} of {copy.node} cannot be right: {words}")
        longest[copy.node] = max(before, size_bytes)
    return clauses


def not_taken(run: StoredRun) -> list[str]:
    """One sentence for each copy that was due before a heal or at the end, and that was never begun.

    The run must not have been broken off.
    """
    begun = {entry.happened.when for entry in run.record.journal if isinstance(entry.happened, Copying)}
    main = run.outcome.phase(MAIN)
    wanted = [FINAL_COPY]
    main_ns = main.start_ns if main is not None else 0
    for record in run.faults if main is not None else ():
        held_s = record.card.heal_s - (record.injected_ns - main_ns) / 1e9
        if record.carried_out and record.heal_ordered_ns >= 0 and held_s >= HELD_S_MIN:
            wanted.append(before_heal(record))
    return [f"the journal shows no copy {when!r}" for when in wanted if when not in begun]
