"""The past of a small object, replaced by its possible resulting states: never creating a violation, and short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest
from simulated_objects import OBJECTS, event, every_state_before, history, one_process

from checkers.base import independent_search as search
from checkers.base.history import Event, Type
from checkers.base.verdict import Witness
from checkers.by_hand import judge_events
from checkers.models.model import REFUSED, Model, Operation, operations_of
from checkers.models.objects.counter import COUNTER
from checkers.models.objects.queue import QUEUE
from checkers.models.past import RestOfHistory, shortest_rest, states_at_calls
from checkers.registers.judge_history import CAS_REGISTER

MODELS = {"queue": QUEUE, "counter": COUNTER, "register": CAS_REGISTER}


def has_order(model: Model, rest: RestOfHistory) -> bool:
    return search.linearizable(
        cast(Sequence[search.RegisterOperation], rest.operations), rest.states, cast(search.Model, model.step)
    )


@pytest.mark.parametrize("name", MODELS)
def test_no_violation_is_made_and_none_is_lost(name: str) -> None:
    model, rng = MODELS[name], Random(name)
    simulated = OBJECTS[name].make(rng)
    seen = {True: 0, False: 0}
    shorter = 0
    for _ in range(250):
        events = history(
            simulated, rng, rng.randint(3, 14), rng.randint(1, 4), rng.choice([0, 0.2]), rng.choice([0, 1])
        )
        operations = [o for o in operations_of(events) if o.returned or o.f not in model.observers]
        whole = RestOfHistory((model.init(),), tuple(operations))
        right = has_order(model, whole)
        tried: list[RestOfHistory] = []

        def impossible(rest: RestOfHistory, tried: list[RestOfHistory] = tried) -> bool:
            tried.append(rest)
            return not has_order(model, rest)

        rest = shortest_rest(model, operations, 10**9, impossible)
        if right:
            assert rest == whole
            assert all(has_order(model, each) for each in tried)
        else:
            assert not has_order(model, rest)
            shorter += len(rest.operations) < len(operations)
        seen[right] += 1
    assert min(seen.values()) > 20, seen
    assert shorter > seen[False] / 2


def states_after_some(model: Model, state: Any, under_way: Sequence[Operation]) -> set[Any]:
    """Return the states after any of the open operations, in any order, from one state."""
    found = {state}
    for chosen in under_way:
        after = model.step(state, chosen)
        if after is not REFUSED:
            found |= states_after_some(model, after, [o for o in under_way if o is not chosen])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_states_at_every_call_are_those_of_brute_force(name: str) -> None:
    """None is made up; and each one that is missing comes of one that is there, by what was under way."""
    model, rng = MODELS[name], Random(name)
    simulated = OBJECTS[name].make(rng)
    moments = ambiguous = 0
    for _ in range(200):
        events = history(
            simulated, rng, rng.randint(2, 7), rng.randint(1, 4), rng.choice([0, 0.2]), rng.choice([0, 0, 1])
        )
        operations = [o for o in operations_of(events) if o.returned or o.f not in model.observers]
        for moment, states in states_at_calls(model, operations):
            possible = every_state_before(model, operations, moment)
            assert states <= possible, (events, moment)
            under_way = [o for o in operations if o.call < moment and (o.ret is None or o.ret > moment)]
            assert possible <= set().union(*(states_after_some(model, s, under_way) for s in states)), (events, moment)
            moments += 1
            ambiguous += len(states) > 1
    assert moments > 500
    assert ambiguous > 10


def test_states_at_a_call_are_those_some_order_has_come_to() -> None:
    two_at_once = [event(0, 0, Type.INVOKE, "write", 1), event(1, 1, Type.INVOKE, "write", 2)]
    two_at_once += [event(2, 0, Type.OK, "write", 1), event(3, 1, Type.OK, "write", 2)]
    two_at_once += [event(4, 0, Type.INVOKE, "read", None), event(5, 0, Type.OK, "read", 2)]
    moments = states_at_calls(CAS_REGISTER, operations_of(two_at_once))
    assert moments[0] == (0, frozenset({None}))
    assert moments[-1] == (4, frozenset({1, 2}))


def behind(first: Event, events: Sequence[Event]) -> list[Event]:
    return [first, *(replace(e, index=e.index + 1) for e in events)]


def witness_of(events: Sequence[Event], model: str | Model) -> Witness:
    [witness] = judge_events(events, model).witnesses
    assert witness.facts["rejudged"] is True
    return witness


def test_an_operation_never_answered_does_not_keep_the_whole_past_in_the_witness() -> None:
    right = [("enqueue", n, n) if even else ("dequeue", None, n) for n in [*range(59), 0] for even in (True, False)]
    wrong = [("enqueue", 90, 90), ("enqueue", 91, 91), ("dequeue", None, 91), ("dequeue", None, 90)]
    witness = witness_of(behind(event(0, 77, Type.INVOKE, "enqueue", 555), one_process(*right, *wrong)), "queue")
    assert [e["f"] for e in witness.events] == ["enqueue", "dequeue", "dequeue"]
    assert "(90, 91)" in witness.facts["states_before"]
    assert "A: enqueue(555), never answered" in witness.facts["why"]
    assert witness.facts["expected"] == "an answer of 555 or 90"


def test_an_operation_under_way_and_answered_later_is_shown_as_such() -> None:
    events = behind(event(0, 7, Type.INVOKE, "write", 5), one_process(("write", 1, 1), ("read", None, 1)))
    more = [event(5, 0, Type.INVOKE, "read", None), event(6, 7, Type.OK, "write", 5), event(7, 0, Type.OK, "read", 9)]
    witness = witness_of(events + more, CAS_REGISTER)
    assert witness.facts["states_before"] == ["1", "5"] or witness.facts["states_before"] == ["1"]
    assert "A: write of 5, which was under way before this window and may have happened" in witness.facts["why"]
    assert witness.facts["expected"] == "an answer of 1 or 5"
