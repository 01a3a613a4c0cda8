"""Content of a witness of a small model besides its window: the longest legal order, and right answers."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from simulated_objects import Simulated, every_state_before, history

from checkers.base import independent_search as search
from checkers.base.checker import Budget
from checkers.base.history import Event, Type
from checkers.by_hand import judge_events
from checkers.models import witnesses
from checkers.models.model import REFUSED, Model, Operation, operations_of, plain
from checkers.models.objects.counter import COUNTER
from checkers.models.search import cut_at, judge_object

KEEPER = Model("keeper", init=lambda: 0, step=lambda s, o: _kept(s, o), observers=frozenset({"read"}))


def _kept(state: Any, operation: Operation) -> Any:
    """A register whose swaps answer with the previous value."""
    if operation.f == "read":
        return state if operation.output == state else REFUSED
    if operation.f == "swap":
        return operation.input if not operation.returned or operation.output == state else REFUSED
    return operation.input


def random_history(rng: Random, functions: Sequence[str], count: int) -> list[Event]:
    """Operations of three processes whose answers are guesses: most of these histories have no order."""
    events: list[Event] = []
    busy: dict[int, tuple[str, int]] = {}
    invoked = 0
    while invoked < count or busy:
        process = rng.randrange(3)
        index = len(events)
        if process in busy:
            f, given = busy.pop(process)
            answer = rng.randrange(4) if f in ("read", "swap") else given
            events.append(Event(index, 0, process, Type.OK, f, None, answer))
        elif invoked < count:
            f, given = rng.choice(functions), rng.randrange(1, 4)
            busy[process] = f, given
            events.append(Event(index, 0, process, Type.INVOKE, f, None, None if f == "read" else given))
            invoked += 1
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
    checked = 0
    for operations, facts, index in without_order(model, functions, 150):
        words = facts["expected"].removeprefix("an answer of ")
        for word in words.split(" or ") if words != facts["expected"] else ():
            if "others" in word:
                continue
            answer = ast.literal_eval(word)
            other = [replace(o, output=answer) if o.ret == index else o for o in operations]
            assert judge_object(model, cut_at(other, index), Budget()).linearizable, facts
            checked += 1
    assert checked > 100


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


@pytest.mark.parametrize(("model", "functions"), CASES, ids=lambda case: getattr(case, "name", ""))
def test_the_window_ends_at_the_first_answer_that_brute_force_cannot_explain(
    model: Model, functions: Sequence[str]
) -> None:
    rng, invalid = Random(6), 0
    for _ in range(400):
        events = random_history(rng, functions, rng.randint(2, 6))
        operations = operations_of(events)
        returns = sorted(o.ret for o in operations if o.ret is not None)
        first = next((i for i in returns if not every_state_before(model, cut_at(operations, i), i)), None)
        witnesses = judge_events(events, model).witnesses
        assert bool(witnesses) == (first is not None), events
        for witness in witnesses:
            assert witness.facts["rejudged"] is True
            assert f"(index {first})" in witness.summary
            invalid += 1
    assert 50 < invalid < 390


def test_a_model_that_fails_on_an_answer_that_was_tried_is_reported_in_the_witness() -> None:
    def strict(state: Any, operation: Operation) -> Any:
        if operation.f == "read":
            return state if operation.output + 0 == state else REFUSED  # None + 0 raises
        return operation.input

    model = Model("strict", init=lambda: 0, step=strict, observers=frozenset({"read"}))
    events = [Event(0, 0, 0, Type.INVOKE, "read", None), Event(1, 0, 0, Type.OK, "read", None, 3)]
    [witness] = judge_events(events, model).witnesses
    assert witness.facts["expected"] == "an answer of 0"
    note = witness.facts["note"]
    assert note.startswith("An answer could not be tried in place of the wrong one: the model strict failed on read()")
    assert "(index 0): TypeError" in note


def test_where_the_model_fails_on_every_other_answer_the_witness_does_not_claim_that_none_is_right() -> None:
    def stricter(state: Any, operation: Operation) -> Any:
        if operation.f == "read" and operation.output != 3:
            raise KeyError(operation.output)
        return REFUSED if operation.f == "read" else operation.input

    model = Model("stricter", init=lambda: 0, step=stricter, observers=frozenset({"read"}))
    events = [Event(0, 0, 0, Type.INVOKE, "read", None), Event(1, 0, 0, Type.OK, "read", None, 3)]
    [witness] = judge_events(events, model).witnesses
    assert "the model failed" in witness.facts["expected"]
    assert "KeyError" in witness.facts["note"]


def test_a_mistake_of_the_harness_is_not_taken_for_one_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(witnesses, "_explained", broken)
    events = [Event(0, 0, 0, Type.INVOKE, "read", None), Event(1, 0, 0, Type.OK, "read", None, 3)]
    with pytest.raises(ZeroDivisionError):
        judge_events(events, KEEPER)


def test_a_state_is_written_the_same_in_every_process() -> None:
    assert plain((frozenset({"b", "a"}), (1,), (), None, ("x", 2))) == "({'a', 'b'}, (1,), (), nil, ('x', 2))"


def test_a_witness_that_cannot_be_minimised_ends_with_the_first_answer_that_no_order_explains() -> None:
    """Sums are even, and one read among thousands is odd.  Such a read makes every state before it hopeless."""
    sums = Simulated(
        0,
        lambda rng, _: rng.choice([("add", 2), ("add", 4), ("add", -2), ("read", None), ("read", None)]),
        lambda state, f, value: (state, state) if f == "read" else (state + value, value),
        lambda rng, f, was: was,
    )
    events = history(sums, Random(1), 1200, 8, 0.005, 0)
    wrong = next(e.index for e in events[len(events) // 2 :] if e.type is Type.OK and e.f == "read")
    events[wrong] = replace(events[wrong], value=events[wrong].value + 1)  # type: ignore[operator]
    (witness,) = judge_events(events, "counter").witnesses
    assert wrong in {row["index"] for row in witness.events}
    assert f"index {wrong}" in witness.summary
