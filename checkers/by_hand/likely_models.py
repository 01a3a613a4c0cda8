"""Which models a history may be of, by the functions of its operations: a hint for who named none."""

from __future__ import annotations

import json
from collections.abc import Iterable

from checkers.base.history import NEMESIS, Event, Type

_BY_FUNCTIONS: tuple[tuple[frozenset[str], tuple[str, ...]], ...] = (
    (frozenset({"read", "write"}), ("register",)),
    (frozenset({"read", "write", "cas"}), ("cas-register",)),
    (frozenset({"get", "put", "append"}), ("kv",)),
    (frozenset({"add", "read"}), ("set", "counter")),
    (frozenset({"add", "inc", "dec", "read"}), ("counter",)),
    (frozenset({"enqueue", "dequeue", "drain"}), ("queue",)),
    (frozenset({"push", "pop"}), ("stack",)),
    (frozenset({"insert", "extract-min"}), ("priority-queue",)),
    (frozenset({"acquire", "release"}), ("mutex", "semaphore:N")),
    (frozenset({"acquire", "release", "write"}), ("fenced-lock",)),
    (frozenset({"generate"}), ("unique-ids",)),
    (frozenset({"append", "read"}), ("append-log",)),
    (frozenset({"transfer", "read"}), ("bank",)),
    (frozenset({"send", "poll", "assign", "subscribe", "txn"}), ("kafka",)),
)
"""The functions of a model -> its names.  The first entry that has all functions of a history is the hint."""

_BY_STEPS = {"append": "list-append", "w": "rw-register", "write": "multi-register"}
"""The name of a writing micro-operation -> the model of its transactions."""


def likely_models(events: Iterable[Event]) -> tuple[str, ...]:
    """Names of models, the likeliest first; empty if no model has these operations."""
    invoked = [e for e in events if e.type is Type.INVOKE and e.process != NEMESIS]
    functions = {e.f for e in invoked}
    if functions == {"txn"}:
        steps = {str(step[0]) for e in invoked for step in _steps(e) if isinstance(step, list) and step}
        return tuple(name for step, name in _BY_STEPS.items() if step in steps)
    return next((names for known, names in _BY_FUNCTIONS if functions and functions <= known), ())


def _steps(event: Event) -> list[object]:
    steps = json.loads(event.payload) if event.payload is not None else None
    return steps if isinstance(steps, list) else []
