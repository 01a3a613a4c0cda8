"""Histories of small objects: each operation takes effect at one instant between its events; then some answers are
changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from checkers.base import independent_search as search
from checkers.base.history import Event, Type
from checkers.models.model import Operation, operations_of


@dataclass(frozen=True)
class Simulated:
    """ask: (f, input) of the next operation. do: (state after, answer). lie: another answer of that operation."""

    init: Any
    ask: Callable[[Random, int], tuple[str, Any]]
    do: Callable[[Any, str, Any], tuple[Any, Any]]
    lie: Callable[[Random, str, Any], Any]


def event(index: int, process: int, type_: Type, f: str, value: Any) -> Event:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return Event(index, index * 1000, process, type_, f, None, value, node="n1")
    return Event(index, index * 1000, process, type_, f, None, payload=json.dumps(value), node="n1")


def history(what: Simulated, rng: Random, operations: int, processes: int, crash: float, lies: int) -> list[Event]:
    state = what.init
    events: list[Event] = []
    idle = list(range(processes))
    fresh = processes
    busy: list[list[Any]] = []  # process, f, input, answer, effective
    invoked = 0
    while invoked < operations or busy:
        if invoked < operations and idle and (not busy or rng.random() < 0.4):
            process = idle.pop(rng.randrange(len(idle)))
            f, value = what.ask(rng, process)
            events.append(event(len(events), process, Type.INVOKE, f, value))
            busy.append([process, f, value, None, False])
            invoked += 1
            continue
        entry = busy[rng.randrange(len(busy))]
        process, f, value, answer, effective = entry
        if not effective:
            done = what.do(state, f, value)
            if done is None:  # it cannot take effect yet; another operation must come first
                if all(what.do(state, e[1], e[2]) is None for e in busy if not e[4]) and all(not e[4] for e in busy):
                    busy.remove(entry)
                    events.append(event(len(events), process, Type.INFO, f, value))
                    idle.append(fresh)
                    fresh += 1
                continue
            state, entry[3] = done
            entry[4] = True
        elif rng.random() < crash:
            busy.remove(entry)
            events.append(event(len(events), process, Type.INFO, f, value))
            idle.append(fresh)
            fresh += 1
        else:
            busy.remove(entry)
            events.append(event(len(events), process, Type.OK, f, answer))
            idle.append(process)
    answered = [e for e in events if e.type is Type.OK]
    for chosen in rng.sample(answered, min(lies, len(answered))):
        was = operations_of([e for e in events if e.process == chosen.process and e.index <= chosen.index])[-1].output
        lie = what.lie(rng, chosen.f, was)
        events[chosen.index] = event(chosen.index, chosen.process, Type.OK, chosen.f, lie)
    return events


def searched(events: Sequence[Event], init: Any, step: Callable[[Any, Operation], object], observers: set[str]) -> bool:
    """Return the result of the independent search, which shares only the model's step with the checkers."""
    operations = [o for o in operations_of(events) if o.returned or o.f not in observers]
    return search.linearizable(operations, [init], step)  # type: ignore[arg-type]


def one_process(*pairs: tuple[str, Any, Any]) -> list[Event]:
    """Return sequential operations (f, input, answer) of one process."""
    events: list[Event] = []
    for f, value, answer in pairs:
        events.append(event(len(events), 0, Type.INVOKE, f, value))
        events.append(event(len(events), 0, Type.OK, f, answer))
    return events


def renumbered(events: Sequence[Event]) -> list[Event]:
    return [replace(e, index=index, time_ns=index * 1000) for index, e in enumerate(events)]
