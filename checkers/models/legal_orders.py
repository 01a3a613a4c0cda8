"""Do a few operations of a model have a legal order?  If they have none, how long is the longest legal beginning?

The first question checks a witness by another method than the one that found it.  The independent search
(`base/independent_search.py`) answers it.  The second question is for the drawing of the witness.  An enumeration of
the same configurations answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from checkers.base import independent_search as search
from checkers.models.model import REFUSED, Model, Operation, State

SEARCHED_MAX = 60
"""Windows with more operations are neither checked nor drawn."""

CONFIGURATIONS_MAX = 20_000


def impossible(
    model: Model, operations: Sequence[Operation], states: Sequence[State], limit: int = CONFIGURATIONS_MAX
) -> bool | None:
    """Whether no order from any of the states explains the operations; None if there are too many to decide."""
    if len(operations) > SEARCHED_MAX:
        return None
    try:
        return not search.linearizable(_given(operations), states, _step(model), limit)
    except search.SearchExhausted:
        return None


def reachable(model: Model, operations: Sequence[Operation], states: Sequence[State]) -> list[State]:
    """The states in which orders of the operations end; an empty list if there are too many to decide."""
    if len(operations) > SEARCHED_MAX:
        return []
    try:
        found = search.reachable_states(_given(operations), states, _step(model), CONFIGURATIONS_MAX)
    except search.SearchExhausted:
        return []
    return sorted(found, key=model.show)


def longest_order(model: Model, window: Sequence[Operation], states: Sequence[State]) -> dict[str, Any] | None:
    """The legal order, from any of the states, that places the most answered operations.

    Returns {"begins": state, "steps": [{"call": index, "holds": state}]} with states in words; None if there are too
    many orders to try.
    """
    if len(window) > SEARCHED_MAX:
        return None
    best: tuple[int, tuple[int, ...], State] = (-1, (), None)
    tried = 0
    for begins in states:
        seen: set[tuple[int, State]] = set()
        waiting: list[tuple[int, State, tuple[int, ...], int]] = [(0, begins, (), 0)]
        while waiting:
            done, state, path, placed = waiting.pop()
            if (tried := tried + 1) > CONFIGURATIONS_MAX:
                return None
            if placed > best[0]:
                best = (placed, path, begins)
            left = [i for i in range(len(window)) if not done >> i & 1]
            first_ret = min((ret for i in left if (ret := window[i].ret) is not None), default=None)
            for i in left:
                if first_ret is not None and window[i].call > first_ret:
                    continue
                after = model.step(state, window[i])
                if after is REFUSED or (done | 1 << i, after) in seen:
                    continue
                seen.add((done | 1 << i, after))
                waiting.append((done | 1 << i, after, (*path, i), placed + window[i].returned))
    state, steps = best[2], []
    for i in best[1]:
        state = model.step(state, window[i])
        steps.append({"call": window[i].call, "holds": in_words(model, state)})
    return {"begins": in_words(model, best[2]), "steps": steps}


def in_words(model: Model, state: State) -> str:
    """A state as a witness shows it."""
    text = "nil" if state is None else model.show(state)
    return text if len(text) <= 80 else text[:60] + "…" + text[-15:]


def _given(operations: Sequence[Operation]) -> list[search.RegisterOperation]:
    """The operations in the type of the search.  It reads only `call` and `ret`; the model reads the rest."""
    return cast(list[search.RegisterOperation], list(operations))


def _step(model: Model) -> search.Model:
    return cast(search.Model, model.step)
