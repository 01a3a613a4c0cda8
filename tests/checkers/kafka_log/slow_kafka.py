"""Kafka's rules once more, operation by operation over plain Python objects, for comparison with the kernels."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from checkers.base.history import NEMESIS, Event, Type
from checkers.kafka_log.columns import ASSIGNMENTS, TRANSACTIONS, KafkaOperation, Message, Value, read_operation


def count_anomalies(events: Sequence[Event]) -> Counter[str]:
    """Count each anomaly other than cycles."""
    operations = read_operations(events)
    logs = read_logs(operations)
    return Counter(name for rule in RULES for name in rule(operations, logs))


def read_operations(events: Sequence[Event]) -> list[KafkaOperation]:
    pairs: list[list[tuple[int, Event]]] = []
    open_by: dict[int, int] = {}
    for position, event in enumerate(events):
        if event.process == NEMESIS or event.f not in (*TRANSACTIONS, *ASSIGNMENTS):
            continue
        if event.type is Type.INVOKE:
            open_by[event.process] = len(pairs)
            pairs.append([(position, event)])
        elif event.process in open_by:
            pairs[open_by.pop(event.process)].append((position, event))
    return [read_operation(tuple(e for _, e in pair), pair[0][0], pair[-1][0]) for pair in pairs]


@dataclass(slots=True)
class Log:
    """One key.

    at: values by offset, more than one where the operations disagree.  offsets_of: offsets by value.
    writer: who sent a value.  readers: the operations that polled it, also those that did not commit.
    index_of: position of a value among those that stand at a known offset; of those that stand at one only.
    order: the values by that position.
    polled: (offset, value) of every message that a committed operation polled, by offset.
    """

    at: dict[int, list[Value]] = field(default_factory=dict)
    offsets_of: dict[Value, list[int]] = field(default_factory=dict)
    writer: dict[Value, KafkaOperation] = field(default_factory=dict)
    readers: dict[Value, list[KafkaOperation]] = field(default_factory=dict)
    index_of: dict[Value, int] = field(default_factory=dict)
    order: list[Value] = field(default_factory=list)
    polled: list[tuple[int, Value]] = field(default_factory=list)

    def place(self, offset: int | None, value: Value) -> None:
        if offset is None:
            return
        values = self.at.setdefault(offset, [])
        if value not in values:
            values.append(value)
            self.offsets_of.setdefault(value, []).append(offset)


def read_logs(operations: Sequence[KafkaOperation]) -> dict[str, Log]:
    logs: defaultdict[str, Log] = defaultdict(Log)
    for operation in operations:
        for key, (_, value) in operation.sends:
            logs[key].writer.setdefault(value, operation)
        for poll in operation.polls:
            for key, messages in poll.items():
                for offset, value in messages:
                    log = logs[key]
                    log.place(offset, value)
                    log.readers.setdefault(value, []).append(operation)
    for operation in operations:
        if happened(operation, logs):
            for key, (offset, value) in operation.sends:
                logs[key].place(offset, value)
    for log in logs.values():
        for offset in sorted(log.at):
            values = log.at[offset]
            log.polled += [(offset, value) for value in values if committed(log, value)]
            if len(values) == 1 and len(log.offsets_of[values[0]]) == 1:
                log.index_of[values[0]] = len(log.order)
                log.order.append(values[0])
    return dict(logs)


def committed(log: Log, value: Value) -> bool:
    """Return whether a committed operation polled the value."""
    return any(reader.status is Type.OK for reader in log.readers.get(value, ()))


def happened(operation: KafkaOperation, logs: Mapping[str, Log]) -> bool:
    """Return whether its sends are certainly in the logs."""
    if operation.status is Type.INFO:
        return any(value in logs[key].readers for key, (_, value) in operation.sends)
    return operation.status is Type.OK


Logs = Mapping[str, Log]


def places(operations: Sequence[KafkaOperation], logs: Logs) -> Iterator[str]:
    for log in logs.values():
        yield from ("inconsistent-offsets" for values in log.at.values() if len(values) > 1)
        yield from ("duplicate" for offsets in log.offsets_of.values() if len(offsets) > 1)


def reads(operations: Sequence[KafkaOperation], logs: Logs) -> Iterator[str]:
    for log in logs.values():
        for value in log.readers:
            if value not in log.writer:
                yield "unsent-read"
            elif log.writer[value].status is Type.FAIL and committed(log, value):
                yield "G1a"
    for operation in operations:
        for key in dict.fromkeys(key for key, _ in operation.sends):
            own = {value for _, value in sent(operation, key)}
            if any(value in own for _, value in polled(operation, key)):
                yield "precommitted-read"


def unpolled(operations: Sequence[KafkaOperation], logs: Logs) -> Iterator[str]:
    for operation in operations:
        for key, (offset, value) in operation.sends if happened(operation, logs) else ():
            log = logs[key]
            if value in log.readers:
                continue
            sure = operation.status is Type.OK or operation.f == "txn"
            behind = (
                bisect_right(log.polled, offset, key=lambda m: m[0]) < len(log.polled) if offset is not None else False
            )
            if behind or (offset is None and sure and sent_later(log, seen_at(operation, logs))):
                yield "lost-write"
            elif sure:
                yield "unseen"


def seen_at(operation: KafkaOperation, logs: Logs) -> float:
    """Return the position from which the operation certainly happened."""
    if operation.status is Type.OK:
        return operation.completed or 0
    readers = [r for key, (_, value) in operation.sends for r in logs[key].readers.get(value, ())]
    return min((r.completed or 0 for r in readers if r.status is not Type.INFO), default=float("inf"))


def sent_later(log: Log, position: float) -> bool:
    """Return whether a message that was sent after a position was polled."""
    polled = (value for value in log.readers if committed(log, value) and len(log.offsets_of.get(value, ())) == 1)
    return any(value in log.writer and log.writer[value].invoked > position for value in polled)


def inside(operations: Sequence[KafkaOperation], logs: Logs) -> Iterator[str]:
    for operation in operations:
        for key, log in logs.items():
            if key not in operation.rebalanced:
                for (_, a), (_, b) in pairwise(polled(operation, key)):
                    yield from step(log, a, b, "int-poll-skip", "int-nonmonotonic-poll")
            if operation.status is Type.OK:
                for (_, a), (_, b) in pairwise(sent(operation, key)):
                    yield from step(log, a, b, "int-send-skip", "int-nonmonotonic-send")


def polls_between(operations: Sequence[KafkaOperation], logs: Logs) -> Iterator[str]:
    last: dict[int, dict[str, Value]] = {}
    for operation in operations:
        known = last.setdefault(operation.process, {})
        if operation.f in ASSIGNMENTS:
            kept = operation.keys if operation.status is Type.OK else frozenset[str]()
            last[operation.process] = {key: at for key, at in known.items() if key in kept}
            continue
        if operation.status is not Type.OK:
            if operation.f != "send":
                known.clear()
            continue
        for key, log in logs.items():
            if key in operation.rebalanced:
                known.pop(key, None)
            messages = polled(operation, key)
            if messages and key in known:
                yield from step(log, known[key], messages[0][1], "poll-skip", "nonmonotonic-poll")
            if messages:
                known[key] = messages[-1][1]


def sends_in_time(operations: Sequence[KafkaOperation], logs: Logs) -> Iterator[str]:
    """A log grows at its end: no message stands before one that an answer had shown before it was sent."""
    for operation in operations:
        for key, (_, value) in operation.sends if happened(operation, logs) else ():
            log = logs[key]
            before = [o for o in operations if o.status is Type.OK and (o.completed or 0) < operation.invoked]
            shown = [log.index_of.get(v, -1) for o in before for _, v in (*sent(o, key), *polled(o, key))]
            if 0 <= log.index_of.get(value, -1) < max(shown, default=-1):
                yield "nonmonotonic-send"


RULES = (places, reads, unpolled, inside, polls_between, sends_in_time)


def sent(operation: KafkaOperation, key: str) -> list[Message]:
    return [message for k, message in operation.sends if k == key]


def polled(operation: KafkaOperation, key: str) -> list[Message]:
    """Return the polls of a committed operation, in order."""
    polls = operation.polls if operation.status is Type.OK else []
    return [message for poll in polls for message in poll.get(key, [])]


def step(log: Log, a: Value, b: Value, skip: str, backwards: str) -> Iterator[str]:
    """Step from message a to message b of one log: b should be the next one."""
    i, j = log.index_of.get(a), log.index_of.get(b)
    if a == b or (i is not None and j is not None and j < i):
        yield backwards
    elif i is not None and j is not None and j > i + 1:
        yield skip
