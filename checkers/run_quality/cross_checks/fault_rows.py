"""Checks that the records of faults are complete, and in order of time.

A fault that was dealt and left no record was forgotten: nobody knows whether it was in force.  test.json names every
card that was dealt, so each must have its record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from checkers.record.faults import Card, FaultRecord

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
