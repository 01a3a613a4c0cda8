"""Compares the faults of faults.json with the rows in which the history recorded them.

`nemesis/inject.py` records each fault in both places, at the same moments:

    carried out    inject INVOKE (words), the order, inject OK or INFO; heal INVOKE (words), the heal, heal OK or INFO
    refused        inject INVOKE (words), then FAIL or INFO; no heal
    skipped        inject INVOKE (name of the card), then FAIL; no heal

So the records determine how many rows of each function and type there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from checkers.base import ledger
from checkers.base.history import Type
from checkers.record.faults import Achieved, Card, FaultRecord, Proof

Row = Mapping[str, Any]


def differences(records: Sequence[FaultRecord], rows: Iterable[Row]) -> list[str]:
    """One sentence for each difference between faults.json and the rows of process -1; empty if they agree."""
    mine = [row for row in rows if row["f"].startswith((ledger.INJECT, ledger.HEAL))]
    return _counts(records, mine)


def orders_differ(records: Sequence[FaultRecord], rows: Iterable[Row]) -> list[str]:
    """Like `differences`, but compares only how many orders there were: for a run that was broken off."""
    ordered = Counter(row["f"] for row in rows if row["f"].startswith(ledger.INJECT) and row["type"] == Type.INVOKE)
    wanted = Counter(ledger.INJECT + record.card.kind for record in records)
    return [
        _unequal(f, Type.INVOKE, wanted[f], ordered[f]) for f in sorted(wanted | ordered) if wanted[f] != ordered[f]
    ]


def not_played(cards: Iterable[Card], records: Iterable[FaultRecord]) -> list[str]:
    """One sentence for each card of test.json of which faults.json says nothing, not even that it was skipped."""
    played = {record.card.number for record in records}
    return [
        f"test.json deals fault {card.number} ({card.kind} {card.name}), and faults.json has no record of it"
        for card in cards
        if card.number not in played
    ]


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
