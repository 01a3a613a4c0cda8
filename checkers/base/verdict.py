"""Verdicts and the evidence behind them.

Invalid dominates unknown, and unknown dominates valid.  A checker is *not applicable* if the run has nothing that the
checker could examine.  The report shows this, but the verdict of the run does not depend on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class Validity(StrEnum):
    """Verdict of a checker, or of a whole run."""

    VALID = "valid"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not applicable"


EXIT_CODES = {Validity.VALID: 0, Validity.INVALID: 1, Validity.UNKNOWN: 2}
HARNESS_FAILED = 3
"""Exit code when the harness itself failed or was called wrongly."""

_STRENGTH = {Validity.NOT_APPLICABLE: 0, Validity.VALID: 1, Validity.UNKNOWN: 2, Validity.INVALID: 3}


def combine(validities: Iterable[Validity]) -> Validity:
    """Return the dominant validity; NOT_APPLICABLE if there is no other."""
    return max(validities, key=_STRENGTH.__getitem__, default=Validity.NOT_APPLICABLE)


@dataclass(frozen=True, slots=True)
class Witness:
    """The smallest evidence for a violation; a reader can check it by hand.

    kind: short name of the violated rule, e.g. "stale read", "two leaders in one epoch"
    summary: one sentence that names the nodes, keys, offsets and values of the violation
    events: rows of the history, as dicts with the columns of HISTORY, in index order.  For linearizability
        these are the minimized window.
    rows: rows of LOG or TRACE, as dicts with their columns and "table" ("log" or "trace")
    facts: all other data that a picture needs, as JSON values: {"key", "states_before", "why": [sentences],
        "expected", "blocks": ...} for linearizability; {"epoch", "offset", "nodes", ...} for logs
    """

    kind: str
    summary: str
    events: tuple[Mapping[str, Any], ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        kind: str,
        summary: str,
        rows: Iterable[Mapping[str, Any]] = (),
        events: Iterable[Mapping[str, Any]] = (),
        **facts: Any,
    ) -> Witness:
        """Return the witness of a violation by some nodes.

        facts: `nodes` and `expected` are required.  `epoch` and `offset` are None by default, and `why` contains only
        the summary.  A node is listed only once in `nodes`, unless `copies` lists a copy of the log for each entry.
        """
        whole = {"epoch": None, "offset": None, "why": [summary], **facts}
        if len(whole.get("copies") or ()) != len(whole["nodes"]):
            whole["nodes"] = list(dict.fromkeys(whole["nodes"]))
        return Witness(kind, summary, tuple(events), tuple(rows), whole)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "summary": self.summary,
            "events": [dict(e) for e in self.events],
            "rows": [dict(r) for r in self.rows],
            "facts": dict(self.facts),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one checker on one run.

    looked_at: numbers of examined items, e.g. {"keys": 10, "operations": 11873}
    reason: one sentence, required for UNKNOWN and NOT_APPLICABLE
    witnesses: the worst first, at least one for INVALID and at most `MAX_WITNESSES`
    details: more data for the report as JSON values, e.g. {"criteria": [...]} of the vacuity checker

    Raises ValueError for an invalid verdict without a witness, and for an unknown or not applicable verdict without a
    reason.
    """

    validity: Validity
    looked_at: Mapping[str, int | float | str] = field(default_factory=dict)
    reason: str = ""
    witnesses: tuple[Witness, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.validity is Validity.INVALID and not self.witnesses:
            raise ValueError("an invalid verdict needs a witness")
        if self.validity in (Validity.UNKNOWN, Validity.NOT_APPLICABLE) and not self.reason:
            raise ValueError(f"a verdict of {self.validity} needs a reason")

    def to_json(self) -> dict[str, Any]:
        """Return the checker's entry in `checkers` of results.json."""
        return {
            "verdict": str(self.validity),
            "looked_at": dict(self.looked_at),
            "reason": self.reason,
            "witness": [w.to_json() for w in self.witnesses],
            "details": dict(self.details),
        }


MAX_WITNESSES = 10

OBJECTS_NAMED_MAX = 8
"""Maximum number of objects that a sentence names; further objects are only counted."""


def shortened(names: Sequence[str]) -> str:
    """Return a list of names for a sentence: the first OBJECTS_NAMED_MAX names, and the number of further names."""
    more = len(names) - OBJECTS_NAMED_MAX
    return ", ".join(names[:OBJECTS_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def nothing_shown(observers: Iterable[str], objects: Sequence[str], acknowledged: int) -> str:
    """Return the reason of an unknown verdict on objects whose state no answer shows.

    observers: functions whose answers show a state; empty if all answers do
    objects: names of the objects; empty if the history has one object without a name
    acknowledged: number of operations on these objects that returned
    """
    answer = " or ".join(sorted(observers)) or "operation"
    of = f" of {shortened(objects)}" if objects else ""
    became = f"{acknowledged} acknowledged operation{'s' * (acknowledged != 1)}" if acknowledged else "open operations"
    return f"no {answer}{of} was answered, so nothing shows what became of {became}"


def conclude(
    witnesses: Sequence[Witness],
    looked_at: Mapping[str, int | float | str],
    open_questions: Sequence[str] = (),
    details: Mapping[str, Any] | None = None,
) -> Verdict:
    """Return invalid if there is a witness, else unknown if a question is open, else valid.

    witnesses: the worst first.  The verdict counts all witnesses and keeps MAX_WITNESSES of them.
    looked_at: numbers of examined items.  If it has `violations`, the verdict has the maximum of this number and the
    number of witnesses.
    open_questions: reasons why the verdict cannot be valid, as clauses
    """
    reason = "; ".join(open_questions)
    if witnesses:
        kept = tuple(witnesses[:MAX_WITNESSES])
        figures = {**looked_at, "violations": max(len(witnesses), int(looked_at.get("violations", 0)))}
        by_kind = {VIOLATIONS_BY_KIND: dict(Counter(witness.kind for witness in witnesses))}
        return Verdict(Validity.INVALID, figures, reason, kept, {**by_kind, **(details or {})})
    validity = Validity.UNKNOWN if open_questions else Validity.VALID
    return Verdict(validity, looked_at, reason, details=details or {})


def one_of_each_first(items: Iterable[T], group: Callable[[T], Hashable]) -> list[T]:
    """Order items: first the first item of each group, then the second item of each group, and so on."""
    seen: Counter[Hashable] = Counter()
    ranked = []
    for item in items:
        seen[group(item)] += 1
        ranked.append((seen[group(item)], item))
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


DOUBTED = "doubted"
"""Key in `Verdict.details` for errors that a checker found in the evidence: a `Ground`, or the copies of one node -> a
clause that shows the error.
"""
VIOLATIONS_BY_KIND = "violations_by_kind"
"""Key in `Verdict.details` of an invalid verdict: kind of violation -> number of violations, with or without a witness.
Their sum is `violations` in `looked_at`.
"""
