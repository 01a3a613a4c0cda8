"""Tiny histories with everything that clients of a database may leave, most of it in the wrong place.

A transaction reads from states of its own: that of its commit, an older one, or one for each read.  Then answers are
falsified.  Values may repeat, transactions may be empty, fail, or get no answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from checkers.base.history import Event, Type
from checkers.transactions.read import Model

Steps = list[list[Any]]


@dataclass
class _Shape:
    """transactions, keys, processes: how many there are.  values: of a small domain; 0: each is unique."""

    transactions: int
    keys: int
    processes: int
    values: int
    one_after_another: float


def adversarial(rng: Random, model: Model, *, unique: bool) -> list[Event]:
    """Up to five transactions over up to three keys.  unique: no value is written twice to one key."""
    shape = _Shape(
        rng.choice((1, 2, 3, 3, 4, 4, 4, 5, 5)),
        rng.randint(1, 3),
        rng.randint(1, 4),
        0 if unique else rng.randint(1, 3),
        rng.choice((0, 0.3, 0.8)),
    )
    asked = _asked(rng, model, shape)
    answered = _answered(rng, model, asked)
    fates = [rng.choices((Type.OK, Type.FAIL, Type.INFO), (8, 1, 1))[0] for _ in asked]
    falsified = rng.choice((0, 0, 1, 1, 2))
    for _ in range(falsified):
        _falsify(rng, model, asked, answered)
    return _events(rng, shape, asked, answered, fates)


def _asked(rng: Random, model: Model, shape: _Shape) -> list[Steps]:
    write = "append" if model == "list-append" else "w"
    count = 0
    asked: list[Steps] = []
    for _ in range(shape.transactions):
        steps: Steps = []
        reads = rng.choice((0.0, 0.3, 0.5, 0.5, 0.5, 0.8, 1.0))
        for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
            key = f"k{min(rng.randrange(shape.keys), rng.randrange(shape.keys))}"
            if rng.random() < reads:
                steps.append(["r", key, None])
            else:
                count += 1
                steps.append([write, key, count if not shape.values else rng.randint(1, shape.values)])
        asked.append(steps)
    return asked


def _answered(rng: Random, model: Model, asked: list[Steps]) -> list[Steps]:
    """What each transaction would read in an order of commits, which is the order of the list shuffled a little."""
    order = sorted(range(len(asked)), key=lambda t: t + rng.choice((0, 0, 0, 1.5, -1.5)))
    states: list[dict[str, list[int]]] = [{}]
    for t in order:
        state = {key: list(values) for key, values in states[-1].items()}
        for f, key, value in asked[t]:
            if f != "r":
                state.setdefault(key, []).append(value)
        states.append(state)
    lag = rng.choice((0, 0, 1, 3))
    torn = rng.choice((0, 0, 0.3))
    answered: list[Steps] = [[] for _ in asked]
    for place, t in enumerate(order):
        seen = max(0, place - rng.randint(0, lag))
        own: dict[str, list[int]] = {}
        for f, key, value in asked[t]:
            if f != "r":
                own.setdefault(key, []).append(value)
                answered[t].append([f, key, value])
                continue
            at = rng.randrange(len(states)) if rng.random() < torn else seen
            shown = states[at].get(key, []) + own.get(key, [])
            answered[t].append(["r", key, _as_answer(rng, model, shown)])
    return answered


def _as_answer(rng: Random, model: Model, shown: list[int]) -> Any:
    if model == "rw-register":
        return shown[-1] if shown else None
    return shown if shown or rng.random() < 0.5 else None


def _falsify(rng: Random, model: Model, asked: list[Steps], answered: list[Steps]) -> None:
    reads = [(t, n) for t, steps in enumerate(answered) for n, step in enumerate(steps) if step[0] == "r"]
    if not reads:
        return
    t, n = rng.choice(reads)
    key = answered[t][n][1]
    values = [step[2] for steps in asked for step in steps if step[0] != "r" and step[1] == key]
    if model == "rw-register":
        answered[t][n][2] = rng.choice([None, *values, *([99] if rng.random() < 0.1 else [])])
        return
    shown = list(answered[t][n][2] or [])
    match rng.randrange(5):
        case 0 if shown:
            shown.pop(rng.randrange(len(shown)))
        case 1 if values:
            shown.insert(rng.randint(0, len(shown)), rng.choice(values))
        case 2 if len(shown) > 1:
            i, j = rng.sample(range(len(shown)), 2)
            shown[i], shown[j] = shown[j], shown[i]
        case 3:
            shown = shown[: rng.randint(0, len(shown))]
        case _:
            shown = rng.sample(values, rng.randint(0, len(values)))
    answered[t][n][2] = shown


def _events(rng: Random, shape: _Shape, asked: list[Steps], answered: list[Steps], fates: list[Type]) -> list[Event]:
    """Invokes in the order of the list; completions wherever sessions allow."""
    events: list[Event] = []
    open_: dict[int, int] = {}
    names = list(range(shape.processes))

    def record(slot: int, type_: Type, steps: Steps) -> None:
        at = len(events)
        events.append(Event(at, at // 3, names[slot], type_, "txn", payload=json.dumps(steps)))

    def complete(slot: int) -> None:
        t = open_.pop(slot)
        if fates[t] is not Type.INFO or rng.random() < 0.7:
            record(slot, fates[t], answered[t] if fates[t] is Type.OK else asked[t])
        if fates[t] is Type.INFO:
            names[slot] = max(names) + 1

    for t, steps in enumerate(asked):
        slot = rng.randrange(shape.processes)
        while open_ and (slot in open_ or rng.random() < shape.one_after_another):
            complete(slot if slot in open_ else rng.choice(list(open_)))
        open_[slot] = t
        record(slot, Type.INVOKE, steps)
    for slot in rng.sample(sorted(open_), len(open_)):
        complete(slot)
    return events
