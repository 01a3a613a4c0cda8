"""Makes the witness of a wrong object: the smallest window that shows the violation, in words.

A rule or a search finds a violation.

*A rule* (`Decided`) names the operations that show the violation, and a smaller object: a set with only two of its
elements, a log with only two of its values, or a queue with only one of its values.  For the remaining values, the
smaller object gives the same answers as the whole object.  So every order of the whole object's operations is also an
order of the smaller object's operations.  If the smaller object has no order, the whole object has none.  The past need
not be known, because the violation contains all operations on the remaining values, and both objects begin empty.

*A search* (`NoOrder`) names only an event at which the search was certain.  The history is cut at the first answer that
no order explains.  `step` may be any function, so only two things may be dropped without creating a violation:
operations that change nothing (`Model.observers`), and the past, if the states to which it can have led replace it
(`past.py`).

The independent search judges every window again, and the longest legal order of the window is drawn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from checkers.base.checker import Budget
from checkers.base.independent_search import Disagreement
from checkers.base.shrinking import drop_in_pieces, first_that_holds
from checkers.base.values import letter
from checkers.base.verdict import Witness
from checkers.models import past
from checkers.models.model import Model, Operation, Rows, State, WrongOperation, named, text_of
from checkers.models.read_own_model import BadModel
from checkers.models.search import (
    STEPS_PER_PYTHON_STEP,
    cut_at,
    judge_object,
    plain_search,
    steps_first,
)

NO_ORDER = "no order"
"""The kind of a violation that a search found."""

CANDIDATES_MAX = 100
CONFIGURATIONS_PER_CANDIDATE = 2_000
"""Maximum number of answers that are tried to find a right one, and of configurations for each.

With these limits, trying takes at most one second.  Right answers that need more configurations are not shown."""

OPERATIONS_TRIED = 20_000
"""Maximum number of operations that are judged again, for all tried answers together, if a proof needs the history."""

ANSWERS_NAMED = 4
"""Maximum number of right answers that a witness names."""

STATES_TOLD = 6
"""Maximum number of states before a window that a witness names."""

ORDERED_MAX = 5
"""Maximum number of operations of a rule's witness that lists which operation precedes which."""

UNMINIMISED_MAX = 40
"""Maximum number of operations that a witness shows if its window could not be minimised."""

SEARCH_STEPS_MAX = 20_000_000
"""Maximum number of steps of one search while a window is minimised.

If a search needs more, it decides nothing, and the window stays larger."""

PLAIN_STEPS_MAX = 50_000 * STEPS_PER_PYTHON_STEP
"""Maximum number of steps of one plain search for the first answer that no order explains."""

_REFUSAL = "a refusal, or no answer yet"

_UNKNOWN = "another answer; the model failed on some that were tried, and the others are wrong as well"

_ANSWERS = (int, float, str, tuple, frozenset)
"""Types of answers that are tried.  A state of another type is not tried as an answer."""


@dataclass(frozen=True, slots=True)
class NoOrder:
    """A violation that a search found: there is no order.

    index: index of an event at which this was certain
    """

    model: Model
    index: int

    @property
    def kind(self) -> str:
        """Return the kind, as in `Witness`."""
        return NO_ORDER


@dataclass(frozen=True, slots=True)
class Decided:
    """A violation that a rule found without a search, in words, and the operations that show it.

    kind, summary: as in `Witness`
    operations: all operations on the values of the violation
    culprit: the operation whose answer is wrong
    expected: the right answer, as the end of a sentence
    smaller: model of the object, reduced to the values of the violation
    about: the values of the violation
    why: the rule as a sentence, if the summary and real time do not explain the violation; else ""
    states: states in which the reduced object may begin; None for the first state of `smaller`
    """

    kind: str
    summary: str
    operations: Sequence[Operation]
    culprit: Operation
    expected: str
    smaller: Model
    about: Sequence[Hashable] = ()
    why: str = ""
    states: Sequence[State] | None = None

    @property
    def index(self) -> int:
        """Return the index of the wrong answer."""
        return self.culprit.ret or 0


def explain(
    violation: NoOrder | Decided,
    operations: Sequence[Operation],
    budget: Budget,
    as_rows: Rows,
    patience: past.Patience,
) -> Witness:
    """Return the witness of one object's violation.  Raises Disagreement if the independent search finds an order.

    operations: all operations of the object

    The fact `under_way` lists operations that were under way when the window began; each may have happened before it,
    or never.  If patience runs out before the independent search ends, the fact `rejudged` is false.  Then the window
    of a `NoOrder` is larger than necessary, and its note states this.
    """
    patience.next_one()
    if isinstance(violation, Decided):
        return _of_rule(violation, as_rows, patience)
    return _of_search(violation.model, operations, violation.index, budget, as_rows, patience)


def _because(found: Decided, window: Sequence[Operation]) -> list[str]:
    """Return the reasons why no order of the window gives the culprit's answer: the rule, real time, and omissions."""
    why = [found.why] if found.why else []
    for later in window if len(window) <= ORDERED_MAX else ():
        first = max((o for o in window if o.ends < later.call), key=lambda o: o.ends, default=None)
        if first is not None:
            then = f"{_called(later)} was invoked (index {later.call}), so it comes first in every order"
            why.append(f"The {_called(first)} had returned (index {first.ret}) before the {then}")
    if found.about:
        matter = "matters" if len(found.about) == 1 else "matter"
        why.append(f"Only {named(found.about)} {matter} here; operations on other values are left out")
    return why


def _called(operation: Operation) -> str:
    return operation.f + ("" if operation.input is None else f" of {text_of(operation.input)}")


def _of_rule(found: Decided, as_rows: Rows, patience: past.Patience) -> Witness:
    model = patience.counted(found.smaller)
    begins = tuple(found.states) if found.states is not None else (model.init(),)
    window = tuple(sorted(found.operations, key=lambda o: o.call))
    rest, again = past.RestOfHistory(begins, window), None
    with suppress(past.OutOfPatience):
        again = past.impossible(model, window, begins)
        if again is None and found.states is None:
            rest = past.shortest_rest(
                model, window, found.culprit.call, lambda left: past.impossible(model, left.operations, left.states)
            )
            again = past.impossible(model, rest.operations, rest.states)
    if again is False:
        raise Disagreement(f"{found.summary}; yet the independent search finds an order, so nothing is claimed")
    why = [*_because(found, rest.operations), *_tried(rest.operations, again)]
    facts = _facts(found.smaller, found.culprit, rest.operations, rest, why)
    facts |= {"expected": found.expected, "rejudged": bool(again)}
    with suppress(past.OutOfPatience):
        facts |= _drawn(model, rest.operations, rest)
    return Witness(found.kind, found.summary, as_rows(rest.operations), facts=facts)


def _of_search(
    model: Model, operations: Sequence[Operation], index: int, budget: Budget, as_rows: Rows, patience: past.Patience
) -> Witness:
    counted = patience.counted(model)
    answered = frozenset(o.call for o in operations if o.returned)
    try:
        found = _smallest(counted, operations, index, budget, patience)
        again = past.impossible(counted, found.window, found.rest.states)
    except past.OutOfPatience:
        return _unminimised(model, operations, index, answered, as_rows)
    if again is False:
        raise Disagreement("the model's search and the independent search disagree about a window")
    why = [*_story(model, found, answered), *_tried(found.window, again)]
    shown = replace(found.rest, states=found.rest.states[:STATES_TOLD])
    facts = _facts(model, found.culprit, found.window, shown, why) | {"rejudged": bool(again)}
    try:
        facts["expected"], failures = _expected(counted, found, budget, patience)
        if failures:
            facts["note"] = failures
        facts |= _drawn(counted, found.window, found.rest)
    except past.OutOfPatience:
        facts.setdefault("expected", _REFUSAL)
    summary = f"No order of the operations{_on(found.culprit)} explains {model.describe(found.culprit)}"
    return Witness(NO_ORDER, f"{summary} (index {found.culprit.ret})", as_rows(found.window), facts=facts)


def _on(culprit: Operation) -> str:
    return "" if culprit.key is None else f" on {culprit.key}"


def _facts(
    model: Model, culprit: Operation, window: Sequence[Operation], rest: past.RestOfHistory, why: Sequence[str]
) -> dict[str, Any]:
    """Return the facts that every witness has.

    rest: contains the first states of the window and the operations that were under way then
    """
    letters = {str(o.call): letter(place) for place, o in enumerate(window)}
    return {
        "key": culprit.key,
        "states_before": [past.in_words(model, state) for state in rest.states],
        "why": why,
        "letters": letters,
        "culprit": letters[str(culprit.call)],
        "under_way": [name for call, name in letters.items() if int(call) in rest.under_way],
        "model": model.name,
    }


def _tried(window: Sequence[Operation], again: bool | None) -> list[str]:
    """Return the sentences that the independent search adds to a witness.

    again: True if the independent search found no order either
    """
    tried = f"every order of these {len(window)} operations" if len(window) > 1 else "this operation by itself"
    return [f"An independent search tried {tried} and found none that fits"] if again else []


def _drawn(model: Model, window: Sequence[Operation], rest: past.RestOfHistory) -> dict[str, Any]:
    order = past.longest_order(model, window, rest.states)
    return {} if order is None else {"order": order}


@dataclass(frozen=True, slots=True)
class _Reduced:
    """A reduced history.

    culprit: the operation whose answer no order explains
    cut: the history up to the culprit's answer
    rest: the cut with its past replaced by states
    window: the operations of `rest` that the violation needs
    """

    culprit: Operation
    cut: Sequence[Operation]
    rest: past.RestOfHistory
    window: Sequence[Operation]


def _smallest(
    model: Model, operations: Sequence[Operation], index: int, budget: Budget, patience: past.Patience
) -> _Reduced:
    """Return the smallest window that was found.  Raises OutOfPatience.

    index: index of an event at which the search was certain
    """
    index = _first_impossible(model, operations, index, budget, patience)
    cut = [o for o in cut_at(operations, index) if o.returned or o.f not in model.observers]
    [culprit] = [o for o in cut if o.ret == index]
    rest = past.shortest_rest(
        model, cut, culprit.call, lambda left: past.impossible(model, left.operations, left.states)
    )
    window = list(rest.operations)
    if len(window) <= past.SEARCHED_MAX:
        window = _drop_observers(model, window, rest.states, culprit)
    return _Reduced(culprit, cut, rest, window)


def _story(model: Model, found: _Reduced, answered: frozenset[int]) -> list[str]:
    """Return sentences about the states before the window and about each operation of the window."""
    states, under_way = found.rest.states, found.rest.under_way
    before = [past.in_words(model, state) for state in states[:STATES_TOLD]]
    more = f" or one of {len(states) - STATES_TOLD} other states" if len(states) > STATES_TOLD else ""
    told = (
        [f"Before the window the object held {' or '.join(before)}{more}"] if len(found.window) < len(found.cut) else []
    )
    for place, o in enumerate(found.window):
        told.append(f"{letter(place)}: {_in_words(model, o, o.call in answered, o.call in under_way)}")
    return told


def _unminimised(
    model: Model, operations: Sequence[Operation], index: int, answered: frozenset[int], as_rows: Rows
) -> Witness:
    """Return a witness that was not minimised: the last operations up to the event at which the search was certain."""
    cut = [o for o in cut_at(operations, index) if o.returned or o.f not in model.observers]
    culprit = max((o for o in cut if o.returned), key=lambda o: o.ret or 0, default=cut[-1])
    shown = cut[-UNMINIMISED_MAX:]
    if culprit not in shown:
        shown = [culprit, *shown]
    rest = past.RestOfHistory((model.init(),), tuple(cut))
    why = _story(model, _Reduced(culprit, cut, rest, shown), answered)
    if len(shown) < len(cut):
        rest = replace(rest, states=())
        why[0] = f"The last {len(shown)} of {len(cut)} operations are shown"
    facts = _facts(model, culprit, shown, rest, why) | {"rejudged": False, "expected": _REFUSAL}
    facts["note"] = "this window is not the smallest one: the budget of steps for explanations ran out"
    summary = f"No order of the operations{_on(culprit)} explains all answers up to index {index}"
    return Witness(NO_ORDER, summary, as_rows(shown), facts=facts)


def _in_words(model: Model, operation: Operation, answered: bool, under_way: bool) -> str:
    if answered and under_way:
        given = past.words_of(operation.input)
        return f"{operation.f} of {given}, which was under way before this window and may have happened"
    if answered and not operation.returned:
        return f"{operation.f} of {past.words_of(operation.input)}, which was answered after this window"
    return model.describe(operation)


def _judged(
    model: Model, operations: Sequence[Operation], budget: Budget, patience: past.Patience, steps_max: int
) -> bool | None:
    answer = judge_object(model, operations, replace(budget, steps=min(budget.steps, steps_max)))
    if answer.compiled:
        patience.spend_compiled(answer.steps)
    return answer.linearizable


def _first_impossible(
    model: Model, operations: Sequence[Operation], certain: int, budget: Budget, patience: past.Patience
) -> int:
    """Return the index of the first answer that no order explains.

    certain: a lower bound of this index

    A search may be certain before the first such answer, because the compiled search and `Model.canonical` use later
    events.  The plain search uses few later events, so its index is a better lower bound, and mostly the right index.
    Later answers are tried in steps that double.
    """
    kept = [o for o in operations if o.returned or o.f not in model.observers]
    plain_budget = replace(budget, steps=min(budget.steps, PLAIN_STEPS_MAX))
    plain = plain_search(model, kept, plain_budget)
    if plain.linearizable is False:
        certain = max(certain, plain.index)
    returns = sorted(o.ret for o in operations if o.ret is not None and o.ret >= certain)

    def impossible_at(place: int) -> bool:
        cut = cut_at(operations, returns[place])
        if plain.linearizable is False:
            waiting = [o for o in cut if o.returned or o.f not in model.observers]
            if (again := plain_search(model, waiting, plain_budget).linearizable) is not None:
                return not again
        return _judged(model, cut, budget, patience, SEARCH_STEPS_MAX) is False

    return returns[first_that_holds(0, len(returns) - 1, impossible_at, times=2)]


def _drop_observers(
    model: Model, window: Sequence[Operation], states: Sequence[State], culprit: Operation
) -> list[Operation]:
    observers = [o for o in window if o.f in model.observers and o is not culprit]

    def without(piece: Sequence[Operation], rest: list[Operation]) -> list[Operation]:
        return [o for o in rest if not any(o is dropped for dropped in piece)]

    return drop_in_pieces(
        observers, list(window), without, lambda rest: bool(past.impossible(model, rest, states)), piece_most=1
    )


def _expected(model: Model, found: _Reduced, budget: Budget, patience: past.Patience) -> tuple[str, str]:
    """Try other answers of the culprit.  An answer is right if an order explains the history with this answer.

    Returns (the right answers in words, a sentence about answers on which the model failed, or "").  A model need not
    support an answer that its object never gave, and may raise any exception.  Such an answer is neither right nor
    wrong.  Raises OutOfPatience if patience runs out before a right answer is found.
    """
    right: list[Hashable] = []
    failures: list[str] = []
    for candidate in _candidates(model, found):
        other = replace(found.culprit, output=candidate)
        try:
            if _explained(model, found, other, budget, patience):
                right.append(candidate)
        except past.OutOfPatience:
            if not right:
                raise
            break
        except (BadModel, WrongOperation) as failure:
            failures.append(str(failure))
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    said = f"An answer{more} could not be tried in place of the wrong one: {failures[0]}" if failures else ""
    if not right:
        return _UNKNOWN if failures else _REFUSAL, said
    more = f" or one of {len(right) - ANSWERS_NAMED} others" if len(right) > ANSWERS_NAMED else ""
    return f"an answer of {' or '.join(past.words_of(answer) for answer in right[:ANSWERS_NAMED])}{more}", said


def _candidates(model: Model, found: _Reduced) -> list[Hashable]:
    """Return the answers to try: final states of orders of the other operations, and earlier inputs and outputs."""
    cut, rest, culprit = found.cut, found.rest, found.culprit
    without = [o for o in rest.operations if o is not culprit]
    if culprit.f not in model.observers:
        without.append(replace(culprit, output=None, ret=None))
    states = [s for s in past.reachable(model, without, rest.states) if isinstance(s, _ANSWERS)]
    candidates: list[Hashable] = [*states, *(o.input for o in rest.operations), None]
    earlier = [o for o in reversed(cut) if o.call < culprit.call]
    candidates += [o.output for o in earlier if o.f == culprit.f and o.returned] + [o.input for o in earlier]
    candidates = list(dict.fromkeys(c for c in candidates if c != culprit.output))
    return candidates[: CANDIDATES_MAX if rest.exact else max(1, OPERATIONS_TRIED // len(cut))]


def _explained(model: Model, found: _Reduced, other: Operation, budget: Budget, patience: past.Patience) -> bool:
    """Return True if an order is known in which the culprit has another answer.

    If no operation was under way where the rest begins, the rest decides.  Otherwise an order of the rest proves
    nothing, and the history up to the culprit is judged, with all reads, because a read may rule out the answer.

    other: the culprit with the other answer
    """
    if found.rest.exact:
        operations = [other if o.call == other.call else o for o in found.rest.operations]
        return past.impossible(model, operations, found.rest.states, CONFIGURATIONS_PER_CANDIDATE) is False
    operations = [other if o.call == other.call else o for o in found.cut]
    return _judged(model, operations, budget, patience, steps_first(len(operations))) is True
