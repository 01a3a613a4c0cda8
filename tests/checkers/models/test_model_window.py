"""What a witness of a small model says besides its window: the longest legal order, and answers that were right."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from checkers.base import independent_search as search
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.by_hand.judge_events import judge_events
from checkers.models.model import REFUSED, Model, Operation, operations_of, plain
from checkers.models.objects.counter import COUNTER
from checkers.models.search import cut_at, judge_object

KEEPER = Model("keeper", init=lambda: 0, step=lambda s, o: _kept(s, o), observers=frozenset({"read"}))


def _kept(state: Any, operation: Operation) -> Any:
    """A register whose swaps answer with what was there before."""
    if operation.f == "read":
        return state if operation.output == state else REFUSED
    if operation.f == "swap":
        return operation.input if not operation.returned or operation.output == state else REFUSED
    return operation.input


def random_history(rng: Random, functions: Sequence[str], count: int) -> list[Event]:
    """Operations of three processes whose answers are guesses: most of these histories have no order."""
    events: list[Event] = []
    busy: dict[int, tuple[str, int]] = {}
    asked = 0
    while asked < count or busy:
        process = rng.randrange(3)
        index = len(events)
        if process in busy:
            f, given = busy.pop(process)
            answer = rng.randrange(4) if f in ("read", "swap") else given
            events.append(Event(index, 0, process, Type.OK, f, None, answer))
        elif asked < count:
            f, given = rng.choice(functions), rng.randrange(1, 4)
            busy[process] = f, given
            events.append(Event(index, 0, process, Type.INVOKE, f, None, None if f == "read" else given))
            asked += 1
    return events


def without_order(
    model: Model, functions: Sequence[str], wanted: int
) -> list[tuple[list[Operation], dict[str, Any], int]]:
    """(operations, facts, index of the answer that no order explains) of histories without any."""
    rng, found = Random(5), []
    while len(found) < wanted:
        events = random_history(rng, functions, rng.randint(2, 9))
        verdict = judge_events(events, model)
        if not verdict.witnesses:
            continue
        [witness] = verdict.witnesses
        facts = dict(witness.facts)
        call = next(int(c) for c, letter in facts["letters"].items() if letter == facts["culprit"])
        operations = operations_of(events)
        [culprit] = [o for o in operations if o.call == call]
        assert culprit.ret is not None
        found.append((operations, facts, culprit.ret))
    return found


CASES = [(KEEPER, ("read", "write", "swap")), (COUNTER, ("read", "add"))]


@pytest.mark.parametrize(("model", "functions"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_what_is_called_right_would_have_been_right_in_the_whole_history(
    model: Model, functions: Sequence[str]
) -> None:
    told = 0
    for operations, facts, index in without_order(model, functions, 150):
        words = facts["expected"].removeprefix("an answer of ")
        for word in words.split(" or ") if words != facts["expected"] else ():
            if "others" in word:
                continue
            answer = ast.literal_eval(word)
            other = [replace(o, output=answer) if o.ret == index else o for o in operations]
            assert judge_object(model, cut_at(other, index), Budget()).linearizable, facts
            told += 1
    assert told > 100


@pytest.mark.parametrize(("model", "functions"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_the_longest_order_is_legal_and_lacks_something_that_was_answered(
    model: Model, functions: Sequence[str]
) -> None:
    for operations, facts, index in without_order(model, functions, 150):
        window = {
            o.call: replace(o, output=None, ret=None) if facts["letters"][str(o.call)] in facts["under_way"] else o
            for o in cut_at(operations, index)
            if str(o.call) in facts["letters"]
        }
        order = [window[step["call"]] for step in facts["order"]["steps"]]
        left = [o for o in window.values() if o not in order]
        assert any(o.returned for o in left)
        for place, operation in enumerate(order):
            still = [*order[place + 1 :], *left]
            assert all(o.ret is None or o.ret > operation.call for o in still), "real time is respected"
        state: Any = ast.literal_eval(facts["order"]["begins"])
        for operation, step in zip(order, facts["order"]["steps"], strict=True):
            state = model.step(state, operation)
            assert repr(state) == step["holds"]
        assert len(order) == len(window) or not search.linearizable(
            list(window.values()),
            [ast.literal_eval(w) for w in facts["states_before"]],
            model.step,  # type: ignore[arg-type]
        )


def test_a_state_is_told_the_same_in_every_process() -> None:
    assert plain((frozenset({"b", "a"}), (1,), (), None, ("x", 2))) == "({'a', 'b'}, (1,), (), None, ('x', 2))"
