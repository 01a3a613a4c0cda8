"""Do a few operations of a model have a legal order?  If they have none, how long is the longest legal beginning?

The first question checks a witness by another method than the one that found it.  The second question is for the
drawing of the witness.  The independent search (`base/independent_search.py`) answers both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from checkers.base import independent_search as search
from checkers.models.model import Model, Operation, State

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
    found = search.longest_order(_given(window), states, _step(model), CONFIGURATIONS_MAX)
    if found is None:
        return None
    state, steps = found[0], []
    for i in found[1]:
        state = model.step(state, window[i])
        steps.append({"call": window[i].call, "holds": in_words(model, state)})
    return {"begins": in_words(model, found[0]), "steps": steps}


def in_words(model: Model, state: State) -> str:
    """A state as a witness shows it."""
    text = "nil" if state is None else model.show(state)
    return text if len(text) <= 80 else text[:60] + "…" + text[-15:]


def _given(operations: Sequence[Operation]) -> list[search.RegisterOperation]:
    """The operations in the type of the search.  It reads only `call` and `ret`; the model reads the rest."""
    return cast(list[search.RegisterOperation], list(operations))


def _step(model: Model) -> search.Model:
    return cast(search.Model, model.step)
