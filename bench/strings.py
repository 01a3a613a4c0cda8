"""Measure how long a key-value store of strings takes: histories in the shape of Porcupine's largest, valid and wrong.

    python -m bench.strings [--histories 10] [--json FILE]

From events to the verdict on all keys, CPU time of one core; no value is remembered from the run before.  Of each
history the least of five runs counts; stated are the median and the largest of all histories.  The wrong ones lack one
value in one late get; their figure holds the witness.

*Histories.*  They are made in the shape of Porcupine's `test_data/kv/c50-ok.txt`.

That file is of MIT's lab of a replicated store: 50 clients and ten keys in three rounds.  Half of the operations are
appends, one in twenty is a put, the others are gets.  A value names its client and counts its operations; each round
counts anew, so some values come to a key twice.  Some clients get one answer after another, and others wait for most of
a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from bench.instruments.figures import Sheet, script
from checkers.base.history import Event, Type
from checkers.base.values import forget_decoded
from checkers.base.verdict import Validity
from checkers.by_hand.judge_events import judge_events

EVENTS = 3424
GOAL_S = 0.02
RUNS = 5


def main(given: argparse.Namespace, sheet: Sheet) -> None:
    histories = [string_history(Random(seed), EVENTS // 2) for seed in range(given.histories)]
    steps = [int(judge_events(events, "kv").looked_at["steps"]) for events in histories]
    valid = _seconds(histories, Validity.VALID)
    wrong = _seconds([_without_a_value(events) for events in histories], Validity.INVALID)
    sheet.add("kv, 50 clients, ten keys, median", EVENTS, "events", statistics.median(valid), "s", GOAL_S)
    sheet.add("kv, 50 clients, ten keys, largest", EVENTS, "events", max(valid), "s", GOAL_S)
    sheet.add("kv, 50 clients, ten keys, most steps", EVENTS, "events", max(steps), "steps")
    sheet.add("kv, one value is missing, with its witness, median", EVENTS, "events", statistics.median(wrong), "s")


def _seconds(histories: Sequence[Sequence[Event]], expected: Validity) -> list[float]:
    """Return the seconds of each history.  All are measured once before any is measured again: so no burst of load
    meets all its runs."""
    least = [float("inf")] * len(histories)
    for _ in range(RUNS):
        for at, events in enumerate(histories):
            forget_decoded()
            began = time.process_time()
            verdict = judge_events(events, "kv")
            least[at] = min(least[at], time.process_time() - began)
            assert verdict.validity is expected, verdict.reason
    return least


def _without_a_value(events: Sequence[Event]) -> list[Event]:
    """The history, whose last get that shows three values lacks the second of them."""
    changed = list(events)
    for at in range(len(events) - 1, -1, -1):
        shown = json.loads(events[at].payload or '""')
        if events[at].f == "get" and events[at].type is Type.OK and shown.count("y") > 2:
            first, _, rest = shown.partition("y")
            changed[at] = replace(events[at], payload=json.dumps(first + "y" + rest.partition("y")[2]))
            return changed
    raise AssertionError("no get shows three values")


ROUNDS = 3
APPENDS, PUTS_OF_THE_REST = 0.5, 0.1


@dataclass
class _Waiting:
    """An operation without an answer yet.  applied: whether it took effect; answer: of a get that did."""

    f: str
    key: str
    value: str | None
    applied: bool = False
    answer: str = ""


def string_history(rng: Random, operations: int = 1712, clients: int = 50, keys: int = 10) -> list[Event]:
    """A linearizable history; twice as many events as operations."""
    store = dict.fromkeys(map(str, range(keys)), "")
    events: list[Event] = []
    for number in range(ROUNDS):
        left = operations * (number + 1) // ROUNDS - len(events) // 2
        _round(rng, store, events, left, clients)
    return events


def _round(rng: Random, store: dict[str, str], events: list[Event], operations: int, clients: int) -> None:
    speed = [rng.random() ** 3 for _ in range(clients)]
    counters = [0] * clients
    waiting: dict[int, _Waiting] = {}

    def invoke(client: int) -> None:
        key, chance = rng.choice(list(store)), rng.random()
        f = "append" if chance < APPENDS else "put" if chance < APPENDS + (1 - APPENDS) * PUTS_OF_THE_REST else "get"
        value = None if f == "get" else f"x {client} {counters[client]} y"
        counters[client] += f != "get"
        waiting[client] = _Waiting(f, key, value)
        events.append(_event(events, client, Type.INVOKE, waiting[client], value))

    for client in rng.sample(range(clients), clients):
        invoke(client)
    begun = clients
    while waiting:
        open_ = list(waiting)
        for client in rng.choices(open_, [0.01 + speed[c] for c in open_], k=2):
            _apply(store, waiting[client])
        [client] = rng.choices(open_, [0.01 + speed[c] for c in open_])
        _apply(store, waiting[client])
        done = waiting.pop(client)
        events.append(_event(events, client, Type.OK, done, done.answer if done.f == "get" else done.value))
        if begun < operations:
            begun += 1
            invoke(client)


def _apply(store: dict[str, str], waiting: _Waiting) -> None:
    if waiting.applied:
        return
    waiting.applied = True
    waiting.answer = store[waiting.key]
    if waiting.f != "get":
        store[waiting.key] = (store[waiting.key] if waiting.f == "append" else "") + (waiting.value or "")


def _event(events: list[Event], client: int, type_: Type, of: _Waiting, value: str | None) -> Event:
    at = len(events)
    return Event(at, at, client, type_, of.f, key=of.key, payload=None if value is None else json.dumps(value))


if __name__ == "__main__":
    script(__doc__, main, histories={"type": int, "default": 10})
