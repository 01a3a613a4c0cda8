"""Judges the objects of a history one by one, for a file that is checked by hand or for a part of a live run.

Objects can be judged separately (Herlihy & Wing 1990).  All objects share one budget.  Each object first gets an equal
share.  Then each object that ran out of steps is judged again with all steps that are left.

All violations are counted.  Only a few are explained, the earliest first, because an explanation costs far more than
the judgement.  Explanations have a budget of their own (`past.py`).

*Names.*  Finds the bundled objects by name.  To add one, write a file in `objects/` that ends with a `KnownObject`.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from checkers.base.checker import Budget
from checkers.base.history import Event, Type, doubt_of_refusal
from checkers.base.independent_search import Disagreement
from checkers.base.values import with_article
from checkers.base.verdict import MAX_WITNESSES, VIOLATIONS_BY_KIND, Validity, Verdict, Witness, nothing_shown
from checkers.models import objects
from checkers.models.known_object import EXCUSED, ONLY_BOUNDS, UNANSWERED, KnownObject, ObjectFinding
from checkers.models.model import (
    Operation,
    Rows,
    WrongOperation,
    demand_agreement,
    operations_of,
    text_of,
    value_of,
    with_exact_values,
)
from checkers.models.objects.bank import BANK, BANK_OVERDRAFT
from checkers.models.objects.bank import judge as judge_bank
from checkers.models.objects.locks import PERMITS_MAX, semaphore_object
from checkers.models.past import Patience
from checkers.models.search import steps_first
from checkers.models.witnesses import Decided, NoOrder, explain

FROM_NOWHERE = "value from nowhere"
NOTHING_ANSWERED = "no operation of a client got an answer, so there was nothing to judge"


@dataclass(frozen=True, slots=True)
class ObjectsFinding:
    """Results of a checker for some objects.

    answered: number of operations that returned
    unseen: (name, number of operations that returned) of each object whose state no answer shows
    observers: as in `KnownObject`, for the sentence about `unseen`
    steps: steps of all searches
    violations: kind -> number of violations found, explained or not
    witnesses: (index of the wrong answer, witness) of the explained violations
    unknown: one sentence for each undecided object
    counts: sums of the counts of the `ObjectFinding`s
    """

    objects: int = 0
    operations: int = 0
    answered: int = 0
    unseen: tuple[tuple[Hashable, int], ...] = ()
    observers: frozenset[str] = frozenset()
    steps: int = 0
    violations: Mapping[str, int] = field(default_factory=dict)
    witnesses: tuple[tuple[int, Witness], ...] = ()
    unknown: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def judge_each(events: Sequence[Event], known: KnownObject, budget: Budget) -> ObjectsFinding:
    """Judge every object.  Raises WrongEvent if events contradict each other.

    events: events of clients, in index order
    """
    demand_agreement(events, known.fixed)
    operations = operations_of(events, set_up=known.set_up)
    if known.exact:
        operations = with_exact_values(operations)
    by_object: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        by_object.setdefault(None if known.whole else known.partition(operation), []).append(operation)
    odd: dict[Hashable, list[str]] = {}
    for name, its in by_object.items():
        by_object[name], odd[name] = known.judgeable(its)
    found = _judge_all(by_object, known, budget)
    unknown = [_about(name, _left_out(sentences)) for name, sentences in odd.items() if sentences]
    unknown += [_about(name, finding.reason) for name, finding in found.items() if finding.reason]
    wrong = [(name, violation) for name, finding in found.items() for violation in finding.violations]
    wrong.sort(key=lambda pair: pair[1].index)
    witnesses, retracted = _explained(wrong, by_object, budget, rows_of(events))
    witnesses = [(index, _with_doubt(made, events, known.observers)) for index, made in witnesses]
    counts: Counter[str] = Counter()
    for finding in found.values():
        counts.update(finding.counts)
    return ObjectsFinding(
        objects=len(by_object),
        operations=len(operations),
        answered=sum(o.returned for o in operations),
        unseen=tuple((name, sum(o.returned for o in its)) for name, its in by_object.items() if known.is_unseen(its)),
        observers=known.observers,
        steps=sum(finding.steps for finding in found.values()),
        violations=Counter(violation.kind for name, violation in wrong if name not in retracted),
        witnesses=tuple(witnesses),
        unknown=(*unknown, *retracted.values()),
        counts=counts,
    )


def verdict_of(findings: Sequence[ObjectsFinding]) -> Verdict:
    """Return the verdict on all objects of a history.

    findings: one for each part
    """
    looked_at: dict[str, int | float | str] = {
        "keys": sum(f.objects for f in findings),
        "operations": sum(f.operations for f in findings),
        "steps": sum(f.steps for f in findings),
    }
    for finding in findings:
        looked_at |= {what: int(looked_at.get(what, 0)) + number for what, number in finding.counts.items()}
    unknown = [sentence for f in findings for sentence in f.unknown]
    reason = unknown[0] + (f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else "") if unknown else ""
    witnesses = sorted((pair for f in findings for pair in f.witnesses), key=lambda pair: pair[0])
    if witnesses:
        by_kind: Counter[str] = Counter()
        for finding in findings:
            by_kind.update(finding.violations)
        looked_at["violations"] = by_kind.total()
        kept = tuple(each for _, each in witnesses[:MAX_WITNESSES])
        return Verdict(Validity.INVALID, looked_at, reason, kept, {VIOLATIONS_BY_KIND: dict(by_kind)})
    if unknown:
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    answered = sum(f.answered for f in findings)
    if not answered:
        return Verdict(Validity.UNKNOWN, looked_at, NOTHING_ANSWERED)
    if unseen := [pair for f in findings for pair in f.unseen]:
        observers = frozenset().union(*(f.observers for f in findings))
        names = sorted(str(name) for name, _ in unseen if name is not None)
        looked_at["unseen_keys"] = len(unseen)
        return Verdict(
            Validity.UNKNOWN, looked_at, nothing_shown(observers, names, sum(returned for _, returned in unseen))
        )
    return Verdict(Validity.VALID, looked_at, details=_what_was_excused(looked_at))


def _what_was_excused(looked_at: Mapping[str, int | float | str]) -> dict[str, str]:
    """Return {"decided": a sentence} if a valid verdict does not claim that an order exists; else {}.

    A queue may have lost values whose loss no answer shows, and a bank may have been judged by sums and bounds alone.
    """
    if looked_at.get(ONLY_BOUNDS, 0):
        words = "sums, and what was acknowledged before each read; one order of all transfers was looked for and"
        return {"decided": f"{words} not decided within the budget"}
    if not (excused := looked_at.get(EXCUSED, 0)):
        return {}
    words = f"values that had to come out and that no answer shows: {excused}"
    return {
        "decided": f"{words}; one of {looked_at[UNANSWERED]} dequeues without an answer may have taken each of them"
    }


def rows_of(events: Iterable[Event]) -> Rows:
    """Return a function from operations to their events, as dicts with the columns of HISTORY."""
    at = {event.index: event for event in events}

    def rows(operations: Sequence[Operation]) -> tuple[dict[str, Any], ...]:
        wanted = {o.call for o in operations} | {o.completed for o in operations if o.completed is not None}
        chosen = [at[index] for index in sorted(wanted)]
        return tuple(event.as_row() for event in chosen)

    return rows


_ByObject = Mapping[Hashable, Sequence[Operation]]


def _judge_all(by_object: _ByObject, known: KnownObject, budget: Budget) -> dict[Hashable, ObjectFinding]:
    found: dict[Hashable, ObjectFinding] = {}
    share = budget.steps // max(1, len(by_object))
    left = budget.steps
    for name, operations in by_object.items():
        steps = min(budget.steps, max(share, steps_first(len(operations))))
        found[name] = _judge_one(operations, known, replace(budget, steps=steps))
        left -= found[name].steps
    for name, operations in by_object.items():
        if found[name].out_of_steps and left > found[name].steps:
            found[name] = _judge_one(operations, known, replace(budget, steps=left))
            left -= found[name].steps
    return found


def _judge_one(operations: Sequence[Operation], known: KnownObject, budget: Budget) -> ObjectFinding:
    try:
        known.demand_its_functions(operations)
        return known.judge(operations, budget)
    except (WrongOperation, Disagreement) as problem:
        return ObjectFinding(reason=str(problem))


def _explained(
    wrong: Sequence[tuple[Hashable, NoOrder | Decided]], by_object: _ByObject, budget: Budget, rows: Rows
) -> tuple[list[tuple[int, Witness]], dict[Hashable, str]]:
    """Explain the earliest violations.

    Returns ([(index of the last event of a witness, the witness)], {object: sentence}).  The dict contains the objects
    for which the independent search contradicts a violation.
    """
    patience = Patience()
    witnesses: list[tuple[int, Witness]] = []
    retracted: dict[Hashable, str] = {}
    for name, violation in wrong:
        if len(witnesses) == MAX_WITNESSES or (witnesses and patience.is_over):
            break
        try:
            made = explain(violation, by_object[name], budget, rows, patience)
        except Disagreement as problem:
            retracted[name] = _about(name, str(problem))
            continue
        witnesses.append((int(made.events[-1]["index"]) if made.events else violation.index, made))
    return witnesses, retracted


def _with_doubt(made: Witness, events: Sequence[Event], observers: frozenset[str]) -> Witness:
    """Add to the witness of a value that no operation wrote: a failed operation with this value, if there is one."""
    if made.kind != FROM_NOWHERE or not made.events:
        return made
    of_witness = {row["index"] for row in made.events}
    answers = [e for e in events if e.index in of_witness and e.type is Type.OK]
    shown = {each for e in answers for v in (value_of(e),) for each in (v, *(v if isinstance(v, tuple) else ()))}
    for event in events if answers else ():
        if event.type is not Type.FAIL or event.f in observers or event.key != answers[-1].key:
            continue
        if value_of(event) is not None and value_of(event) in shown:
            where = f"index {event.index}" + (f": {event.error}" if event.error else "")
            doubt = doubt_of_refusal(event.error)
            failed = f"{with_article(event.f)} of {text_of(value_of(event))} failed ({where})"
            return replace(made, summary=f"{made.summary}; {failed}" + (f", and {doubt}" if doubt else ""))
    return made


def _left_out(sentences: Sequence[str]) -> str:
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return f"{sentences[0]}{more}; operations that cannot be judged were left out"


def _about(name: Hashable, sentence: str) -> str:
    return sentence if name is None else f"key {name}: {sentence}"


_IN_FILES = [
    known
    for module in pkgutil.iter_modules(objects.__path__, f"{objects.__name__}.")
    for known in vars(import_module(module.name)).values()
    if isinstance(known, KnownObject)
]
KNOWN: dict[str, KnownObject] = {known.name: known for known in sorted(_IN_FILES, key=lambda known: known.name)}
"""All bundled objects by name."""

SETTINGS = {
    "total": (BANK.name, BANK_OVERDRAFT.name),
    "empty": tuple(name for name, known in KNOWN.items() if known.container and known.empty_shows),
}
"""Setting that describes an object -> the models that accept the setting.

total: sum of the balances of all accounts, an integer
empty: `observed` if a dequeue or pop that failed with the error `empty` shows that the container was empty
"""

SEMAPHORE = "semaphore:N"
"""Name of a semaphore with N permits in texts for users."""


def refused_setting(model: str, name: str, value: str) -> str:
    """Return the reason why a setting cannot be used with a model, or ""."""
    if name not in SETTINGS:
        return f"there is no setting {name!r}; there are {', '.join(SETTINGS)}"
    if model not in SETTINGS[name]:
        return f"{name} is a setting of {', '.join(SETTINGS[name])}, not of {model or 'a file that names its model'}"
    if name == "total" and not value.removeprefix("-").isdecimal():
        return f"the total of a bank is a whole number, not {value!r}"
    if name == "empty" and value not in ("observed", "ignored"):
        return f"empty is 'observed' or 'ignored', not {value!r}"
    return ""


def known_object(name: str, settings: Mapping[str, str] = MappingProxyType({})) -> KnownObject | None:
    """Return the object with a name, or None.  The name `semaphore:3` stands for a semaphore with three permits.

    settings: name of a setting in SETTINGS -> its value
    """
    if "total" in settings:
        judge = partial(judge_bank, overdraft=name == BANK_OVERDRAFT.name, total=int(settings["total"]))
        return replace(KNOWN[name], judge=judge)
    kind, colon, number = name.partition(":")
    if kind == "semaphore" and colon and number.isdecimal() and 1 <= int(number) <= PERMITS_MAX:
        return semaphore_object(int(number))
    return KNOWN.get(name)
