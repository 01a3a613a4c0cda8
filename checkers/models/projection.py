"""Witnesses of a large object, reduced to the few values that the violation is about.

Forget all but two elements of a set, all but two values of a log, or all but one value of a queue.  For the values that
are kept, the smaller object gives the same answers as the whole object.  So every order of the whole object's
operations is also an order of the smaller object's.  If the smaller object has no order, the whole object has none.
The past need not be known: the violation has all operations on these values, and both objects begin empty.

The smaller object is a `Model` like any other.  So the independent search judges its few operations, and their longest
legal order is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from checkers.base.independent_search import Disagreement
from checkers.base.letters import letter
from checkers.base.verdict import Witness
from checkers.models.legal_orders import impossible, in_words, longest_order
from checkers.models.model import Model, Operation, Rows, State
from checkers.models.past_states import shortest_rest
from checkers.models.patience import OutOfPatience, Patience


@dataclass(frozen=True, slots=True)
class Violation:
    """What went wrong, in words, and the operations that show it.

    kind, summary: as in `Witness`.
    operations: all operations on the values that the violation is about.  culprit: the one whose answer is wrong.
    expected: the right answer, as the end of a sentence.
    why: sentences that explain why no order of these operations gives the culprit's answer.
    """

    kind: str
    summary: str
    operations: Sequence[Operation]
    culprit: Operation
    expected: str
    why: Sequence[str]


def witness(
    violation: Violation, smaller: Model, as_rows: Rows, states: Sequence[State] | None, patience: Patience
) -> Witness:
    """The witness of a violation.

    smaller: the model reduced to the values of the violation.  states: its possible first states; None: `init`.
    The fact `under_way` names operations that were under way when the window begins: each may have happened before, or
    never.  If patience runs out before the independent search ends, the fact `rejudged` is false.
    Raises Disagreement if the independent search finds an order.
    """
    patience.next_one()
    counted = patience.counted(smaller)
    window = sorted(violation.operations, key=lambda o: o.call)
    begins, under_way = tuple(states) if states is not None else (smaller.init(),), frozenset[int]()
    again: bool | None = None
    try:
        again = impossible(counted, window, begins)
        if again is None and states is None:
            rest = shortest_rest(
                counted, window, violation.culprit.call, lambda left: impossible(counted, left.operations, left.states)
            )
            again = impossible(counted, rest.operations, rest.states)
            window, begins, under_way = list(rest.operations), rest.states, rest.under_way
    except OutOfPatience:
        again = None
    if again is False:
        raise Disagreement(f"{violation.summary}; yet the independent search finds an order, so nothing is claimed")
    letters = {str(o.call): letter(place) for place, o in enumerate(window)}
    why = list(violation.why)
    if again:
        tried = f"every order of these {len(window)} operations" if len(window) > 1 else "this operation by itself"
        why.append(f"An independent search tried {tried} and found none that fits")
    facts: dict[str, Any] = {
        "key": violation.culprit.key,
        "states_before": [in_words(smaller, state) for state in begins],
        "why": why,
        "expected": violation.expected,
        "letters": letters,
        "culprit": letters[str(violation.culprit.call)],
        "under_way": [name for call, name in letters.items() if int(call) in under_way],
        "rejudged": bool(again),
        "model": smaller.name,
    }
    with suppress(OutOfPatience):
        if (order := longest_order(counted, window, begins)) is not None:
            facts["order"] = order
    return Witness(violation.kind, violation.summary, as_rows(window), facts=facts)


def real_time(first: Operation, what: str, second: Operation, then: str) -> str:
    """A sentence: one operation had returned before another was invoked, so it comes first."""
    return f"{what} (index {first.ret}) before {then} (index {second.call}), so it comes first in every order"
