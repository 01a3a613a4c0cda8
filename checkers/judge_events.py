"""A history by hand: events of any source and the name of a model, to a verdict.

What each model asks, exactly:

    register, cas-register   is there one order of all operations of a key that explains every answer?
    kv, queue, counter,      the same, of strings, of a first-in-first-out queue, of a sum, of a lock
    mutex
    set, append-log          the same, decided outright: answers show the order up to ties
    unique-ids               was no id handed out twice?
    FILE.py                  the same as the first, of a model of your own (`checkers/models/own.py`)

A queue is asked first whether values are conserved, a counter whether every read lies within its bounds: both are
decided for histories of any size, and what violates them is in no order.  The order of a queue is decided for any size
as well where no value is put there twice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from checkers import linearizability, model_window
from checkers.checker import Budget, RunFiles
from checkers.columns import HISTORY, events_to_table
from checkers.history import CREATE, NEMESIS, Event, Type
from checkers.legal_orders import Disagreement
from checkers.model_search import judge_object
from checkers.models import append_log, counter, fifo, mutex, queue, sets, unique_ids
from checkers.models.kv import KV
from checkers.models.model import Model, Operation, Rows, WrongOperation, operations_of
from checkers.seal import write_buckets
from checkers.verdict import MAX_WITNESSES, Validity, Verdict, Witness

ONLY_OBJECT = "the register"
"""The key of a history that names none, so that sentences about it read well."""

REGISTERS = ("register", "cas-register")


@dataclass(frozen=True, slots=True)
class _Finding:
    """Of one object: witnesses if wrong, else a reason if unknown.  counts: what else readers want to know of it."""

    witnesses: Sequence[Witness] = ()
    reason: str = ""
    steps: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)


def judge_events(
    events: Sequence[Event],
    model: str | Model,
    budget: Budget | None = None,
    failed_cas: str = linearizability.DID_NOT_HAPPEN,
) -> Verdict:
    """The verdict on one history.  model: a name of `MODEL_NAMES`, or a model.

    failed_cas: how registers read a cas that did not match, DID_NOT_HAPPEN or OBSERVED.
    Raises ValueError for a name that is none.
    """
    budget = budget or Budget()
    if isinstance(model, Model):
        return _per_object(events, lambda some, rows: _by_search(model, some, budget, rows), model.partition)
    if model in REGISTERS:
        return _registers(events, model, budget, failed_cas)
    if model not in _JUDGES:
        raise ValueError(f"there is no model {model!r}; there are {', '.join(MODEL_NAMES)}")
    judge = _JUDGES[model]
    return _per_object(events, lambda some, rows: judge(some, budget, rows), lambda o: o.key)


def _registers(events: Sequence[Event], model: str, budget: Budget, failed_cas: str) -> Verdict:
    """By way of a bucket, as a run is judged."""
    asked = [e for e in events if e.process != NEMESIS and e.f != CREATE]
    if model == "register" and (strange := next((e for e in asked if e.f == "cas"), None)):
        words = f"index {strange.index}: cas is not an operation of a register; judge it as a cas-register"
        return Verdict(Validity.UNKNOWN, reason=words)
    meant = (e for e in asked if e.payload is not None and e.type in (Type.INVOKE, Type.OK))
    if (wrong := next(meant, None)) is not None:
        words = f"index {wrong.index}: {wrong.payload:.40} is not a number, and registers here hold numbers"
        return Verdict(Validity.UNKNOWN, reason=words)
    table = events_to_table([replace(e, key=e.key if e.key is not None else ONLY_OBJECT) for e in asked])
    with tempfile.TemporaryDirectory(prefix="krucible-check-") as folder:
        files = RunFiles(Path(folder))
        pq.write_table(table, files.history)
        write_buckets(table, files.buckets, count=1)
        parts = [replace(part, params={"failed_cas": failed_cas}) for part in linearizability.split(files)]
        return linearizability.combine(files, [linearizability.judge(part, budget) for part in parts])


def _per_object(
    events: Sequence[Event],
    judge: Callable[[Sequence[Operation], Rows], _Finding],
    partition: Callable[[Operation], Hashable],
) -> Verdict:
    """Judge every object apart; the witnesses of the objects whose violation came first are kept."""
    operations = operations_of(events)
    by_object: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        by_object.setdefault(partition(operation), []).append(operation)
    rows = _rows_of(events)
    witnesses: list[Witness] = []
    reasons: list[str] = []
    steps = 0
    counts: dict[str, int] = {}
    for name, some in by_object.items():
        try:
            finding = judge(some, rows)
        except (WrongOperation, Disagreement) as problem:
            finding = _Finding(reason=str(problem))
        witnesses += finding.witnesses
        steps += finding.steps
        counts |= {what: counts.get(what, 0) + number for what, number in finding.counts.items()}
        if finding.reason:
            reasons.append(f"key {name}: {finding.reason}" if name is not None else finding.reason)
    looked_at: dict[str, int | float | str] = {"keys": len(by_object), "operations": len(operations), "steps": steps}
    looked_at |= counts
    reason = reasons[0] + (f" (and {len(reasons) - 1} keys more)" if len(reasons) > 1 else "") if reasons else ""
    if witnesses:
        witnesses.sort(key=lambda w: int(w.events[-1]["index"]) if w.events else 0)
        return Verdict(Validity.INVALID, looked_at, reason, tuple(witnesses[:MAX_WITNESSES]))
    if reasons:
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    if not operations:
        return Verdict(Validity.NOT_APPLICABLE, reason="no client asked anything")
    return Verdict(Validity.VALID, looked_at)


def _rows_of(events: Sequence[Event]) -> Rows:
    """From operations to the events they stand for, as dicts with the columns of HISTORY."""
    at = {event.index: event for event in events}

    def rows(operations: Sequence[Operation]) -> tuple[dict[str, Any], ...]:
        wanted = {o.call for o in operations} | {o.completed for o in operations if o.completed is not None}
        chosen = [at[index] for index in sorted(wanted)]
        return tuple({n: getattr(e, n) for n in HISTORY.names} | {"type": int(e.type)} for e in chosen)

    return rows


def _by_search(model: Model, operations: Sequence[Operation], budget: Budget, rows: Rows) -> _Finding:
    answer = judge_object(model, operations, budget)
    if answer.linearizable is None:
        return _Finding(reason=answer.reason, steps=answer.steps)
    if answer.linearizable:
        return _Finding(steps=answer.steps)
    return _Finding([model_window.explain(model, operations, answer.index, budget, rows)], steps=answer.steps)


def _queue(operations: Sequence[Operation], budget: Budget, rows: Rows) -> _Finding:
    found = queue.conserved(operations, rows)
    if found:
        return _Finding(found, steps=len(operations))
    try:
        if (drain := fifo.overlapping_drain(operations, but_open_takes=True)) is None:
            return _Finding(fifo.judge(operations, rows), steps=len(operations))
    except fifo.NotUnique:
        drain = fifo.overlapping_drain(operations, but_open_takes=False)
    conserved = "no value was lost or made up, but of the order nothing is known"
    if drain is not None:
        return _Finding(reason=f"{conserved}: others were at work during the drain at index {drain.call}")
    finding = _by_search(queue.QUEUE, operations, budget, rows)
    return replace(finding, reason=f"{conserved}: {finding.reason}") if finding.reason else finding


def _counter(operations: Sequence[Operation], budget: Budget, rows: Rows) -> _Finding:
    found = counter.bounds(operations, rows)
    if found:
        return _Finding(found, steps=len(operations))
    finding = _by_search(counter.COUNTER, operations, budget, rows)
    if finding.reason:
        return replace(
            finding, reason=f"every read is within its bounds, but of the order nothing is known: {finding.reason}"
        )
    return finding


def _mutex(operations: Sequence[Operation], budget: Budget, rows: Rows) -> _Finding:
    matched = mutex.pairs(operations)
    if matched is None:
        return _by_search(mutex.MUTEX, operations, budget, rows)
    clash = mutex.clash(matched)
    if clash is None:
        return _Finding(steps=len(operations))
    return _Finding([mutex.held_twice(clash, rows)], steps=len(operations))


def _set(operations: Sequence[Operation], budget: Budget, rows: Rows) -> _Finding:
    found, counts = sets.judge(operations, rows)
    return _Finding(found, steps=len(operations), counts=counts)


def _append_log(operations: Sequence[Operation], budget: Budget, rows: Rows) -> _Finding:
    try:
        return _Finding(append_log.judge(operations, rows), steps=len(operations))
    except (append_log.NotRanked, Disagreement):
        finding = _by_search(append_log.whole(operations), operations, budget, rows)
        right = {"expected": append_log.RIGHT}
        return replace(finding, witnesses=[replace(w, facts={**w.facts, **right}) for w in finding.witnesses])


def _unique_ids(operations: Sequence[Operation], budget: Budget, rows: Rows) -> _Finding:
    return _Finding(unique_ids.judge(operations, rows), steps=len(operations))


_JUDGES: dict[str, Callable[[Sequence[Operation], Budget, Rows], _Finding]] = {
    "kv": lambda operations, budget, rows: _by_search(KV, operations, budget, rows),
    "queue": _queue,
    "set": _set,
    "counter": _counter,
    "mutex": _mutex,
    "append-log": _append_log,
    "unique-ids": _unique_ids,
}

MODEL_NAMES = (*REGISTERS, *_JUDGES)
