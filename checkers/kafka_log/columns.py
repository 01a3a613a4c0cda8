"""Reads histories of Kafka's logs as columns, from events or from a file.

Kernels read the payloads (`kernels/kafka_log.py`).  If they cannot, a slower reader reads each operation, and its error
names the problem.

*Events.*  Reads operations on Kafka's logs from the events of a history.  A key is one partition: a log with offsets.

    f                payload of the completion (the invoke has neither offsets nor answers)
    send, poll, txn  [["send", key, [offset, value]], ["poll", {key: [[offset, value], ...], ...}], ...]
    assign           [key, ...]  the consumer of this process reads these partitions from now on
    subscribe        [key, ...]  the same, but the group assigns them, and may take them away at any time

An offset is null if the client never learnt it; `["send", key, value]` means the same.  An acknowledged operation
repeats the sends and polls of its invoke: it may add offsets, and the results of polls.  In a transaction,
`["rebalance", [key, ...]]` names partitions that were assigned or revoked during it.  Keys are compared as text,
because JSON maps have text keys; values are compared as JSON values.  No value is sent twice to a key.

*Offsets.*  Numbers the offsets of all keys: each offset of each key gets a slot, and slots of one key are consecutive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from checkers.base.arrays import Bools, Int32, Int64
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.values import canonical, parse, text_of_key, text_of_value
from checkers.kernels import kafka_log as kafka_payloads
from checkers.kernels.kafka_log import ASSIGN, ASSIGNED, POLLED, REBALANCED, SENT, UNKNOWN_OFFSET, KafkaColumns, Rows
from checkers.kernels.transactions.payloads import Pairs, Texts, new_texts, pair
from checkers.models.answers import WrongEvent
from checkers.sealing.codes import dense_processes, dictionary_codes
from checkers.transactions.checker import RowsOfFile, demand_room_for_events, read_columns, stretch
from checkers.transactions.table import paired_events

Value = Hashable
Message = tuple[int | None, Value]
"""(offset, value)"""

TRANSACTIONS = ("send", "poll", "txn")
ASSIGNMENTS = ("assign", "subscribe")

OFFSET_MAX = 2**63 - 1
"""No message has this offset, because the log end offset after it must still be a signed 64-bit number."""


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

    The payload of the completion shows the effects of the operation; without it, the payload of the invoke counts.
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
        operation.keys = frozenset(map(text_of_value, parts))
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
    """Return the sends and polls, without rebalances, which no client invokes."""
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
            return text_of_value(key) == text_of_value(same) and canonical(value) in (
                canonical(answer),
                canonical(in_answer),
            )
        case _:
            return False


def _add(operation: KafkaOperation, part: Any, in_invoke: Any, *, answered: bool) -> None:
    """Add a micro-operation.  in_invoke: the same one in the invoke, None if it is not known.

    A pair in an invoke is a value.  In an answer it is [offset, value], unless it equals the value of the invoke.
    """
    match part:
        case ["send", key, [offset, value]] if answered and part[2:] != (in_invoke or [])[2:]:
            operation.sends.append((text_of_value(key), _message([offset, value])))
        case ["send", key, value]:
            operation.sends.append((text_of_value(key), (None, _hashable(value))))
        case ["poll"]:
            operation.polls.append({})
        case ["poll", answer]:
            if answered:  # also polls of operations that failed or never ended: every record shown was in the log
                operation.polls.append(
                    {text_of_key(key): [_message(m) for m in messages] for key, messages in (answer or {}).items()}
                )
        case ["rebalance", [*keys]]:
            operation.rebalanced |= set(map(text_of_value, keys))
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


_KINDS = (np.int32, np.int8, np.int32, np.int64)
"""Types of the columns of `Rows`."""

FUNCTIONS = (*TRANSACTIONS, *ASSIGNMENTS)
"""The functions, in the order of their numbers in `kernels/kafka_log.py`."""


@dataclass(frozen=True, slots=True)
class KafkaHistory:
    """Columns, and the names and values behind their numbers.

    pairs: invocation and completion of each operation. keys: their names. values: the value of each message.
    events: per operation, its events. event_count: the upper bound of positions.
    """

    columns: KafkaColumns
    pairs: Pairs
    keys: Sequence[str]
    values: Callable[[int], Any]
    events: Callable[[int], tuple[Event, ...]]
    event_count: int


def from_events(events: Sequence[Event]) -> KafkaHistory:
    """Read the columns of events.  Raises MalformedHistory if a payload has not the form that `read.py` describes."""
    functions = sorted({e.f for e in events})
    number = {f: i for i, f in enumerate(functions)}
    count = len(events)
    pairs = _pairs(
        np.fromiter((e.process for e in events), np.int32, count),
        np.fromiter((e.type for e in events), np.int8, count),
        np.fromiter((number[e.f] for e in events), np.int32, count),
        functions,
    )
    payloads = pa.chunked_array([pa.array([e.payload for e in events], pa.string())])

    def events_of(o: int) -> tuple[Event, ...]:
        rows = [int(pairs.invoked[o]), int(pairs.ended[o])]
        return tuple(events[row] for row in rows if row >= 0)

    f = np.array([FUNCTIONS.index(events[row].f) for row in pairs.invoked.tolist()], np.int8)
    return _history(pairs, f, payloads, events_of)


def from_file(path: str, size_bytes_max: int = Budget().size_bytes) -> KafkaHistory:
    """Read the columns of a sealed history.  Raises BeyondBudget too."""
    table = read_columns(path, size_bytes_max)
    codes, functions = dictionary_codes(table["f"])
    pairs = _pairs(
        np.asarray(table["process"].combine_chunks()),
        np.asarray(table["type"].combine_chunks()),
        codes,
        functions,
    )
    numbers = np.array([FUNCTIONS.index(f) if f in FUNCTIONS else -1 for f in functions] or [-1], np.int8)
    events = paired_events(pairs, RowsOfFile(path).event).__getitem__
    return _history(pairs, numbers[codes[pairs.invoked]], table["payload"], events, size_bytes_max)


def _pairs(process: Int32, type_: npt.NDArray[np.int8], codes: Int32, functions: Sequence[str]) -> Pairs:
    mine = np.array([f in FUNCTIONS for f in functions] or [False])[codes] & (process >= 0)
    return pair(process, *dense_processes(process), type_, mine)


def _history(
    pairs: Pairs,
    f: npt.NDArray[np.int8],
    payloads: pa.ChunkedArray,
    events: Callable[[int], tuple[Event, ...]],
    size_bytes_max: int | None = None,
) -> KafkaHistory:
    """size_bytes_max: for a reading of rows one by one; None where the events are in memory anyway."""
    count = len(payloads)
    has_payload = np.asarray(payloads.is_valid().combine_chunks().to_numpy(zero_copy_only=False))
    answered = (pairs.ended >= 0) & has_payload[pairs.ended]
    texts = (new_texts(), new_texts())
    shown = _read(f, payloads, np.where(answered, pairs.ended, pairs.invoked), answered, texts)
    if shown is not None:
        rows, (keys, messages) = shown
        names = [text.decode() for text in _Texts(keys)]
        values = _Texts(messages)
        key_of = messages.within[: len(values)].copy()
        asked = np.where(answered & has_payload[pairs.invoked], pairs.invoked, -1)
        invokes = _read(f, payloads, asked, np.zeros(len(answered), np.bool_), (keys, messages))
        compared = (asked >= 0) & (pairs.status == Type.OK) & (f < ASSIGN)
        if invokes is not None and kafka_payloads.agree(invokes[0], rows, compared):
            columns = _columns(pairs, f, rows, key_of)
            return KafkaHistory(columns, pairs, names, lambda m: json.loads(values[m]), events, count)
    if size_bytes_max is not None:
        demand_room_for_events(count, size_bytes_max)
    return _slowly(pairs, f, events, count)


def _read(
    f: npt.NDArray[np.int8],
    payloads: pa.ChunkedArray,
    row_of: Int64,
    answered: Bools,
    texts: tuple[Texts, Texts],
) -> tuple[Rows, tuple[Texts, Texts]] | None:
    """Read one payload of each operation; None if one of them is unusual.

    row_of: per operation, the row of the payload, or -1 to leave it out.  answered: whether it is that of a completion.
    texts: keys and messages that are known; those that were read are added to them.
    """
    owner = np.full(len(payloads), -1, np.int32)
    operations = np.flatnonzero(row_of >= 0)
    owner[row_of[operations]] = operations
    room = sum(chunk.nbytes for chunk in payloads.chunks) // 4 + 16
    rows = Rows._make([*(np.empty(room, kind) for kind in _KINDS), np.zeros(1, np.int64)])
    (keys, messages), first_row = texts, 0
    for chunk in payloads.chunks:
        data, bounds = stretch(chunk)
        keys, messages, strange = kafka_payloads.read(data, bounds, first_row, owner, f, answered, keys, messages, rows)
        if strange:
            return None
        first_row += len(bounds) - 1
    return rows, (keys, messages)


class _Texts(Sequence[bytes]):
    def __init__(self, texts: Texts) -> None:
        self._text, self._first, self._count = texts.text, texts.first, int(texts.counts[0])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._text[self._first[number] : self._first[number + 1]].tobytes()


def _columns(pairs: Pairs, f: npt.NDArray[np.int8], rows: Rows, key_of: Int32) -> KafkaColumns:
    count = len(pairs.status)
    of_kind = {kind: kafka_payloads.in_order(rows, (kind,), count) for kind in (SENT, POLLED, ASSIGNED, REBALANCED)}
    return KafkaColumns(
        dense_processes(pairs.process)[0],
        f,
        pairs.status,
        *of_kind[SENT],
        *of_kind[POLLED],
        *of_kind[ASSIGNED][:2],
        *of_kind[REBALANCED][:2],
        key_of,
        pairs.invoked,
        pairs.completed,
    )


def _slowly(
    pairs: Pairs, f: npt.NDArray[np.int8], events: Callable[[int], tuple[Event, ...]], event_count: int
) -> KafkaHistory:
    """Read the columns operation by operation."""
    keys: dict[str, int] = {}
    messages: dict[tuple[int, Any], int] = {}
    values: list[Any] = []
    listed: list[tuple[int, int, int, int]] = []

    def key_number(key: str) -> int:
        return keys.setdefault(key, len(keys))

    def message_number(key: str, value: Any) -> int:
        number = messages.setdefault((key_number(key), value), len(values))
        if number == len(values):
            values.append(value)
        return number

    for o in range(len(pairs.status)):
        operation = read_operation(events(o), int(pairs.invoked[o]), None)
        for key, (offset, value) in operation.sends:
            listed.append((o, SENT, message_number(key, value), UNKNOWN_OFFSET if offset is None else offset))
        for poll in operation.polls:
            for key, polled in poll.items():
                for offset, value in polled:
                    listed.append((o, POLLED, message_number(key, value), UNKNOWN_OFFSET if offset is None else offset))
        listed += [(o, ASSIGNED, key_number(key), UNKNOWN_OFFSET) for key in sorted(operation.keys)]
        listed += [(o, REBALANCED, key_number(key), UNKNOWN_OFFSET) for key in sorted(operation.rebalanced)]
    table = np.array(listed, np.int64).reshape(-1, 4)
    rows = Rows._make([*(table[:, n].astype(kind) for n, kind in enumerate(_KINDS)), np.array([len(table)])])
    key_of = np.fromiter((key for key, _ in messages), np.int32, len(messages))
    return KafkaHistory(_columns(pairs, f, rows, key_of), pairs, list(keys), values.__getitem__, events, event_count)


_GAPS = 8
"""If slots for all offsets would be at most this many per row, each offset gets one; else only those that occur."""


@dataclass(frozen=True, slots=True)
class Slots:
    """of_sent, of_polled: per row, the slot, or -1 if its offset is unknown.  key, offset: per slot."""

    of_sent: Int64
    of_polled: Int64
    key: Int32
    offset: Int64


def slots_of(columns: KafkaColumns, key_count: int) -> Slots:
    key = np.concatenate([columns.key_of[columns.sent], columns.key_of[columns.polled]])
    offset = np.concatenate([columns.sent_offset, columns.polled_offset])
    known = offset >= 0
    ends = np.zeros(key_count, np.int64)
    np.maximum.at(ends, key[known], offset[known] + 1)
    slot = np.full(len(key), -1, np.int64)
    if ends.astype(float).sum() <= _GAPS * len(key) + 1024:
        base = np.concatenate([[0], np.cumsum(ends)])
        slot[known] = base[key[known]] + offset[known]
        key_of_slot = np.repeat(np.arange(key_count, dtype=np.int32), ends)
        offset_of_slot = np.arange(base[-1]) - base[key_of_slot]
    else:
        order = np.flatnonzero(known)[np.lexsort((offset[known], key[known]))]
        new = np.ones(len(order), np.bool_)
        new[1:] = (key[order][1:] != key[order][:-1]) | (offset[order][1:] != offset[order][:-1])
        slot[order] = np.cumsum(new) - 1
        key_of_slot, offset_of_slot = key[order][new], offset[order][new]
    sent = len(columns.sent)
    return Slots(slot[:sent], slot[sent:], key_of_slot.astype(np.int32), offset_of_slot.astype(np.int64))
