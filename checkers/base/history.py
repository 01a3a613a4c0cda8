"""The history: what clients invoked, what the system answered, and in which order the harness recorded it.

Every other package may import this file, and it imports none of them.  It needs only the standard library, so that
it also loads on nodes.  `columns.py` holds the Arrow schemas.

Theory.  A history is a list of events.  An operation is an `INVOKE` and, later, one completion of the same process.
`OK` means that it happened, and holds the answer.  `FAIL` means that it certainly did not happen.  `INFO` means that
the outcome is unknown: the operation stays open for ever, and the process is retired.

`index` alone decides order; `time_ns` is for display.  The harness records an invoke before the operation leaves, and
the completion after the answer has arrived.  This can only widen intervals, so it causes no false alarm.
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
"""The f with which set-up creates an object.  It does not state what the object holds, so no model judges it."""

MISMATCH_ERRORS = (None, "mismatch")
"""Values of `error` if a failed cas is also an observation: the register did not hold the expected value."""

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

    index: position in the history, from 0, without gaps.
    time_ns: monotonic nanoseconds since the test began (display only).
    process: logical process, one operation at a time; `NEMESIS` for faults.
    f: the invoked function (`read`, `write`, `cas`, ...).
    key: the object, or None if the operation has none.
    value, value2: int64 or None; for a cas the expected and the new value.  A read's answer is the
        `value` of its completion; None there means the object holds nothing (nil).
    payload: JSON text for all that does not fit two integers (transactions, lists), else None.
    error: the reason of a FAIL or INFO.
    node: the node that answered, or the node that received the request.
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
        """Return the row of a table of schema HISTORY, as a witness holds it."""
        return {name: getattr(self, name) for name in self.__slots__} | {"type": int(self.type)}


def paired(
    events: Iterable[E], type_of: Callable[[E], Type], process_of: Callable[[E], int]
) -> list[tuple[E, E | None]]:
    """Return each invoke with its completion, None while it is open, in the order of the invokes.

    events: in index order, in any representation.  A completion without an invoke is left out.  An invoke of a process
    whose operation is open leaves that one open.  `pairing.paired_rows` does the same on whole columns.
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
    """Return the doubt about a failure with this error, as the end of a sentence; "" unless it is a time-out."""
    if not _TIME_OUT.search(str(error)):
        return ""
    return "a time-out does not prove that it did not happen: record it as info"


class MalformedHistory(ValueError):
    """A history violates its grammar; the message names the line or row, and the error."""
