"""The smallest window of a model's history that no order explains, and the witness made of it.

Of an object known only by its `step` little may be dropped without manufacturing a violation: what changes nothing
(an operation of `Model.observers`), and the past, where nothing was under way, if the states it can have led to are put
in its place.  The history ends at the first answer that no order explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from checkers import search
from checkers.checker import Budget
from checkers.model_search import cut_at, judge_object
from checkers.models.model import Model, Operation, Rows, State
from checkers.verdict import Witness

SEARCHED_MAX = 60
"""Windows of more operations are not made smaller, nor put before the independent search."""

CONFIGURATIONS_MAX = 20_000
STATES_MAX = 50


class Disagreement(AssertionError):
    """The search calls a window impossible and the independent search does not: nothing may be claimed."""


def explain(model: Model, operations: Sequence[Operation], index: int, budget: Budget, as_rows: Rows) -> Witness:
    """The witness of one object's history that has no order; index: of an event at which that was certain.

    Raises Disagreement.
    """
    index = _first_impossible(model, operations, index, budget)
    cut = [o for o in cut_at(operations, index) if o.returned or o.f not in model.observers]
    [culprit] = [o for o in cut if o.ret == index]
    states, window = _last_segment(model, cut)
    if len(window) <= SEARCHED_MAX:
        window = _drop_observers(model, window, states, culprit)
    again = _impossible(model, window, states) if len(window) <= SEARCHED_MAX else None
    if again is False:
        raise Disagreement("the model's search and the independent search disagree about a window")
    told = [model.describe(o) for o in window]
    before = [_words(state) for state in states[:6]]
    name = "" if culprit.key is None else f" on {culprit.key}"
    summary = f"No order of the operations{name} explains {model.describe(culprit)} (index {index})"
    why = [f"Before this window it held {' or '.join(before)}"] if len(window) < len(cut) else []
    why += told
    if again:
        why.append(
            f"An independent search tried every order of these {len(window)} operations and found none that fits"
        )
    facts = {"key": culprit.key, "states_before": before, "why": why, "rejudged": bool(again), "model": model.name}
    return Witness("no order", summary, as_rows(window), facts=facts)


def _first_impossible(model: Model, operations: Sequence[Operation], certain: int, budget: Budget) -> int:
    """Index of the first answer that no order explains; a search that knows the future is certain earlier."""
    returns = sorted(o.ret for o in operations if o.ret is not None and o.ret >= certain)
    low, high = 0, len(returns) - 1
    while low < high:
        middle = (low + high) // 2
        if judge_object(model, cut_at(operations, returns[middle]), budget).linearizable is False:
            high = middle
        else:
            low = middle + 1
    return returns[low]


def _last_segment(model: Model, operations: Sequence[Operation]) -> tuple[list[State], list[Operation]]:
    """(states possible at the last moment at which nothing was under way, what came after it).

    The whole history, if no such moment can be reached with few states.
    """
    states: list[State] = [model.init()]
    start = 0
    latest_ret = -1
    for at, operation in enumerate(operations):
        if at > start and latest_ret < operation.call:
            reached = _reachable(model, operations[start:at], states)
            if not reached or len(reached) > STATES_MAX:
                return states, list(operations[start:])
            states, start = reached, at
        latest_ret = max(latest_ret, operation.ret if operation.ret is not None else 2**62)
    return states, list(operations[start:])


def _reachable(model: Model, operations: Sequence[Operation], states: Sequence[State]) -> list[State]:
    if len(operations) > SEARCHED_MAX:
        return []
    try:
        found = search.reachable_states(_given(operations), states, _step(model), CONFIGURATIONS_MAX)
    except search.SearchExhausted:
        return []
    return sorted(found, key=repr)


def _impossible(model: Model, operations: Sequence[Operation], states: Sequence[State]) -> bool | None:
    """What the independent search says; None if that takes too long."""
    try:
        return not search.linearizable(_given(operations), states, _step(model), CONFIGURATIONS_MAX)
    except search.SearchExhausted:
        return None


def _drop_observers(
    model: Model, window: Sequence[Operation], states: Sequence[State], culprit: Operation
) -> list[Operation]:
    kept = list(window)
    for operation in [o for o in window if o.f in model.observers and o is not culprit]:
        without = [o for o in kept if o is not operation]
        if _impossible(model, without, states):
            kept = without
    return kept


def _given(operations: Sequence[Operation]) -> list[search.Operation]:
    """The search reads nothing of an operation but `call` and `ret`; what else is in it is the model's."""
    return cast(list[search.Operation], list(operations))


def _step(model: Model) -> search.Model:
    return cast(search.Model, model.step)


def _words(state: State) -> str:
    text = "nil" if state is None else repr(state)
    return text if len(text) <= 80 else text[:60] + "…" + text[-15:]
