"""The operations of a register's history, for the independent search that tests compare the kernels with."""

from __future__ import annotations

from collections.abc import Iterable

from checkers.base.history import Event, Type
from checkers.base.independent_search import RegisterOperation


def operations_of(events: Iterable[Event]) -> list[RegisterOperation]:
    """The operations of one key of a register history, in order of call.

    It pairs invokes and completions itself, and shares nothing with `history.paired`: this search checks the checkers.
    Two sorts of operations cannot matter and are left out: reads without an answer, and operations that failed (they
    did not happen).
    """
    open_of: dict[int, Event] = {}
    completed: list[tuple[Event, Event | None]] = []
    for event in events:
        if event.type is Type.INVOKE:
            open_of[event.process] = event
        else:
            completed.append((open_of.pop(event.process), event))
    completed += [(invoked, None) for invoked in open_of.values()]
    operations = []
    for invoked, completion in completed:
        answered = completion if completion is not None and completion.type is Type.OK else None
        if completion is not None and completion.type is Type.FAIL:
            continue
        if invoked.f == "read":
            if answered is not None:
                operations.append(RegisterOperation("read", answered.value, None, invoked.index, answered.index))
        else:
            ret = answered.index if answered is not None else None
            operations.append(RegisterOperation(invoked.f, invoked.value, invoked.value2, invoked.index, ret))
    return sorted(operations, key=lambda operation: operation.call)
