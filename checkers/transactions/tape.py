"""Histories of transactions written by hand, in few words."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from checkers.base.history import Event, Type

MicroOperations = list[list[Any]]


def micro_operations(text: str) -> MicroOperations:
    """`ax1 ry rx12 wz3`: append 1 to x, read y as nothing, read x as [1, 2], write 3 to z (one digit per value).

    `=x1` reads 1 from the register x, `=x` reads nil.
    """
    parsed: MicroOperations = []
    for word in text.split():
        f, key, digits = word[0], word[1], word[2:]
        if f == "r":
            parsed.append(["r", key, [int(d) for d in digits]])
        elif f == "=":
            parsed.append(["r", key, int(digits) if digits else None])
        else:
            parsed.append(["append" if f == "a" else "w", key, int(digits)])
    return parsed


@dataclass
class Tape:
    """Events as they are recorded, index by index."""

    events: list[Event] = field(default_factory=list)

    def record(self, process: int, type_: Type, operations: MicroOperations) -> None:
        index = len(self.events)
        self.events.append(Event(index, index, process, type_, "txn", payload=json.dumps(operations)))

    def invoke(self, process: int, operations: MicroOperations) -> None:
        self.record(process, Type.INVOKE, [[f, k, None if f == "r" else v] for f, k, v in operations])

    def run(self, process: int, text: str, type_: Type = Type.OK) -> Tape:
        """One transaction from invoke to completion, with nothing between."""
        self.invoke(process, micro_operations(text))
        self.record(process, type_, micro_operations(text))
        return self

    def at_once(self, *texts: str, first_process: int = 0) -> Tape:
        """Add one transaction per text, each of its own process, all at the same time.  `!` before a text: it fails,
        `?`: its outcome is unknown.
        """
        types = {"!": Type.FAIL, "?": Type.INFO}
        operations = [micro_operations(text.lstrip("!?")) for text in texts]
        for process, each in enumerate(operations, first_process):
            self.invoke(process, each)
        for process, (text, each) in enumerate(zip(texts, operations, strict=True), first_process):
            self.record(process, types.get(text[0], Type.OK), each)
        return self

    def script(self, *lines: str, first_process: int = 0) -> Tape:
        """`+0ax1` begins a transaction of process 0, `-0` ends it."""
        running: dict[int, MicroOperations] = {}
        for line in lines:
            process = first_process + int(line[1])
            if line[0] == "+":
                running[process] = micro_operations(line[2:])
                self.invoke(process, running[process])
            else:
                self.record(process, Type.OK, running.pop(process))
        return self


def at_once(*texts: str) -> list[Event]:
    return Tape().at_once(*texts).events


def one_after_another(*texts: str) -> list[Event]:
    """Each transaction by a process of its own."""
    tape = Tape()
    for process, text in enumerate(texts):
        tape.run(process, text)
    return tape.events
