"""Compares the faults of faults.json with the rows in which the history recorded them.

`nemesis/play.py` records each fault in both places, at the same moments:

    carried out    inject INVOKE (words), the order, inject OK or INFO; heal INVOKE (words), the heal, heal OK or INFO
    refused        inject INVOKE (words), then FAIL or INFO; no heal
    skipped        inject INVOKE (name of the card), then FAIL; no heal

So the records determine how many rows of each function and type there are, and each time of a record lies between two
rows.  A row does not name its fault, so the k-th smallest times of one kind are compared: if each time lies between its
rows, these do, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from checkers.base import ledger
from checkers.base.history import Type
from checkers.record.faults import Achieved, Card, FaultRecord, Proof

Row = Mapping[str, Any]

_ROUNDED_S = 0.01
"""A card that waited has times that were rounded to a millisecond."""


def differences(records: Sequence[FaultRecord], rows: Iterable[Row]) -> list[str]:
    """One sentence for each difference between faults.json and the rows of process -1; empty if they agree."""
    mine = [row for row in rows if row["f"].startswith((ledger.INJECT, ledger.HEAL))]
    return _counts(records, mine)


def times_differ(records: Sequence[FaultRecord], rows: Iterable[Row]) -> list[str]:
    """One sentence for each kind of fault of which a time in faults.json is not between its rows.

    For records and rows of which `differences` finds nothing.  An order that was refused leaves the same first row as
    one that was carried out, and no time: so of a kind with refusals only the end of each order is compared.
    """
    times = _TimesOfRows(rows)
    clauses = []
    for kind in sorted({record.card.kind for record in records}):
        mine = [record for record in records if record.card.kind == kind and record.carried_out]
        refused = sum(record.card.kind == kind and not record.carried_out for record in records)
        healed = [record for record in mine if record.heal_ordered_ns >= 0]
        inject, heal = ledger.INJECT + kind, ledger.HEAL + kind
        between = [
            (
                "injected_ns",
                [r.injected_ns for r in mine],
                [] if refused else times.ordered(inject),
                times.done(inject),
            ),
            ("heal_ordered_ns", [r.heal_ordered_ns for r in healed], times.ordered(heal), times.done(heal)),
            ("healed_ns", [r.healed_ns for r in healed if r.healed_ns >= 0], times.ordered(heal), times.done(heal)),
        ]
        clauses += [
            f"faults.json holds {name} of a {kind} that is not between the rows of its order in the history"
            for name, those, earliest, latest in between
            if _outside(those, earliest, latest)
        ]
    return clauses


def orders_differ(records: Sequence[FaultRecord], rows: Iterable[Row]) -> list[str]:
    """Like `differences`, but compares only how many orders there were: for a run that was broken off."""
    ordered = Counter(row["f"] for row in rows if row["f"].startswith(ledger.INJECT) and row["type"] == Type.INVOKE)
    wanted = Counter(ledger.INJECT + record.card.kind for record in records)
    return [
        _unequal(f, Type.INVOKE, wanted[f], ordered[f]) for f in sorted(wanted | ordered) if wanted[f] != ordered[f]
    ]


def not_played(cards: Iterable[Card], records: Iterable[FaultRecord]) -> list[str]:
    """One sentence for each card of test.json of which faults.json says nothing, not even that it was skipped, or of
    which it holds another card of this number.  A card may be played later than it was dealt, but not for another time.
    """
    played = {record.card.number: record.card for record in records}
    clauses = []
    for card in cards:
        dealt = f"test.json deals fault {card.number} ({card.kind} {card.name})"
        if card.number not in played:
            clauses.append(f"{dealt}, and faults.json has no record of it")
        elif replace(played[card.number], at_s=card.at_s, heal_s=card.heal_s) != card:
            clauses.append(f"{dealt}, and faults.json holds another card of this number")
        elif abs(_length_s(played[card.number]) - _length_s(card)) > _ROUNDED_S:
            clauses.append(f"{dealt}, and faults.json holds it for another length of time")
    return clauses


def measured_backwards(records: Iterable[FaultRecord]) -> list[str]:
    """One sentence for each fault whose measurements end before they begin, or do not follow one another."""
    clauses = []
    for record in records:
        spans = [(measurement.from_ns, measurement.to_ns) for measurement in record.measurements]
        in_order = all(a <= c and b <= d for (a, b), (c, d) in pairwise(spans))
        if not in_order or any(from_ns > to_ns for from_ns, to_ns in spans):
            clauses.append(f"the measurements of fault {record.card.number} in faults.json are not in order of time")
    return clauses


def _length_s(card: Card) -> float:
    return card.heal_s - card.at_s


class _TimesOfRows:
    """The times of the rows of each function, in order."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = [row for row in rows if row["f"].startswith((ledger.INJECT, ledger.HEAL))]

    def ordered(self, f: str) -> list[int]:
        return sorted(row["time_ns"] for row in self._rows if row["f"] == f and row["type"] == Type.INVOKE)

    def done(self, f: str) -> list[int]:
        """Rows of orders that were measured; a refused order can leave one too, which then makes them too many."""
        return sorted(row["time_ns"] for row in self._rows if row["f"] == f and row["type"] in (Type.OK, Type.INFO))


def _outside(times_ns: Sequence[int], earliest_ns: Sequence[int], latest_ns: Sequence[int]) -> bool:
    """Bounds of another number belong to other faults as well, and bound nothing."""
    times = sorted(times_ns)
    too_early = len(earliest_ns) == len(times) and any(t < e for t, e in zip(times, earliest_ns, strict=True))
    too_late = len(latest_ns) == len(times) and any(t > e for t, e in zip(times, latest_ns, strict=True))
    return too_early or too_late


def _rows_of(record: FaultRecord) -> Iterator[tuple[str, Type]]:
    """Function and type of the rows that this fault left.  A refused order is undone, and no row tells of that."""
    inject, heal = (prefix + record.card.kind for prefix in (ledger.INJECT, ledger.HEAL))
    yield inject, Type.INVOKE
    if not record.carried_out:
        yield inject, Type.FAIL if record.achieved is Achieved.SKIPPED else Type.INFO
        return
    yield inject, _proven(record.inject_proof)
    if record.heal_ordered_ns >= 0:
        yield heal, Type.INVOKE
        yield heal, _proven(record.heal_proof)


def _proven(proof: Proof | None) -> Type:
    return Type.OK if proof is not None and proof.verdict == "as ordered" else Type.INFO


def _counts(records: Sequence[FaultRecord], rows: Sequence[Row]) -> list[str]:
    wanted = Counter(of for record in records for of in _rows_of(record))
    there = Counter((row["f"], Type(row["type"])) for row in rows)
    different = [of for of in sorted(wanted.keys() | there.keys()) if wanted[of] != there[of]]
    return [_unequal(f, type_, wanted[f, type_], there[f, type_]) for f, type_ in different]


def _unequal(f: str, type_: Type, named: int, shown: int) -> str:
    kind = f.removeprefix(ledger.INJECT)
    order = f.startswith(ledger.INJECT) and type_ is Type.INVOKE
    what = f"faults of kind {kind}" if order else f"rows {f} {type_.name.lower()}"
    return f"faults.json holds {named} {what}, the history {shown}"
