"""The symptom of a violation: what two runs must have in common, so that they probably show one mistake.

It names the checker, the kind of the violation, the shape of its witness, the kinds of fault it showed under, and
whether they hit the leader.  It leaves out whatever differs from seed to seed: times, keys, values, node names, and how
long the witness is.

*Under* which fault: those in force at the moment of the violation; if none was, those that were healed last before it
(a lost write shows at the next read).  A violation without a moment, such as an entry in a copied log, has the kinds
of all faults of the run.  A violation before the first fault has none.  Such a violation needs no fault at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from checkers.base.json_file import mapping, number
from checkers.base.verdict import Witness
from checkers.record.faults import FaultRecord
from harness.explanations.violations_by_cause import ReportedViolation
from harness.story.kinds import name_in_words

LEADER, OTHERS = "leader", "others"
_ID_BYTES = 4


@dataclass(frozen=True, slots=True)
class ViolationSymptom:
    """shape: the function whose answer no order explains, or else what the witness consists of: functions and tables.
    faults: kinds, in alphabetical order.  roles: LEADER if a fault hit who led at its injection, OTHERS if one hit
    only other nodes."""

    checker: str
    kind: str
    shape: str
    faults: tuple[str, ...]
    roles: tuple[str, ...]

    @property
    def id(self) -> str:
        """Eight hexadecimal digits: the same on every machine and in every run."""
        words = "\0".join((self.checker, self.kind, self.shape, "+".join(self.faults), "+".join(self.roles)))
        return hashlib.blake2b(words.encode(), digest_size=_ID_BYTES).hexdigest()

    def words(self) -> str:
        """Such as: stale read (linearizability, by read) under partition of the leader."""
        if not self.faults:
            return f"{name_in_words(self.kind)} ({self.checker}, by {self.shape}) under no fault"
        of = " of the leader" if LEADER in self.roles else ""
        return f"{name_in_words(self.kind)} ({self.checker}, by {self.shape}) under {' and '.join(self.faults)}{of}"


def symptom_of(violation: ReportedViolation, faults: Sequence[FaultRecord]) -> ViolationSymptom:
    """faults: of the run, in any order."""
    before = faults_behind(violation.moment_ns, faults)
    return ViolationSymptom(
        violation.checker,
        violation.kind,
        shape_of(violation.witness),
        tuple(sorted({fault.card.kind for fault in before})),
        tuple(sorted({_role(fault) for fault in before})),
    )


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


def shape_of(witness: Witness) -> str:
    """What kind of evidence a witness is, whatever its length."""
    events, facts = witness.events, witness.facts
    letters = {str(letter): index for index, letter in mapping(facts.get("letters")).items()}
    culprit = number(_integer(letters.get(str(facts.get("culprit") or ""))), -1)
    by = next((str(event.get("f")) for event in events if event.get("index") == culprit), "")
    if by:
        return by
    functions = {str(event.get("f")) for event in events if number(event.get("process"), 0) >= 0}
    tables = {str(row.get("table")) for row in witness.rows}
    return "+".join(sorted(functions | tables)) or "words alone"


def _integer(text: Any) -> int | None:
    return int(text) if isinstance(text, str) and text.isdigit() else None


def _role(fault: FaultRecord) -> str:
    hit = {*fault.nodes, *(node for link in fault.cut for node in link)}
    return LEADER if fault.leader is not None and fault.leader in hit else OTHERS
