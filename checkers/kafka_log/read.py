"""Reads operations on Kafka's logs from the events of a history.  A key is one partition: a log with offsets.

    f                payload of the completion (the invoke has neither offsets nor answers)
    send, poll, txn  [["send", key, [offset, value]], ["poll", {key: [[offset, value], ...], ...}], ...]
    assign           [key, ...]  the consumer of this process reads these partitions from now on
    subscribe        [key, ...]  the same, but the group assigns them, and may take them away at any time

An offset is null if the client never learnt it; `["send", key, value]` means the same.  An acknowledged operation
repeats the sends and polls that were invoked: it may add offsets, and what the polls showed.  In a transaction,
`["rebalance", [key, ...]]` names partitions that were assigned or revoked during it.  Keys are compared as text,
because JSON maps have text keys; values are compared as JSON values.  No value is sent twice to a key.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from checkers.base.history import Event, Type
from checkers.base.values import canonical, parse, text_of_key
from checkers.models.answers import WrongEvent

Value = Hashable
Message = tuple[int | None, Value]
"""(offset, value)"""

TRANSACTIONS = ("send", "poll", "txn")
ASSIGNMENTS = ("assign", "subscribe")

OFFSET_MAX = 2**63 - 1
"""No message has this offset: the log end offset behind it must still be a signed number of 64 bits."""


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
    Raises WrongEvent if the payload has not the form above, or the answer is that of another invoke.
    """
    status = events[-1].type if len(events) == 2 else Type.INFO
    operation = KafkaOperation(events[0].process, events[0].f, status, invoked, completed, events)
    with_payload = [e for e in events if e.payload is not None]
    if not with_payload:
        raise WrongEvent(events[0].index, f"a {operation.f} needs a list as its value")
    event = with_payload[-1]
    parts = _parts(event)
    if operation.f in ASSIGNMENTS:
        operation.keys = frozenset(str(key) for key in parts)
        return operation
    invoked_parts = _steps(_parts(with_payload[0]))
    if status is Type.OK and len(with_payload) == 2:
        _demand_agreement(invoked_parts, _steps(parts), event.index)
    known = iter(invoked_parts)
    for part in parts:
        in_invoke = next(known, None) if _is_step(part) else None
        try:
            _add(operation, part, in_invoke, answered=event is not events[0])
        except (TypeError, ValueError, AttributeError) as problem:
            raise WrongEvent(
                event.index,
                f'{part!r:.80} is neither ["send", key, [offset, value]] nor ["poll", {{key: [[offset, value], ...]}}]'
                "; offsets go from 0 to 2^63 - 2",
            ) from problem
    return operation


def _parts(event: Event) -> list[Any]:
    try:
        parts = parse(event.payload or "")
    except ValueError as problem:
        raise WrongEvent(event.index, f"the payload is not JSON ({problem})") from problem
    if not isinstance(parts, list):
        raise WrongEvent(event.index, f"a {event.f} needs a list as its value")
    return parts


def _is_step(part: Any) -> bool:
    return isinstance(part, list) and part[:1] in (["send"], ["poll"])


def _steps(parts: list[Any]) -> list[Any]:
    """The sends and polls, without rebalances, which no client invokes."""
    return [part for part in parts if _is_step(part)]


def _demand_agreement(invoked: list[Any], answered: list[Any], index: int) -> None:
    """Raise WrongEvent unless the answer repeats the sends and polls of the invoke."""
    for number, (old, new) in enumerate(zip(invoked, answered, strict=False), 1):
        if not _repeats(old, new):
            words = f"micro-operation {number} was invoked as {old!r:.60} and completed as {new!r:.60}"
            raise WrongEvent(index, words)
    if len(invoked) != len(answered):
        raise WrongEvent(index, f"{len(invoked)} micro-operations were invoked and {len(answered)} completed")


def _repeats(invoked: Any, answered: Any) -> bool:
    match invoked, answered:
        case ["poll", *_], ["poll", *_]:
            return True
        case ["send", key, value], ["send", same, answer]:
            in_answer = answer[1] if isinstance(answer, list) and len(answer) == 2 else answer
            return str(key) == str(same) and canonical(value) in (canonical(answer), canonical(in_answer))
        case _:
            return False


def _add(operation: KafkaOperation, part: Any, in_invoke: Any, *, answered: bool) -> None:
    """Add a micro-operation.  in_invoke: the same one in the invoke, None if it is not known.

    A pair in an invoke is a value.  In an answer it is [offset, value], unless it is the very value of the invoke."""
    match part:
        case ["send", key, [offset, value]] if answered and part[2:] != (in_invoke or [])[2:]:
            operation.sends.append((str(key), _message([offset, value])))
        case ["send", key, value]:
            operation.sends.append((str(key), (None, _hashable(value))))
        case ["poll"]:
            operation.polls.append({})
        case ["poll", answer]:
            if answered:  # also of an operation that failed or never ended: what it showed stood in the log
                operation.polls.append(
                    {text_of_key(key): [_message(m) for m in messages] for key, messages in (answer or {}).items()}
                )
        case ["rebalance", [*keys]]:
            operation.rebalanced |= {str(key) for key in keys}
        case _:
            raise ValueError("unknown micro-operation")


def _message(pair: Any) -> Message:
    offset, value = pair
    if isinstance(offset, bool) or not (offset is None or (isinstance(offset, int) and 0 <= offset < OFFSET_MAX)):
        raise ValueError("an offset is an integer from 0 to 2^63 - 2")
    return offset, _hashable(value)


def _hashable(value: Any) -> Value:
    """Return a hashable value; booleans and fractions become text, because Python calls `True`, 1 and 1.0 equal."""
    return canonical(value) if isinstance(value, list | dict | bool | float | Decimal) else value
