"""Histories of small objects: each operation takes effect at one instant between its events; then some answers are
changed.  `OBJECTS` has all of them, each with its rule for the independent search.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from checkers.base import independent_search as search
from checkers.base.history import Event, Type
from checkers.base.values import frozen
from checkers.models.model import REFUSED, Model, Operation, operations_of


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


def searched(
    events: Sequence[Event], init: Any, step: Callable[[Any, Operation], object], observers: Collection[str]
) -> bool:
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


def mixed_up(events: Sequence[Event], rng: Random, times: int) -> list[Event]:
    """Move some completions earlier, which may contradict every order."""
    moved = list(events)
    for _ in range(times):
        oks = [at for at, e in enumerate(moved) if e.type is Type.OK]
        if not oks:
            break
        at = rng.choice(oks)
        begun = max(i for i in range(at) if moved[i].process == moved[at].process)
        moved.insert(rng.randint(begun + 1, at), moved.pop(at))
    return renumbered(moved)


# Operations that the clients choose


def any_of(*choices: tuple[str, Any]) -> Callable[[Random, int], tuple[str, Any]]:
    """Ask for one of the choices; an input that is a function is called, and of those in a range one is chosen."""

    def ask(rng: Random, _: int) -> tuple[str, Any]:
        f, value = rng.choice(choices)
        return f, value() if callable(value) else rng.choice(value) if isinstance(value, range) else value

    return ask


def numbers() -> Callable[[], int]:
    """Return a number that was not used before."""
    return count().__next__


class Locks:
    """Each process acquires one permit or more and releases them; again: the share of acquires of one that has some."""

    def __init__(self, *permits: int, again: float = 0.0) -> None:
        self.permits, self.again, self.holds = permits, again, dict[int, int]()

    def __call__(self, rng: Random, process: int) -> tuple[str, Any]:
        if process in self.holds and rng.random() >= self.again:
            return "release", self.holds.pop(process)
        some = rng.choice(self.permits)
        self.holds[process] = self.holds.get(process, 0) + some
        return "acquire", some


def fresh(put: str, take: str, rng: Random) -> Callable[[Random, int], tuple[str, Any]]:
    """Puts and takes of values that are mostly all different."""
    return any_of((put, numbers() if rng.random() < 0.8 else range(40)), (take, None))


def some_registers(rng: Random, _: int) -> tuple[str, Any]:
    kind, keys = rng.choice(["read", "write"]), rng.sample("xyz", rng.choice([1, 2]))
    return "txn", [[kind, key, rng.randrange(1, 5) if kind == "write" else None] for key in keys]


# What they do


def kv_do(state: str, f: str, value: Any) -> tuple[str, Any]:
    return {"get": (state, state or None), "put": (value, value), "append": (state + (value or ""), value)}[f]


def counter_do(state: int, f: str, value: Any) -> tuple[int, Any]:
    return (state, state) if f == "read" else (state + (value if f == "add" else -value), value)


def container(put: str, place: int, ordered: bool = False) -> Callable[[Any, str, Any], tuple[Any, Any]]:
    """place: of the value that is taken next, 0 or -1."""

    def do(state: tuple[int, ...], f: str, value: Any) -> tuple[Any, Any]:
        if f == put:
            held = (*state, value)
            return tuple(sorted(held)) if ordered else held, value
        if f == "drain" or not state:
            return (), list(state) if f == "drain" else None
        return state[:-1] if place else state[1:], state[place]

    return do


queue_do, stack_do, priority_do = container("enqueue", 0), container("push", -1), container("insert", 0, ordered=True)


def permits_do(permits: int) -> Callable[[int, str, Any], tuple[int, Any] | None]:
    def do(state: int, f: str, value: Any) -> tuple[int, Any] | None:
        after = state + (value if f == "acquire" else -value)
        return (after, value) if 0 <= after <= permits else None

    return do


def register_do(state: Any, f: str, value: Any) -> tuple[Any, Any]:
    return (state, state) if f == "read" else (value, value)


def registers_do(state: tuple[tuple[str, Any], ...], f: str, value: Any) -> tuple[Any, Any]:
    held = dict(state)
    held |= {key: new for kind, key, new in value if kind == "write"}
    return tuple(sorted(held.items())), [[kind, key, held.get(key)] for kind, key, _ in value]


def log_do(state: tuple, f: str, value: Any) -> tuple[tuple, Any]:
    return (state, list(state)) if f == "read" else ((*state, value), [value, len(state)])


def set_do(state: frozenset, f: str, value: Any) -> tuple[frozenset, Any]:
    return (state, sorted(state)) if f == "read" else (state | {value}, value)


def ids_do(state: int, f: str, value: Any) -> tuple[int, Any]:
    return state + 1, state


# What else they may have answered


def instead(of: str, *values: Any) -> Callable[[Random, str, Any], Any]:
    """Return another answer of one function, one of the values."""
    return lambda rng, f, was: rng.choice(values) if f == of else was


def no_lie(rng: Random, f: str, was: Any) -> Any:
    return was


def one_off(rng: Random, f: str, was: Any) -> Any:
    return was + rng.choice([-1, 1]) if f == "read" else was


def lie_of_log(rng: Random, f: str, was: Any) -> Any:
    if f == "read":
        return list(was or ())[: rng.randrange(5)]
    return [was[0], rng.randrange(5)] if isinstance(was, tuple) and rng.random() < 0.5 else was


def lie_of_registers(rng: Random, f: str, was: Any) -> Any:
    return [[kind, key, rng.randrange(1, 5) if kind == "read" else value] for kind, key, value in was]


def lie_of_set(rng: Random, f: str, was: Any) -> Any:
    return [x for x in was or () if rng.random() < 0.8] if f == "read" else was


def lie_of_drains(rng: Random, f: str, was: Any) -> Any:
    return {"dequeue": rng.randrange(4), "drain": [rng.randrange(3)]}.get(f, was)


def another_id(rng: Random, f: str, was: Any) -> Any:
    return rng.randrange(6)


# All of them


@dataclass(frozen=True)
class Object:
    """make: a new one for a history.  reads: functions without effect.  moved: the share of the histories in which
    completions come earlier than they did; in the others lies are told.  step: its rule, if it is not `step_of`.
    """

    model: str
    make: Callable[[Random], Simulated]
    reads: frozenset[str] = frozenset()
    moved: float = 0.0
    step: Callable[[Any, Operation], object] | None = None

    def explains(self, what: Simulated, events: Sequence[Event]) -> bool:
        return searched(events, what.init, self.step or step_of(what.do), self.reads)


def step_of(do: Callable[[Any, str, Any], tuple[Any, Any] | None]) -> Callable[[Any, Operation], object]:
    """Accept the answers that the simulated object gives."""

    def step(state: Any, operation: Operation) -> object:
        done = do(state, operation.f, operation.input)
        if done is None or (operation.returned and frozen(done[1]) != operation.output):
            return REFUSED
        return done[0]

    return step


def log_step(state: tuple, operation: Operation) -> object:
    if operation.f == "append":
        offset = operation.output[1] if isinstance(operation.output, tuple) else len(state)
        if offset < len(state):
            return REFUSED
        return (*state, *["left out"] * (offset - len(state)), operation.input)
    return state if state == (operation.output or ()) else REFUSED


def log_with_some_offsets(rng: Random) -> Simulated:
    """Two values only, and most appends do not name their offset."""

    def do(state: tuple, f: str, value: Any) -> tuple[tuple, Any]:
        after, answer = log_do(state, f, value)
        return after, answer if f == "read" or rng.random() < 0.3 else value

    return Simulated((), any_of(("append", range(2)), ("read", None)), do, lie_of_log)


def queue_of_unique_values(rng: Random, *lies: Any) -> Simulated:
    put, take = ("enqueue", numbers()), ("dequeue", None)
    return Simulated((), any_of(put, take, *([put] if rng.random() < 0.5 else [])), queue_do, instead("dequeue", *lies))


READ, GET = frozenset({"read"}), frozenset({"get"})
STRINGS = any_of(*[("get", None)] * 6, *(("append", c) for c in "aabbcc"), *(("put", c) for c in "xxxyyy"))
COUNTS = any_of(("add", 1), ("add", 2), ("add", -1), *[("read", None)] * 3, *[("dec", 1)] * 3)
QUEUED = any_of(("enqueue", range(6)), ("dequeue", None))
DRAINED = any_of(("enqueue", range(3)), ("dequeue", None), ("drain", None))
ADDED = any_of(("add", range(6)), ("read", None))
FEW, lie_of_few = any_of(("insert", range(3)), ("extract-min", None)), instead("extract-min", None, *range(3))
KEPT = any_of(("read", None), ("write", range(3)))

OBJECTS = {
    "kv": Object("kv", lambda rng: Simulated("", STRINGS, kv_do, instead("get", "a", "ab", "x", "xa", None)), GET),
    "queue": Object("queue", lambda rng: Simulated((), QUEUED, queue_do, instead("dequeue", *range(6), None))),
    "queue of unique values": Object("queue", lambda rng: queue_of_unique_values(rng, None, *range(8))),
    "queue without some answers": Object("queue", lambda rng: queue_of_unique_values(rng, None)),
    "queue with drains": Object("queue", lambda rng: Simulated((), DRAINED, queue_do, lie_of_drains)),
    "counter": Object("counter", lambda rng: Simulated(0, COUNTS, counter_do, one_off), READ),
    "set": Object("set", lambda rng: Simulated(frozenset(), ADDED, set_do, lie_of_set), READ),
    "append-log": Object(
        "append-log",
        lambda rng: Simulated((), any_of(("append", numbers()), ("read", None)), log_do, lie_of_log),
        READ,
        step=log_step,
    ),
    "append-log with some offsets": Object("append-log", log_with_some_offsets, READ, step=log_step),
    "mutex": Object("mutex", lambda rng: Simulated(0, Locks(1), permits_do(1), no_lie), moved=1),
    "semaphore": Object(
        "semaphore:3",
        lambda rng: Simulated(0, Locks(1, 1, 2, again=0.3), permits_do(rng.choice([3, 3, 4, 5])), no_lie),
        moved=1,
        step=step_of(permits_do(3)),
    ),
    "stack": Object(
        "stack",
        lambda rng: Simulated((), fresh("push", "pop", rng), stack_do, instead("pop", None, *range(6))),
        moved=0.3,
    ),
    "stack of few values": Object(
        "stack",
        lambda rng: Simulated((), any_of(("push", range(3)), ("pop", None)), stack_do, instead("pop", None, *range(3))),
    ),
    "priority-queue of few values": Object("priority-queue", lambda rng: Simulated((), FEW, priority_do, lie_of_few)),
    "priority-queue": Object(
        "priority-queue",
        lambda rng: Simulated((), fresh("insert", "extract-min", rng), priority_do, instead("extract-min", *range(6))),
        moved=0.3,
    ),
    "multi-register": Object(
        "multi-register", lambda rng: Simulated((), some_registers, registers_do, lie_of_registers)
    ),
    "register": Object(
        "cas-register", lambda rng: Simulated(None, KEPT, register_do, instead("read", 0, 1, 2, None)), READ
    ),
    "unique-ids": Object("unique-ids", lambda rng: Simulated(0, any_of(("generate", None)), ids_do, another_id)),
}


def every_state_before(model: Model, operations: Sequence[Operation], moment: int) -> set[Any]:
    """Brute force: the states after every legal order of what returned before a moment and any of what was called."""
    called = tuple(o for o in operations if o.call < moment)
    found: set[Any] = set()

    def go_on(state: Any, left: tuple[Operation, ...]) -> None:
        if all(o.ret is None or o.ret > moment for o in left):
            found.add(state)
        for chosen in left:
            if any(o.ret is not None and o.ret < chosen.call for o in left):
                continue
            after = model.step(state, chosen)
            if after is not REFUSED:
                go_on(after, tuple(o for o in left if o is not chosen))

    go_on(model.init(), called)
    return found
