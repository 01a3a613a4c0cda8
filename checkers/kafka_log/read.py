"""Operations on Kafka's logs out of a history's events.  A key is one partition, a log of messages with offsets.

    f                payload of the completion (the invoke has neither offsets nor answers)
    send, poll, txn  [["send", key, [offset, value]], ["poll", {key: [[offset, value], ...], ...}], ...]
    assign           [key, ...]  the consumer of this process reads these partitions from now on
    subscribe        [key, ...]  the same, but the group deals them out, and may take them away at any time

An offset may be null where the client never learnt it; `["send", key, value]` says the same.  In a transaction
`["rebalance", [key, ...]]` tells of partitions that came or went in it.  Keys are compared as text (in JSON those of a
map always are), values as they are; no value is sent twice to a key.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkers.history import NEMESIS, Event, MalformedHistory, Type

Value = Hashable
Message = tuple[int | None, Value]
"""(offset, value)"""

TRANSACTIONS = ("send", "poll", "txn")
ASSIGNMENTS = ("assign", "subscribe")


@dataclass(slots=True)
class Operation:
    """One operation.  invoked, completed: positions in the history; completed is None where the outcome is unknown.

    sends: (key, message) in order.  polls: per poll, messages by key.  keys: of an assignment.
    rebalanced: keys that came or went in it.
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

    def sent(self, key: str) -> list[Message]:
        return [message for k, message in self.sends if k == key]

    def polled(self, key: str) -> list[Message]:
        return [message for poll in self.polls for message in poll.get(key, [])]

    def polled_keys(self) -> list[str]:
        return list(dict.fromkeys(key for poll in self.polls for key in poll))

    def sent_keys(self) -> list[str]:
        return list(dict.fromkeys(key for key, _ in self.sends))


def read_operations(events: Sequence[Event]) -> list[Operation]:
    """Operations in order of invocation; those of the nemesis and other functions are passed over.

    Raises MalformedHistory where a payload is not as above.
    """
    operations: list[Operation] = []
    open_by: dict[int, Operation] = {}
    for position, event in enumerate(events):
        if event.process == NEMESIS or event.f not in (*TRANSACTIONS, *ASSIGNMENTS):
            continue
        if event.type is Type.INVOKE:
            operation = Operation(event.process, event.f, Type.INFO, position, None, (event,))
            open_by[event.process] = operation
            operations.append(operation)
        elif event.process in open_by:
            operation = open_by.pop(event.process)
            operation.status = event.type
            operation.completed = position if event.type is not Type.INFO else None
            operation.events = (*operation.events, event)
    for operation in operations:
        _fill_in(operation)
    return operations


def _fill_in(operation: Operation) -> None:
    """What the completion told; where it told nothing, what the invoke asked."""
    told = next((e for e in reversed(operation.events) if e.payload is not None), None)
    if told is None:
        raise MalformedHistory(f"event {operation.events[0].index}: a {operation.f} needs a list as its value")
    try:
        parts = json.loads(told.payload or "")
    except ValueError as problem:
        raise MalformedHistory(f"event {told.index}: the payload is not JSON ({problem})") from problem
    if not isinstance(parts, list):
        raise MalformedHistory(f"event {told.index}: a {operation.f} needs a list as its value")
    if operation.f in ASSIGNMENTS:
        operation.keys = frozenset(str(key) for key in parts)
        return
    for part in parts:
        try:
            _add(operation, part)
        except (TypeError, ValueError, AttributeError) as problem:
            raise MalformedHistory(
                f'event {told.index}: {part!r:.80} is neither ["send", key, [offset, value]] '
                'nor ["poll", {key: [[offset, value], ...]}]'
            ) from problem


def _add(operation: Operation, part: Any) -> None:
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


def _message(told: Any) -> Message:
    offset, value = told
    if not (offset is None or isinstance(offset, int)):
        raise ValueError("an offset is an integer")
    return offset, _hashable(value)


def _hashable(value: Any) -> Value:
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value
