"""A stored run as a list of steps: the events of its history, and the faults, elections and violations between them.

Each event has the possible states of its object: all states to which some order of the operations so far leads
(`checkers.models.witnesses`).  If there is none, no order explains the answers so far.  Objects without a small model
for a single key (transactions, banks, logs) have no states.  Events are in the order of the history.  Faults and
elections have only times, so each comes before the first later event.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from checkers.base.columns import read_history
from checkers.base.history import CREATE, NEMESIS, Event, Type
from checkers.base.results import NO_RESULTS, read_results
from checkers.base.values import in_words
from checkers.models.model import Model, WrongOperation, operations_of, value_of
from checkers.models.objects.counter import COUNTER
from checkers.models.objects.kv import KV
from checkers.models.objects.locks import FENCED, MUTEX
from checkers.models.objects.queue import QUEUE
from checkers.models.past import states_at_calls
from checkers.record.run_record import RunRecord
from checkers.registers.judge_history import CAS_REGISTER
from harness.plain_words import sentence
from harness.story.findings import NEVER_NS, violations_by_cause

MODELS: Mapping[str, Model] = {
    "linearizability": CAS_REGISTER, "counter": COUNTER, "kv": KV, "mutex": MUTEX, "fenced-lock": FENCED,
    "queue": QUEUE,
}  # fmt: skip
"""Name of a workload's checker -> model of the workload's objects."""

STATES_SHOWN = 6
_WORDS_WIDE = 50


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step of a run.

    kind: "operation", "fault", "election" or "violation"
    states: possible states of the object afterwards, in words; None if unknown
    in_force: kinds of fault in force"""

    time_ns: int
    kind: str
    words: str
    key: str = ""
    states: tuple[str, ...] | None = None
    in_force: tuple[str, ...] = ()

    def line(self) -> str:
        head = f"{self.time_ns / 1e9:9.3f} s  "
        if self.kind != "operation":
            return f"{head}{'✗' if self.kind == 'violation' else '▪'} {self.words}"
        faults = f"   [{', '.join(self.in_force)}]" if self.in_force else ""
        return f"{head}{self.words:<{_WORDS_WIDE}}{faults}{self._states()}".rstrip()

    def _states(self) -> str:
        if self.states is None:
            return ""
        name = self.key or "the object"
        if not self.states:
            return f"   {name}: no order explains the answers so far"
        more = f" or {len(self.states) - STATES_SHOWN} others" if len(self.states) > STATES_SHOWN else ""
        return f"   {name}: {' or '.join(self.states[:STATES_SHOWN])}{more}"


def steps_of(root: Path, checkers: Sequence[str], key: str | None = None) -> Iterator[RunStep]:
    """Yield the steps of the run in `root`.

    checkers: names of the checkers of its workload
    key: object whose operations to yield; None for all objects
    Raises MalformedHistory and BrokenFile.
    """
    events = [event for event in _events(read_history(root)) if event.process != NEMESIS]
    wanted = [event for event in events if event.f != CREATE and key in (None, event.key)]
    model = next((MODELS[name] for name in checkers if name in MODELS), None)
    states = {one: _states(events, one, model) for one in {event.key for event in wanted}} if model else {}
    between = sorted(_between(root, key), key=lambda step: step.time_ns)
    faults = [fault for fault in RunRecord(root).faults if fault.carried_out]
    for event in wanted:
        while between and between[0].time_ns <= event.time_ns:
            yield between.pop(0)
        force = tuple(
            fault.card.kind for fault in faults if fault.injected_ns <= event.time_ns < fault.end_ns(NEVER_NS)
        )
        known = states.get(event.key, {}).get(event.index)
        yield RunStep(event.time_ns, "operation", _words(event), event.key or "", known, force)
    yield from between


def _events(history: pa.Table) -> Iterator[Event]:
    for batch in history.to_batches():
        yield from map(Event.of_row, batch.to_pylist())


def _words(event: Event) -> str:
    value = value_of(event)
    asked = " ".join(filter(None, (event.f, event.key, "" if value is None else in_words(value))))
    if event.type is Type.OK and value is None:
        asked += " nil"
    ends = "  ".join(filter(None, (event.node, event.error)))
    return f"p{event.process:<4} {event.type.name.lower():<6} {asked:<28} {ends}".rstrip()


def _states(events: Sequence[Event], key: str | None, model: Model) -> dict[int, tuple[str, ...]]:
    """Return index of an event of this object -> possible states after the event.  The search knows the states only at
    invokes, so the result contains only events that are followed by an invoke on the object.
    """
    mine = [event for event in events if event.key == key and event.f != CREATE]
    try:
        at_calls = states_at_calls(model, operations_of(mine))
    except (WrongOperation, TypeError, ValueError):
        return {}  # the model has no such operation or answer, which the checker has reported
    known = dict(at_calls)
    calls = sorted(known)
    found = {}
    for place, event in enumerate(mine):
        if event.type is Type.INVOKE:
            continue
        following = mine[place + 1].index if place + 1 < len(mine) else None
        at = bisect_left(calls, event.index)
        if at < len(calls) and following == calls[at]:
            found[event.index] = tuple(sorted(map(model.show, known[calls[at]])))
    return found


def _between(root: Path, key: str | None) -> Iterator[RunStep]:
    """Yield the faults, elections and violations of a run.

    key: object; violations of other objects are omitted.  None for all objects"""
    record = RunRecord(root)
    for fault in record.faults:
        if fault.carried_out:
            yield RunStep(fault.injected_ns, "fault", f"fault {fault.card.number} ({fault.card.kind}): {fault.words}")
        if fault.healed:
            yield RunStep(fault.healed_ns, "fault", f"fault {fault.card.number} ({fault.card.kind}) healed")
    for leader in record.outcome.leaders if record.outcome is not None else ():
        yield RunStep(leader.time_ns, "election", f"{leader.node} leads epoch {leader.epoch}")
    for violation in violations_by_cause(read_results(root) or NO_RESULTS):
        of = violation.witness.facts.get("key")
        if violation.moment_ns >= 0 and (key is None or of in (None, key)):
            words = f"violated: {violation.name} ({violation.checker}): {sentence(violation.summary)}"
            yield RunStep(violation.moment_ns, "violation", words)
