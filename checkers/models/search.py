"""Is there an order of one object's operations that a model in Python accepts?

There are two methods, with the same answer.  If few states can occur, a table of integers lists the next state for each
state and each class of operations, and the compiled search decides (`kernels/search/table_search.py`).  Otherwise the
same just-in-time search (Lowe 2017) runs here in plain Python.  A configuration is a state and the open operations that
are already in the order.  At a return, configurations without the operation are extended until they contain it.

A large table costs seconds, and most histories need none: the plain search decides them in a few steps per operation.
So a small table is tried first, then a short plain search, then a large table.  The last attempt is a plain search with
the whole budget.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from checkers.base.checker import Budget
from checkers.kernels.operations import OPEN
from checkers.kernels.search import table_search
from checkers.kernels.search.table_search import EventSchedule, Table
from checkers.models.model import REFUSED, Model, Operation, State

ENTRIES_FIRST_PER_OPERATION = 50
ENTRIES_MAX = 2_000_000
"""Limits of the entries (states times classes) of the small table, which is tried first, and of the large table."""

STEPS_FIRST, STEPS_FIRST_PER_OPERATION = 10_000, 10
"""Steps of a short search, in calls of `Model.step`: a constant, and more for each operation."""

STEPS_PER_PYTHON_STEP = 200
"""Steps of a budget that one step of the plain search costs: it is about 200 times slower than a compiled step."""

SIZE_BYTES_PER_CONFIGURATION = 400
"""Memory of a configuration without its state."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search found.

    linearizable: None if the budget that `reason` names ran out.
    index: of an event at which it was certain that there is no order.  If the budget allows, it is the first answer
    that no order explains: a witness of a large object begins there.
    steps: of the search.  compiled: whether the compiled search answered.
    """

    linearizable: bool | None
    index: int = -1
    steps: int = 0
    compiled: bool = False
    reason: str = ""


def judge_object(model: Model, operations: Sequence[Operation], budget: Budget) -> Answer:
    """Search an order.  operations: of one object, in order of call.  Raises what the model's functions raise."""
    kept = [o for o in operations if o.returned or o.f not in model.observers]
    classes = _classes(model, kept)
    entries_first = min(ENTRIES_MAX, ENTRIES_FIRST_PER_OPERATION * len(kept))
    if (table := _table(model, kept, classes, entries_first, budget.size_bytes)) is not None:
        return _compiled_search(table, kept, classes, budget)
    short = min(budget.steps, steps_first(len(kept)))
    answer = plain_search(model, kept, replace(budget, steps=short))
    if answer.linearizable is not None or short == budget.steps:
        return answer
    if (table := _table(model, kept, classes, ENTRIES_MAX, budget.size_bytes)) is not None:
        return _compiled_search(table, kept, classes, budget)
    return plain_search(model, kept, budget)


def steps_first(operations: int) -> int:
    """Steps of a short search, as a budget counts them.  operations: their number."""
    return STEPS_PER_PYTHON_STEP * (STEPS_FIRST + STEPS_FIRST_PER_OPERATION * operations)


def _compiled_search(table: Table, operations: Sequence[Operation], classes: Sequence[int], budget: Budget) -> Answer:
    schedule, indices = _schedule(operations, classes, table)
    code, place, steps = table_search.judge(table, schedule, budget.steps, budget.size_bytes, True)
    match code:
        case table_search.LINEARIZABLE:
            return Answer(True, -1, steps, True)
        case table_search.NO_ORDER:
            left = budget.steps - steps
            again, later, taken = table_search.judge(table, schedule, left, budget.size_bytes, False)
            return Answer(False, indices[later if again == table_search.NO_ORDER else place], steps + taken, True)
        case table_search.OUT_OF_STEPS:
            return Answer(None, -1, steps, True, f"the budget of {budget.steps} steps ran out")
    return Answer(None, -1, steps, True, f"the budget of {budget.size_bytes} bytes ran out")


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
        alike = (o.f, o.input, o.output, o.returned, o.process if model.process_matters else 0)
        classes.append(numbers.setdefault(alike, len(numbers)))
    return classes


def _table(
    model: Model, operations: Sequence[Operation], classes: Sequence[int], entries_max: int, size_bytes: int
) -> Table | None:
    """The table of all states that can occur; None if it has too many entries or the states need too much memory.

    No order has more steps than operations, so states that need more steps are left out.  A model whose state only
    grows would have infinitely many states.
    """
    if not operations:
        return Table(np.zeros((0, 1), np.int32), np.zeros(0, np.int8))
    example = dict(zip(reversed(classes), reversed(operations), strict=True))
    count = len(example)
    one_of = model.canonical(operations) if model.canonical is not None else _itself
    first = one_of(model.init())
    number, steps_to = {first: 0}, [0]
    left_bytes = size_bytes - _size_bytes(first)
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
                left_bytes -= _size_bytes(after)
            row.append(number[after])
        rows.append(row)
        if len(number) * count > entries_max or left_bytes < 0:
            return None
    after_state = np.ascontiguousarray(np.array(rows, np.int32).T)
    unchanged = (after_state == np.arange(len(number))) | (after_state < 0)
    return Table(after_state, unchanged.all(axis=1).astype(np.int8))


def _size_bytes(state: State) -> int:
    """Memory of a state without its content, most of which it shares with operations and with the state before."""
    return sys.getsizeof(state)


def _itself(state: State) -> State:
    return state


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


_Configuration = tuple[State, frozenset[int]]


def plain_search(model: Model, operations: Sequence[Operation], budget: Budget) -> Answer:
    """The search without a table.  If there is no order, all operations that returned before `index` have one."""
    one_of = model.canonical(operations) if model.canonical is not None else _itself
    steps_max = budget.steps // STEPS_PER_PYTHON_STEP
    events = [(o.call, n, False) for n, o in enumerate(operations)]
    events += [(o.ret, n, True) for n, o in enumerate(operations) if o.ret is not None]
    first = one_of(model.init())
    now: set[_Configuration] = {(first, frozenset())}
    open_now: set[int] = set()
    steps, largest_bytes = 0, _size_bytes(first)
    for index, n, is_return in sorted(events):
        if not is_return:
            open_now.add(n)
            continue
        seen = set(now)
        waiting = [c for c in now if n not in c[1]]
        following = {(state, done - {n}) for state, done in now if n in done}
        while waiting:
            state, done = waiting.pop()
            for m in open_now - done:
                steps += 1
                after = model.step(state, operations[m])
                after = REFUSED if after is REFUSED else one_of(after)
                if after is REFUSED:
                    continue
                largest_bytes = max(largest_bytes, _size_bytes(after))
                if m == n:
                    following.add((after, done))
                    continue
                configuration = (after, done | {m})
                if configuration not in seen:
                    seen.add(configuration)
                    waiting.append(configuration)
            if steps > steps_max:
                return Answer(
                    None, -1, steps * STEPS_PER_PYTHON_STEP, False, f"the budget of {budget.steps} steps ran out"
                )
            each_bytes = SIZE_BYTES_PER_CONFIGURATION + largest_bytes
            if (len(seen) + len(following)) * each_bytes > budget.size_bytes:
                spent = steps * STEPS_PER_PYTHON_STEP
                return Answer(None, -1, spent, False, f"the budget of {budget.size_bytes} bytes ran out")
        open_now.remove(n)
        now = following
        if not now:
            return Answer(False, index, steps * STEPS_PER_PYTHON_STEP)
    return Answer(True, -1, steps * STEPS_PER_PYTHON_STEP)
