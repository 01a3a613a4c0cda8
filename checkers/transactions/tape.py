"""A short notation for histories of transactions that are written by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from checkers.base.history import Event, Type

MicroOperations = list[list[Any]]


def micro_operations(text: str) -> MicroOperations:
    """Parse words such as `ax1 ry rx12 wz3`; each value is one digit.

    `ax1` appends 1 to x, `ry` reads y as an empty list, `rx12` reads x as [1, 2], `wz3` writes 3 to z, `=x1` reads 1
    from the register x, and `=x` reads nil.
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
    """A list of events that grows; each event gets the next index."""

    events: list[Event] = field(default_factory=list)

    def record(self, process: int, type_: Type, operations: MicroOperations) -> None:
        index = len(self.events)
        self.events.append(Event(index, index, process, type_, "txn", payload=json.dumps(operations)))

    def invoke(self, process: int, operations: MicroOperations) -> None:
        self.record(process, Type.INVOKE, [[f, k, None if f == "r" else v] for f, k, v in operations])

    def run(self, process: int, text: str, type_: Type = Type.OK) -> Tape:
        """Add one transaction: its invoke, immediately followed by its completion."""
        self.invoke(process, micro_operations(text))
        self.record(process, type_, micro_operations(text))
        return self

    def at_once(self, *texts: str, first_process: int = 0) -> Tape:
        """Add one transaction per text, each by its own process, all of them concurrent.

        A transaction whose text begins with `!` fails; if the text begins with `?`, its outcome is unknown.
        """
        types = {"!": Type.FAIL, "?": Type.INFO}
        operations = [micro_operations(text.lstrip("!?")) for text in texts]
        for process, each in enumerate(operations, first_process):
            self.invoke(process, each)
        for process, (text, each) in enumerate(zip(texts, operations, strict=True), first_process):
            self.record(process, types.get(text[0], Type.OK), each)
        return self

    def script(self, *lines: str, first_process: int = 0) -> Tape:
        """Add the lines in turn: `+0ax1` invokes a transaction of process 0, and `-0` completes it."""
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
    """Return a history in which each transaction has its own process and completes before the next one begins."""
    tape = Tape()
    for process, text in enumerate(texts):
        tape.run(process, text)
    return tape.events
