"""The history: the operations that clients invoked and the answers of the system, in the order of recording.

Every other package may import this file, but the file imports no other package.  It needs only the standard library,
so that it can also be loaded on nodes.  `columns.py` defines the Arrow schemas.

A history is a list of events.  An operation is an `INVOKE` and, later, one completion of the same process.  `OK` means
that the operation happened; the completion contains the answer.  `FAIL` means that the operation certainly did not
happen.  `INFO` means that the outcome is unknown: the operation stays open for ever, and the process is retired.

Only `index` decides order; `time_ns` is for display.  The harness records an invoke before the request is sent, and the
completion after the answer has arrived.  So recorded intervals are never shorter than the real ones, which causes no
false alarm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

E = TypeVar("E")
"""A row of a history, in any representation."""

NEMESIS = -1
"""The process number under which faults are recorded."""

CREATE = "create"
"""The f with which set-up creates an object.  No model judges it, because it does not state a value of the object."""

MISMATCH_ERRORS = (None, "mismatch")
"""Values of `error` with which a failed cas also shows that the register did not have the expected value."""

HARNESS_NODE = ""
"""`node` of an event that no node answered."""


class Type(IntEnum):
    """The state of an operation that an event records; the column `type` stores the integer (int8)."""

    INVOKE = 0
    OK = 1
    FAIL = 2
    INFO = 3


@dataclass(frozen=True, slots=True)
class Event:
    """One row of a history.

    index: position in the history, from 0, without gaps
    time_ns: monotonic nanoseconds since the test began (display only)
    process: logical process, which has at most one open operation; `NEMESIS` for faults
    f: the invoked function (`read`, `write`, `cas`, ...)
    key: the object, or None if the operation has none
    value, value2: int64 or None; for a cas the expected and the new value.  A read's answer is the
        `value` of its completion; None there means that the object has no value (nil).
    payload: JSON text for values that do not fit into two integers (transactions, lists), else None
    error: the reason of a FAIL or INFO
    node: the node that answered, or the node that received the request
    """

    index: int
    time_ns: int
    process: int
    type: Type
    f: str
    key: str | None = None
    value: int | None = None
    value2: int | None = None
    payload: str | None = None
    error: str | None = None
    node: str = HARNESS_NODE

    @staticmethod
    def of_row(row: Mapping[str, Any]) -> Event:
        """Return the event of a row of a table of schema HISTORY."""
        return Event(**{**row, "type": Type(row["type"])})

    def as_row(self) -> dict[str, Any]:
        """Return the event as a row of schema HISTORY, as a witness contains it."""
        return {name: getattr(self, name) for name in self.__slots__} | {"type": int(self.type)}


def paired(
    events: Iterable[E], type_of: Callable[[E], Type], process_of: Callable[[E], int]
) -> list[tuple[E, E | None]]:
    """Return (invoke, its completion or None) of each operation, in the order of the invokes.

    events: in index order, in any representation
    A completion without an invoke is left out.  If a process invokes an operation while another one is open, the other
    one stays open.  `pairing.paired_rows` does the same on columns.
    """
    open_of: dict[int, int] = {}
    pairs: list[tuple[E, E | None]] = []
    for event in events:
        process = process_of(event)
        if type_of(event) is Type.INVOKE:
            open_of[process] = len(pairs)
            pairs.append((event, None))
        elif (place := open_of.pop(process, None)) is not None:
            pairs[place] = (pairs[place][0], event)
    return pairs


_TIME_OUT = re.compile(r"time-?d?-? ?out", re.IGNORECASE)


def doubt_of_refusal(error: object) -> str:
    """Return why a FAIL with this error proves nothing, as the end of a sentence; "" unless the error is a time-out."""
    if not _TIME_OUT.search(str(error)):
        return ""
    return "a time-out does not prove that it did not happen: record it as info"


class MalformedHistory(ValueError):
    """A history violates its grammar; the message names the line or row, and the error."""
