"""The smallest window of a model's history that no order explains, and the witness made of it.

Of an object known only by its `step` little may be dropped without manufacturing a violation: what changes nothing
(an operation of `Model.observers`), and the past, if the states it can have led to are put in its place
(`model_past.py`).  The history ends at the first answer that no order explains.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from checkers.checker import Budget
from checkers.legal_orders import SEARCHED_MAX, Disagreement, impossible, in_words, longest_order, reachable
from checkers.model_past import Rest, shortest_rest
from checkers.model_search import cut_at, judge_object, steps_first
from checkers.models.model import Model, Operation, Rows, State, letter, plain
from checkers.verdict import Witness

CANDIDATES_MAX = 100
CONFIGURATIONS_PER_CANDIDATE = 2_000
"""So that what would have been right costs a second at most; an answer that takes longer to prove is not told."""

OPERATIONS_TRIED = 20_000
"""How many operations are judged again, answer by answer, where the whole history is needed to prove one right."""

ANSWERS_TOLD = 4

_ANSWERS = (int, float, str, tuple, frozenset)
"""Types of what may be answered; a state of another type is none."""


def explain(model: Model, operations: Sequence[Operation], index: int, budget: Budget, as_rows: Rows) -> Witness:
    """The witness of one object's history that has no order; index: of an event at which that was certain.

    The fact `under_way` names what was under way when the window begins, and so may have happened before, or never.
    Raises Disagreement.
    """
    index = _first_impossible(model, operations, index, budget)
    cut = [o for o in cut_at(operations, index) if o.returned or o.f not in model.observers]
    [culprit] = [o for o in cut if o.ret == index]
    rest = shortest_rest(model, cut, culprit.call, lambda left: impossible(model, left.operations, left.states))
    states, window = list(rest.states), list(rest.operations)
    if len(window) <= SEARCHED_MAX:
        window = _drop_observers(model, window, states, culprit)
    again = impossible(model, window, states)
    if again is False:
        raise Disagreement("the model's search and the independent search disagree about a window")
    letters = {o.call: letter(place) for place, o in enumerate(window)}
    answered = {o.call for o in operations if o.returned}
    told = [f"{letters[o.call]}: {_told(model, o, o.call in answered, o.call in rest.under_way)}" for o in window]
    before = [in_words(model, state) for state in states[:6]]
    name = "" if culprit.key is None else f" on {culprit.key}"
    summary = f"No order of the operations{name} explains {model.describe(culprit)} (index {index})"
    more = f" or one of {len(states) - 6} other states" if len(states) > 6 else ""
    why = [f"Before this window it held {' or '.join(before)}{more}"] if len(window) < len(cut) else []
    why += told
    if again:
        why.append(
            f"An independent search tried every order of these {len(window)} operations and found none that fits"
        )
    facts: dict[str, Any] = {
        "key": culprit.key,
        "states_before": before,
        "why": why,
        "expected": _expected(model, cut, rest, culprit, budget),
        "letters": {str(call): name for call, name in letters.items()},
        "culprit": letters[culprit.call],
        "under_way": [name for call, name in letters.items() if call in rest.under_way],
        "rejudged": bool(again),
        "model": model.name,
    }
    if (order := longest_order(model, window, states)) is not None:
        facts["order"] = order
    return Witness("no order", summary, as_rows(window), facts=facts)


def _told(model: Model, operation: Operation, answered: bool, under_way: bool) -> str:
    if answered and under_way:
        return f"{operation.f} of {_words(operation.input)}, under way before this window and perhaps done"
    if answered and not operation.returned:
        return f"{operation.f} of {_words(operation.input)}, answered only afterwards"
    return model.describe(operation)


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


def _drop_observers(
    model: Model, window: Sequence[Operation], states: Sequence[State], culprit: Operation
) -> list[Operation]:
    kept = list(window)
    for operation in [o for o in window if o.f in model.observers and o is not culprit]:
        without = [o for o in kept if o is not operation]
        if impossible(model, without, states):
            kept = without
    return kept


def _expected(model: Model, cut: Sequence[Operation], rest: Rest, culprit: Operation, budget: Budget) -> str:
    """What would have been right: other answers with which all that was under way can be explained, by trying."""
    without = [replace(o, output=None, ret=None) if o is culprit else o for o in rest.operations]
    states = [s for s in reachable(model, without, rest.states) if isinstance(s, _ANSWERS)]
    candidates: list[Hashable] = [*states, *(o.input for o in rest.operations), None]
    earlier = [o for o in reversed(cut) if o.call < culprit.call]
    candidates += [o.output for o in earlier if o.f == culprit.f and o.returned] + [o.input for o in earlier]
    right: list[Hashable] = []
    candidates = list(dict.fromkeys(c for c in candidates if c != culprit.output))
    for candidate in candidates[: CANDIDATES_MAX if rest.exact else max(1, OPERATIONS_TRIED // len(cut))]:
        try:
            if _explained(model, cut, rest, replace(culprit, output=candidate), budget):
                right.append(candidate)
        except Exception:  # noqa: BLE001 - an answer of a shape that the user's `step` never meets proves nothing
            continue
    if not right:
        return "a refusal, or no answer yet"
    more = f" or one of {len(right) - ANSWERS_TOLD} others" if len(right) > ANSWERS_TOLD else ""
    return f"an answer of {' or '.join(_words(answer) for answer in right[:ANSWERS_TOLD])}{more}"


def _explained(model: Model, cut: Sequence[Operation], rest: Rest, other: Operation, budget: Budget) -> bool:
    """Whether an order is known with another answer.  What is left shows it where nothing was under way; elsewhere it
    asks less than the history, which is judged itself, with what was dropped: a read, too, may forbid an answer."""
    if rest.exact:
        operations = [other if o.call == other.call else o for o in rest.operations]
        return impossible(model, operations, rest.states, CONFIGURATIONS_PER_CANDIDATE) is False
    operations = [other if o.call == other.call else o for o in cut]
    short = replace(budget, steps=min(budget.steps, steps_first(len(operations))))
    return judge_object(model, operations, short).linearizable is True


def _words(answer: Hashable) -> str:
    text = "nil" if answer is None else plain(answer)
    return text if len(text) <= 80 else text[:60] + "…" + text[-15:]
