"""What the operations together say of each log: what stands at which offset, who sent it, who polled it.

Certain to stand in a log is what a committed send was given an offset for, what a committed poll returned, and what a
transaction of unknown outcome was given an offset for, if any message of it was polled.  Offsets have gaps (markers of
transactions, aborted messages), so neighbours are neighbours in the order of *known* offsets: `index_of`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from checkers.history import Type
from checkers.kafka_log.read import Operation, Value


@dataclass(slots=True)
class Log:
    """One key.

    at: values by offset, more than one where the operations disagree.  offsets_of: offsets by value.
    writer: who sent a value.  readers: the operations that polled it, committed ones only.
    index_of: position of a value among those that stand at a known offset; of those that stand at one only.
    order: the values by that position.
    polled: (offset, value) of every message that was polled, by offset.
    """

    at: dict[int, list[Value]] = field(default_factory=dict)
    offsets_of: dict[Value, list[int]] = field(default_factory=dict)
    writer: dict[Value, Operation] = field(default_factory=dict)
    readers: dict[Value, list[Operation]] = field(default_factory=dict)
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


def read_logs(operations: Sequence[Operation]) -> dict[str, Log]:
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
            log.polled += [(offset, value) for value in values if value in log.readers]
            if len(values) == 1 and len(log.offsets_of[values[0]]) == 1:
                log.index_of[values[0]] = len(log.order)
                log.order.append(values[0])
    return dict(logs)


def happened(operation: Operation, logs: Mapping[str, Log]) -> bool:
    """Whether what it sent certainly stands in the logs."""
    if operation.status is Type.INFO:
        return any(value in logs[key].readers for key, (_, value) in operation.sends)
    return operation.status is Type.OK
