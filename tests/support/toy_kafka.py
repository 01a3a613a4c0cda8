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
                f, told = began.pop(process)
                self.record(process, Type.OK, f, told)
                continue
            f, told = words[0], _told(words, key)
            self.record(process, Type.INVOKE, f, _asked(told) if f not in ("assign", "subscribe") else told)
            if mark == "+":
                began[process] = (f, told)
            else:
                self.record(process, {"!": Type.FAIL, "?": Type.INFO}.get(mark, Type.OK), f, told)
        return self


def _told(words: list[str], key: str) -> list[Any]:
    f, *messages = words
    if f in ("assign", "subscribe"):
        return [key]
    told: list[Any] = []
    for message in messages:
        kind, _, rest = message.rpartition(":")
        on, _, rest = rest.rpartition("/")
        offset, value = rest.split("=")
        pair = [None if offset == "_" else int(offset), value]
        if (kind or f) == "send":
            told.append(["send", on or key, pair])
        elif told and told[-1][0] == "poll" and (on or key) in told[-1][1]:
            told[-1][1][on or key].append(pair)
        else:
            told.append(["poll", {on or key: [pair]}])
    return told


def _asked(told: list[Any]) -> list[Any]:
    return [[m[0], m[1], m[2][1]] if m[0] == "send" else ["poll"] for m in told]


# A broker


PENDING, COMMITTED, ABORTED, MARKER = range(4)


@dataclass
class _Running:
    asked: list[Any]
    f: str
    told: list[Any] = field(default_factory=list)
    entries: list[tuple[str, int]] = field(default_factory=list)


class ToyBroker:
    """Logs of [value, state]; what is pending hides all that stands behind it (the last stable offset)."""

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


def simulate(
    rng: Random,
    *,
    operations: int = 200,
    processes: int = 5,
    keys: int = 3,
    assign: str = "assign",
    trouble: float = 0.1,
) -> list[Event]:
    """A correct Kafka under clients that fail and give up; at the end somebody polls everything."""
    tape, broker = Tape(), ToyBroker()
    partitions = [str(k) for k in range(keys)]
    names = list(range(processes))
    positions = {name: dict.fromkeys(partitions, 0) for name in names}
    running: dict[int, _Running] = {}
    begun = value = 0
    while begun < operations or running:
        slot = rng.randrange(processes)
        process = names[slot]
        txn = running.get(process)
        if txn is None:
            if begun == operations:
                continue
            begun += 1
            if rng.random() < 0.05:
                _assign(tape, process, assign, partitions, positions, rng)
                continue
            if assign == "subscribe" and rng.random() < 0.1:  # a rebalance nobody told of
                positions[process] = {key: rng.randint(0, at) for key, at in positions[process].items()}
            asked = []
            for _ in range(rng.randint(1, 4)):
                value += 1
                asked.append(["poll"] if rng.random() < 0.5 else ["send", rng.choice(partitions), value])
            kinds = {m[0] for m in asked}
            f = "txn" if len(kinds) > 1 else kinds.pop()
            tape.record(process, Type.INVOKE, f, asked)
            running[process] = _Running(asked, f)
        elif len(txn.told) < len(txn.asked):
            part = txn.asked[len(txn.told)]
            if part[0] == "poll":
                txn.told.append(["poll", broker.poll(positions[process], rng.randint(1, 5))])
            else:
                offset = broker.send(part[1], part[2])
                txn.entries.append((part[1], offset))
                txn.told.append(["send", part[1], [offset if rng.random() > 0.05 else None, part[2]]])
        else:
            del running[process]
            fate = rng.random()
            commits = fate > trouble
            broker.end(txn.entries, COMMITTED if commits else ABORTED, marker=True)
            if rng.random() < trouble:
                tape.record(process, Type.INFO, txn.f, txn.told)
                names[slot] = max(names) + 1
                positions[names[slot]] = dict.fromkeys(partitions, 0)
            elif commits:
                tape.record(process, Type.OK, txn.f, txn.told)
            else:
                tape.record(process, Type.FAIL, txn.f, txn.asked)
    last = max(names) + 1
    positions[last] = dict.fromkeys(partitions, 0)
    tape.record(last, Type.INVOKE, "poll", [["poll"]])
    tape.record(last, Type.OK, "poll", [["poll", broker.poll(positions[last], 10**9)]])
    return tape.events


def _assign(
    tape: Tape, process: int, f: str, partitions: list[str], positions: dict[int, dict[str, int]], rng: Random
) -> None:
    """Other partitions from now on; those that were not there before from the beginning."""
    chosen = rng.sample(partitions, rng.randint(1, len(partitions)))
    before = positions[process]
    positions[process] = {key: before.get(key, 0) for key in chosen}
    tape.record(process, Type.INVOKE, f, chosen)
    tape.record(process, Type.OK, f, chosen)
