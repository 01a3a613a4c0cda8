"""The history: what clients asked, what they were told, and in which order the harness saw it.

Everyone's ground: every other package may import this file, and it imports none of them.  It needs
nothing beyond the standard library, so that it also loads on nodes; Arrow lives in `columns.py`.

Theory.  A history is a list of events.  An operation is an `INVOKE` and, later, one completion of the
same process: `OK` (it happened, here is the answer), `FAIL` (it certainly did not happen) or `INFO`
(nobody knows; it stays open for ever, and the process is retired).  `index` alone decides order; `time_ns`
is for display.  The harness records an invoke before the operation leaves and the completion after the
answer has arrived, which can only widen intervals: a verdict over wider intervals never cries wolf.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

NEMESIS = -1
"""The process number under which faults are recorded."""

CREATE = "create"
"""The f with which set-up makes an object; it says nothing of what the object holds, so no model is asked about it."""

HARNESS_NODE = ""
"""`node` of an event that no node answered."""


class Type(IntEnum):
    """What an event says of its operation; the integer is what is stored (column `type`, int8)."""

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
    f: what was asked (`read`, `write`, `cas`, ...).
    key: which object, or None where the operation has none.
    value, value2: int64 or None; for a cas the expected and the new value.  A read's answer is the
        `value` of its completion; None there means the object holds nothing (nil).
    payload: JSON text for all that does not fit two integers (transactions, lists), else None.
    error: why, for FAIL and INFO.
    node: which node answered, or was asked.
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


class MalformedHistory(ValueError):
    """A history breaks its own grammar; the message names the line or row and what is wrong there."""
