"""Checks the copies of data directories: index, history, folders and faults must agree on them.

The harness copies all data directories before each heal and at the end.  The history has a row for each copy.
copies.json has an entry for each copy and server, which names a folder.  A trace only grows, so no later copy may find
it shorter.

The harness takes no copy if the hold of a fault is too short (`nemesis/play.py`).  So this check demands a copy only
of a fault that was certainly held for long enough.  A disk that a fault had wiped leaves nothing to copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from checkers.base import ledger
from checkers.base.history import Type
from checkers.base.stored_run import StoredRun
from checkers.record.copies import Copy
from checkers.record.reading import COPIES_INDEX

HELD_S_MIN = 3.5
"""A fault that was held for so long must have a copy.  This is one second more than the harness needs
(`nemesis.play.COPY_HOLD_S_MIN`), because a slow machine may be late by a second."""

Row = Mapping[str, Any]


def differences(run: StoredRun, rows: Sequence[Row]) -> list[str]:
    """One sentence for each error in the copies; empty if there is none.  rows: those of process -1.

    Raises KeyError or TypeError if an entry of copies.json or of the history is malformed.
    """
    shown = {
        (entry["copy"], entry["when"], node, state)
        for entry in map(ledger.payload, ledger.of(rows, ledger.COPY, Type.OK))
        for node, state in entry["nodes"].items()
    }
    listed = {(copy.copy, copy.when, copy.node, copy.state) for copy in run.copies_index}
    clauses = [f"copy {copy} of {node} is not in {COPIES_INDEX}" for copy, _, node, _ in sorted(shown - listed)]
    clauses += [f"copy {copy} of {node} is not in the history" for copy, _, node, _ in sorted(listed - shown)]
    for number in sorted({copy for copy, *_ in shown}):
        lacking = set(run.demands.servers) - {node for copy, _, node, _ in shown if copy == number}
        clauses += [f"copy {number} was not taken of {node}" for node in sorted(lacking)]
    for copy in run.copies_index:
        folder = run.root / copy.folder
        if not run.is_damaged(copy.copy, copy.node) and (not folder.is_dir() or not any(folder.iterdir())):
            clauses.append(f"copy {copy.copy} of {copy.node} is missing: there is nothing in {copy.folder}")
    return [*clauses, *_shrunk_traces(run.copies_index)]


def _shrunk_traces(index: Sequence[Copy]) -> list[str]:
    """One sentence for each copy in which the trace of a node is shorter than in an earlier copy."""
    longest: dict[str, int] = defaultdict(int)
    clauses = []
    for copy in sorted(index, key=lambda copy: copy.copy):
        node, size_bytes = copy.node, copy.trace_size_bytes
        if size_bytes < longest[node]:
            words = f"its trace has {size_bytes} bytes, and an earlier copy had {longest[node]}"
            clauses.append(f"copy {copy.copy} of {node} cannot be right: {words}")
        longest[node] = max(longest[node], size_bytes)
    return clauses


def lacking(run: StoredRun, rows: Sequence[Row]) -> list[str]:
    """One sentence for each copy that was due before a heal or at the end, and that the history does not show.

    rows: those of process -1.  The run must not have been broken off.
    """
    begun = {ledger.payload(row)["when"] for row in ledger.of(rows, ledger.COPY, Type.INVOKE)}
    phases = ledger.of(rows, ledger.PHASE, Type.INVOKE)
    main_ns = next((row["time_ns"] for row in phases if ledger.payload(row) == "main"), None)
    wanted = ["final"]
    for record in run.faults:
        if main_ns is None:
            break  # `evidence` names a phase that is missing
        held_s = record.card.heal_s - (record.injected_ns - main_ns) / 1e9
        if record.carried_out and record.heal_ordered_ns >= 0 and held_s >= HELD_S_MIN:
            wanted.append(f"before heal {record.card.number}")
    return [f"the history shows no copy {when!r}" for when in wanted if when not in begun]
