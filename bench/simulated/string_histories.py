"""Histories of a key-value store of strings, in the shape of Porcupine's `test_data/kv/c50-ok.txt`.

That file is of MIT's lab of a replicated store: 50 clients and ten keys in three rounds.  Half of the operations are
appends, one in twenty is a put, the others are gets.  A value names its client and counts its operations; each round
counts anew, so some values come to a key twice.  Some clients get one answer after another, and others wait for most of
a round.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from checkers.base.history import Event, Type

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
