"""Checks that the harness recorded every copy and every fault, and each whole and in order of time.

The harness copies all data directories before each heal and at the end.  A trace only grows, so no later copy may find
it shorter.  A copy is due only before the heal of a fault that was certainly held for long enough: the harness takes
none if the hold is too short (`nemesis/play.py`).  A disk that a fault had wiped leaves nothing to copy.

A fault that was dealt and left no record was forgotten: nobody knows whether it was in force.  test.json names every
card that was dealt, so each must have its record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from checkers.base.stored_run import FINAL_COPY, StoredRun, before_heal
from checkers.record.faults import Card, FaultRecord
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
        waits = bool(record.card.until)  # its heal comes at a moment, which no copy can come before
        if record.carried_out and not waits and record.heal_ordered_ns >= 0 and held_s >= HELD_S_MIN:
            wanted.append(before_heal(record))
    return [f"the journal shows no copy {when!r}" for when in wanted if when not in begun]


_ROUNDED_S = 0.01
"""A card that waited has times that were rounded to a millisecond."""


def not_played(cards: Iterable[Card], records: Iterable[FaultRecord]) -> list[str]:
    """One sentence for each card of test.json that left no record, not even that it was skipped, or another one.

    A card may be played later than it was dealt, but not for another time.
    """
    played = {record.card.number: record.card for record in records}
    clauses = []
    for card in cards:
        dealt = f"test.json deals fault {card.number} ({card.kind} {card.name})"
        if card.number not in played:
            clauses.append(f"{dealt}, and the journal has no record of it")
        elif replace(played[card.number], at_s=card.at_s, heal_s=card.heal_s) != card:
            clauses.append(f"{dealt}, and the journal holds another card of this number")
        elif abs(_length_s(played[card.number]) - _length_s(card)) > _ROUNDED_S:
            clauses.append(f"{dealt}, and the journal holds it for another length of time")
    return clauses


def measured_backwards(records: Iterable[FaultRecord]) -> list[str]:
    """One sentence for each fault whose measurements end before they begin, or do not follow one another."""
    clauses = []
    for record in records:
        spans = [(measurement.from_ns, measurement.to_ns) for measurement in record.measured]
        in_order = all(a <= c and b <= d for (a, b), (c, d) in pairwise(spans))
        if not in_order or any(from_ns > to_ns for from_ns, to_ns in spans):
            clauses.append(f"the measurements of fault {record.card.number} are not in order of time")
    return clauses


def _length_s(card: Card) -> float:
    return card.heal_s - card.at_s
