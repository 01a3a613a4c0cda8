"""Transactional histories for tests: written by hand, simulated under an isolation level, and judged by trying all.

Simulated databases that keep causal or read-atomic and nothing stronger, over registers, with defects on request.

After the generators of `jepsen.history.sim`.  Committed transactions have one order, that of their commits.  A
transaction sees some of those that committed before it began, and reads the last version among them:

    causal        it sees all of its session, and with each transaction all that this one had seen
    read-atomic   it sees all of its session, and of every other transaction all writes or none
"""

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


KEEPS = {"causal": "strong-session-causal", "read-atomic": "strong-session-read-atomic"}
"""What each database keeps."""


@dataclass
class Committed:
    """A transaction.  Numbers of transactions count in the order of commits.

    seen: numbers of those that it had seen, and its own.  proven: those of which reads and sessions show it.
    shown: key -> number of the writer, or None, of its reads.  event: index of its answer; -1 without one.
    """

    writes: dict[str, int]
    seen: set[int]
    proven: set[int]
    shown: dict[str, int | None]
    event: int = -1


@dataclass
class WeakHistory:
    """events: as recorded.  committed: the transactions in order of their commits."""

    events: list[Event]
    committed: list[Committed]

    def with_defect(self, rng: Random, isolation: str) -> list[Event] | None:
        """Replace the answer of a read by nil, although the transaction saw a write of this key.  None if no read can.

        read-atomic: one transaction wrote two keys, and the reader sees only one of these writes.
        causal: the reader sees a transaction that had seen the write, and not the write.
        """
        reads = [
            (reader, key)
            for reader in self.committed
            for key, writer in reader.shown.items()
            if writer is not None
            and reader.event >= 0
            and any(
                other is not None and other_key != key and self._implies(other, writer, isolation)
                for other_key, other in reader.shown.items()
            )
        ]
        if not reads:
            return None
        reader, key = rng.choice(reads)
        event = self.events[reader.event]
        steps = json.loads(event.payload or "[]")
        answers = [[f, k, None if f == "r" and k == key else value] for f, k, value in steps]
        return [replace(e, payload=json.dumps(answers)) if e is event else e for e in self.events]

    def _implies(self, seen: int, writer: int, isolation: str) -> bool:
        return (
            seen == writer if isolation == "read-atomic" else seen != writer and writer in self.committed[seen].proven
        )


@dataclass
class _Session:
    process: int
    steps: MicroOperations = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    proven: set[int] = field(default_factory=set)
    view: set[int] | None = None


def simulate_weak(
    rng: Random,
    isolation: str,
    *,
    transactions: int = 40,
    processes: int = 4,
    keys: int = 3,
    operations_max: int = 4,
    trouble: float = 0.1,
) -> WeakHistory:
    """What clients of the database record.  A share `trouble` fails, and as many stay unknown."""
    tape, committed = Tape(), list[Committed]()
    sessions = [_Session(p) for p in range(processes)]
    issued = {f"k{n}": 0 for n in range(keys)}
    begun, fresh = 0, processes
    while begun < transactions or any(session.view is not None for session in sessions):
        session = rng.choice(sessions)
        if session.view is None:
            if begun == transactions:
                continue
            begun += 1
            session.steps = _steps(rng, issued, operations_max)
            session.view = _view(rng, session.seen, committed, isolation)
            tape.invoke(session.process, session.steps)
            continue
        done, shown = _carried_out(session.steps, session.view, committed)
        fate, answered = rng.random(), rng.random() >= trouble
        if fate > trouble:
            number = len(committed)
            session.proven = {number}.union(
                session.proven, *(committed[n].proven for n in shown.values() if answered and n is not None)
            )
            writes = {key: value for f, key, value in done if f == "w"}
            session.seen = (session.view if isolation == "causal" else session.seen) | {number}
            committed.append(Committed(writes, session.view | {number}, session.proven, shown))
        session.view = None
        if not answered:
            tape.record(session.process, Type.INFO, session.steps)
            session.process, session.seen, session.proven, fresh = fresh, set(), set(), fresh + 1
        elif fate > trouble:
            committed[-1].event = len(tape.events)
            tape.record(session.process, Type.OK, done)
        else:
            tape.record(session.process, Type.FAIL, session.steps)
    return WeakHistory(tape.events, committed)


def _steps(rng: Random, issued: dict[str, int], operations_max: int) -> MicroOperations:
    steps: MicroOperations = []
    for _ in range(rng.randint(1, operations_max)):
        key = rng.choice(list(issued))
        if rng.random() < 0.5:
            steps.append(["r", key, None])
        else:
            issued[key] += 1
            steps.append(["w", key, issued[key]])
    return steps


def _view(rng: Random, seen: set[int], committed: list[Committed], isolation: str) -> set[int]:
    view = set(seen)
    for number, other in enumerate(committed):
        if rng.random() < 0.4:
            view |= other.seen if isolation == "causal" else {number}
    return view


def _carried_out(
    steps: MicroOperations, view: set[int], committed: list[Committed]
) -> tuple[MicroOperations, dict[str, int | None]]:
    """Return (the steps with answers, the writers that reads of others showed)."""
    own: dict[str, Any] = {}
    done: MicroOperations = []
    shown: dict[str, int | None] = {}
    for f, key, value in steps:
        if f == "w":
            own[key] = value
            done.append([f, key, value])
        elif key in own:
            done.append([f, key, own[key]])
        else:
            writer = max((n for n in view if key in committed[n].writes), default=None)
            shown[key] = writer
            done.append([f, key, None if writer is None else committed[writer].writes[key]])
    return done, shown
