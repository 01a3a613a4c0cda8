"""Anomalies of Kafka's logs that are no cycles: one function each, which yields what it finds with its witness.

A consumer reads its partitions in order, from where it was; messages of a transaction become visible together when it
commits, and never if it aborts; a message that was acknowledged stands at its offset for ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from checkers.history import Event, Type
from checkers.kafka_log.logs import Log, happened
from checkers.kafka_log.read import ASSIGNMENTS, Operation, Value
from checkers.verdict import Witness

Logs = Mapping[str, Log]
Found = Iterator[Witness]

_SKIPPED_SHOWN_MAX = 5


def witness(kind: str, summary: str, *operations: Operation) -> Witness:
    """The sentence and the events of the operations it is about, in index order, each once."""
    events = {e.index: e for operation in operations for e in operation.events}
    rows = [{name: getattr(e, name) for name in Event.__slots__} | {"type": int(e.type)} for e in events.values()]
    return Witness(kind, f"{kind}: {summary}", tuple(sorted(rows, key=lambda row: row["index"])))


def inconsistent_offsets(operations: Sequence[Operation], logs: Logs) -> Found:
    for key, log in logs.items():
        for offset, values in log.at.items():
            if len(values) > 1:
                names = " and ".join(map(repr, values[:3]))
                yield witness("inconsistent-offsets", f"offset {offset} of {key} holds {names}", *_who(log, values[:3]))


def duplicate(operations: Sequence[Operation], logs: Logs) -> Found:
    for key, log in logs.items():
        for value, offsets in log.offsets_of.items():
            if len(offsets) > 1:
                where = ", ".join(map(str, sorted(offsets)))
                yield witness("duplicate", f"{value!r} stands in {key} at offsets {where}", *_who(log, [value]))


def lost_write(operations: Sequence[Operation], logs: Logs) -> Found:
    """A later offset was polled and this one by nobody, though consumers read in order and from the beginning."""
    for operation in operations:
        if not happened(operation, logs):
            continue
        for key, (offset, value) in operation.sends:
            log = logs[key]
            if offset is None or value in log.readers:
                continue
            next_polled = bisect_right(log.polled, offset, key=lambda message: message[0])
            if next_polled < len(log.polled):
                beyond, other = log.polled[next_polled]
                yield witness(
                    "lost-write",
                    f"{value!r} was sent to {key} at offset {offset} and never polled, "
                    f"while {other!r} at offset {beyond} was",
                    operation,
                    log.readers[other][0],
                )


def unseen(operations: Sequence[Operation], logs: Logs) -> Found:
    """Acknowledged and never polled, with nothing polled beyond: lost, or the final polls did not reach the end."""
    for operation in operations:
        if operation.status is not Type.OK:
            continue
        for key, (offset, value) in operation.sends:
            log = logs[key]
            if value in log.readers:
                continue
            if offset is None or not log.polled or offset >= log.polled[-1][0]:
                yield witness("unseen", f"{value!r} was sent to {key} and acknowledged, and never polled", operation)


def aborted_read(operations: Sequence[Operation], logs: Logs) -> Found:
    for key, log in logs.items():
        for value, readers in log.readers.items():
            writer = log.writer.get(value)
            if writer is not None and writer.status is Type.FAIL:
                yield witness("G1a", f"{value!r} was polled from {key}, but the send of it failed", writer, readers[0])


def unsent_read(operations: Sequence[Operation], logs: Logs) -> Found:
    for key, log in logs.items():
        for value, readers in log.readers.items():
            if value not in log.writer:
                yield witness("unsent-read", f"{value!r} was polled from {key}, and nobody ever sent it", readers[0])


def precommitted_read(operations: Sequence[Operation], logs: Logs) -> Found:
    for operation in operations:
        for key in operation.sent_keys():
            own = {value for _, value in operation.sent(key)}
            for _, value in operation.polled(key):
                if value in own:
                    yield witness(
                        "precommitted-read",
                        f"a transaction polled its own {value!r} from {key} before it committed",
                        operation,
                    )
                    break


def polls_inside(operations: Sequence[Operation], logs: Logs) -> Found:
    """int-poll-skip and int-nonmonotonic-poll: two messages one after another in one transaction."""
    for operation in operations:
        for key in operation.polled_keys():
            if key in operation.rebalanced:
                continue
            for (_, a), (_, b) in pairwise(operation.polled(key)):
                yield from _step(logs[key], key, a, b, "int-poll-skip", "int-nonmonotonic-poll", "polled", operation)


def polls_between(operations: Sequence[Operation], logs: Logs) -> Found:
    """poll-skip and nonmonotonic-poll: the last message of one operation and the first of the process' next.

    A failed poll may have moved the consumer, so nothing is claimed across it; nor across an assignment that drops the
    key, nor a rebalance.
    """
    last: dict[int, dict[str, tuple[Operation, Value]]] = {}
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
        for key in operation.rebalanced:
            known.pop(key, None)
        for key in operation.polled_keys():
            messages = operation.polled(key)
            if not messages:
                continue
            if key in known:
                before, value = known[key]
                yield from _step(
                    logs[key], key, value, messages[0][1], "poll-skip", "nonmonotonic-poll", "polled", before, operation
                )
            known[key] = (operation, messages[-1][1])


def sends_inside(operations: Sequence[Operation], logs: Logs) -> Found:
    """int-send-skip and int-nonmonotonic-send: two messages one after another in one transaction."""
    for operation in operations:
        if operation.status is not Type.OK:
            continue
        for key in operation.sent_keys():
            for (_, a), (_, b) in pairwise(operation.sent(key)):
                yield from _step(logs[key], key, a, b, "int-send-skip", "int-nonmonotonic-send", "sent", operation)


def sends_between(operations: Sequence[Operation], logs: Logs) -> Found:
    """nonmonotonic-send: the last message of one operation and the first of the process' next one to the key."""
    last: dict[tuple[int, str], tuple[Operation, Value]] = {}
    for operation in operations:
        if operation.status is not Type.OK:
            continue
        for key in operation.sent_keys():
            messages = operation.sent(key)
            if (operation.process, key) in last:
                before, value = last[operation.process, key]
                yield from _step(
                    logs[key], key, value, messages[0][1], None, "nonmonotonic-send", "sent", before, operation
                )
            last[operation.process, key] = (operation, messages[-1][1])


RULES: tuple[Callable[[Sequence[Operation], Logs], Found], ...] = (
    unsent_read,
    aborted_read,
    lost_write,
    inconsistent_offsets,
    duplicate,
    precommitted_read,
    polls_inside,
    polls_between,
    sends_between,
    unseen,
    sends_inside,
)
"""Every rule, worst first."""


def _step(
    log: Log, key: str, a: Value, b: Value, skip: str | None, backwards: str, did: str, *operations: Operation
) -> Found:
    """From message a to message b of one log: b should be the next one."""
    i, j = log.index_of.get(a), log.index_of.get(b)
    if a == b:
        yield witness(backwards, f"{a!r} of {key} was {did} twice in a row", *operations)
    elif i is None or j is None:
        return  # stands at an unknown offset, or at several: nothing to compare
    elif j < i:
        yield witness(
            backwards, f"{a!r} of {key} was {did} before {b!r}, which stands at an earlier offset", *operations
        )
    elif j > i + 1 and skip is not None:
        missing = ", ".join(repr(v) for v in log.order[i + 1 : min(j, i + 1 + _SKIPPED_SHOWN_MAX)])
        between = _who(log, log.order[i + 1 : i + 2])
        yield witness(
            skip,
            f"{a!r} and then {b!r} of {key} were {did}, and between them stand {missing}"
            + (f" and {j - i - 1 - _SKIPPED_SHOWN_MAX} more" if j - i - 1 > _SKIPPED_SHOWN_MAX else ""),
            *operations,
            *between,
        )


def _who(log: Log, values: Sequence[Value]) -> list[Operation]:
    """Who sent these values, and who first polled them."""
    found = [log.writer[v] for v in values if v in log.writer]
    return found + [log.readers[v][0] for v in values if v in log.readers]
