"""The record of every fault of a schedule: what was ordered and measured, and what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from checkers.base.history import Type
from checkers.record.faults import Achieved, Card, Fault, FaultRecord, Measurement, Proof
from checkers.run_quality.faults_installed import achieved
from nemesis.kind import Kind, LeaderNow
from nemesis.measure import AS_ORDERED


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the harness is notified of.

    note(type, f, detail): a row for the history, of the process NEMESIS.  f is "inject-<kind>" or "heal-<kind>"; the
        INVOKE comes before the order, then OK (as ordered), FAIL (skipped) or INFO (not, or not certainly, as ordered).
    record: a record changed; the card's number says which.
    before_heal: awaited while the fault is still in force (data directories are copied here).
    """

    note: Callable[[Type, str, str], None]
    record: Callable[[FaultRecord], None]
    before_heal: Callable[[FaultRecord], Awaitable[None]]


class FaultRecords:
    """by_number: the record of each card so far.  faults: what was carried out, by the card's number."""

    def __init__(self, hooks: Hooks) -> None:
        self.by_number: dict[int, FaultRecord] = {}
        self.faults: dict[int, Fault] = {}
        self._hooks = hooks

    def skip(self, card: Card, reason: str, *, impossible: bool = False) -> None:
        words = f"{card.kind} {card.name}"
        self._put(FaultRecord(card, Achieved.SKIPPED, words, reason, kind=card.kind, impossible=impossible))
        self._hooks.note(Type.INVOKE, f"inject-{card.kind}", card.name)
        self._hooks.note(Type.FAIL, f"inject-{card.kind}", f"skipped: {reason}")

    def begin(self, kind: Kind, card: Card, fault: Fault, leader: LeaderNow | None, *, over_budget: bool) -> None:
        """Enter a fault that is being injected from now on."""
        self.faults[card.number] = fault
        self._put(
            FaultRecord(
                card,
                Achieved.INDETERMINATE,
                fault.words,
                reason="it was still being injected",
                leader=leader.node if leader else fault.leader,
                epoch=leader.epoch if leader else -1,
                kind=kind.name,
                cut=tuple(sorted(fault.cut)),
                nodes=fault.nodes,
                ordered=kind.orders(fault),
                settings=fault.settings,
                over_budget=over_budget,
            )
        )
        self._hooks.note(Type.INVOKE, f"inject-{card.kind}", fault.words)

    def _put(self, record: FaultRecord) -> None:
        self.by_number[record.card.number] = record
        self._hooks.record(record)

    def measured(self, number: int, measurement: Measurement) -> None:
        """Keep a measurement.  It is delivered with the next change: a hook each second would only cost CPU."""
        record = self.by_number[number]
        self.by_number[number] = replace(record, measured=(*record.measurements, measurement))

    def change(self, number: int, **changes: Any) -> None:
        """Change a record.  What became of the fault is computed anew, unless the change names it."""
        record = replace(self.by_number[number], **changes)
        if "achieved" not in changes and record.injected_ns >= 0:
            found = achieved(record)
            reason = changes.get("reason", found.reason)
            record = replace(record, achieved=found.word, reason=reason, lapsed_ns=found.lapsed_ns)
        self._put(record)

    def conclude(self, f: str, proof: Proof | None) -> None:
        """Note in the history whether the cluster is as the order `f` demands."""
        as_ordered = proof is not None and proof.verdict == AS_ORDERED
        words = f"{proof.verdict}: {'; '.join(proof.wrong)}" if proof and not as_ordered else AS_ORDERED
        self._hooks.note(Type.OK if as_ordered else Type.INFO, f, words if proof else "it was not measured")
