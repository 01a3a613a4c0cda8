"""Objects by construction: correct histories of a million operations, and the same with one wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from simulated_objects import (
    Locks,
    Simulated,
    any_of,
    counter_do,
    event,
    history,
    ids_do,
    kv_do,
    log_do,
    no_lie,
    numbers,
    permits_do,
    queue_do,
)

from checkers.base.history import Event, Type
from checkers.base.verdict import Validity
from checkers.by_hand import judge_events
from checkers.models.model import Operation, operations_of

Spoil = Callable[[Random, list[Event]], tuple[list[Event], int]]
"""(the history with one wrong answer, the index of that answer)."""


def spoil(
    f: str, fits: Callable[[Operation], bool], changed: Callable[[Random, list[Operation], Operation], Any]
) -> Spoil:
    """Give one late answer of an f another value."""

    def spoiled(rng: Random, events: list[Event]) -> tuple[list[Event], int]:
        operations = operations_of(events)
        late = [o for o in operations[len(operations) // 2 :] if o.f == f and o.returned and fits(o)]
        chosen = rng.choice(late)
        assert chosen.ret is not None
        was = events[chosen.ret]
        wrong = event(was.index, was.process, was.type, f, changed(rng, operations, chosen))
        return [*events[: was.index], replace(wrong, key=was.key), *events[was.index + 1 :]], was.index

    return spoiled


def acknowledged_before(operations: list[Operation], read: Operation, f: str) -> list[Any]:
    return [o.input for o in operations if o.f == f and o.ret is not None and o.ret < read.call]


def without_one(rng: Random, operations: list[Operation], read: Operation) -> list[Any]:
    """The answer of a read without an element whose add had been acknowledged before."""
    gone = rng.choice(acknowledged_before([o for o in operations if o.key == read.key], read, "add"))
    return [x for x in read.output if x != gone]  # type: ignore[union-attr]


def held_by_another(rng: Random, events: list[Event]) -> tuple[list[Event], int]:
    """Another process acquires the lock, and is answered, between an acquire's answer and the release."""
    taken = [at for at, e in enumerate(events[: len(events) * 3 // 4]) if e.f == "acquire" and e.type is Type.OK]
    at = rng.choice(taken[len(taken) // 2 :]) + 1
    stranger = [event(0, 10**6, kind, "acquire", None) for kind in (Type.INVOKE, Type.OK)]
    key = events[at - 1].key
    with_it = [*events[:at], *(replace(e, key=key) for e in stranger), *events[at:]]
    return [replace(e, index=index) for index, e in enumerate(with_it)], at + 1


@dataclass(frozen=True)
class Case:
    """make: the object; per_key: operations of one of it; spoil: makes one answer certainly wrong."""

    make: Callable[[], Simulated]
    per_key: int
    spoil: Spoil


CASES = {
    "set": Case(
        lambda: Simulated(
            (), any_of(*[("add", numbers())] * 9, ("read", None)),
            lambda state, f, value: (state, list(state)) if f == "read" else ((*state, value), value), no_lie,
        ),
        500,
        spoil("read", lambda o: len(o.output or ()) > 5, without_one),
    ),
    "append-log": Case(
        lambda: Simulated(
            (), any_of(*[("append", numbers())] * 9, ("read", None)), log_do, no_lie
        ),
        500,
        spoil("append", lambda o: o.output[1] > 5, lambda rng, all_, o: [o.input, rng.randrange(o.output[1] - 5)]),
    ),
    "queue": Case(
        lambda: Simulated(
            (), any_of(("enqueue", numbers()), ("dequeue", None)), queue_do, no_lie
        ),
        10**6,
        spoil("dequeue", lambda o: o.output is not None, lambda rng, all_, o: o.output + 40),
    ),
    "counter": Case(
        lambda: Simulated(
            0, any_of(("add", 1), ("add", 2), ("dec", 1), ("read", None)), counter_do, no_lie
        ),
        1000,
        spoil("read", lambda o: True, lambda rng, all_, o: o.output + 20),
    ),
    "unique-ids": Case(
        lambda: Simulated(0, any_of(("generate", None)), ids_do, no_lie),
        10**6,
        spoil("generate", lambda o: True, lambda rng, all_, o: all_[rng.randrange(len(all_) // 3)].output),
    ),
    "mutex": Case(lambda: Simulated(0, Locks(1), permits_do(1), no_lie), 10**6, held_by_another),
    "kv": Case(
        lambda: Simulated(
            "", any_of(("get", None), ("put", "x"), ("put", "y"), ("append", "z")), kv_do, no_lie
        ),
        1000,
        spoil("get", lambda o: True, lambda rng, all_, o: "never put"),
    ),
}  # fmt: skip


def made(name: str, operations: int, rng: Random) -> list[Event]:
    """Keys one after another, each with processes of its own."""
    case, events = CASES[name], list[Event]()
    per_key = min(case.per_key, operations)
    for key in range(operations // per_key):
        for e in history(case.make(), rng, per_key, 4, 0, 0):
            at = len(events)
            events.append(replace(e, index=at, time_ns=at * 1000, process=10 * key + e.process, key=f"k{key}"))
    return events


def held(name: str, operations: int, seed: int) -> None:
    rng = Random(seed)
    events = made(name, operations, rng)
    verdict = judge_events(events, name)
    assert verdict.validity is Validity.VALID, (verdict.reason, [w.summary for w in verdict.witnesses])
    wrong, at = CASES[name].spoil(rng, events)
    verdict = judge_events(wrong, name)
    assert verdict.validity is Validity.INVALID, verdict.reason
    assert at in {row["index"] for witness in verdict.witnesses for row in witness.events}
    assert {witness.facts["rejudged"] for witness in verdict.witnesses} == {True}


@pytest.mark.parametrize("name", CASES)
def test_thousands_of_operations(name: str) -> None:
    held(name, 5_000, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_a_million_operations(name: str, night: Random) -> None:
    held(name, 1_000_000, night.randrange(2**31))
