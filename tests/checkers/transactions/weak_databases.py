"""Simulated databases that keep causal or read-atomic and nothing stronger, over registers, with defects on request.

After the generators of `jepsen.history.sim`.  Committed transactions have one order, that of their commits.  A
transaction sees some of those that committed before it began, and reads the last version among them:

    causal        it sees all of its session, and with each transaction all that this one had seen
    read-atomic   it sees all of its session, and of every other transaction all writes or none
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from checkers.base.history import Event, Type
from checkers.transactions.tape import MicroOperations, Tape

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
