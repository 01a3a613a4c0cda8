"""Histories of a register whose values repeat: random nonsense, correct ones, and the two slow judges of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from checkers.base import independent_search as search
from checkers.base.history import Event, Type
from checkers.kernels import register_antichain as antichain
from checkers.kernels.operations import CAS, MISMATCH, NIL, OPEN, READ, WRITE
from checkers.kernels.register_unique_values import Key

KIND = {"read": READ, "write": WRITE, "cas": CAS, "mismatch": MISMATCH}


@dataclass(frozen=True)
class Op:
    """value: read, written or expected; made: what a cas put there; ret None: never returned."""

    f: str
    value: int | None
    made: int | None
    call: int
    ret: int | None


def nonsense(rng: Random, operations: int, processes: int, domain: int) -> list[Op]:
    """Anything may be answered, or stay open."""
    values = [None, *range(domain)]
    crash = rng.choice([0, 0.1, 0.3])
    fs = ["read", "write", "cas", *(["mismatch"] if rng.random() < 0.4 else [])]
    idle, at, invoked = list(range(processes)), 0, 0
    busy: dict[int, Op] = {}
    done: list[Op] = []
    while invoked < operations or busy:
        if invoked < operations and idle and (not busy or rng.random() < 0.6):
            value = rng.choice(values)
            made = rng.choice([v for v in values if v != value])
            busy[idle.pop(rng.randrange(len(idle)))] = Op(rng.choice(fs), value, made, at, None)
            invoked, at = invoked + 1, at + 1
        else:
            process = rng.choice(sorted(busy))
            operation = busy.pop(process)
            idle.append(process)
            if rng.random() >= crash:
                operation = replace(operation, ret=at)
                at += 1
            done.append(operation)
    return sorted(done, key=lambda o: o.call)


def correct(
    rng: Random,
    operations: int,
    processes: int,
    domain: int,
    crash: float = 0.0,
    fs: Sequence[str] = ("read", "write", "cas"),
) -> list[Op]:
    """Each operation takes effect at one instant between its events; a crashed one then, later, or never."""
    state: int | None = None
    idle, at, invoked = processes, 0, 0
    busy: list[list[Any]] = []  # an Op, and whether it has taken effect
    done: list[Op] = []
    while invoked < operations or busy:
        step = rng.random()
        if invoked < operations and idle and (step < 0.4 or not busy):
            f = rng.choice(fs)
            busy.append([Op(f, rng.randrange(domain), rng.randrange(domain), at, None), False])
            invoked, at, idle = invoked + 1, at + 1, idle - 1
            continue
        entry = busy[rng.randrange(len(busy))]
        operation, effective = entry
        if not effective:
            entry[1] = True
            if rng.random() < crash and operation.f != "read":
                busy.remove(entry)
                idle += 1
                done.append(operation)
                if rng.random() < 0.5:
                    continue
            match operation.f:
                case "read":
                    entry[0] = replace(operation, value=state)
                case "write":
                    state = operation.value
                case "cas" if state == operation.value:
                    state = operation.made
                case "cas":
                    entry[0] = replace(operation, f="mismatch")
        else:
            busy.remove(entry)
            idle += 1
            done.append(replace(operation, ret=at))
            at += 1
    return sorted(done, key=lambda o: o.call)


def key_of(operations: Sequence[Op]) -> tuple[Key, int]:
    """As the kernel reads them, and how many positions there are.  A cas to the same value is a read."""
    kept = [o for o in operations if not (o.f == "cas" and o.value == o.made and o.ret is None)]
    kinds = [READ if o.f == "cas" and o.value == o.made else KIND[o.f] for o in kept]

    def coded(value: int | None) -> int:
        return NIL if value is None else value

    key = Key(
        np.array(kinds, np.int8),
        np.array([coded(o.value) for o in kept], np.int64),
        np.array([coded(o.made) if k == CAS else NIL for o, k in zip(kept, kinds, strict=True)], np.int64),
        np.array([o.call for o in kept], np.int32),
        np.array([OPEN if o.ret is None else o.ret for o in kept], np.int32),
    )
    return key, max([-1, *(o.call for o in operations), *(o.ret for o in operations if o.ret is not None)]) + 1


def as_events(operations: Sequence[Op], key: str, first_process: int = 0) -> list[Event]:
    """As a history: each operation by a process of its own; indices count from 0."""
    at: dict[int, Event] = {}
    for n, o in enumerate(operations):
        f = "cas" if o.f == "mismatch" else o.f
        made = o.made if f == "cas" else None
        invoke = Event(0, 0, first_process + n, Type.INVOKE, f, key, None if f == "read" else o.value, made)
        at[o.call] = invoke
        if o.ret is not None:
            answer = replace(invoke, type=Type.OK, value=o.value, node="n1")
            at[o.ret] = replace(answer, type=Type.FAIL, error="mismatch") if o.f == "mismatch" else answer
    return [replace(at[place], index=index) for index, place in enumerate(sorted(at))]


def judged(operations: Sequence[Op]) -> int:
    """What the kernel says."""
    return int(antichain.judge_key(*key_of(operations), np.array([NIL], np.int64), 10**9, 10**9)[0])


def with_mismatch(state: search.State, operation: search.RegisterOperation) -> object:
    if operation.f == "mismatch":
        return state if state != operation.value else search.REFUSED
    return search.register(state, operation)


def searched(operations: Sequence[Op]) -> bool:
    """What the independent search says."""
    kept = [o for o in operations if o.ret is not None or o.f in ("write", "cas")]
    given = [search.RegisterOperation(o.f, o.value, o.made, o.call, o.ret) for o in kept]
    return search.linearizable(given, (None,), with_mismatch)
