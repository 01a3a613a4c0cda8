"""Kafka histories for tests: a broker with transactions in a few lines, and histories written by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from checkers.base.history import Event, Type


@dataclass
class Tape:
    events: list[Event] = field(default_factory=list)

    def record(self, process: int, type_: Type, f: str, payload: list[Any]) -> None:
        index = len(self.events)
        self.events.append(Event(index, index, process, type_, f, payload=json.dumps(payload)))

    def script(self, *lines: str, key: str = "k", first_process: int = 0) -> Tape:
        """Lines like `0 send 5=a 6=b`, `1 poll 5=a 6=b`, `2 txn send:5=a poll:6=b`, `3 assign`.

        Each runs from invoke to completion; with `+` in front it only begins, with `-` it ends (`-0`), `!` fails and
        `?` stays unknown.  `_=a` is a message whose offset the client never learnt.
        """
        began: dict[int, tuple[str, list[Any]]] = {}
        for line in lines:
            mark, rest = (line[0], line[1:]) if line[0] in "+-!?" else ("", line)
            number, *words = rest.split()
            process = first_process + int(number)
            if mark == "-":
                f, steps = began.pop(process)
                self.record(process, Type.OK, f, steps)
                continue
            f, steps = words[0], _completed(words, key)
            self.record(process, Type.INVOKE, f, _invoked(steps) if f not in ("assign", "subscribe") else steps)
            if mark == "+":
                began[process] = (f, steps)
            else:
                self.record(process, {"!": Type.FAIL, "?": Type.INFO}.get(mark, Type.OK), f, steps)
        return self


def _completed(words: list[str], key: str) -> list[Any]:
    f, *messages = words
    if f in ("assign", "subscribe"):
        return [key]
    steps: list[Any] = []
    for message in messages:
        kind, _, rest = message.rpartition(":")
        on, _, rest = rest.rpartition("/")
        offset, value = rest.split("=")
        pair = [None if offset == "_" else int(offset), value]
        if (kind or f) == "send":
            steps.append(["send", on or key, pair])
        elif steps and steps[-1][0] == "poll" and (on or key) in steps[-1][1]:
            steps[-1][1][on or key].append(pair)
        else:
            steps.append(["poll", {on or key: [pair]}])
    return steps


def _invoked(steps: list[Any]) -> list[Any]:
    return [[m[0], m[1], m[2][1]] if m[0] == "send" else ["poll"] for m in steps]


# A broker


PENDING, COMMITTED, ABORTED, MARKER = range(4)


@dataclass
class _Running:
    invoked: list[Any]
    f: str
    done: list[Any] = field(default_factory=list)
    entries: list[tuple[str, int]] = field(default_factory=list)


class ToyBroker:
    """Logs of [value, state]; pending messages hide all later ones (the last stable offset)."""

    def __init__(self) -> None:
        self.logs: dict[str, list[list[Any]]] = {}

    def send(self, key: str, value: int) -> int:
        self.logs.setdefault(key, []).append([value, PENDING])
        return len(self.logs[key]) - 1

    def end(self, entries: list[tuple[str, int]], state: int, *, marker: bool) -> None:
        for key, offset in entries:
            self.logs[key][offset][1] = state
        for key in {key for key, _ in entries} if marker else ():
            self.logs[key].append([None, MARKER])

    def poll(self, positions: dict[str, int], most: int) -> dict[str, list[list[Any]]]:
        answer: dict[str, list[list[Any]]] = {}
        for key in positions:
            log = self.logs.get(key, [])
            while positions[key] < len(log) and len(answer.get(key, [])) < most:
                value, state = log[positions[key]]
                if state == PENDING:
                    break
                if state == COMMITTED:
                    answer.setdefault(key, []).append([positions[key], value])
                positions[key] += 1
        return answer


class _Clients:
    """Processes that send to and poll from a broker.  Each call of a method is one step of one of them.

    trouble: the share of operations that abort, and the share whose client gives up.
    """

    def __init__(self, rng: Random, processes: int, keys: int, assign: str, trouble: float) -> None:
        self.tape = Tape()
        self.names = list(range(processes))
        self.running: dict[int, _Running] = {}
        self._rng, self._assign, self._trouble = rng, assign, trouble
        self._broker = ToyBroker()
        self._partitions = [str(k) for k in range(keys)]
        self._positions = {name: dict.fromkeys(self._partitions, 0) for name in self.names}
        self._value = 0

    def begin(self, process: int) -> None:
        """Begin a new operation, or another assignment of partitions."""
        rng, positions = self._rng, self._positions
        if rng.random() < 0.05:
            self._reassign(process)
            return
        if self._assign == "subscribe" and rng.random() < 0.1:  # a rebalance that the history does not show
            positions[process] = {key: rng.randint(0, at) for key, at in positions[process].items()}
        steps: list[Any] = []
        for _ in range(rng.randint(1, 4)):
            self._value += 1
            steps.append(["poll"] if rng.random() < 0.5 else ["send", rng.choice(self._partitions), self._value])
        kinds = {m[0] for m in steps}
        f = "txn" if len(kinds) > 1 else kinds.pop()
        self.tape.record(process, Type.INVOKE, f, steps)
        self.running[process] = _Running(steps, f)

    def step(self, process: int, txn: _Running) -> None:
        """Execute the next send or poll of an operation."""
        part = txn.invoked[len(txn.done)]
        if part[0] == "poll":
            txn.done.append(["poll", self._broker.poll(self._positions[process], self._rng.randint(1, 5))])
        else:
            offset = self._broker.send(part[1], part[2])
            txn.entries.append((part[1], offset))
            txn.done.append(["send", part[1], [offset if self._rng.random() > 0.05 else None, part[2]]])

    def end(self, slot: int, txn: _Running) -> None:
        """Commit or abort; a client that gives up returns as another process."""
        process = self.names[slot]
        del self.running[process]
        commits = self._rng.random() > self._trouble
        self._broker.end(txn.entries, COMMITTED if commits else ABORTED, marker=True)
        if self._rng.random() < self._trouble:
            self.tape.record(process, Type.INFO, txn.f, txn.done)
            self.names[slot] = self._another()
        elif commits:
            self.tape.record(process, Type.OK, txn.f, txn.done)
        else:
            self.tape.record(process, Type.FAIL, txn.f, txn.invoked)

    def poll_everything(self) -> None:
        """Poll everything by one more process."""
        last = self._another()
        self.tape.record(last, Type.INVOKE, "poll", [["poll"]])
        self.tape.record(last, Type.OK, "poll", [["poll", self._broker.poll(self._positions[last], 10**9)]])

    def _another(self) -> int:
        name = max(self.names) + 1
        self._positions[name] = dict.fromkeys(self._partitions, 0)
        return name

    def _reassign(self, process: int) -> None:
        """Assign other partitions from now on; new ones from their beginning."""
        chosen = self._rng.sample(self._partitions, self._rng.randint(1, len(self._partitions)))
        before = self._positions[process]
        self._positions[process] = {key: before.get(key, 0) for key in chosen}
        self.tape.record(process, Type.INVOKE, self._assign, chosen)
        self.tape.record(process, Type.OK, self._assign, chosen)


def simulate(
    rng: Random,
    *,
    operations: int = 200,
    processes: int = 5,
    keys: int = 3,
    assign: str = "assign",
    trouble: float = 0.1,
) -> list[Event]:
    """A correct Kafka under clients that fail and give up; at the end one more process polls everything."""
    clients = _Clients(rng, processes, keys, assign, trouble)
    begun = 0
    while begun < operations or clients.running:
        slot = rng.randrange(processes)
        process = clients.names[slot]
        txn = clients.running.get(process)
        if txn is not None and len(txn.done) < len(txn.invoked):
            clients.step(process, txn)
        elif txn is not None:
            clients.end(slot, txn)
        elif begun < operations:
            begun += 1
            clients.begin(process)
    clients.poll_everything()
    return clients.tape.events
