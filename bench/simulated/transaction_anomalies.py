"""Every anomaly of transactions in the smallest history that has it, written by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from checkers.base.history import Event, Type
from checkers.transactions.read import Model

MicroOperations = list[list[Any]]

LISTS: dict[str, tuple[tuple[str, ...], bool, set[str]]] = {
    "G0": (("ax1 ay1", "ax2 ay2", "rx12 ry21"), True, set()),
    "G1a": (("!ax1", "rx1"), True, set()),
    "dirty-update": (("!ax1", "ax2", "rx12"), True, {"G1a"}),
    "G1b": (("ax1 ax2", "rx1", "rx12"), True, {"G-single"}),
    "G1c": (("ax1 ry1", "ay1 rx1"), True, set()),
    "G-single": (("ax1 ay1", "rx1 ry", "ry1"), True, set()),
    "G-nonadjacent": (("ax1", "rx1 ry", "ay1", "ry1 rx"), True, set()),
    "G2-item": (("rx ay1", "ry ax1", "rx1 ry1"), True, set()),
    "lost-update": (("ax1", "rx1 ax2", "rx1 ax3"), True, {"G2-item"}),
    "internal": (("ax1", "rx1 ax2 rx1"), True, set()),
    "future-read": (("rx1 ax1", "rx1"), True, set()),
    "incompatible-order": (("ax1 ax2", "rx12", "rx2"), True, set()),
    "duplicate-elements": (("ax1", "rx11"), True, set()),
    "unwritten-read": (("ax1", "rx19"), True, set()),
    "reordered-appends": (("ax1 ax2", "rx21"), True, {"G1b"}),
    "G0-realtime": (("ax1", "ax2", "rx21"), False, set()),
    "G1c-realtime": (("rx1", "ax1"), False, set()),
    "G-single-realtime": (("ax1", "rx", "rx1"), False, set()),
    "G-nonadjacent-realtime": (("+0ax1", "+1ry1 rx", "+2ay1", "-0", "+3ry", "-1", "-2", "-3"), False, set()),
    "G2-item-realtime": (("+0ax1 ry", "+1ay1", "-1", "+2rx", "-2", "-0"), False, set()),
}
REGISTERS: dict[str, tuple[tuple[str, ...], bool, set[str]]] = {
    "G1a": (("!wx1", "=x1"), True, set()),
    "dirty-update": (("!wx1", "=x1 wx2"), True, {"G1a"}),
    "G1b": (("wx1 wx2", "=x1"), True, set()),
    "G1c": (("wx1 =y1", "wy1 =x1"), True, set()),
    "G-single": (("wx1 wy1", "=x1 =y"), True, set()),
    "G-nonadjacent": (("wx1", "=x1 =y", "wy1", "=y1 =x"), True, set()),
    "G2-item": (("=x wy1", "=y wx1"), True, set()),
    "lost-update": (("wx1", "=x1 wx2", "=x1 wx3"), True, {"G2-item"}),
    "internal": (("wx1", "=x1 wx2 =x1"), True, set()),
    "future-read": (("=x1 wx1",), True, set()),
    "cyclic-versions": (("=x1 wx2", "=x2 wx1"), True, {"G1c"}),
    "unwritten-read": (("wx1", "=x9"), True, set()),
    "G-single-realtime": (("wx1", "=x"), False, set()),
    "G1c-realtime": (("=x1", "wx1"), False, set()),
    "G2-item-realtime": (("+0wx1 =y", "+1wy1", "-1", "+2=x", "-2", "-0"), False, set()),
}
"""Name: (transactions, whether they run all at once, the other anomalies that come with it)."""


def smallest(model: Model, name: str) -> tuple[tuple[str, ...], bool, set[str]]:
    return (LISTS if model == "list-append" else REGISTERS)[name]


def history(texts: tuple[str, ...], together: bool, first_process: int = 0) -> list[Event]:
    """The transactions of one of the tables; x and y are their keys."""
    tape = Tape()
    if together:
        return tape.at_once(*texts, first_process=first_process).events
    if texts[0].startswith("+"):
        return tape.script(*texts, first_process=first_process).events
    for process, text in enumerate(texts, first_process):
        tape.run(process, text)
    return tape.events


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
        """Transactions of as many processes, all at the same time.  `!` in front of a text: it fails, `?`: unknown."""
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
