"""Compares the faults of faults.json with the rows in which the history recorded them.

`nemesis/inject.py` records each fault in both places, at the same moments:

    carried out    inject INVOKE (words), the order, inject OK or INFO; heal INVOKE (words), the heal, heal OK or INFO
    refused        inject INVOKE (words), then FAIL or INFO; no heal
    skipped        inject INVOKE (name of the card), then FAIL; no heal

So the records determine how many rows of each function and type there are, and each order was recorded just before it
was given.  Faults of one kind may overlap.  Words distinguish invokes.  Completions have no words, so they are only
counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from checkers.base import ledger
from checkers.base.history import Type

ORDER_LATE_S_MAX = 2.0
"""The longest time from a row to its order.  The harness gives the order at once, but a machine under load may stop it
between the two."""

Row = Mapping[str, Any]
Record = Mapping[str, Any]


def differences(records: Sequence[Record], rows: Iterable[Row]) -> list[str]:
    """One sentence for each difference between faults.json and the rows of process -1; empty if they agree.

    Raises KeyError or TypeError if a record is malformed.
    """
    mine = [row for row in rows if row["f"].startswith((ledger.INJECT, ledger.HEAL))]
    return [*_counts(records, mine), *_times(records, mine)]


def orders_differ(records: Sequence[Record], rows: Iterable[Row]) -> list[str]:
    """Like `differences`, but compares only how many orders there were: for a run that was broken off."""
    ordered = Counter(row["f"] for row in rows if row["f"].startswith(ledger.INJECT) and row["type"] == Type.INVOKE)
    wanted = Counter(ledger.INJECT + str(record["card"]["kind"]) for record in records)
    return [
        _unequal(f, Type.INVOKE, wanted[f], ordered[f]) for f in sorted(wanted | ordered) if wanted[f] != ordered[f]
    ]


def _carried_out(record: Record) -> bool:
    return bool(record.get("injected_ns", -1) >= 0)


def _healed(record: Record) -> bool:
    """Whether a heal was ordered.  A refused order is undone too, but the history has no rows of that."""
    return bool(record.get("heal_ordered_ns", -1) >= 0)


def _rows_of(record: Record) -> Iterator[tuple[str, Type]]:
    """Function and type of the rows that this fault left."""
    inject, heal = (prefix + str(record["card"]["kind"]) for prefix in (ledger.INJECT, ledger.HEAL))
    yield inject, Type.INVOKE
    if not _carried_out(record):
        yield inject, Type.FAIL if record.get("achieved") == "skipped" else Type.INFO
        return
    yield inject, _proven(record.get("inject_proof"))
    if _healed(record):
        yield heal, Type.INVOKE
        yield heal, _proven(record.get("heal_proof"))


def _proven(proof: Any) -> Type:
    return Type.OK if proof is not None and proof["verdict"] == "as ordered" else Type.INFO


def _counts(records: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    wanted = Counter(of for record in records for of in _rows_of(record))
    there = Counter((row["f"], Type(row["type"])) for row in rows)
    different = [of for of in sorted(wanted.keys() | there.keys()) if wanted[of] != there[of]]
    return [_unequal(f, type_, wanted[f, type_], there[f, type_]) for f, type_ in different]


def _unequal(f: str, type_: Type, named: int, shown: int) -> str:
    kind = f.removeprefix(ledger.INJECT)
    order = f.startswith(ledger.INJECT) and type_ is Type.INVOKE
    what = f"faults of kind {kind}" if order else f"rows {f} {type_.name.lower()}"
    return f"faults.json holds {named} {what}, the history {shown}"


def _times(records: Sequence[Record], rows: Sequence[Row]) -> list[str]:
    """One sentence for each order or heal that has no row with the same words just before it.

    One also if the history has more or fewer such rows than faults.json has orders.
    """
    invoked: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        if row["type"] == Type.INVOKE:
            invoked[row["f"], str(row["payload"])].append(row["time_ns"])
    ordered: dict[tuple[str, str], list[int]] = defaultdict(list)
    for record in records:
        kind, words = str(record["card"]["kind"]), str(record.get("words"))
        if not _carried_out(record):
            named = words if _healed(record) else str(record["card"].get("name"))
            ordered[ledger.INJECT + kind, named].append(-1)
            continue
        ordered[ledger.INJECT + kind, words].append(record["injected_ns"] - round(record["apply_ms"] * 1e6))
        if _healed(record):
            ordered[ledger.HEAL + kind, words].append(record["heal_ordered_ns"])
    clauses = []
    for f, words in sorted(invoked.keys() | ordered.keys()):
        shown, given = invoked[f, words], sorted(ordered[f, words])
        if len(shown) != len(given):
            clauses.append(f"faults.json holds {len(given)} of {f} {words!r:.60}, the history {len(shown)}")
        clauses += [
            f"faults.json has {f} {words!r:.60} at {at_ns / 1e9:.3f} s, which no row of the history shows"
            for at_ns in given
            if at_ns >= 0 and not any(_just_before(row_ns, at_ns) for row_ns in shown)
        ]
    return clauses


def _just_before(row_ns: int, order_ns: int) -> bool:
    return -1000 <= order_ns - row_ns <= ORDER_LATE_S_MAX * 1e9
