"""The past of a window, and the budget of explanations.

*Past.*  Replaces the past of a history by the states to which it can have led, and searches the few remaining
operations, called the rest.

The past ends at a moment just before a call.  Operations that had returned by then are replaced by the possible states.
Operations under way remain, and may happen at any later time, or never.  If an operation under way happened before the
moment, one of the states shows its effect.  (An observer that was under way is dropped, because it may have seen the
past.)

This replacement never creates a violation.  Proof: take any order of the whole history, and its suffix after the
moment.  The suffix begins in one of the states.  It contains every operation that was called after the moment and
returned.  Its other operations were under way at the moment, or were called later.  So the suffix is an order of the
rest.  Hence if no order explains the rest, no order explains the whole history.  One pass of the just-in-time search
finds the states.

*Independent search.*  `base/independent_search.py` judges small windows with another algorithm than the kernels.

*Budget.*  An explanation calls `Model.step` many times.  The number of calls is limited for all explanations of a part
together; unlike a time limit, this gives the same witness on every machine.  If an explanation runs out of steps, its
window is larger and its text is simpler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from checkers.base import independent_search as search
from checkers.base.checker import Budget
from checkers.base.shrinking import first_that_holds
from checkers.models.model import REFUSED, Model, Operation, State, WrongOperation, described, plain
from checkers.models.read_own_model import BadModel
from checkers.models.search import SIZE_BYTES_PER_CONFIGURATION, STEPS_PER_PYTHON_STEP, plain_search

SEARCHED_MAX = 60
"""Maximum number of operations of a window that the independent search judges and that is drawn."""

CONFIGURATIONS_MAX = 20_000


def impossible(
    model: Model, operations: Sequence[Operation], states: Sequence[State], limit: int = CONFIGURATIONS_MAX
) -> bool | None:
    """Return True if no order that begins in one of the states explains the operations, False if an order does.

    Returns None if there are too many orders to decide.
    """
    if len(operations) > SEARCHED_MAX:
        return None
    try:
        return not search.linearizable(_given(operations), states, _step(model), limit)
    except search.SearchExhausted:
        return None


def reachable(model: Model, operations: Sequence[Operation], states: Sequence[State]) -> list[State]:
    """Return the states in which orders of the operations end; [] if there are too many orders to try."""
    if len(operations) > SEARCHED_MAX:
        return []
    try:
        found = search.reachable_states(_given(operations), states, _step(model), CONFIGURATIONS_MAX)
    except search.SearchExhausted:
        return []
    return sorted(found, key=model.show)


def longest_order(model: Model, window: Sequence[Operation], states: Sequence[State]) -> dict[str, Any] | None:
    """Return the legal order, beginning in any of the states, that contains the most answered operations.

    The result is {"begins": state, "steps": [{"call": index, "holds": state}]} with states in words.  Returns None if
    there are too many orders to try.
    """
    if len(window) > SEARCHED_MAX:
        return None
    found = search.longest_order(_given(window), states, _step(model), CONFIGURATIONS_MAX)
    if found is None:
        return None
    state, steps = found[0], []
    for i in found[1]:
        state = model.step(state, window[i])
        steps.append({"call": window[i].call, "holds": in_words(model, state)})
    return {"begins": in_words(model, found[0]), "steps": steps}


def in_words(model: Model, state: State) -> str:
    """Return a state in the words of a witness."""
    return words_of(state, model.show)


def _given(operations: Sequence[Operation]) -> list[search.RegisterOperation]:
    """Return the operations as the type that the independent search expects; it reads only `call` and `ret`."""
    return cast(list[search.RegisterOperation], list(operations))


def _step(model: Model) -> search.Model:
    return cast(search.Model, model.step)


STEPS_IN_ALL, STEPS_FOR_ONE = 300_000, 250_000
"""Maximum number of steps of all explanations of a part, and of one explanation.

All explanations of a part take at most two seconds of CPU time (measured)."""


class OutOfPatience(RuntimeError):
    """An explanation has used up its steps."""


class Patience:
    """The step budget of the explanations of one part."""

    def __init__(self, steps: int = STEPS_IN_ALL, for_one: int = STEPS_FOR_ONE) -> None:
        self._steps, self._left, self._for_one, self._for_this = steps, steps, for_one, 0

    @property
    def spent(self) -> int:
        """The number of steps used so far."""
        return self._steps - self._left

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def next_one(self) -> None:
        """Begin the next explanation."""
        self._for_this = min(self._left, self._for_one)

    def counted(self, model: Model) -> Model:
        """Return the model with counted calls of `step`; a call beyond the budget raises OutOfPatience.

        Any other exception of the model's code becomes a BadModel, unless it already names a file or an operation.
        """

        def guarded(call: Callable[..., Any], *given: Any) -> Any:
            try:
                return call(*given)
            except (BadModel, WrongOperation):
                raise
            except Exception as problem:
                last = given[-1]
                on = f" on {described(last)} (index {last.call})" if isinstance(last, Operation) else ""
                first = (str(problem).splitlines() or [""])[0][:200]
                words = f"{type(problem).__name__}{f': {first}' if first else ''}"
                raise BadModel(f"the model {model.name} failed{on}: {words}") from problem

        def step(state: State, operation: Operation) -> object:
            self.spend(1)
            return guarded(model.step, state, operation)

        def canonical(operations: Sequence[Operation]) -> Callable[[State], State]:
            assert model.canonical is not None
            one_of = guarded(model.canonical, operations)
            return lambda state: guarded(one_of, state)

        return replace(model, step=step, canonical=None if model.canonical is None else canonical)

    def spend_compiled(self, steps: int) -> None:
        """Count steps of a compiled search.  Raises OutOfPatience if the explanation has used up its steps."""
        self.spend(steps // STEPS_PER_PYTHON_STEP)

    def spend(self, steps: int) -> None:
        """Count steps.  Raises OutOfPatience if the explanation has used up its steps."""
        self._left -= steps
        self._for_this -= steps
        if self._for_this < 0:
            raise OutOfPatience(f"more than {self._for_one} steps for one explanation")


BUDGET_OF_THE_PAST = Budget(steps=1 << 60, size_bytes=2_000 * SIZE_BYTES_PER_CONFIGURATION)
"""Budget of the search for the states of the past.  If a moment needs more, the states from there on are unknown."""

SIZE_BYTES_MAX = 500_000_000
"""Maximum size in bytes of the states of all moments.  If they need more, the older half of the moments is dropped."""

STATES_MAX = 50
"""Maximum number of states that may replace a past."""


@dataclass(frozen=True, slots=True)
class RestOfHistory:
    """A history whose past was replaced by states.

    states: the possible first states
    operations: the remaining operations, in order of call
    under_way: calls of operations that were under way at the beginning; these count as never answered
    exact: True if no operation was under way.  Then the rest has an order if and only if the whole history has one
    """

    states: tuple[State, ...]
    operations: tuple[Operation, ...]
    under_way: frozenset[int] = frozenset()
    exact: bool = True


def shortest_rest(
    model: Model, operations: Sequence[Operation], last_call: int, impossible: Callable[[RestOfHistory], bool | None]
) -> RestOfHistory:
    """Return the shortest known rest of the history that has no order; the whole history if no such rest is known.

    last_call: index of the latest call at which a rest may begin
    impossible: a function that returns True if a rest has no order, False if it has one, None if it cannot decide

    Moments are tried backwards from the end in steps that double, and then by bisection.
    """
    moments = [at for at in states_at_calls(model, operations) if at[0] <= last_call]
    whole = RestOfHistory((model.init(),), tuple(operations))
    found: dict[int, RestOfHistory] = {}

    def is_impossible(moments_left: int) -> bool:
        rest = _from(model, operations, *moments[-moments_left])
        answer = impossible(rest) if len(rest.states) <= STATES_MAX else False
        if answer:
            found[moments_left] = rest
        return answer is not False  # if a rest takes too long to decide, a longer rest does too

    return found.get(first_that_holds(1, len(moments), is_impossible, times=2), whole)


def states_at_calls(model: Model, operations: Sequence[Operation]) -> list[tuple[int, frozenset[State]]]:
    """Return (index of a call, possible states just before it) for every call until there are too many configurations.

    operations: operations in order of call

    Old calls are left out if the states need too much memory.  The search places an operation as late as possible, so
    the states do not contain effects of operations under way that could also happen later.
    """
    possible = model.canonical(operations) if model.canonical is not None else None
    found: list[tuple[int, frozenset[State]]] = []
    last, size_bytes = frozenset[State](), 0

    def one_of(state: State) -> State:
        return REFUSED if possible is not None and possible(state) is REFUSED else state

    def note(index: int, states: frozenset[State]) -> None:
        nonlocal last, size_bytes
        if states != last:
            last = states
            size_bytes += sum(map(sys.getsizeof, states))
        if size_bytes > SIZE_BYTES_MAX:
            del found[: len(found) // 2]
            size_bytes = sum(sys.getsizeof(s) for s in {state for _, states in found for state in states})
        found.append((index, last))

    answer = plain_search(model, operations, BUDGET_OF_THE_PAST, one_of, note)
    if answer.linearizable is False:
        found += [(operation.call, frozenset[State]()) for operation in operations if operation.call > answer.index]
    return found


def _from(model: Model, operations: Sequence[Operation], moment: int, states: frozenset[State]) -> RestOfHistory:
    kept: list[Operation] = []
    under_way: set[int] = set()
    exact = True
    for o in operations:
        if o.call >= moment:
            kept.append(o)
        elif o.ret is None or o.ret > moment:
            exact = False
            if o.f not in model.observers:
                kept.append(replace(o, output=None, ret=None))
                under_way.add(o.call)
    return RestOfHistory(tuple(sorted(states, key=model.show)), tuple(kept), frozenset(under_way), exact)


def words_of(value: Hashable, show: Callable[[State], str] = plain) -> str:
    text = "nil" if value is None else show(value)
    return text if len(text) <= 80 else text[:60] + "…" + text[-15:]
