"""Transactional histories for tests: written by hand, simulated under an isolation level, and judged by trying all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from checkers.base.history import Event, Type
from checkers.transactions.read import Model
from checkers.transactions.tape import MicroOperations, Tape

# Simulated databases

ISOLATIONS = ("strict-serializable", "serializable", "snapshot-isolation", "read-committed", "read-uncommitted")


@dataclass
class _Running:
    steps: MicroOperations
    snapshot: dict[str, list[int]]
    done: MicroOperations = field(default_factory=list)
    own: dict[str, list[int]] = field(default_factory=dict)
    aborted: bool = False


class ToyDatabase:
    """One of ISOLATIONS over lists (a register is a list of which only the last element is seen).

    Writers lock a key until they end; a second writer of a locked key aborts.
    """

    def __init__(self, isolation: str, rng: Random) -> None:
        self._isolation = isolation
        self._rng = rng
        self._lists: dict[str, list[int]] = {}
        self._past: list[dict[str, list[int]]] = [{}]
        self._locks: dict[str, _Running] = {}

    def begin(self, steps: MicroOperations) -> _Running:
        read_only = all(f == "r" for f, _, _ in steps)
        if self._isolation == "serializable" and read_only:
            return _Running(steps, self._rng.choice(self._past))
        return _Running(steps, self._copy())

    def step(self, txn: _Running) -> None:
        """One micro-operation; all of them where the database is serial."""
        if self._isolation in ("strict-serializable", "serializable"):
            if not all(f == "r" for f, _, _ in txn.steps) or self._isolation == "strict-serializable":
                txn.snapshot = self._copy()
            while len(txn.done) < len(txn.steps):
                self._one(txn)
            self._apply(txn)
            txn.own = {}
        else:
            self._one(txn)

    def end(self, txn: _Running, commit: bool) -> bool:
        """Whether it committed."""
        commit = commit and not txn.aborted
        if commit and self._isolation == "snapshot-isolation":
            commit = all(self._lists.get(k, []) == txn.snapshot.get(k, []) for k in txn.own)
        if commit and self._isolation != "read-uncommitted":
            self._apply(txn)
        if not commit and self._isolation == "read-uncommitted":
            for key, values in txn.own.items():
                self._lists[key] = [v for v in self._lists[key] if v not in values]
        self._locks = {k: holder for k, holder in self._locks.items() if holder is not txn}
        return commit

    def _one(self, txn: _Running) -> None:
        f, key, value = txn.steps[len(txn.done)]
        if f == "r":
            txn.done.append(["r", key, self._read(txn, key)])
            return
        txn.done.append([f, key, value])
        if self._isolation in ("read-committed", "read-uncommitted"):
            if self._locks.setdefault(key, txn) is not txn:
                txn.aborted = True
                return
            if self._isolation == "read-uncommitted":
                self._lists.setdefault(key, []).append(value)
        txn.own.setdefault(key, []).append(value)

    def _read(self, txn: _Running, key: str) -> list[int]:
        match self._isolation:
            case "read-uncommitted":
                return list(self._lists.get(key, []))
            case "read-committed":
                return self._lists.get(key, []) + txn.own.get(key, [])
        return txn.snapshot.get(key, []) + txn.own.get(key, [])

    def _apply(self, txn: _Running) -> None:
        for key, values in txn.own.items():
            self._lists.setdefault(key, []).extend(values)
        self._past.append(self._copy())

    def _copy(self) -> dict[str, list[int]]:
        return {k: list(v) for k, v in self._lists.items()}


def simulate(
    rng: Random,
    model: Model,
    isolation: str,
    *,
    transactions: int = 60,
    processes: int = 5,
    keys: int = 3,
    operations_max: int = 4,
    appends_per_key: int = 12,
    trouble: float = 0.1,
    values: int = 0,
) -> list[Event]:
    """What clients of a database of this isolation record.  A share `trouble` fails, and as many stay unknown.

    values: so many are written again and again; 0: each is unique.
    """
    database, tape = ToyDatabase(isolation, rng), Tape()
    write = "append" if model == "list-append" else "w"
    running: dict[int, _Running] = {}
    names = list(range(processes))
    issued = {f"k{i}": 0 for i in range(keys)}
    serial = isolation in ("strict-serializable", "serializable")
    begun = 0
    while begun < transactions or running:
        slot = rng.randrange(processes)
        process = names[slot]
        txn = running.get(process)
        if txn is None:
            if begun == transactions:
                continue
            begun += 1
            steps = list(_operations(rng, issued, write, rng.randint(1, operations_max), appends_per_key))
            steps = [[f, k, rng.randint(1, values) if values and f != "r" else v] for f, k, v in steps]
            tape.invoke(process, steps)
            running[process] = database.begin(steps)
        elif serial and not txn.done and not txn.aborted and rng.random() < trouble:
            txn.aborted = True
        elif len(txn.done) < len(txn.steps) and not txn.aborted:
            database.step(txn)
        else:
            fate = rng.random()
            committed = database.end(txn, commit=serial or fate > trouble)
            del running[process]
            if rng.random() < trouble:
                tape.record(process, Type.INFO, txn.steps)
                names[slot] = max(names) + 1
            elif committed:
                tape.record(process, Type.OK, _as_answer(txn.done, model))
            else:
                tape.record(process, Type.FAIL, txn.steps)
    return tape.events


def _operations(
    rng: Random, issued: dict[str, int], write: str, count: int, appends_per_key: int
) -> Iterator[list[Any]]:
    for _ in range(count):
        key = rng.choice(list(issued)[-8:])
        if rng.random() < 0.5:
            yield ["r", key, None]
            continue
        issued[key] += 1
        yield [write, key, issued[key]]
        if issued[key] >= appends_per_key:
            issued[f"k{len(issued)}"] = 0


def _as_answer(done: MicroOperations, model: Model) -> MicroOperations:
    if model == "list-append":
        return done
    return [[f, k, (v[-1] if v else None) if f == "r" else v] for f, k, v in done]


# Judging by brute force


def shows_nothing(events: Sequence[Event]) -> bool:
    """Whether no committed transaction read, or none of them wrote or read anything that was written."""
    committed = [step for e in events if e.type is Type.OK for step in json.loads(e.payload or "[]")]
    reads = [answer for f, _, answer in committed if f == "r"]
    return not reads or (len(reads) == len(committed) and not any(reads))


def with_another_answer(rng: Random, events: list[Event], model: Model) -> list[Event]:
    answered = [json.loads(e.payload or "[]") for e in events]
    reads = [
        (i, j) for i, e in enumerate(events) if e.type is Type.OK for j, m in enumerate(answered[i]) if m[0] == "r"
    ]
    if not reads:
        return events
    i, j = rng.choice(reads)
    values = sorted({m[2] for some in answered for m in some if m[0] != "r" and m[1] == answered[i][j][1]})
    if model == "list-append":
        answered[i][j][2] = rng.sample(values, rng.randint(0, len(values)))
    else:
        answered[i][j][2] = rng.choice([None, *values])
    return [replace(e, payload=json.dumps(answered[at])) if at == i else e for at, e in enumerate(events)]


def of_one_process(events: list[Event]) -> list[Event]:
    return [replace(event, process=0) for event in events]
