"""Searches for an order of one object's operations that a model in Python accepts.

The search is the just-in-time search (Lowe 2017).  A configuration is a state and the set of open operations that are
already in the order.  When an operation returns, configurations without this operation are extended until they contain
it.

Two implementations give the same answer.  If few states can occur, a table of integers lists the next state for each
state and each class of operations, and the compiled search decides (`kernels/event_search.py`).  Otherwise
`plain_search` decides.  Its configurations consist of a state of the model and an integer whose bits are the set of
operations.

A large table takes seconds to make, and most histories need none.  So a small table is tried first, then a short plain
search, then a large table, and at last a plain search with the whole budget.  A step of the plain search is one call of
`Model.step`, or CONFIGURATIONS_PER_STEP configurations that a return does not change.

*Rank check.*  One sweep decides linearizability if the order of the operations is known, except for ties.

Suppose that every order that explains the answers puts lower ranks before higher ranks, and that any order inside a
rank explains the answers.  Then the history is linearizable iff no operation returns before an operation of *lower*
rank is called.  (Proof: order the operations by rank, and then by call.  Each operation comes after all operations that
returned before its call.)
"""

from __future__ import annotations

import gc
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from checkers.base.checker import Budget
from checkers.base.independent_search import Disagreement
from checkers.kernels import event_search
from checkers.kernels.event_search import EventSchedule, Table
from checkers.kernels.operations import OPEN
from checkers.models.model import REFUSED, Model, Operation, State

ENTRIES_FIRST_PER_OPERATION = 50
ENTRIES_MAX = 2_000_000
"""Maximum number of entries (states times classes): of the small table, per operation, and of the large table."""

STEPS_FIRST, STEPS_FIRST_PER_OPERATION = 10_000, 10
"""Maximum number of calls of `Model.step` in a short search: a constant, and an additional number per operation."""

STEPS_FOR_INDEX = 20_000_000
"""Maximum number of steps that find the first answer that no order explains, once it is certain that no order exists.

These steps do not change the verdict."""

STEPS_PER_ENTRY = 20
"""Number of budgeted steps for making one entry of a table.  A table that would exceed the budget is not made."""


def judge_object(model: Model, operations: Sequence[Operation], budget: Budget) -> SearchAnswer:
    """Search an order of the operations.  Exceptions of the model's functions propagate.

    operations: operations of one object, in order of call
    """
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
    """Return the budgeted steps of a short search.

    operations: number of operations
    """
    return STEPS_PER_PYTHON_STEP * (STEPS_FIRST + STEPS_FIRST_PER_OPERATION * operations)


def _compiled_search(
    table: Table, operations: Sequence[Operation], classes: Sequence[int], budget: Budget
) -> SearchAnswer:
    schedule, indices = _schedule(operations, classes, table)
    code, place, steps = event_search.judge(table, schedule, budget.steps, budget.size_bytes, True)
    match code:
        case event_search.LINEARIZABLE:
            return SearchAnswer(True, -1, steps, True)
        case event_search.NO_ORDER:
            left = min(budget.steps - steps, STEPS_FOR_INDEX)
            again, later, taken = event_search.judge(table, schedule, left, budget.size_bytes, False)
            return SearchAnswer(False, indices[later if again == event_search.NO_ORDER else place], steps + taken, True)
        case event_search.OUT_OF_STEPS:
            return SearchAnswer(None, -1, steps, True, f"the budget of {budget.steps} steps ran out")
    return SearchAnswer(None, -1, steps, True, f"the budget of {budget.size_bytes} bytes ran out")


def cut_at(operations: Sequence[Operation], index: int) -> list[Operation]:
    """Return the operations that were called up to an event, as if the history ended with that event."""
    return [
        o if o.ret is not None and o.ret <= index else replace(o, output=None, ret=None)
        for o in operations
        if o.call <= index
    ]


def first_wrong(operations: Sequence[Operation], has_none: Callable[[list[Operation]], bool]) -> Operation:
    """Return the operation with the first answer such that the history up to this answer certainly has no order.

    operations: operations that have no order
    has_none: a function that returns True if it is certain that the given operations have no order
    """
    in_order = sorted(operations, key=lambda o: o.call)
    answers = sorted((o for o in in_order if o.returned), key=lambda o: o.ends)
    at = bisect_left(answers, True, key=lambda o: has_none(cut_at(in_order, o.ends)))
    return answers[min(at, len(answers) - 1)]


def demand_explanation(operations: Sequence[Operation], order: Sequence[Operation], model: Model) -> None:
    """Replay an order.  Raises Disagreement if the order contradicts an answer or real time, or lacks an operation."""
    state: State = model.init()
    latest = -1
    for operation in order:
        latest = max(latest, operation.call)
        after = model.step(state, operation)
        if after is REFUSED or operation.ends < latest:
            raise Disagreement(f"the order that was found does not explain {operation.f} at index {operation.call}")
        state = after
    placed = {operation.call for operation in order}
    if len(placed) < len(order) or any(o.returned and o.call not in placed for o in operations):
        raise Disagreement("the order that was found does not contain every answered operation exactly once")


def _classes(model: Model, operations: Sequence[Operation]) -> list[int]:
    """Return the number of each operation's class.  Operations that the model cannot distinguish are in one class."""
    numbers: dict[object, int] = {}
    classes = []
    for o in operations:
        who, when = o.process if model.process_matters else 0, o.call if model.times_matter else 0
        alike = (o.f, o.key, o.input, o.output, o.returned, who, when)
        classes.append(numbers.setdefault(alike, len(numbers)))
    return classes


def _table(
    model: Model, operations: Sequence[Operation], classes: Sequence[int], entries_max: int, bytes_max: int
) -> Table | None:
    """Return the table of all states that can occur.

    Returns None if the table has too many entries or the states need too much memory.  States that only more steps than
    there are operations can reach are left out.  Otherwise a model whose state only grows would have infinitely many
    states.
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
    """Return (calls and returns in order, index of the event at each position)."""
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


STEPS_PER_PYTHON_STEP = 200
"""Number of budgeted steps for one step of the plain search, which is about 200 times slower than a compiled step."""

CONFIGURATIONS_PER_STEP = 4
"""Number of configurations that the plain search copies at a return in the time of one call of `Model.step`."""

SIZE_BYTES_PER_CONFIGURATION = 400
"""Bytes of memory for a configuration without its state and its operations."""

FIELDS_MAX = 8
"""Maximum number of fields of an object that counts as a record, whose collections are counted as its own memory."""

_HOLDING = (tuple, frozenset, dict, str, bytes)
"""Types of fields whose size may grow with the number of operations."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Result of a search.

    linearizable: True, False, or None if the budget that `reason` names ran out
    index: index of an event at which it is certain that no order exists.  If the budget allows, this event is the first
        answer that no order explains
    steps: budgeted steps of the search
    compiled: True if the compiled search answered
    """

    linearizable: bool | None
    index: int = -1
    steps: int = 0
    compiled: bool = False
    reason: str = ""


def plain_search(
    model: Model,
    operations: Sequence[Operation],
    budget: Budget,
    one_of: Callable[[State], State] | None = None,
    at_call: Callable[[int, frozenset[State]], None] = lambda index, states: None,
) -> SearchAnswer:
    """Search without a table.  If there is no order, the operations that returned before `index` have one.

    one_of: a function that maps equivalent states to one of them; by default the result of `Model.canonical`
    at_call: a function that gets the index of each call, and the states that orders of all operations that returned
        before can have reached
    """
    if one_of is None:
        one_of = model.canonical(operations) if model.canonical is not None else itself
    events = [(o.call, n, False) for n, o in enumerate(operations)]
    events += [(o.ret, n, True) for n, o in enumerate(operations) if o.ret is not None]
    search = _Search(model.step, one_of, budget, _classes(model, operations))
    now: set[_Configuration] = {(one_of(model.init()), 0)}
    bit_of: dict[int, int] = {}
    for index, n, is_return in sorted(events):
        if not is_return:
            at_call(index, frozenset(state for state, _ in now))
            bit_of[n] = search.begin(operations[n], n)
            continue
        bit = bit_of.pop(n)
        now = search.linearize(bit, now)
        if search.reason:
            return SearchAnswer(None, -1, search.steps * STEPS_PER_PYTHON_STEP, False, search.reason)
        search.end(bit)
        if not now:
            return SearchAnswer(False, index, search.steps * STEPS_PER_PYTHON_STEP)
    return SearchAnswer(True, -1, search.steps * STEPS_PER_PYTHON_STEP)


def _return_of(operation: Operation) -> int:
    return OPEN if operation.ret is None else operation.ret


def size_bytes(state: State) -> int:
    """Return the memory of a state and its fields in bytes, without the contents of the fields.

    The contents are mostly shared with the state before.
    """
    own = sys.getsizeof(state)
    if isinstance(state, int | str | float | None):
        return own
    fields = gc.get_referents(state)
    if len(fields) <= FIELDS_MAX:
        own += sum(sys.getsizeof(field) for field in fields if isinstance(field, _HOLDING))
    return own


def itself(state: State) -> State:
    return state


_Configuration = tuple[State, int]
"""(state, bits of the open operations that are already in the order)."""


class _Search:
    """The open operations, each with its own bit, and the used part of the budget.

    steps: number of steps of the plain search so far
    reason: one sentence that names the exceeded limit, or ""
    """

    def __init__(
        self,
        step: Callable[[State, Operation], object],
        one_of: Callable[[State], State],
        budget: Budget,
        classes: Sequence[int],
    ) -> None:
        self._step, self._one_of, self._budget, self._classes = step, one_of, budget, classes
        self._open: dict[int, Operation] = {}
        # class -> [(return, bit) of each open operation in the class], in ascending order
        self._alike: dict[int, list[tuple[int, int]]] = {}
        self._class_of: dict[int, int] = {}
        self._all_open = self._largest_bytes = 0
        self.steps, self.reason = 0, ""

    def begin(self, operation: Operation, number: int) -> int:
        """Add an open operation, and return its bit, which is the lowest free one."""
        bit = ~self._all_open & (self._all_open + 1)
        self._all_open |= bit
        self._open[bit], self._class_of[bit] = operation, self._classes[number]
        insort(self._alike.setdefault(self._classes[number], []), (_return_of(operation), bit))
        return bit

    def end(self, bit: int) -> None:
        self._all_open ^= bit
        operation = self._open.pop(bit)
        self._alike[self._class_of.pop(bit)].remove((_return_of(operation), bit))

    def linearize(self, bit: int, now: set[_Configuration]) -> set[_Configuration]:
        """Extend configurations until each contains the operation with this bit, then clear the bit in each.

        If the budget runs out, `reason` is set and the result must not be used.
        """
        following = {(state, done ^ bit) for state, done in now if done & bit}
        seen = {configuration for configuration in now if not configuration[1] & bit}
        waiting = list(seen)
        self.steps += len(now) // CONFIGURATIONS_PER_STEP
        while waiting and not self._is_over(len(now) + len(seen) + len(following)):
            state, done = waiting.pop()
            for other, after in self._extensions(state, done):
                if other == bit:
                    following.add((after, done))
                elif (configuration := (after, done | other)) not in seen:
                    seen.add(configuration)
                    waiting.append(configuration)
        return following

    def _extensions(self, state: State, done: int) -> list[tuple[int, State]]:
        """Return every (bit of an open operation that the state allows next, state after it).

        Operations that the model cannot distinguish may swap places in any order, so only the one that returns first is
        tried.
        """
        found = []
        for alike in self._alike.values():
            bit = next((bit for _, bit in alike if not done & bit), 0)
            if not bit:
                continue
            self.steps += 1
            after = self._step(state, self._open[bit])
            if after is REFUSED or (after := self._one_of(after)) is REFUSED:
                continue
            self._largest_bytes = max(self._largest_bytes, size_bytes(after))
            found.append((bit, after))
        return found

    def _is_over(self, configurations: int) -> bool:
        each_bytes = SIZE_BYTES_PER_CONFIGURATION + self._largest_bytes + sys.getsizeof(self._all_open)
        if self.steps > self._budget.steps // STEPS_PER_PYTHON_STEP:
            self.reason = f"the budget of {self._budget.steps} steps ran out"
        elif configurations * each_bytes > self._budget.size_bytes:
            self.reason = f"the budget of {self._budget.size_bytes} bytes ran out"
        return bool(self.reason)


class Ranked(NamedTuple):
    """One operation of the rank check.

    rank: any integer
    call, ret: indices of the call and of the return; ret is `model.NEVER` if the operation never returned
    must_precede: True if higher ranks must follow this operation; False if they must follow another one of its rank
        anyway
    """

    rank: int
    call: int
    ret: int
    must_precede: bool = True


def out_of_order(operations: Sequence[Ranked]) -> tuple[int, int] | None:
    """Return the positions of two operations: the first has the higher rank, and returned before the second was called.

    Returns None if there is no such pair.  Among several pairs, returns one whose first operation returned earliest.
    O(n log n).
    """
    if not operations:
        return None
    place_of = {rank: place for place, rank in enumerate(sorted({o.rank for o in operations}))}
    rank = np.array([place_of[o.rank] for o in operations], np.int64)
    call = np.array([o.call if o.must_precede else -1 for o in operations], np.int64)
    ret = np.array([o.ret for o in operations], np.int64)
    order = np.argsort(rank, kind="stable")
    latest = np.maximum.accumulate(call[order])
    first_of_rank = np.searchsorted(rank[order], rank[order], side="left")
    lower = np.where(first_of_rank > 0, latest[np.maximum(first_of_rank - 1, 0)], -1)
    wrong = np.flatnonzero(ret[order] < lower)
    if not len(wrong):
        return None
    at = wrong[np.argmin(ret[order][wrong])]
    before = order[: first_of_rank[at]]
    return int(order[at]), int(before[np.argmax(call[before])])
