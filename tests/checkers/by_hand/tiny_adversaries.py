"""Tiny nonsense histories: any operation of a model, any small value, any answer, in any order.

They reach cases that realistic simulations never reach: cycles of cas, answers from nowhere, repeated values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from checkers.base.history import Event, Type

SMALL = (None, 1, 1, 2, 2, 3)


def nonsense(model: str, rng: Random, operations: int = 6, processes: int = 3) -> list[Event]:
    """Return a history of at most this many operations that follows the grammar of histories, and nothing else."""
    events: list[Event] = []
    idle, busy, fresh = list(range(processes)), dict[int, tuple[str, Any]](), processes
    while operations > 0 or busy:
        if operations > 0 and idle and (not busy or rng.random() < 0.6):
            process = idle.pop(rng.randrange(len(idle)))
            operation = ASK[model](rng)
            busy[process] = operation
            events.append(event_of(len(events), process, Type.INVOKE, *operation))
            operations -= 1
            continue
        process = rng.choice(sorted(busy))
        f, value_invoked = busy.pop(process)
        draw = rng.random()
        kind = Type.OK if draw < 0.8 else Type.FAIL if draw < 0.88 else Type.INFO
        value = ANSWER[model](rng, f, value_invoked) if kind is Type.OK else value_invoked
        events.append(event_of(len(events), process, kind, f, value))
        if kind is Type.INFO:
            process, fresh = fresh, fresh + 1
        idle.append(process)
        if rng.random() < 0.05:
            break  # the rest of the input is dropped
    return events


def event_of(index: int, process: int, type_: Type, f: str, value: Any) -> Event:
    """Return an event with small integers and pairs of a cas in columns, everything else in the payload."""
    if f == "cas" and isinstance(value, tuple):
        return Event(index, index * 1000, process, type_, f, "k", value[0], value[1], node="n1")
    if value is None or isinstance(value, int):
        return Event(index, index * 1000, process, type_, f, "k", value, node="n1")
    return Event(index, index * 1000, process, type_, f, "k", payload=json.dumps(value), node="n1")


def _register(rng: Random) -> tuple[str, Any]:
    f = rng.choice(("read", "write", "cas", "cas"))
    return f, None if f == "read" else rng.choice(SMALL[1:]) if f == "write" else _two(rng)


def _two(rng: Random) -> tuple[int, int]:
    return rng.choice((1, 2, 3)), rng.choice((1, 2, 3))


def _some(rng: Random) -> list[int]:
    return [rng.choice((1, 2, 3)) for _ in range(rng.randrange(4))]


def _one_of(*functions: str) -> Callable[[Random], tuple[str, Any]]:
    """Functions that end in ! take a value."""

    def ask(rng: Random) -> tuple[str, Any]:
        f = rng.choice(functions)
        return (f[:-1], rng.choice(SMALL[1:])) if f.endswith("!") else (f, None)

    return ask


def _kv(rng: Random) -> tuple[str, Any]:
    f = rng.choice(("get", "put", "append"))
    return f, None if f == "get" else rng.choice("ab")


def _answer(reads: dict[str, Callable[[Random], Any]]) -> Callable[[Random, str, Any], Any]:
    return lambda rng, f, value: reads[f](rng) if f in reads else value


def _number(rng: Random) -> int | None:
    return rng.choice(SMALL)


def _of_append(rng: Random, f: str, value: Any) -> Any:
    if f == "read":
        return _some(rng)
    return [value, rng.randrange(3)] if rng.random() < 0.7 else value


def _transaction(write: str) -> Callable[[Random], tuple[str, Any]]:
    def ask(rng: Random) -> tuple[str, Any]:
        each = [rng.choice((write, "r")) for _ in range(rng.randint(1, 3))]
        return "txn", [[f, rng.choice("xy"), rng.choice((1, 2, 3)) if f == write else None] for f in each]

    return ask


def _of_transaction(answer: Callable[[Random], Any]) -> Callable[[Random, str, Any], Any]:
    def completed(rng: Random, f: str, invoked: Any) -> Any:
        return [[f, k, answer(rng) if f == "r" else v] for f, k, v in invoked]

    return completed


def _kafka(rng: Random) -> tuple[str, Any]:
    if rng.random() < 0.1:
        return rng.choice(("assign", "subscribe")), ["x"]
    each = [rng.choice(("send", "poll")) for _ in range(rng.randint(1, 2))]
    return "txn", [[f, rng.choice("xy"), rng.randrange(50)] if f == "send" else ["poll"] for f in each]


def _of_kafka(rng: Random, f: str, invoked: Any) -> Any:
    if f != "txn":
        return invoked
    steps: list[Any] = []
    for part in invoked:
        if part[0] == "send":
            steps.append(["send", part[1], [rng.randrange(4), part[2]]])
        else:
            steps.append(["poll", {k: [[n, rng.randrange(50)] for n in range(rng.randrange(3))] for k in "xy"}])
    return steps


ASK: dict[str, Callable[[Random], tuple[str, Any]]] = {
    "cas-register": _register,
    "kv": _kv,
    "set": _one_of("add!", "read"),
    "queue": _one_of("enqueue!", "dequeue", "drain"),
    "at-least-once-queue": _one_of("enqueue!", "dequeue", "drain"),
    "counter": _one_of("add!", "inc", "dec", "read"),
    "mutex": _one_of("acquire", "release"),
    "append-log": _one_of("append!", "read"),
    "unique-ids": _one_of("generate"),
    "list-append": _transaction("append"),
    "rw-register": _transaction("w"),
    "kafka": _kafka,
}

ANSWER: dict[str, Callable[[Random, str, Any], Any]] = {
    "cas-register": _answer({"read": _number}),
    "kv": _answer({"get": lambda rng: rng.choice((None, "a", "b", "ab"))}),
    "set": _answer({"read": _some}),
    "queue": _answer({"dequeue": _number, "drain": _some}),
    "at-least-once-queue": _answer({"dequeue": _number, "drain": _some}),
    "counter": _answer({"read": lambda rng: rng.randrange(-2, 6)}),
    "mutex": _answer({}),
    "append-log": _of_append,
    "unique-ids": _answer({"generate": lambda rng: rng.randrange(4)}),
    "list-append": _of_transaction(_some),
    "rw-register": _of_transaction(_number),
    "kafka": _of_kafka,
}
