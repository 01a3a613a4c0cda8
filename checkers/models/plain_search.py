"""The just-in-time search (Lowe 2017) in plain Python, for models whose states are too many for a table.

A configuration is a state and the open operations that are already in the order.  At a return, configurations without
the operation are extended until they contain it.

Cost: a step is one call of `Model.step`, or CONFIGURATIONS_PER_STEP configurations carried over a return.  The memory
is that of the configurations: each holds its own state, and a set of operations as the bits of an integer.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkers.base.checker import Budget
from checkers.models.model import REFUSED, Model, Operation, State

STEPS_PER_PYTHON_STEP = 200
"""Steps of a budget that one step of this search costs: it is about 200 times slower than a compiled step."""

CONFIGURATIONS_PER_STEP = 4
"""As many configurations are carried over a return in the time of one call of `Model.step`."""

SIZE_BYTES_PER_CONFIGURATION = 400
"""Memory of a configuration without its state and its operations."""

FIELDS_MAX = 8
"""An object of so few parts counts as a record: the collections in it are its own."""

_HOLDING = (tuple, frozenset, dict, str, bytes)
"""Types of fields whose size may grow with the number of operations."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
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


def plain_search(model: Model, operations: Sequence[Operation], budget: Budget) -> SearchAnswer:
    """Search without a table.  If there is no order, all operations that returned before `index` have one."""
    one_of = model.canonical(operations) if model.canonical is not None else itself
    events = [(o.call, n, False) for n, o in enumerate(operations)]
    events += [(o.ret, n, True) for n, o in enumerate(operations) if o.ret is not None]
    search = _Search(model.step, one_of, budget)
    now: set[_Configuration] = {(one_of(model.init()), 0)}
    bit_of: dict[int, int] = {}
    for index, n, is_return in sorted(events):
        if not is_return:
            bit_of[n] = search.begin(operations[n])
            continue
        bit = bit_of.pop(n)
        now = search.linearize(bit, now)
        if search.reason:
            return SearchAnswer(None, -1, search.steps * STEPS_PER_PYTHON_STEP, False, search.reason)
        search.end(bit)
        if not now:
            return SearchAnswer(False, index, search.steps * STEPS_PER_PYTHON_STEP)
    return SearchAnswer(True, -1, search.steps * STEPS_PER_PYTHON_STEP)


def size_bytes(state: State) -> int:
    """Memory of a state and its fields, without what these hold: most of it is shared with the state before."""
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
"""A state, and the bits of the open operations that are already in the order."""


class _Search:
    """The open operations, each with a bit of its own, and what the search has used of its budget.

    steps: in steps of this search.  reason: which limit was exceeded, in one sentence, or "".
    """

    def __init__(
        self, step: Callable[[State, Operation], object], one_of: Callable[[State], State], budget: Budget
    ) -> None:
        self._step, self._one_of, self._budget = step, one_of, budget
        self._open: dict[int, Operation] = {}
        self._all_open = self._largest_bytes = 0
        self.steps, self.reason = 0, ""

    def begin(self, operation: Operation) -> int:
        """Returns the bit of the operation, the lowest free one."""
        bit = ~self._all_open & (self._all_open + 1)
        self._all_open |= bit
        self._open[bit] = operation
        return bit

    def end(self, bit: int) -> None:
        self._all_open ^= bit
        del self._open[bit]

    def linearize(self, bit: int, now: set[_Configuration]) -> set[_Configuration]:
        """Extend configurations until each contains the operation with this bit, and remove it from them.

        If the budget runs out, `reason` is set and the result has no meaning.
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
        """Every (bit of an open operation that the state allows next, state after it)."""
        found = []
        left = self._all_open & ~done
        while left:
            bit = left & -left
            left ^= bit
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
