"""The faults that can have caused a violation.

Any violation: the faults in force at its moment; if none was, those that were healed last before it (a lost write shows
at the next read).  A violation without a moment, such as an entry in a copied log, has all faults of the run.  One
before the first fault has none: it needs no fault at all.

A loss of what was acknowledged has a fault that can take it, or none:

    power, damage, wipe   what was acknowledged before them or while they lasted.  A power loss takes what was not
                          fsynced: it reaches as far back as the oldest write that its disks lost, by what was measured,
                          or `SOON_NS`
    the end of a process  what was acknowledged at most `SOON_NS` before: it was still in memory.  What is on a disk
                          survives
    all others            what a leader acknowledged before another one was elected: the fault in force at that
                          election, or healed last before it; and what was acknowledged during a fault after another
                          one had been elected under it.  Without an election they take nothing.  Where nobody
                          reports who leads, they are judged by the moment of the acknowledgement

The first of these rows that fits decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from checkers.record.faults import OLDEST_LOST, FaultRecord

SOON_NS = 5_000_000_000
NEVER_SHOWN_NS = 1 << 62
"""In the place of the moment at which a loss showed, where only the end of the run showed it."""


@dataclass(frozen=True, slots=True)
class LossCause:
    """A fault that can have taken what was acknowledged.  before_ns: from the acknowledgement to its begin, 0 or less
    if it was acknowledged later.  healed: whether the fault had been healed by the acknowledgement."""

    fault: FaultRecord
    before_ns: int
    healed: bool

    @property
    def phase(self) -> int:
        """0: acknowledged before the fault, 1: during, 2: after its heal."""
        return 0 if self.before_ns > 0 else 2 if self.healed else 1

    def words(self) -> str:
        """When it was acknowledged, as the end of a sentence."""
        named = f"fault {self.fault.card.number} ({self.fault.kind or self.fault.card.kind})"
        before = f"in the {ceil(self.before_ns / 1e9)} s before {named}"
        return (before, f"during {named}", f"after {named} was healed")[self.phase]


def faults_behind(moment_ns: int, faults: Iterable[FaultRecord]) -> list[FaultRecord]:
    """The faults under which a violation showed.  moment_ns: of the violation, ns since the test began; -1: none."""
    injected = [fault for fault in faults if fault.carried_out]
    if moment_ns < 0:
        return injected
    before = [fault for fault in injected if fault.began_ns <= moment_ns]
    in_force = [fault for fault in before if fault.end_ns(moment_ns) >= moment_ns]
    if in_force or not before:
        return in_force
    last_ns = max(fault.healed_ns for fault in before)
    return [fault for fault in before if fault.healed_ns == last_ns]


def cause_of_loss(
    acknowledged_ns: int,
    faults: Sequence[FaultRecord],
    elected_ns: Sequence[int] | None,
    shown_ns: int = NEVER_SHOWN_NS,
) -> LossCause | None:
    """Return the fault that can have taken what was acknowledged; None if no fault can.

    elected_ns: when a node that had not led before began to lead; None if nobody reports who leads.
    shown_ns: when the loss had shown.
    """
    before = [f for f in faults if f.carried_out and f.began_ns <= shown_ns]
    for reach_ns in (_reach_of_disks_ns, _reach_of_deaths_ns):
        able = [
            f
            for f in before
            if (reach := reach_ns(f)) >= 0
            and f.began_ns - reach <= acknowledged_ns <= max(f.began_ns, f.end_ns(acknowledged_ns))
        ]
        if able:
            return _cause(min(able, key=lambda f: abs(f.began_ns - acknowledged_ns)), acknowledged_ns)
    moment_ns = acknowledged_ns
    if elected_ns is not None:
        later = [at for at in elected_ns if acknowledged_ns < at <= shown_ns]
        if not later:  # or one that was deposed already acknowledged it
            deposed = [
                f
                for f in before
                if f.began_ns <= acknowledged_ns <= f.end_ns(acknowledged_ns)
                and any(f.began_ns <= at <= acknowledged_ns for at in elected_ns)
            ]
            return _cause(max(deposed, key=lambda f: f.began_ns), acknowledged_ns) if deposed else None
        moment_ns = min(later)
    behind = faults_behind(moment_ns, before)
    return _cause(max(behind, key=lambda f: f.began_ns), acknowledged_ns) if behind else None


def _cause(fault: FaultRecord, acknowledged_ns: int) -> LossCause:
    return LossCause(fault, fault.began_ns - acknowledged_ns, fault.end_ns(acknowledged_ns) < acknowledged_ns)


def _reach_of_disks_ns(fault: FaultRecord) -> int:
    """Return how long before its begin a fault takes what stands on disks; -1: it takes nothing of that."""
    if fault.damages_data or fault.wipes_disks:
        return max(fault.began_ns, 0)
    if not fault.loses_unsynced:
        return -1
    lost_ms = [m.values[OLDEST_LOST] for m in fault.measured if OLDEST_LOST in m.values]
    return max(SOON_NS, round(max(lost_ms, default=0.0) * 1e6))


def _reach_of_deaths_ns(fault: FaultRecord) -> int:
    return SOON_NS if fault.ended or fault.may_die else -1
