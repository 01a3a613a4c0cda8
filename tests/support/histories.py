"""Histories for tests: tiny random ones, and large ones that are linearizable by construction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.base.checker import Budget, Part
from checkers.base.columns import HISTORY, events_to_table
from checkers.base.history import Event, Type
from checkers.base.independent_search import RegisterOperation
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.judging import judge_run
from checkers.kernels import register_unique_values as register
from checkers.kernels.operations import KINDS, NIL, OTHER, Events, Operations, pair_events
from checkers.registers.checker import LINEARIZABILITY, split
from checkers.sealing.seal import seal


class Script:
    """A history written by hand, event by event: `script.invoke(0, "write", 1).ok(0)`."""

    def __init__(self, key: str = "k") -> None:
        self.key = key
        self.events: list[Event] = []
        self._open: dict[int, Event] = {}

    def invoke(self, process: int, f: str, value: int | None = None, value2: int | None = None) -> Script:
        self._open[process] = Event(0, 0, process, Type.INVOKE, f, self.key, value, value2, node="")
        return self._add(self._open[process])

    def ok(self, process: int, value: int | None = None, node: str = "n1") -> Script:
        invoke = self._open.pop(process)
        answer = value if invoke.f == "read" else invoke.value
        return self._add(invoke, type=Type.OK, value=answer, node=node)

    def fail(self, process: int, error: str = "refused") -> Script:
        return self._add(self._open.pop(process), type=Type.FAIL, error=error)

    def info(self, process: int) -> Script:
        return self._add(self._open.pop(process), type=Type.INFO, error="timed out")

    def _add(self, like: Event, **changes: Any) -> Script:
        index = len(self.events)
        self.events.append(replace(like, index=index, time_ns=index * 10_000_000, **changes))
        return self


def tiny(rng: Random, operations: int, processes: int, cas: bool = True) -> list[Event]:
    """Random nonsense with unique values: anything may be answered, fail, or stay open."""
    script = Script()
    busy: dict[int, str] = {}
    idle = list(range(processes))
    fresh = processes
    values: list[int | None] = [None]
    invoked = 0
    while (invoked < operations and idle) or busy:
        if invoked < operations and idle and (not busy or rng.random() < 0.55):
            process = idle.pop(rng.randrange(len(idle)))
            f = rng.choice(["read", "read", "write", "cas"] if cas else ["read", "write"])
            invoked += 1
            if f == "read":
                script.invoke(process, f)
            else:
                new = len(values)
                if f == "cas":
                    script.invoke(process, f, rng.choice(values), new)
                else:
                    script.invoke(process, f, new)
                values.append(new)
            busy[process] = f
        else:
            process = rng.choice(sorted(busy))
            f = busy.pop(process)
            how = rng.random()
            if how < 0.8:
                likely = [*values[-3:], rng.choice(values), *([99] if rng.random() < 0.03 else [])]
                script.ok(process, rng.choice(likely) if f == "read" else None)
                idle.append(process)
            elif how < 0.87:
                script.fail(process)
                idle.append(process)
            elif how < 0.95:
                script.info(process)
                idle.append(fresh)
                fresh += 1
    return script.events


@dataclass
class _Pending:
    event: Event
    due: int
    answer: int | None = None
    matched: bool = True
    effective: bool = False


def by_construction(
    rng: Random, operations: int, processes: int = 5, keys: int = 1, cas: float = 0.2, crash: float = 0.002
) -> Iterator[Event]:
    """A history of correct registers: each operation takes effect at one instant between its two events."""
    names = [f"k{n}" for n in range(keys)]
    state: dict[str, int | None] = dict.fromkeys(names)
    fresh_value = dict.fromkeys(names, 0)
    idle, fresh_process = list(range(processes)), processes
    pending: list[_Pending] = []
    lost: list[_Pending] = []
    index = invoked = 0
    while invoked < operations or pending:
        step = rng.random()
        if invoked < operations and idle and (step < 0.34 or not pending):
            key, draw = names[rng.randrange(keys)], rng.random()
            value = value2 = None
            f = "read"
            if draw < 0.5:
                fresh_value[key] += 1
                f, value = "write", fresh_value[key]
                if draw < cas:
                    f, value, value2 = "cas", state[key], fresh_value[key]
            process = idle.pop(rng.randrange(len(idle)))
            event = Event(index, index * 1000, process, Type.INVOKE, f, key, value, value2)
            yield event
            index, invoked = index + 1, invoked + 1
            pending.append(_Pending(event, 0))
            continue
        if lost and rng.random() < 0.01:
            _take_effect(lost.pop(rng.randrange(len(lost))), state)
        at = rng.randrange(len(pending))
        operation = pending[at]
        if not operation.effective:
            if operation.event.f != "read" and rng.random() < crash:
                pending.pop(at)
                yield replace(operation.event, index=index, time_ns=index * 1000, type=Type.INFO, error="timed out")
                index += 1
                idle.append(fresh_process)
                fresh_process += 1
                if rng.random() < 0.5:
                    lost.append(operation)
                continue
            _take_effect(operation, state)
        else:
            pending.pop(at)
            asked_event = operation.event
            type_ = Type.OK if operation.matched else Type.FAIL
            value = operation.answer if asked_event.f == "read" else asked_event.value
            error = None if operation.matched else "mismatch"
            yield replace(
                asked_event, index=index, time_ns=index * 1000, type=type_, value=value, error=error, node="n1"
            )
            index += 1
            idle.append(asked_event.process)


def _take_effect(operation: _Pending, state: dict[str, int | None]) -> None:
    event = operation.event
    assert event.key is not None
    operation.effective = True
    if event.f == "read":
        operation.answer = state[event.key]
    elif event.f == "write":
        state[event.key] = event.value
    elif state[event.key] == event.value:
        state[event.key] = event.value2
    else:
        operation.matched = False


def write_stream(folder: Path, events: Sequence[Event] | pa.Table) -> Path:
    """A run folder with nothing but an unsealed history in it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = events if isinstance(events, pa.Table) else events_to_table(events)
    with pa.ipc.new_stream(str(folder / "history.arrows"), HISTORY) as stream:
        stream.write_table(table, max_chunksize=50_000)
    return folder


def judged_alone(events: Sequence[Event]) -> tuple[int, int, int]:
    """What the kernel says of a history of one key: (code, left, right)."""
    ops = as_operations(events)
    code, left, right, _ = register.judge_keys(ops, 10**12)
    return int(code[0]), int(left[0]), int(right[0])


def as_operations(events: Sequence[Event]) -> Operations:
    """A history as the kernels read it, without a detour over files.  Keys are numbered in alphabetical order."""
    number_of = {key: number for number, key in enumerate(sorted({e.key for e in events if e.key is not None}))}

    def coded(values: list[int | None]) -> np.ndarray:
        return np.array([NIL if value is None else value for value in values], np.int64)

    arrays = Events(
        np.array([number_of[e.key] for e in events if e.key is not None], np.int32),
        np.array([e.process for e in events], np.int32),
        np.array([e.type for e in events], np.int8),
        np.array([KINDS.get(e.f, OTHER) for e in events], np.int8),
        coded([e.value for e in events]),
        coded([e.value2 for e in events]),
        np.zeros(len(events), np.int8),
    )
    return pair_events(arrays, len(number_of), max(e.process for e in events) + 1)


def verdict_of(folder: Path, events: Sequence[Event], failed_cas: str = "", steps: int = 0) -> Verdict:
    """The verdict on linearizability of a history, by way of all the files."""
    seal(write_stream(folder, events))
    budget = Budget(steps=steps) if steps else None
    checker = LINEARIZABILITY
    if failed_cas:
        checker = replace(checker, split=lambda run: [Part(p.paths, {"failed_cas": failed_cas}) for p in split(run)])
    return judge_run(StoredRun(folder), [checker], budget=budget)["linearizability"]


def witness_of(folder: Path, script: Script) -> Witness:
    """The only witness of a history that is not linearizable."""
    verdict = verdict_of(folder, script.events)
    assert verdict.validity is Validity.INVALID
    [witness] = verdict.witnesses
    assert witness.facts["rejudged"] is True
    return witness


def operations_of(events: Iterable[Event]) -> list[RegisterOperation]:
    """The operations of one key of a register history, in order of call.

    It pairs invokes and completions itself, and shares nothing with `history.paired`: this search checks the checkers.
    Two sorts of operations cannot matter and are left out: reads without an answer, and operations that failed (they
    did not happen).
    """
    open_of: dict[int, Event] = {}
    completed: list[tuple[Event, Event | None]] = []
    for event in events:
        if event.type is Type.INVOKE:
            open_of[event.process] = event
        else:
            completed.append((open_of.pop(event.process), event))
    completed += [(invoked, None) for invoked in open_of.values()]
    operations = []
    for invoked, completion in completed:
        answered = completion if completion is not None and completion.type is Type.OK else None
        if completion is not None and completion.type is Type.FAIL:
            continue
        if invoked.f == "read":
            if answered is not None:
                operations.append(RegisterOperation("read", answered.value, None, invoked.index, answered.index))
        else:
            ret = answered.index if answered is not None else None
            operations.append(RegisterOperation(invoked.f, invoked.value, invoked.value2, invoked.index, ret))
    return sorted(operations, key=lambda operation: operation.call)
