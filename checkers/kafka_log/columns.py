"""Reads histories of Kafka's logs as columns, from events or from a file.

A few queries read all payloads at once (`rows.sql`).  If a query fails, or if there are few operations, a slower reader
reads one operation at a time, and its error names the problem.

*Events.*  Reads operations on Kafka's logs from the events of a history.  A key is one partition: a log with offsets.

    f                payload of the completion (the invoke has neither offsets nor answers)
    send, poll, txn  [["send", key, [offset, value]], ["poll", {key: [[offset, value], ...], ...}], ...]
    assign           [key, ...]  the consumer of this process reads these partitions from now on
    subscribe        [key, ...]  the same, but the consumer group assigns partitions, and may revoke them at any time

An offset is null if the client never learnt it; `["send", key, value]` means the same.  The completion of an
acknowledged operation repeats the sends and polls of its invoke, and may add offsets and the results of polls.  In a
transaction, `["rebalance", [key, ...]]` names partitions that were assigned or revoked during the transaction.  Keys
are compared as text, because JSON maps have text keys; values are compared as JSON values.  No value is sent twice to
a key.

*Offsets.*  Numbers the offsets of all keys: each offset of each key gets a slot, and slots of one key are consecutive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from checkers.base.arrays import Int32, Int64
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.base.values import canonical, parse, text_of_key, text_of_value
from checkers.kernels.codes import dense_processes, dictionary_codes, grouped
from checkers.kernels.kafka_log import ASSIGN, UNKNOWN_OFFSET, KafkaColumns
from checkers.kernels.transactions.payloads import Pairs, pair
from checkers.models.model import WrongEvent
from checkers.sealing.sealed_history import new_database
from checkers.transactions.checker import RowsOfFile, demand_room_for_events, read_columns
from checkers.transactions.read import Lazily, paired_events

Value = Hashable
Message = tuple[int | None, Value]
"""(offset, value)"""

TRANSACTIONS = ("send", "poll", "txn")
ASSIGNMENTS = ("assign", "subscribe")

OFFSET_MAX = 2**63 - 1
"""No message has this offset, because the log end offset after it must still be a signed 64-bit number."""


@dataclass(slots=True)
class KafkaOperation:
    """One operation.

    invoked, completed: positions of its events in the history; completed is None if the outcome is unknown
    sends: (key, message) in the order of the payload
    polls: for each poll, its messages by key
    keys: keys of an assign or a subscribe
    rebalanced: keys that were assigned or revoked during the operation
    """

    process: int
    f: str
    status: Type
    invoked: int
    completed: int | None
    sends: list[tuple[str, Message]] = field(default_factory=list)
    polls: list[dict[str, list[Message]]] = field(default_factory=list)
    keys: frozenset[str] = frozenset()
    rebalanced: frozenset[str] = frozenset()


def read_operation(events: tuple[Event, ...], invoked: int, completed: int | None) -> KafkaOperation:
    """Make one operation from its invoke and, if there is one, its completion.

    The payload of the completion shows the effects of the operation.  Without it, the payload of the invoke counts.
    Raises WrongEvent if the payload does not have the form above, or if the completion contradicts the invoke.
    """
    status = events[-1].type if len(events) == 2 else Type.INFO
    operation = KafkaOperation(events[0].process, events[0].f, status, invoked, completed)
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
    """Return the sends and polls.  Rebalances are left out, because an invoke never contains one."""
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
    """Add a micro-operation to an operation.

    in_invoke: this micro-operation in the invoke, or None if the invoke does not show it
    answered: True if `part` comes from a completion

    A pair in an invoke is a value.  A pair in a completion is [offset, value] unless it equals the invoked value.
    """
    match part:
        case ["send", key, [offset, value]] if answered and part[2:] != (in_invoke or [])[2:]:
            operation.sends.append((text_of_value(key), _message([offset, value])))
        case ["send", key, value]:
            operation.sends.append((text_of_value(key), (None, _hashable(value))))
        case ["poll"]:
            operation.polls.append({})
        case ["poll", answer]:
            if answered:  # operations that failed or never ended count too: every record they show was in the log
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
    """Return a hashable value.  Booleans and fractions become text, because in Python `True`, 1 and 1.0 are equal."""
    return canonical(value) if isinstance(value, list | dict | bool | float | Decimal) else value


FUNCTIONS = (*TRANSACTIONS, *ASSIGNMENTS)
"""The functions, in the order of their numbers in `kernels/kafka_log.py`."""

ONE_BY_ONE_MAX = 1_000
"""Maximum number of operations that are read one by one.  For so few operations a database would take longer."""

KINDS = ("sent", "polled", "assigned", "rebalanced")
SENT, POLLED, ASSIGNED, REBALANCED = range(4)

_QUERIES = Path(__file__).with_name("rows.sql").read_text(encoding="utf-8")


class Rows(NamedTuple):
    """Columns with one row for each message, assigned key and rebalanced key, in the order of operations.

    kind: SENT, POLLED, ASSIGNED or REBALANCED; only rows of the kinds SENT and POLLED have a value
    key, value: positions in `keys` and `values`
    """

    operation: Int32
    kind: npt.NDArray[np.int8]
    key: Int64
    offset: Int64
    value: Int64
    keys: Sequence[str]
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class KafkaHistory:
    """Columns, and the names and values that their numbers stand for.

    pairs: the invocation and the completion of each operation
    keys: the name of each key
    values: a function that returns the value of a message
    events: a function that returns the events of an operation
    event_count: number of events; every position is below it
    """

    columns: KafkaColumns
    pairs: Pairs
    keys: Sequence[str]
    values: Callable[[int], Any]
    events: Callable[[int], tuple[Event, ...]]
    event_count: int


def from_events(events: Sequence[Event]) -> KafkaHistory:
    """Read the columns of events.  Raises MalformedHistory if a payload does not have the form described above."""
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
    """Read the columns of a sealed history.

    Raises MalformedHistory as `from_events` does, and BeyondBudget if reading takes more than `size_bytes_max`.
    """
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
    """Make a history from its columns and payloads.

    size_bytes_max: limit in bytes for reading operations one by one; None if the events are already in memory
    """
    rows = _by_query(pairs, f, payloads) if len(f) > ONE_BY_ONE_MAX else None
    if rows is None:
        if size_bytes_max is not None:
            demand_room_for_events(len(payloads), size_bytes_max)
        rows = _one_by_one(pairs, events)
    values, value_count = rows.values, max(1, len(rows.values))
    is_message = rows.kind <= POLLED
    messages = pa.array(rows.key[is_message] * value_count + rows.value[is_message]).dictionary_encode()
    key_of, value_of = np.divmod(np.asarray(messages.dictionary), value_count)
    thing = rows.key.astype(np.int32)
    thing[is_message] = np.asarray(messages.indices)

    def of(kind: int) -> tuple[Int64, Int32, Int64]:
        first, at = grouped(np.where(rows.kind == kind, rows.operation, -1).astype(np.int32), len(f))
        return first, thing[at], rows.offset[at]

    columns = KafkaColumns(
        dense_processes(pairs.process)[0],
        f,
        pairs.status,
        *of(SENT),
        *of(POLLED),
        *of(ASSIGNED)[:2],
        *of(REBALANCED)[:2],
        key_of.astype(np.int32),
        pairs.invoked,
        pairs.completed,
    )
    return KafkaHistory(columns, pairs, rows.keys, lambda m: values[int(value_of[m])], events, len(payloads))


def _by_query(pairs: Pairs, f: npt.NDArray[np.int8], payloads: pa.ChunkedArray) -> Rows | None:
    """Read all payloads at once.

    Returns None if a payload is malformed, if a value is neither an integer nor text, or if a completion contradicts
    its invoke.
    """
    import duckdb  # imported here because small histories do not need it

    there = np.asarray(payloads.is_valid().combine_chunks().to_numpy(zero_copy_only=False))
    answered = (pairs.ended >= 0) & there[pairs.ended]
    both = np.flatnonzero(answered & there[pairs.invoked])
    names = np.array(FUNCTIONS)[f]
    given = [
        pa.table({"o": o, "f": names[o], "described": described, "answered": of_answer, "payload": payloads.take(rows)})
        for o, rows, described, of_answer in (
            (np.arange(len(f)), np.where(answered, pairs.ended, pairs.invoked), answered | True, answered),
            (both, pairs.invoked[both], np.zeros(len(both), bool), np.zeros(len(both), bool)),
        )
    ]
    try:
        with new_database() as sql:
            sql.register("payloads", pa.concat_tables(given))
            sql.execute(_QUERIES)
            [(odd,)] = sql.execute("SELECT count(*) FROM odd").fetchall()
            found = sql.sql("SELECT * FROM rows ORDER BY described, o, sorted, place, entry, item").to_arrow_table()
    except duckdb.Error:
        return None
    compared = np.zeros(len(f), bool)
    compared[both] = (pairs.status[both] == Type.OK) & (f[both] < ASSIGN)
    steps = found.filter(pc.and_(pc.is_in(found["kind"], pa.array(["sent", "asked"])), compared[found["o"]]))
    invoked, done = (
        steps.filter(pc.equal(steps["described"], which)).select(["o", "kind", "key", "value"])
        for which in (False, True)
    )
    if odd or not invoked.equals(done):
        return None
    found = found.filter(pc.and_(found["described"], pc.not_equal(found["kind"], "asked")))
    o, kind = np.asarray(found["o"]), np.asarray(pc.index_in(found["kind"], pa.array(KINDS)))
    found = found.take(in_order := np.lexsort((kind, o)))
    keys, values = (found[name].combine_chunks().dictionary_encode() for name in ("key", "value"))
    texts = values.dictionary
    return Rows(
        o[in_order].astype(np.int32),
        kind[in_order].astype(np.int8),
        np.asarray(keys.indices).astype(np.int64),
        np.asarray(pc.fill_null(found["offset"], UNKNOWN_OFFSET).combine_chunks()),
        np.asarray(pc.fill_null(values.indices, -1)).astype(np.int64),
        keys.dictionary.to_pylist(),
        Lazily(len(texts), lambda number: json.loads(texts[number].as_py())),
    )


def _one_by_one(pairs: Pairs, events: Callable[[int], tuple[Event, ...]]) -> Rows:
    """Read one operation after another.  Raises MalformedHistory for the first operation that cannot be read."""
    keys, values = dict[str, int](), dict[Any, int]()
    listed: list[tuple[int, int, int, int, int]] = []

    def add(o: int, kind: int, key: str, message: Message = (None, None)) -> None:
        offset, value = message
        numbers = keys.setdefault(key, len(keys)), UNKNOWN_OFFSET if offset is None else offset
        listed.append((o, kind, *numbers, values.setdefault(value, len(values))))

    for o in range(len(pairs.status)):
        operation = read_operation(events(o), int(pairs.invoked[o]), None)
        for key, message in operation.sends:
            add(o, SENT, key, message)
        for poll in operation.polls:
            for key, messages in poll.items():
                for message in messages:
                    add(o, POLLED, key, message)
        for kind, some in ((ASSIGNED, operation.keys), (REBALANCED, operation.rebalanced)):
            for key in sorted(some):
                add(o, kind, key)
    operations, kinds, key_numbers, offsets, numbers = np.array(listed, np.int64).reshape(-1, 5).T.copy()
    return Rows(
        operations.astype(np.int32), kinds.astype(np.int8), key_numbers, offsets, numbers, list(keys), list(values)
    )


_GAPS = 8
"""Maximum number of slots per row if every offset up to the end of its log gets a slot.

If more slots were needed, only offsets that occur in the history get one."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of all offsets.

    of_sent, of_polled: slot of each sent or polled message, or -1 if its offset is unknown
    key, offset: key and offset of each slot
    """

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
