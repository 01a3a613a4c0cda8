"""Is there an order of one object's operations that a model in Python accepts?

There are two methods, with the same answer.  If few states can occur, a table of integers lists the next state for each
state and each class of operations, and the compiled search decides (`kernels/search/table_search.py`).  Otherwise the
same just-in-time search runs in plain Python (`plain_search.py`).

A large table costs seconds, and most histories need none: the plain search decides them in a few steps per operation.
So a small table is tried first, then a short plain search, then a large table.  The last attempt is a plain search with
the whole budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from checkers.base.checker import Budget
from checkers.kernels.operations import OPEN
from checkers.kernels.search import table_search
from checkers.kernels.search.table_search import EventSchedule, Table
from checkers.models.model import REFUSED, Model, Operation
from checkers.models.plain_search import STEPS_PER_PYTHON_STEP, SearchAnswer, itself, plain_search, size_bytes

ENTRIES_FIRST_PER_OPERATION = 50
ENTRIES_MAX = 2_000_000
"""Limits of the entries (states times classes) of the small table, which is tried first, and of the large table."""

STEPS_FIRST, STEPS_FIRST_PER_OPERATION = 10_000, 10
"""Steps of a short search, in calls of `Model.step`: a constant, and more for each operation."""

STEPS_FOR_INDEX = 20_000_000
"""Steps for the first answer that no order explains, if it is certain that there is no order.  They decide nothing."""

STEPS_PER_ENTRY = 20
"""Steps of a budget that one entry of a table costs.  A table that would cost more than the budget is not made."""


def judge_object(model: Model, operations: Sequence[Operation], budget: Budget) -> SearchAnswer:
    """Search an order.  operations: of one object, in order of call.  Raises what the model's functions raise."""
    kept = [o for o in operations if o.returned or o.f not in model.observers]
    classes = _classes(model, kept)
    entries_max = min(ENTRIES_MAX, budget.steps // STEPS_PER_ENTRY)
    entries_first = min(entries_max, ENTRIES_FIRST_PER_OPERATION * len(kept))
    if (table := _table(model, kept, classes, entries_first, budget.size_bytes)) is not None:
        return _compiled_search(table, kept, classes, budget)
    short = min(budget.steps, steps_first(len(kept)))
    answer = plain_search(model, kept, replace(budget, steps=short))
    if answer.linearizable is not None or short == budget.steps:
        return answer
    if (table := _table(model, kept, classes, entries_max, budget.size_bytes)) is not None:
        return _compiled_search(table, kept, classes, budget)
    return plain_search(model, kept, budget)


def steps_first(operations: int) -> int:
    """Steps of a short search, as a budget counts them.  operations: their number."""
    return STEPS_PER_PYTHON_STEP * (STEPS_FIRST + STEPS_FIRST_PER_OPERATION * operations)


def _compiled_search(
    table: Table, operations: Sequence[Operation], classes: Sequence[int], budget: Budget
) -> SearchAnswer:
    schedule, indices = _schedule(operations, classes, table)
    code, place, steps = table_search.judge(table, schedule, budget.steps, budget.size_bytes, True)
    match code:
        case table_search.LINEARIZABLE:
            return SearchAnswer(True, -1, steps, True)
        case table_search.NO_ORDER:
            left = min(budget.steps - steps, STEPS_FOR_INDEX)
            again, later, taken = table_search.judge(table, schedule, left, budget.size_bytes, False)
            return SearchAnswer(False, indices[later if again == table_search.NO_ORDER else place], steps + taken, True)
        case table_search.OUT_OF_STEPS:
            return SearchAnswer(None, -1, steps, True, f"the budget of {budget.steps} steps ran out")
    return SearchAnswer(None, -1, steps, True, f"the budget of {budget.size_bytes} bytes ran out")


def cut_at(operations: Sequence[Operation], index: int) -> list[Operation]:
    """The operations that were called up to an event, as if the history ended with that event."""
    return [
        o if o.ret is not None and o.ret <= index else replace(o, output=None, ret=None)
        for o in operations
        if o.call <= index
    ]


def _classes(model: Model, operations: Sequence[Operation]) -> list[int]:
    """The number of each operation's class.  Operations that are equal to the model are in one class."""
    numbers: dict[object, int] = {}
    classes = []
    for o in operations:
        who, when = o.process if model.process_matters else 0, o.call if model.times_matter else 0
        alike = (o.f, o.input, o.output, o.returned, who, when)
        classes.append(numbers.setdefault(alike, len(numbers)))
    return classes


def _table(
    model: Model, operations: Sequence[Operation], classes: Sequence[int], entries_max: int, bytes_max: int
) -> Table | None:
    """The table of all states that can occur; None if it has too many entries or the states need too much memory.

    No order has more steps than operations, so states that need more steps are left out.  A model whose state only
    grows would have infinitely many states.
    """
    if not operations:
        return Table(np.zeros((0, 1), np.int32), np.zeros(0, np.int8))
    example = dict(zip(reversed(classes), reversed(operations), strict=True))
    count = len(example)
    one_of = model.canonical(operations) if model.canonical is not None else itself
    first = one_of(model.init())
    number, steps_to = {first: 0}, [0]
    left_bytes = bytes_max - size_bytes(first)
    rows: list[list[int]] = []
    waiting = [first]
    for at, state in enumerate(waiting):
        row = []
        for c in range(count):
            after = model.step(state, example[c]) if steps_to[at] < len(operations) else REFUSED
            after = REFUSED if after is REFUSED else one_of(after)
            if after is REFUSED:
                row.append(-1)
                continue
            if after not in number:
                number[after] = len(number)
                waiting.append(after)
                steps_to.append(steps_to[at] + 1)
                left_bytes -= size_bytes(after)
            row.append(number[after])
        rows.append(row)
        if len(number) * count > entries_max or left_bytes < 0:
            return None
    after_state = np.ascontiguousarray(np.array(rows, np.int32).T)
    unchanged = (after_state == np.arange(len(number))) | (after_state < 0)
    return Table(after_state, unchanged.all(axis=1).astype(np.int8))


def _schedule(operations: Sequence[Operation], classes: Sequence[int], table: Table) -> tuple[EventSchedule, list[int]]:
    """(calls and returns in order, the index of the event at each place)."""
    matters = [n for n, o in enumerate(operations) if o.returned or not table.observer[classes[n]]]
    events: list[tuple[int, int]] = []
    for place, n in enumerate(matters):
        events.append((operations[n].call, place))
        ret = operations[n].ret
        if ret is not None:
            events.append((ret, -1 - place))
    events.sort()
    deadline = np.full(len(matters), OPEN, np.int32)
    now_open = slots = 0
    for at, (_, event) in enumerate(events):
        now_open += 1 if event >= 0 else -1
        slots = max(slots, now_open)
        if event < 0:
            deadline[-1 - event] = at
    schedule = EventSchedule(
        np.array([classes[n] for n in matters], np.int32),
        np.array([event for _, event in events], np.int32),
        deadline,
        slots,
    )
    return schedule, [index for index, _ in events]
