"""Reads operations on Kafka's logs from the events of a history.  A key is one partition: a log with offsets.

    f                payload of the completion (the invoke has neither offsets nor answers)
    send, poll, txn  [["send", key, [offset, value]], ["poll", {key: [[offset, value], ...], ...}], ...]
    assign           [key, ...]  the consumer of this process reads these partitions from now on
    subscribe        [key, ...]  the same, but the group assigns them, and may take them away at any time

An offset is null if the client never learnt it; `["send", key, value]` means the same.  In a transaction,
`["rebalance", [key, ...]]` names partitions that were assigned or revoked during it.  Keys are compared as text,
because JSON maps have text keys; values are compared as JSON values.  No value is sent twice to a key.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from checkers.base.history import Event, MalformedHistory, Type

Value = Hashable
Message = tuple[int | None, Value]
"""(offset, value)"""

TRANSACTIONS = ("send", "poll", "txn")
ASSIGNMENTS = ("assign", "subscribe")


@dataclass(slots=True)
class KafkaOperation:
    """One operation.  invoked, completed: positions in the history; completed is None if the outcome is unknown.

    sends: (key, message) in order.  polls: per poll, messages by key.  keys: those of an assignment.
    rebalanced: keys that were assigned or revoked during it.
    """

    process: int
    f: str
    status: Type
    invoked: int
    completed: int | None
    events: tuple[Event, ...]
    sends: list[tuple[str, Message]] = field(default_factory=list)
    polls: list[dict[str, list[Message]]] = field(default_factory=list)
    keys: frozenset[str] = frozenset()
    rebalanced: frozenset[str] = frozenset()


def read_operation(events: tuple[Event, ...], invoked: int, completed: int | None) -> KafkaOperation:
    """Make one operation from its invoke and its completion, if there is one.

    The payload of the completion shows what the operation did; without it, the payload of the invoke counts.
    Raises MalformedHistory if the payload has not the form above.
    """
    status = events[-1].type if len(events) == 2 else Type.INFO
    operation = KafkaOperation(events[0].process, events[0].f, status, invoked, completed, events)
    event = next((e for e in reversed(events) if e.payload is not None), None)
    if event is None:
        raise MalformedHistory(f"event {events[0].index}: a {operation.f} needs a list as its value")
    try:
        parts = json.loads(event.payload or "")
    except ValueError as problem:
        raise MalformedHistory(f"event {event.index}: the payload is not JSON ({problem})") from problem
    if not isinstance(parts, list):
        raise MalformedHistory(f"event {event.index}: a {operation.f} needs a list as its value")
    if operation.f in ASSIGNMENTS:
        operation.keys = frozenset(str(key) for key in parts)
        return operation
    for part in parts:
        try:
            _add(operation, part)
        except (TypeError, ValueError, AttributeError) as problem:
            raise MalformedHistory(
                f'event {event.index}: {part!r:.80} is neither ["send", key, [offset, value]] '
                'nor ["poll", {key: [[offset, value], ...]}]'
            ) from problem
    return operation


def _add(operation: KafkaOperation, part: Any) -> None:
    match part:
        case ["send", key, [int() | None as offset, value]]:
            operation.sends.append((str(key), (offset, _hashable(value))))
        case ["send", key, value]:
            operation.sends.append((str(key), (None, _hashable(value))))
        case ["poll"]:
            operation.polls.append({})
        case ["poll", answer]:
            if operation.status is Type.OK:
                operation.polls.append(
                    {str(key): [_message(m) for m in messages] for key, messages in (answer or {}).items()}
                )
        case ["rebalance", [*keys]]:
            operation.rebalanced |= {str(key) for key in keys}
        case _:
            raise ValueError("unknown micro-operation")


def _message(pair: Any) -> Message:
    offset, value = pair
    if isinstance(offset, bool) or not (offset is None or isinstance(offset, int)):
        raise ValueError("an offset is an integer")
    return offset, _hashable(value)


def _hashable(value: Any) -> Value:
    """Return a hashable value; booleans and fractions become JSON text, since Python calls `True`, 1 and 1.0 equal."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict | bool | float) else value
